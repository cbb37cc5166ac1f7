import json
import math
import re
import shutil
from dataclasses import asdict

import numpy as np
import onnx
import pytest
from evaluations import evaluate_model
from kfp import dsl
from sklearn.metrics import (
    average_precision_score,
    confusion_matrix,
    log_loss,
    precision_recall_fscore_support,
    roc_auc_score,
)

from kfp_distributed.components.evaluate.classification import log_classification_metrics, metric_values
from kfp_distributed.components.evaluate.evaluation import run_evaluation
from kfp_distributed.components.evaluate.scoring.calibration import Calibration
from kfp_distributed.components.evaluate.scoring.classification_scores import Evaluation, Scores
from kfp_distributed.components.evaluate.scoring.mistakes import WorstMistakes
from kfp_distributed.components.evaluate.scoring.spool import ScoreSpool
from kfp_distributed.components.evaluate.weights import check_weights
from kfp_distributed.storage.dataset import Column
from kfp_distributed.storage.files import describe_folder
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelIncomplete, ModelManifest

pytestmark = pytest.mark.takes(8)

IMAGES = [None, 4, 4]


@pytest.fixture
def tf():
    """TensorFlow, which is not imported with this file, because each process of pytest-xdist imports the file."""
    import tensorflow

    return tensorflow


@pytest.fixture
def expected(pictures, linear):
    """The probabilities of the linear model for the pictures, and the scores of its predictions."""
    images, labels, _ = pictures
    values = np.exp(images.reshape(-1, 16).astype(np.float64) @ linear[1])
    probabilities = values / values.sum(axis=1, keepdims=True)
    confusion = confusion_matrix(labels, probabilities.argmax(axis=1))
    return probabilities, Scores(("ant", "bee", "cat"), confusion, log_loss(labels, probabilities))


def test_scores_go_to_kfp_and_into_the_report(pictures, linear, expected, tmp_path):
    metrics, classification, report = dsl.Metrics(), dsl.ClassificationMetrics(), tmp_path / "report.html"
    verdict = run_evaluation(str(linear[0]), str(pictures[2]), metrics, classification, str(report))

    probabilities, expected_scores = expected
    labels, predicted = pictures[1], probabilities.argmax(axis=1)
    assert verdict == (expected_scores.accuracy, True)
    precision, recall, f1, _ = precision_recall_fscore_support(labels, predicted)
    truth, names = np.eye(3)[labels], ("ant", "bee", "cat")
    assert metrics.metadata == pytest.approx(
        {
            "accuracy": expected_scores.accuracy,
            "loss": expected_scores.loss,
            "examples": 60,
            "macro_f1": f1.mean(),
            "roc_auc": roc_auc_score(truth, probabilities),
            "average_precision": average_precision_score(truth, probabilities),
            "calibration_error": metrics.metadata["calibration_error"],
            **{f"precision_{name}": value for name, value in zip(names, precision, strict=True)},
            **{f"recall_{name}": value for name, value in zip(names, recall, strict=True)},
        },
        abs=1e-6,
    )
    assert classification.metadata["confusionMatrix"] == {
        "annotationSpecs": [{"displayName": name} for name in names],
        "rows": [{"row": row} for row in expected_scores.confusion.tolist()],
    }
    roc = classification.metadata["confidenceMetrics"]
    assert {frozenset(point) for point in roc} == {frozenset({"confidenceThreshold", "recall", "falsePositiveRate"})}
    area = np.trapezoid([point["recall"] for point in roc], [point["falsePositiveRate"] for point in roc])
    assert area == pytest.approx(roc_auc_score(truth, probabilities, average="micro"), abs=0.005)
    thresholds = [point["confidenceThreshold"] for point in roc]
    assert thresholds == sorted(thresholds, reverse=True)
    json.dumps([metrics.metadata, classification.metadata], allow_nan=False)
    text = report.read_text()
    wrong = np.flatnonzero(predicted != labels)
    worst = sorted(wrong, key=lambda row: -probabilities[row, predicted[row]])[:12]
    assert [int(row) for row in re.findall(r"<figcaption>row (\d+): ", text)] == worst
    assert text.count("<img ") == 12


def test_a_split_of_one_class_has_no_roc_curve(tf, write_dataset, save_model):
    dataset = write_dataset([Column("image", "tensor", "uint8", (4, 4))], [np.zeros((4, 4, 4))], np.zeros(4, int))
    model = save_model(constant(0.5, 0.25, 0.25)(tf), (IMAGES, "float32", "features"))
    evaluation, _ = evaluate_model(model, dataset)
    metrics = metric_values(evaluation)
    assert metrics == pytest.approx(
        {
            "accuracy": 1.0,
            "loss": math.log(2),
            "examples": 4,
            "macro_f1": 1.0,
            "average_precision": 1.0,
            "calibration_error": 0.5,
            "precision_ant": 1.0,
            "recall_ant": 1.0,
        }
    )


def test_many_classes_have_no_matrix_in_kfp():
    spool, scores = ScoreSpool(101), Scores(tuple(map(str, range(101))), np.eye(101, dtype=int), 0.5)
    spool.add(np.eye(101), np.arange(101))
    artifact = dsl.ClassificationMetrics()
    log_classification_metrics(Evaluation(scores, spool, Calibration(), WorstMistakes(1)), artifact)
    assert artifact.metadata == {
        "confidenceMetrics": [
            {"confidenceThreshold": 1.0, "recall": 0.0, "falsePositiveRate": 0.0},
            {"confidenceThreshold": 1.0, "recall": 1.0, "falsePositiveRate": 0.0},
            {"confidenceThreshold": 0.0, "recall": 1.0, "falsePositiveRate": 1.0},
        ]
    }


def test_a_class_of_many_has_a_bound_and_no_metric_in_kfp(tf, write_dataset, save_model, tmp_path):
    labels, classes = np.arange(202) % 101, tuple(f"c{index}" for index in range(101))
    columns = [Column("x", "number", "float32")]
    dataset = write_dataset(columns, [np.where(labels == 7, 8, labels).astype(np.float32)], labels, classes)
    model = save_model(
        lambda features: {"probabilities": tf.one_hot(tf.cast(features[:, 0], tf.int32), 101)},
        ([None, 1], "float32", "features"),
    )
    metrics, report = dsl.Metrics(), str(tmp_path / "report.html")
    arguments = (str(model), str(dataset), metrics, dsl.ClassificationMetrics(), report)
    assert run_evaluation(*arguments, "precision_c8", 0.6) == (0.5, False)
    assert run_evaluation(*arguments, "recall_c8", 0.6) == (1.0, True)
    assert {name for name in metrics.metadata if name.startswith(("precision_", "recall_"))} == set()
    with pytest.raises(ValueError, match="the metric 'precision_c7' is undefined for the rows of this dataset"):
        run_evaluation(*arguments, "precision_c7")


def test_inputs_and_outputs_may_have_any_name_and_be_integers(tf, pictures, linear, save_model):
    weights = linear[1]

    def predict(pixels):
        values = tf.cast(tf.reshape(pixels, [-1, 16]), tf.float32)
        return {"scores": tf.nn.softmax(values @ weights)}

    model = save_model(predict, ([None, 4, 4, 1], "uint8", "pixels"))
    evaluation, expected = (evaluate_model(folder, pictures[2])[0] for folder in (model, linear[0]))
    assert evaluation.summary() == expected.summary()
    assert evaluation.mistakes == expected.mistakes


@pytest.fixture
def numbers(write_dataset):
    """Rows of two numbers, some of them missing, in two classes."""
    random = np.random.default_rng(2)
    first, second = random.normal(size=(2, 50)).astype(np.float32)
    labels = (first > 0).astype(int)
    second[::5] = np.nan
    columns = [Column("first", "number", "float32"), Column("second", "number", "float32")]
    return write_dataset(columns, [first, second], labels, ("no", "yes"))


def test_two_classes_by_a_sigmoid_with_missing_numbers(tf, numbers, save_model):
    def predict(features):
        known = tf.where(tf.math.is_nan(features), 0.0, features)
        return {"probabilities": tf.sigmoid(10 * known[:, :1])}

    evaluation, _ = evaluate_model(save_model(predict, ([None, 2], "float32", "features")), numbers)
    assert evaluation.scores.confusion.trace() == evaluation.scores.rows == 50
    assert evaluation.roc_curve().roc_auc == 1


def test_a_model_that_returns_nan_gets_no_scores(tf, numbers, save_model, tmp_path):
    def predict(features):
        return {"probabilities": tf.sigmoid(features[:, :1] + features[:, 1:])}

    model = save_model(predict, ([None, 2], "float32", "features"))
    metrics, classification, report = dsl.Metrics(), dsl.ClassificationMetrics(), tmp_path / "report.html"
    with pytest.raises(
        ValueError,
        match=r"for 10 of 50 rows, first for row 0\. These rows have missing "
        r"values in 'second' \(10 rows\)\. .*learning rate",
    ):
        run_evaluation(str(model), str(numbers), metrics, classification, str(report))
    assert (metrics.metadata, classification.metadata, report.exists()) == ({}, {}, False)


def model_that_hides_nan(tf, save_model):
    """A SavedModel with NaN weights and finite outputs: on a CPU, TensorFlow's ReLU turns NaN into 0."""
    kernel = tf.Variable([[math.nan, math.nan], [math.nan, math.nan]])

    def predict(features):
        return {"probabilities": tf.nn.softmax(tf.nn.relu(tf.zeros_like(features) @ kernel))}

    return save_model(predict, ([None, 2], "float32", "features"), weights=[kernel, tf.Variable([1.0])])


def onnx_with_nan(folder, kind=onnx.TensorProto.FLOAT, shape=(2, 2)):
    def tensor(name, *shape):
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)

    nodes = [onnx.helper.make_node("Cast", ["constant"], ["kernel"], to=onnx.TensorProto.FLOAT)]
    nodes.append(onnx.helper.make_node("Mul" if shape == () else "MatMul", ["features", "kernel"], ["sum"]))
    nodes.append(onnx.helper.make_node("Softmax", ["sum"], ["probabilities"]))
    kernel = onnx.helper.make_tensor("constant", kind, shape, [math.nan] * math.prod(shape))
    ends = [tensor("features", None, 2)], [tensor("probabilities", None, 2)]
    graph = onnx.helper.make_graph(nodes, "classifier", *ends, [kernel])
    opsets = [onnx.helper.make_opsetid("", 17)]
    folder.mkdir()
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), str(folder / "model.onnx"))
    (folder / MODEL_MANIFEST).write_text(ModelManifest(files=describe_folder(folder)).to_json())
    return folder


def test_a_model_with_nan_weights_is_refused_whatever_it_returns(tf, numbers, save_model, tmp_path):
    with pytest.raises(ValueError, match=r"^1 of 2 weight tensors of the model have NaN\. .*learning rate"):
        evaluate_model(model_that_hides_nan(tf, save_model), numbers)
    with pytest.raises(ValueError, match=r"^1 of 1 weight tensors of the model have NaN"):
        evaluate_model(onnx_with_nan(tmp_path / "onnx"), numbers)
    with pytest.raises(ValueError, match=r"^1 of 1 weight tensors of the model have NaN"):
        check_weights(onnx_with_nan(tmp_path / "bfloat16", onnx.TensorProto.BFLOAT16))
    check_weights(onnx_with_nan(tmp_path / "constant", shape=()))


def test_a_keras_model_may_keep_an_optimizer_and_metrics_that_are_nan(tf, tmp_path):
    tf_keras = pytest.importorskip("tf_keras")
    model = tf_keras.Sequential([tf_keras.layers.Dense(2, "softmax", input_shape=(2,))])
    model.compile("adam", "sparse_categorical_crossentropy")
    best = model.get_weights()
    model.fit(np.full((4, 2), math.nan, np.float32), np.zeros(4), verbose=0)
    model.set_weights(best)  # As EarlyStopping(restore_best_weights=True) does.
    model.save(tmp_path)
    saved = tf.train.load_checkpoint(str(tmp_path / "variables" / "variables"))
    assert any(np.isnan(saved.get_tensor(name)).any() for name in saved.get_variable_to_shape_map() if "/" in name)
    check_weights(tmp_path)


def trained_on(*columns, classes=("ant", "bee", "cat")):
    return {"columns": tuple(map(asdict, columns)), "label": {"name": "kind", "classes": classes}}


def test_a_model_of_the_same_columns_with_other_statistics(tf, pictures, save_model):
    manifest = trained_on(Column("image", "tensor", "uint8", (4, 4), mean=3.5, std=2.0))
    model = save_model(constant(1.0, 0.0, 0.0)(tf), (IMAGES, "float32", "features"), **manifest)
    assert evaluate_model(model, pictures[2])[0].scores.rows == 60


def test_columns_are_read_in_the_order_in_which_the_model_takes_them(tf, numbers, save_model):
    def predict(features):
        return {"probabilities": tf.sigmoid(10 * features[:, 1:])}

    columns = [Column(name, "number", "float32") for name in ("second", "first")]
    manifest = trained_on(*columns, classes=("no", "yes"))
    model = save_model(predict, ([None, 2], "float32", "features"), **manifest)
    assert evaluate_model(model, numbers)[0].scores.accuracy == 1


def constant(*values):
    """Return a function of TensorFlow, which returns the function of a model that gives each row these values."""
    return lambda tf: lambda features: {"probabilities": tf.tile([list(values)], [tf.shape(features)[0], 1])}


@pytest.mark.parametrize(
    ("predict", "inputs", "manifest", "message"),
    [
        (constant(0.5, 0.5), [(IMAGES, "float32", "features")], {}, r"\[30, 2\] for a batch of 30 rows"),
        (constant(math.nan, 0.0, 0.0), [(IMAGES, "float32", "features")], {}, "infinite numbers for 60 of 60 rows"),
        (
            lambda tf: lambda features: {"probabilities": tf.reshape(features, [tf.shape(features)[0], 7])},
            [(IMAGES, "float32", "features")],
            {},
            r"the model failed: save it with a signature .*InvalidArgumentError",
        ),
        (
            lambda tf: lambda words: {"probabilities": tf.strings.length(words)},
            [(IMAGES, "string", "words")],
            {},
            "the model's input 'words' takes texts, and the dataset has numbers for it: save the model with an input",
        ),
        (constant(3.0, -1.0, 0.0), [(IMAGES, "float32", "features")], {}, "not probabilities"),
        (constant(1.0, 0.0, 0.0), [([None, 28, 28], "float32", "features")], {}, r"28\), where \(None, 4, 4\)"),
        (constant(1.0, 0.0, 0.0), [([32, 4, 4], "float32", "features")], {}, r"is of shape \(32, 4, 4\), where"),
        (
            lambda tf: lambda a, b: {"x": a, "y": b},
            [(IMAGES, "float32", "a"), (IMAGES, "float32", "b")],
            {},
            r"inputs are \['a', 'b'\], and the columns of the dataset are \['image'\]: save the model with",
        ),
        (constant(1.0, 0.0, 0.0), [(IMAGES, "float32", "x")], {"signature": "predict"}, "one 'serving_default'"),
        (
            constant(1.0, 0.0, 0.0),
            [(IMAGES, "float32", "features")],
            trained_on(Column("image", "tensor", "uint8", (4, 4)), classes=("bee", "ant", "cat")),
            r"the classes are \['ant', 'bee', 'cat'\], in the training data \['bee', 'ant', 'cat'\]",
        ),
        (
            constant(1.0, 0.0, 0.0),
            [(IMAGES, "float32", "features")],
            trained_on(Column("picture", "tensor", "uint8", (4, 4))),
            "the column 'image' did not exist and the column 'picture' is missing",
        ),
    ],
    ids=[
        "classes", "nan", "fails", "strings", "logits", "shape", "fixed batch", "two inputs", "no signature",
        "other class order",
        "other columns",
    ],
)  # fmt: skip
def test_models_that_do_not_match_the_dataset_are_refused(tf, pictures, save_model, predict, inputs, manifest, message):
    with pytest.raises(ValueError, match=message):
        evaluate_model(save_model(predict(tf), *inputs, **manifest), pictures[2])


def remove(path):
    path.unlink()


def corrupt(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(("damage", "name"), [(remove, "saved_model.pb"), (corrupt, "saved_model.pb")])
def test_damaged_models_are_refused(pictures, linear, tmp_path, damage, name):
    model = tmp_path / "model"
    shutil.copytree(linear[0], model)
    damage(model / name)
    with pytest.raises(ModelIncomplete, match=name):
        evaluate_model(model, pictures[2])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "model.pt",
            b"weights",
            r"has none of the files model.onnx, .* it has \['model.json', 'model.pt'\]: .* must be of torch.jit.save",
        ),
        ("saved_model.pb", b"no graph", "the SavedModel in .* cannot be loaded: save it with the library versions"),
        ("model.onnx", b"no graph", "model.onnx cannot be loaded: save it with the library versions"),
    ],
)
def test_a_folder_without_a_model_is_refused(pictures, tmp_path, name, content, message):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / name).write_bytes(content)
    (folder / "model.json").write_text(ModelManifest("files", describe_folder(folder)).to_json())
    with pytest.raises(ValueError, match=message):
        evaluate_model(folder, pictures[2])


@pytest.mark.parametrize("damage", [remove, corrupt])
def test_damaged_shards_are_refused(pictures, linear, damage):
    damage(pictures[2] / "part-1.parquet")
    with pytest.raises(ValueError, match=r"shards \['part-1.parquet'\] of the dataset in .* are missing or damaged"):
        evaluate_model(linear[0], pictures[2])


def test_a_folder_without_a_dataset_is_refused(linear, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"dataset\.json"):
        evaluate_model(linear[0], tmp_path)


def test_a_split_without_rows_is_refused(write_dataset, linear):
    empty = write_dataset([Column("image", "tensor", "uint8", (4, 4))], [np.zeros((0, 4, 4))], np.zeros(0, int))
    with pytest.raises(ValueError, match="split 'test' has no rows: raise its fraction"):
        evaluate_model(linear[0], empty)
