import shutil

import pytest
from kfp import dsl

from kfp_distributed.components.evaluate.component import evaluate
from kfp_distributed.storage.model import MODEL_MANIFEST


def test_interface():
    spec = dsl.component(base_image="python:3.11")(evaluate).component_spec
    assert {name: port.type for name, port in spec.inputs.items()} == {
        "model": "system.Model@0.0.1",
        "dataset": "system.Dataset@0.0.1",
        "metric": "String",
        "bound": "Float",
        "allow_training_rows": "Boolean",
    }
    assert {name: port.type for name, port in spec.outputs.items()} == {
        "metrics": "system.Metrics@0.0.1",
        "classification_metrics": "system.ClassificationMetrics@0.0.1",
        "report": "system.HTML@0.0.1",
        "score": "Float",
        "is_good_enough": "Boolean",
    }


def test_step(pictures, linear, tmp_path):
    metrics = dsl.Metrics()
    report = tmp_path / "report.html"
    outputs = evaluate(
        dsl.Model(uri=str(linear[0])),
        dsl.Dataset(uri=str(pictures[2])),
        metrics,
        dsl.ClassificationMetrics(),
        dsl.HTML(uri=str(report)),
    )
    assert outputs == (metrics.metadata["accuracy"], True)
    assert report.read_text().startswith("<!DOCTYPE html>")


def test_a_model_that_train_has_not_saved_is_evaluated(pictures, linear, tmp_path):
    model, metrics = tmp_path / "model", [dsl.Metrics(), dsl.Metrics()]
    shutil.copytree(linear[0], model)
    (model / MODEL_MANIFEST).unlink()
    for folder, artifact in zip((linear[0], model), metrics, strict=True):
        arguments = (dsl.Dataset(uri=str(pictures[2])), artifact, dsl.ClassificationMetrics())
        evaluate(dsl.Model(uri=str(folder)), *arguments, dsl.HTML(uri=str(tmp_path / "report.html")))
    assert metrics[0].metadata == metrics[1].metadata


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.mkdir(), "none of the files model.onnx, saved_model.pb, model.keras"),
        (lambda path: path.write_text("x"), "is a file: save it in a folder, as one of model.onnx"),
    ],
)
def test_what_is_no_model_is_refused(pictures, tmp_path, make, message):
    make(tmp_path / "model")
    with pytest.raises(SystemExit, match=message):
        evaluate(
            dsl.Model(uri=str(tmp_path / "model")),
            dsl.Dataset(uri=str(pictures[2])),
            dsl.Metrics(),
            dsl.ClassificationMetrics(),
            dsl.HTML(uri=str(tmp_path / "report.html")),
        )
