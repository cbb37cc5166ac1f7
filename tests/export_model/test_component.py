import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from compiled import SPECS
from kfp import dsl

from kfp_distributed.components.export_model.component import export_model
from kfp_distributed.storage.files import describe_folder
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest
from kfp_distributed.storage.opener import open_store


def test_interface():
    spec = dsl.component(base_image="python:3.11")(export_model).component_spec
    assert {name: (one.type, one.optional) for name, one in spec.inputs.items()} == {
        "model": ("system.Model@0.0.1", True),
        "model_uri": ("String", True),
        "mlflow_run_id": ("String", True),
        "model_name": ("String", False),
        "bucket": ("String", True),
        "version": ("Integer", True),
        "metrics": ("system.Metrics@0.0.1", True),
        "aliases": ("List[String]", True),
        "keep": ("Integer", True),
    }
    assert {name: one.type for name, one in spec.outputs.items()} == {
        "manifest": "system.Artifact@0.0.1",
        "uri": "String",
        "version": "Integer",
    }


def test_tensorflow_loads_what_was_exported(bucket, tmp_path):
    import tensorflow as tf

    module = tf.Module()
    module.factor = tf.Variable([2.0, 3.0])
    module.answer = tf.function(
        lambda features: {"probabilities": features * module.factor},
        input_signature=[tf.TensorSpec([None, 2], tf.float32, "features")],
    )
    model = tmp_path / "model"
    tf.saved_model.save(module, str(model), {"serving_default": module.answer})
    (model / MODEL_MANIFEST).write_text(ModelManifest(files=describe_folder(model)).to_json())
    metrics = dsl.Metrics(metadata={"accuracy": 0.75})

    manifest = dsl.Artifact(uri=str(tmp_path / "run-1" / "export-model" / "manifest"))
    Path(manifest.path).parent.mkdir(parents=True)

    uri, version = export_model(
        "digits", manifest, dsl.Model(uri=str(model)), bucket=bucket, version=3, metrics=metrics
    )

    assert (uri, version) == (f"s3://{bucket}/digits/3", 3)
    served = tmp_path / "served"
    open_store(f"s3://{bucket}/digits").download_folder(served)
    text = (served / "3" / "export.json").read_text()
    assert json.loads(text)["metrics"] == {"accuracy": 0.75}
    assert Path(manifest.path).read_text() == text
    answer = tf.saved_model.load(str(served / "3")).signatures["serving_default"](tf.constant([[1.0, 10.0]]))
    np.testing.assert_array_equal(answer["probabilities"], [[2.0, 30.0]])


@pytest.mark.parametrize(
    ("model", "model_uri", "message"),
    [
        (dsl.Model(uri="s3://b/m"), "s3://b/n", r"both model \(s3://b/m\) and model_uri='s3://b/n' are set: pass one"),
        (None, "", "neither model nor model_uri is set: pass one"),
        (None, "gs://b/m", "model_uri: 'gs://b' is not a storage address.* pass model instead"),
        (None, "{{$.pipeline_root}}", "model_uri"),
    ],
)
def test_exactly_one_of_model_and_model_uri(bucket, tmp_path, model, model_uri, message):
    manifest = dsl.Artifact(uri=str(tmp_path / "run-1" / "export-model" / "manifest"))
    with pytest.raises(SystemExit, match=message):
        export_model("digits", manifest, model, model_uri, bucket=bucket)


def test_an_identical_run_takes_the_export_from_the_cache():
    """As docs/how-to/export-again.md describes. Only the fingerprint runs each time."""
    spec = yaml.safe_load((SPECS / "train_and_export.yaml").read_text(encoding="utf-8"))
    dags = [spec["root"]["dag"], *(component["dag"] for component in spec["components"].values() if "dag" in component)]
    caching = {name: task.get("cachingOptions") for dag in dags for name, task in dag["tasks"].items()}
    assert {name: options for name, options in caching.items() if not name.startswith(("condition", "export-if"))} == {
        "fingerprint-source": {},
        "prepare-data": {"enableCache": True},
        "train": {"enableCache": True},
        "evaluate": {"enableCache": True},
        "export-model": {"enableCache": True},
    }
