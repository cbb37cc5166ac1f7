from kfp import dsl

from kfp_distributed.components.evaluate.component import evaluate


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
