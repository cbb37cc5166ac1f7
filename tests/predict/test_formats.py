"""Models that `train` has not saved, in the formats of other libraries, by the steps `predict` and `evaluate`.

The files of scikit_learn/ are of scikit-learn 1.9.1 and skl2onnx 1.20.0: a DecisionTreeClassifier of two levels, fitted
to load_iris, by `to_onnx(tree, rows[:1], target_opset=17)` with and without `options={"zipmap": False}`.
"""

import shutil
from pathlib import Path

import pytest
from kfp import dsl

from kfp_distributed.components.evaluate.component import evaluate

pytestmark = pytest.mark.takes(4)

TREES = Path(__file__).parent / "scikit_learn"
ROWS = "5.1,3.5,1.4,0.2,setosa\n5.0,2.0,3.5,1.0,versicolor\n6.9,3.2,5.7,2.3,virginica\n"
PROBABILITIES = [[1, 0, 0], [0, 0.90740740, 0.09259259], [0, 0.02173913, 0.97826087]]
"""What predict_proba of the tree returns for the rows."""


@pytest.fixture
def dataset(tmp_path, prepared):
    (tmp_path / "iris.csv").write_text("a,b,c,d,label\n" + ROWS * 3)
    return prepared(tmp_path / "iris.csv", shards=1)


def tree(folder):
    shutil.copy(TREES / "tree.onnx", folder / "model.onnx")
    return PROBABILITIES


def keras_file(folder):
    import keras

    network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax", kernel_initializer="zeros")])
    network.layers[-1].bias.assign([0.0, 100.0, 0.0])
    network.save(folder / "model.keras")
    return [[0, 1, 0]] * 3


@pytest.mark.parametrize(("save", "accuracy"), [(tree, 1.0), (keras_file, 1 / 3)])
def test_a_model_of_another_library_is_evaluated_and_asked(tmp_path, dataset, predicted, save, accuracy):
    model, metrics = tmp_path / "model", dsl.Metrics()
    model.mkdir()
    by_row = dict(zip([5.1, 5.0, 6.9], save(model), strict=True))
    found = predicted(model=model, dataset=dataset, key_columns=["a"], probabilities=True).table()
    for row in found.to_pylist():
        assert row["probabilities"] == pytest.approx(by_row[round(row["a"], 1)], abs=1e-6)
    assert {*found["prediction"].to_pylist()} <= {"setosa", "versicolor", "virginica"}
    report = dsl.HTML(uri=str(tmp_path / "report.html"))
    evaluate(dsl.Model(uri=str(model)), dsl.Dataset(uri=str(dataset)), metrics, dsl.ClassificationMetrics(), report)
    assert metrics.metadata["accuracy"] == pytest.approx(accuracy)


def test_maps_of_skl2onnx_are_refused_with_the_option_that_avoids_them(tmp_path, dataset, refused):
    (tmp_path / "model").mkdir()
    shutil.copy(TREES / "tree_with_maps.onnx", tmp_path / "model" / "model.onnx")
    message = refused(model=tmp_path / "model", dataset=dataset)
    assert "has the output 'output_probability' of the type seq(map(int64,tensor(float)))" in message
    assert message.endswith("convert the model with skl2onnx and the options {'zipmap': False}")
