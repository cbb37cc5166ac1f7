"""Models that predict a number, as real SavedModel and ONNX files."""

import json
import re
from dataclasses import asdict

import numpy as np
import onnx
import pytest
from evaluations import evaluate_model
from kfp import dsl
from pages import Page
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from kfp_distributed.components.evaluate.evaluation import run_evaluation
from kfp_distributed.components.evaluate.regression import score_rows
from kfp_distributed.storage.dataset import DATASET_MANIFEST, Column, DatasetManifest, Label
from kfp_distributed.storage.files import describe_folder
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest

pytestmark = pytest.mark.takes(4)

COLUMNS = (Column("size", "number", "float32"), Column("age", "number", "float32"))
PRICE = Label("kind", (), "regression", mean=1e9, std=10.0)
WEIGHTS = np.array([[3.0], [-2.0]], np.float32)


@pytest.fixture
def houses(write_dataset):
    """5,000 rows whose label is about 1e9: their inputs, their labels and the folder of the dataset."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(5000, 2)).astype(np.float32)
    prices = 1e9 + (inputs @ WEIGHTS)[:, 0].astype(np.float64) + random.normal(size=5000)
    return inputs, prices, write_dataset(COLUMNS, [*inputs.T], prices, label=PRICE)


def saved_model(save_model, shape=(-1, 1), **manifest):
    """A linear model in float64, as float32 has no neighbors of 1e9 that are closer than 64."""

    def predict(features):
        import tensorflow as tf

        return {"prediction": tf.reshape(tf.cast(features @ WEIGHTS, tf.float64) + 1e9, shape)}

    return save_model(predict, ([None, 2], "float32", "features"), **manifest)


def onnx_model(folder, output="prediction"):
    def tensor(name, kind, *shape):
        return onnx.helper.make_tensor_value_info(name, kind, shape)

    nodes = [
        onnx.helper.make_node("MatMul", ["features", "weights"], ["product"]),
        onnx.helper.make_node("Cast", ["product"], ["double"], to=onnx.TensorProto.DOUBLE),
        onnx.helper.make_node("Add", ["double", "mean"], [output]),
    ]
    constants = [
        onnx.numpy_helper.from_array(WEIGHTS, "weights"),
        onnx.numpy_helper.from_array(np.array(1e9), "mean"),
    ]
    inputs = [tensor("features", onnx.TensorProto.FLOAT, None, 2)]
    outputs = [tensor(output, onnx.TensorProto.DOUBLE, None, 1)]
    graph = onnx.helper.make_graph(nodes, "regression", inputs, outputs, constants)
    opsets = [onnx.helper.make_opsetid("", 17)]
    folder.mkdir()
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), str(folder / "model.onnx"))
    (folder / MODEL_MANIFEST).write_text(ModelManifest("onnx", describe_folder(folder)).to_json())
    return folder


@pytest.mark.parametrize("kind", ["SavedModel [n, 1]", "SavedModel [n]", "ONNX", "ONNX with another output name"])
def test_scores_go_to_kfp_and_into_the_report(houses, save_model, tmp_path, capsys, kind):
    inputs, prices, dataset = houses
    if kind.startswith("ONNX"):
        model = onnx_model(tmp_path / "model", "prediction" if kind == "ONNX" else "price")
    else:
        model = saved_model(save_model, (-1, 1) if "1" in kind else (-1,))
    metrics, classification, report = dsl.Metrics(), dsl.ClassificationMetrics(), tmp_path / "report.html"
    verdict = run_evaluation(str(model), str(dataset), metrics, classification, str(report), "rmse", 1.1)

    predictions = (inputs @ WEIGHTS)[:, 0].astype(np.float64) + 1e9
    expected = {
        "mae": mean_absolute_error(prices, predictions),
        "rmse": root_mean_squared_error(prices, predictions),
        "r2": r2_score(prices, predictions),
        "examples": 5000,
    }
    assert metrics.metadata == pytest.approx(expected, rel=1e-6)
    assert verdict == (metrics.metadata["rmse"], True)
    assert classification.metadata == {}
    json.dumps(metrics.metadata, allow_nan=False)
    page = Page(report.read_text())
    assert [row["row"] for row in page.table("age")] == [
        f"{row:,}" for row in np.argsort(-abs(prices - predictions), kind="stable")[:12]
    ]
    baseline = (mean_absolute_error(prices, np.full(5000, 1e9)), r2_score(prices, np.full(5000, 1e9)))
    model_row, mean_row = page.table("R²")
    of_model = (expected["mae"], expected["r2"])
    assert (float(model_row["MAE"]), float(model_row["R²"])) == pytest.approx(of_model, abs=1e-4)
    assert mean_row["prediction"] == "training mean of kind (1,000,000,000.00) for every row"
    assert (float(mean_row["MAE"]), float(mean_row["R²"])) == pytest.approx(baseline, abs=1e-4)
    log = capsys.readouterr().out
    assert re.search(r"^mae=0\.8\d* rmse=\S+ r2=0\.9\d* on 5000 rows\n", log, re.MULTILINE)
    assert re.search(r"^score=\S+ \(rmse\) is good enough: the bound is at most 1\.1$", log, re.MULTILINE)


def test_a_model_that_returns_nan_gets_no_scores(write_dataset, save_model, tmp_path):
    values = np.arange(20, dtype=np.float32)
    values[::5] = np.nan
    dataset = write_dataset(COLUMNS, [values, np.zeros(20, np.float32)], np.arange(20.0), label=PRICE)
    metrics, report = dsl.Metrics(), tmp_path / "report.html"
    model = saved_model(save_model)
    message = r"for 4 of 20 rows, first for row 0\. These rows have missing values in 'size' \(4 rows\)"
    with pytest.raises(ValueError, match=message):
        run_evaluation(str(model), str(dataset), metrics, dsl.ClassificationMetrics(), str(report))
    assert (metrics.metadata, report.exists()) == ({}, False)


def test_equal_targets_have_no_r2(write_dataset, save_model, tmp_path):
    zeros = np.zeros(3, np.float32)
    dataset = write_dataset(COLUMNS, [zeros, zeros], np.full(3, 1e9 + 0.5), label=PRICE)
    model, metrics, report = saved_model(save_model), dsl.Metrics(), tmp_path / "report.html"
    arguments = (str(model), str(dataset), metrics, dsl.ClassificationMetrics(), str(report))
    with pytest.raises(ValueError, match=r"the metric 'r2' is undefined .* such as mae, rmse, or evaluate more rows"):
        run_evaluation(*arguments)
    assert run_evaluation(*arguments, "mae", 0.4) == (0.5, False)
    assert metrics.metadata == {"mae": 0.5, "rmse": 0.5, "examples": 3}
    assert "R² is undefined, because the true numbers have no deviation." in report.read_text()


@pytest.mark.parametrize("prices", [[1e17], [1e16 + 1e9] * 2, [1e9, np.nextafter(1e9, 2e9)]])
def test_residuals_that_are_close_for_64_bit_floats_have_a_report(write_dataset, save_model, tmp_path, prices):
    zeros = np.zeros(len(prices), np.float32)
    dataset = write_dataset(COLUMNS, [zeros, zeros], np.array(prices), label=PRICE)
    model, metrics, report = saved_model(save_model), dsl.Metrics(), tmp_path / "report.html"
    run_evaluation(str(model), str(dataset), metrics, dsl.ClassificationMetrics(), str(report), "mae")
    assert metrics.metadata["mae"] == pytest.approx(np.mean(np.subtract(prices, 1e9)))
    assert "Residuals" in Page(report.read_text()).texts


def test_numbers_whose_squares_are_infinite_are_refused(write_dataset):
    zeros = np.zeros(2, np.float32)
    folder = write_dataset(COLUMNS, [zeros, zeros], np.array([1e200, -1e200]), label=PRICE)
    manifest = DatasetManifest.from_json((folder / DATASET_MANIFEST).read_text())
    with pytest.raises(ValueError, match="the label 'kind' or of its errors exceed the range of float64"):
        score_rows(lambda rows: np.zeros(len(rows)), folder, manifest)


def test_a_metric_of_classifiers_is_refused_before_the_model_is_read(houses, tmp_path):
    with pytest.raises(ValueError, match="metric 'accuracy' is not a metric of the task 'regression'"):
        run_evaluation("no model", str(houses[2]), dsl.Metrics(), dsl.ClassificationMetrics(), "", "accuracy")


def test_a_classifier_is_refused(houses, save_model):
    def predict(features):
        import tensorflow as tf

        return {"probabilities": tf.nn.softmax(features)}

    with pytest.raises(ValueError, match=r"the shape \[2500, 2\] for a batch of 2500 rows, where \[2500\] or"):
        evaluate_model(save_model(predict, ([None, 2], "float32", "features")), houses[2])


def test_a_model_of_another_task_is_refused(houses, save_model):
    manifest = {"columns": tuple(map(asdict, COLUMNS)), "label": {"name": "kind", "classes": ("a", "b")}}
    with pytest.raises(ValueError, match="the task is 'regression', in the training data 'classification'"):
        evaluate_model(saved_model(save_model, **manifest), houses[2])


def test_rows_that_trained_the_model_are_refused_or_cause_a_warning(houses, save_model):
    dataset = DatasetManifest.from_json((houses[2] / DATASET_MANIFEST).read_text())
    trained = {"split": "train", "source": "made up", "seed": 0, "shards": [shard.sha256 for shard in dataset.shards]}
    model = saved_model(save_model, training_data=({**trained, "preparation": "", "content": ""},))
    with pytest.raises(ValueError, match="its scores would not say how the model performs on new rows"):
        evaluate_model(model, houses[2])
    _, page = evaluate_model(model, houses[2], allow_training_rows=True)
    assert "Warning:" in Page(page).texts


def test_a_dataset_without_a_label_is_refused(write_dataset, save_model, tmp_path):
    zeros = np.zeros(3, np.float32)
    dataset = write_dataset(COLUMNS, [zeros, zeros], np.zeros(3), label=Label("", (), "none"))
    message = 'has no label, because it was prepared with the task "none": .* Run prepare_data with a label_column'
    with pytest.raises(ValueError, match=message):
        evaluate_model(saved_model(save_model), dataset)
    language = tmp_path / "language"
    language.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (language / name).touch()
    with pytest.raises(
        ValueError, match=r'the format "hugging_face"; evaluate and predict take no such model: score it with'
    ):
        run_evaluation(language, dataset, None, None, "")
