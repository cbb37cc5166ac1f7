"""The main job, whole: real data, real processes, a real S3 server."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from kfp_distributed.pipelines.local_run import local_run
from kfp_distributed.pipelines.train_and_export import train_and_export
from kfp_distributed.storage import open_store

DISTRIBUTIONS = {
    "all-reduce": {"distribution_type": "TF", "number_of_workers": 3, "number_of_parameter_servers": 0},
    "parameter servers": {"distribution_type": "TF", "number_of_workers": 2, "number_of_parameter_servers": 2},
}


@pytest.mark.parametrize("distribution", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_digits_are_trained_distributed_and_exported(tmp_path, distribution):
    with local_run(tmp_path) as run:
        train_and_export(
            distribution_specification=distribution,
            train_parameters={"epochs": 15},
            checkpoint_uri="s3://checkpoints",
            minimum_accuracy=0.9,
        )
        store = open_store("s3://models/digits/1")
        manifest = json.loads(store.read("model.json"))
        store.download_folder(tmp_path / "served")
        checkpoints = open_store("s3://checkpoints").list()
    (folder,) = [path for path in run.artifacts.iterdir() if path.name.startswith("train-and-export")]
    scored = json.loads((folder / "evaluate" / "executor_output.json").read_text())["parameterValues"]
    assert scored["accuracy"] >= 0.95
    assert {"saved_model.pb", "variables/variables.index"} <= {file["path"] for file in manifest["files"]}
    assert checkpoints

    import tensorflow as tf

    predict = tf.saved_model.load(str(tmp_path / "served")).signatures["serving_default"]
    digits = load_digits()
    images = digits.images.astype(np.float32).reshape(-1, 8, 8, 1)
    probabilities = predict(features=tf.constant(images))["probabilities"].numpy()
    assert np.mean(probabilities.argmax(axis=1) == digits.target) >= 0.95


def test_a_model_that_is_not_good_enough_is_not_exported(tmp_path, monkeypatch):
    # The run's own S3 server is beyond the reach of pods, so it trains here all the same.
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "of-some-cluster"))
    with local_run(tmp_path) as run:
        train_and_export(
            distribution_specification={},
            train_parameters={"epochs": "1.0", "hidden_units": [8]},
            minimum_accuracy=0.999,
        )
    (folder,) = [path for path in run.artifacts.iterdir() if path.name.startswith("train-and-export")]
    assert (folder / "evaluate" / "executor_output.json").exists()
    assert not (folder / "export-model").exists()
    assert not (run.object_store / "models").exists()


def test_a_wrong_dict_fails_the_step_and_says_why(tmp_path, capsys):
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
