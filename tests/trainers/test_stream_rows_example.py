"""The functions of examples/stream_rows.py learn the digits from the stream of rows."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from environments import trainer_python
from forked_replicas import forked

pytestmark = pytest.mark.takes(8)

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import stream_rows

    return stream_rows


def accuracy(digits, scores) -> float:
    return float((scores.argmax(axis=1) == digits.test_labels).mean())


def test_numpy(example, digits, tmp_path):
    example.fit_with_numpy(str(digits.folder / "train"), str(tmp_path))
    weights = np.load(tmp_path / "model.npz")["weights"]
    assert accuracy(digits, digits.test_inputs.reshape(-1, 64) @ weights) > 0.8


def test_tensorflow(example, digits, tmp_path):
    import tensorflow as tf
    import tf_keras

    tf_keras.utils.set_random_seed(0)
    example.fit_with_tensorflow(str(digits.folder / "train"), str(tmp_path), epochs=40)
    serve = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    (scores,) = serve(tf.constant(digits.test_inputs.reshape(-1, 64))).values()
    assert accuracy(digits, scores.numpy()) > 0.8


PROGRAM = "import sys; from stream_rows import fit_with_pytorch as fit; fit(*sys.argv[1:4], int(sys.argv[4]))"
WEIGHTS = "import sys, torch; print(torch.load(sys.argv[1])['weight'].tolist())"


def test_pytorch_continues_from_its_checkpoint(digits, library_archive, tmp_path):
    environment = {**os.environ, "PYTHONPATH": f"{library_archive}{os.pathsep}{EXAMPLES}"}
    weights = {}
    for name, runs in (("whole", [4]), ("resumed", [2, 4])):
        (tmp_path / name).mkdir()
        for epochs in runs:
            folders = [str(digits.folder / "train"), str(tmp_path / name), str(tmp_path / name)]
            command = forked(trainer_python("pytorch"), "-c", PROGRAM, *folders, str(epochs))
            subprocess.run(command, env=environment, check=True, timeout=300)
        command = forked(trainer_python("pytorch"), "-c", WEIGHTS, tmp_path / name / "network.pt")
        weights[name] = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert weights["resumed"] == weights["whole"]
