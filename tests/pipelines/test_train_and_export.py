"""The main job, whole: real data, real processes, a real S3 server."""

import json
import os
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from environments import trainer_python
from sklearn.datasets import load_digits

from kfp_distributed.pipelines.local_run import local_run
from kfp_distributed.pipelines.train_and_export import train_and_export
from kfp_distributed.storage import open_store
from kfp_distributed.trainers.requirements import variable_of

pytestmark = pytest.mark.takes(50)

WAYS = {
    "all-reduce": (
        "keras_classifier",
        {"distribution_type": "TF", "number_of_workers": 3, "number_of_parameter_servers": 0},
    ),
    "PyTorch": ("torch_classifier", {"distribution_type": "PyTorch", "number_of_workers": 1}),
}


@pytest.mark.parametrize(("trainer", "distribution"), WAYS.values(), ids=WAYS)
def test_digits_are_trained_distributed_and_exported(tmp_path, monkeypatch, trainer, distribution):
    if trainer == "torch_classifier":
        monkeypatch.setenv(variable_of("pytorch", "PYTHON"), trainer_python("pytorch"))
    with local_run(tmp_path) as run:
        train_and_export(
            train_specification={"trainer": trainer},
            distribution_specification=distribution,
            train_parameters={"epochs": 15},
            checkpoint_uri="s3://checkpoints",
            metric="macro_f1",
            bound=0.9,
        )
        store = open_store("s3://models/digits/1")
        manifest = json.loads(store.read("model.json"))
        store.download_folder(tmp_path / "served")
        checkpoints = open_store("s3://checkpoints").list()
    (folder,) = [path for path in run.artifacts.iterdir() if path.name.startswith("train-and-export")]
    scored = json.loads((folder / "evaluate" / "executor_output.json").read_text())["parameterValues"]
    assert scored["score"] >= 0.95
    assert checkpoints
    files = {file["path"] for file in manifest["files"]}
    assert files == {"model.onnx"} or {"saved_model.pb", "variables/variables.index"} <= files
    digits = load_digits()
    answers = served(tmp_path / "served", digits.images.astype(np.float32).reshape(-1, 8, 8, 1))
    assert np.mean(answers.argmax(axis=1) == digits.target) >= 0.95


def served(folder, images):
    """The probabilities that a model gives, by what serves its format."""
    if (folder / "model.onnx").exists():
        session = onnxruntime.InferenceSession(folder / "model.onnx")
        return session.run(["probabilities"], {session.get_inputs()[0].name: images})[0]
    import tensorflow as tf

    predict = tf.saved_model.load(str(folder)).signatures["features"]
    return predict(features=tf.constant(images))["probabilities"].numpy()


def test_a_model_that_is_not_good_enough_is_not_exported(tmp_path, monkeypatch):
    # The run's own S3 server is beyond the reach of pods, so it trains here all the same.
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "of-some-cluster"))
    with local_run(tmp_path) as run:
        train_and_export(
            distribution_specification={},
            train_parameters={"epochs": "1.0", "hidden_units": [8]},
            bound=0.999,
        )
    (folder,) = [path for path in run.artifacts.iterdir() if path.name.startswith("train-and-export")]
    assert (folder / "evaluate" / "executor_output.json").exists()
    assert not (folder / "export-model").exists()
    assert not (run.object_store / "models").exists()


def test_the_error_of_a_wrong_dict_names_the_cause(tmp_path, capsys):
    distribution = {"distribution_type": "TF", "number_of_worker": 3}
    with local_run(tmp_path):
        scratch = Path(os.environ["TMPDIR"])
        with pytest.raises(RuntimeError, match="train"):
            train_and_export(distribution_specification=distribution, runner="local")
        assert list(scratch.iterdir()), "kfp leaves a folder for each step"
    assert not scratch.exists()
    printed = capsys.readouterr().out
    assert "number_of_worker" in printed
    assert "number_of_workers" in printed
