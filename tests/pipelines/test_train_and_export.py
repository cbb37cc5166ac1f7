"""The main job, whole: real data, real processes, a real S3 server."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import onnxruntime
import pytest
from environments import trainer_python
from sklearn.datasets import load_digits

from kfp_distributed.components.model_versions.aliases import resolve
from kfp_distributed.pipelines.demo import predict_row
from kfp_distributed.pipelines.local_run import local_run
from kfp_distributed.pipelines.train_and_deploy import train_and_deploy
from kfp_distributed.pipelines.train_and_export import train_and_export
from kfp_distributed.storage import open_store
from kfp_distributed.trainers.programs.requirements import variable_of

pytestmark = pytest.mark.takes(63)


def test_the_demo_trains_on_several_workers_and_ends_with_a_prediction(tmp_path):
    # All of it by real command lines, as the only complete all-reduce training.
    demo = [sys.executable, "-m", "kfp_distributed.pipelines.demo", "--folder", str(tmp_path)]
    done = subprocess.run(demo, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert float(re.search(r"^test accuracy +([\d.]+)$", done.stdout, re.MULTILINE)[1]) >= 0.95
    line = r"^prediction +(\d) \(probability [\d.]+\), true label (\d), of (http://127.0.0.1:\d+)/v1/models/digits:predict$"
    answer, label, server = re.search(line, done.stdout, re.MULTILINE).groups()
    assert answer == label
    with pytest.raises(URLError, match="refused"):
        urlopen(server)
    assert list((tmp_path / "object-store" / "checkpoints").iterdir())
    version = tmp_path / "models" / "digits" / "1"
    assert re.search(r"^model +(.+)$", done.stdout, re.MULTILINE)[1] == str(version)
    manifest = json.loads((version / "model.json").read_text())
    assert {"saved_model.pb", "variables/variables.index"} <= {file["path"] for file in manifest["files"]}
    assert accuracy(version) >= 0.95


def test_digits_are_trained_with_pytorch_and_exported(tmp_path, monkeypatch):
    monkeypatch.setenv(variable_of("pytorch", "PYTHON"), trainer_python("pytorch"))
    with local_run(tmp_path) as run:
        train_and_export(
            train_specification={"trainer": "torch_classifier"},
            distribution_specification={"distribution_type": "PyTorch", "number_of_workers": 1},
            train_parameters={"epochs": 8, "learning_rate": 5e-3},
            metric="macro_f1",
            bound=0.9,
            aliases=["production"],
            keep=1,
        )
        open_store(resolve(f"{tmp_path}/models/digits@production")).download_folder(tmp_path / "served")
    (folder,) = [path for path in run.artifacts.iterdir() if path.name.startswith("train-and-export")]
    scored = json.loads((folder / "evaluate" / "executor_output.json").read_text())["parameterValues"]
    assert scored["score"] >= 0.95
    assert accuracy(tmp_path / "served") >= 0.95


def accuracy(folder):
    digits = load_digits()
    answers = served(folder, digits.images.astype(np.float32).reshape(-1, 8, 8, 1))
    return np.mean(answers.argmax(axis=1) == digits.target)


def served(folder, images):
    """The probabilities that a model gives, by what serves its format."""
    if (folder / "model.onnx").exists():
        session = onnxruntime.InferenceSession(folder / "model.onnx")
        return session.run(["probabilities"], {session.get_inputs()[0].name: images})[0]
    import tensorflow as tf

    predict = tf.saved_model.load(str(folder)).signatures["features"]
    return predict(features=tf.constant(images))["probabilities"].numpy()


def test_a_model_that_is_not_good_enough_is_neither_exported_nor_deployed(tmp_path, monkeypatch):
    # The run's own S3 server is beyond the reach of pods, so it trains here all the same.
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "of-some-cluster"))
    with local_run(tmp_path) as run:
        train_and_deploy(
            distribution_specification={},
            train_parameters={"epochs": "1.0", "hidden_units": [8]},
            bound=0.999,
        )
    (folder,) = [path for path in run.artifacts.iterdir() if path.name.startswith("train-and-deploy")]
    assert (folder / "evaluate" / "executor_output.json").exists()
    assert not (folder / "export-model").exists()
    assert not (folder / "deploy-model").exists()
    assert predict_row(folder).startswith("none")
    assert not (tmp_path / "models").exists()


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
