"""torch_classifier: what it learns and saves, and the agreement of several ranks with one process."""

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from environments import trainer_python
from forked_replicas import forked
from raw_rows import assert_takes_raw_rows, validation_scores
from samples import CLASSES, COLUMNS, table

from kfp_distributed.components.evaluate.model_function import load_model_function
from kfp_distributed.components.train.run.runners.local.ports import free_ports
from kfp_distributed.library.archive import ARCHIVE_KEY, make_archive
from kfp_distributed.library.content import REPLICA_PACKAGES, read_library

pytestmark = pytest.mark.takes(30)

TRAIN = """
import json, sys
from kfp_distributed.trainers.torch_classifier import torch_classifier
from kfp_distributed.trainers.programs.training_parameters import TrainingParameters
folders, parameters = json.loads(sys.argv[1])
torch_classifier(**folders, parameters=TrainingParameters(**parameters))
"""

# Adam would hide gradients that are not averaged: its steps do not depend on their scale. tests/trainers/
# test_regression.py compares the curves of Adam.
DESCENT = f"import torch\ntorch.optim.Adam = torch.optim.SGD\n{TRAIN}"

IMPATIENT = """
import json, sys
from datetime import timedelta
from kfp_distributed.trainers import torch_classifier as trainer
from kfp_distributed.trainers.runtime.lifecycle.fatal_errors import is_lost_peer
from kfp_distributed.trainers.programs.training_parameters import TrainingParameters
trainer._LONGEST_WAIT = timedelta(seconds=10)
try:
    folders, parameters = json.loads(sys.argv[1])
    trainer.torch_classifier(**folders, parameters=TrainingParameters(**parameters))
except RuntimeError as error:
    sys.exit(138 if is_lost_peer(error) else str(error))
"""


@pytest.fixture
def data(tmp_path, write_dataset):
    """301 training rows, which only 7 and 43 ranks divide evenly, and 100 validation rows."""
    for split, rows, seed in (("train", 301, 0), ("validation", 100, 1)):
        arrays, labels = table(rows, seed)
        write_dataset(tmp_path / split, COLUMNS, arrays, labels, CLASSES, [rows], split)
    # The environment with PyTorch lacks this package, so it is imported from an archive, as in replicas.
    (tmp_path / ARCHIVE_KEY).write_bytes(make_archive(read_library(REPLICA_PACKAGES)))
    return tmp_path


def start(data, name, parameters, program=TRAIN, **environment):
    """Start a rank as a process in a folder of its own. Its results go to the folders of `name`."""
    results = data / name
    working_directory = results / f"rank-{environment.get('RANK', 0)}"
    working_directory.mkdir(parents=True, exist_ok=True)
    folders = {f"{split}_dir": str(data / split) for split in ("train", "validation")}
    for kind in ("model", "checkpoint", "metrics"):
        (results / kind).mkdir(exist_ok=True)
        folders[f"{kind}_dir"] = str(results / kind)
    return subprocess.Popen(
        forked(trainer_python("pytorch"), "-c", program, json.dumps([folders, parameters])),
        cwd=working_directory,
        env={**os.environ, "PYTHONPATH": str(data / ARCHIVE_KEY), "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def rendezvous(ranks):
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0]), "WORLD_SIZE": str(ranks)}


def train(data, name, ranks=1, program=TRAIN, **parameters):
    """Train with some ranks; return the epochs that rank 0 has recorded."""
    address = rendezvous(ranks)
    running = [start(data, name, parameters, program, **address, RANK=str(rank)) for rank in range(ranks)]
    try:
        printed = [process.communicate(timeout=300)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0] * ranks, "\n".join(printed)
    return json.loads((data / name / "metrics" / "training.json").read_text())["epochs"]


def test_a_table_is_learned_resumed_and_saved_with_its_preprocessing(data):
    options = {"batch_size": 16, "learning_rate": 0.01, "hidden_units": [16]}
    for epochs in (2, 5):
        process = start(data, "alone", {"epochs": epochs, **options})
        printed, _ = process.communicate(timeout=300)
        assert process.returncode == 0, printed
    assert re.findall(r"^epoch (\d)/5 ", printed, re.MULTILINE) == ["3", "4", "5"]
    history = json.loads((data / "alone" / "metrics" / "training.json").read_text())
    assert (history["replica"], [entry["epoch"] for entry in history["epochs"]]) == ("worker-0", [1, 2, 3, 4, 5])
    assert set(history["epochs"][-1]) == {"epoch", "loss", "accuracy", "val_loss", "val_accuracy"}
    assert history["epochs"][-1]["val_accuracy"] > 0.9

    folder = data / "alone" / "model"
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    assert [(tensor.name, tensor.type, tensor.shape) for tensor in (*session.get_inputs(), *session.get_outputs())] == [
        ("size", "tensor(float)", ["n", 1]),
        ("color", "tensor(string)", ["n", 1]),
        ("shop", "tensor(string)", ["n", 1]),
        ("signal", "tensor(float)", ["n", 2, 3]),
        ("probabilities", "tensor(float)", ["n", 3]),
    ]
    row, missing, mean = [500.0, 1.0, 20.0, *[11.0] * 6], [np.nan, 0, 0, *[10.0] * 6], [500.0, 0, 0, *[10.0] * 6]
    probabilities = answers(folder, [row, missing, mean])
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-6)
    assert probabilities[0].argmax() == 1
    np.testing.assert_allclose(probabilities[1], probabilities[2], err_msg="a missing number counts as the mean")
    assert_takes_raw_rows(folder, (None, 1))
    # The scores of the rows by column are those that the trainer got for the matrix.
    expected = [history["epochs"][-1][name] for name in ("val_loss", "val_accuracy")]
    assert validation_scores(folder, data / "validation") == pytest.approx(expected, rel=1e-3)
    tables = [weights for name, weights in initializers(folder).items() if "embeddings" in name]
    assert [table.shape for table in tables] == [(4, 3), (42, 16)]
    for weights in tables:
        np.testing.assert_allclose(weights[-1], weights[1:-1].mean(axis=0), rtol=1e-5, err_msg="of an unknown category")


def answers(folder, rows):
    return load_model_function(folder, COLUMNS, "probabilities")(np.array(rows, np.float32))


def initializers(folder):
    graph = onnx.load(folder / "model.onnx").graph
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}


def test_a_resumed_training_has_the_same_network_and_the_scaling_of_its_own_data(data, write_dataset):
    train(data, "alone", hidden_units=[16], epochs=2)
    checkpoint = data / "alone" / "checkpoint" / "checkpoint.pt"
    content = checkpoint.read_bytes()
    address = rendezvous(2)
    both = [
        start(data, "alone", {"hidden_units": [16, 3], "epochs": 4}, **address, RANK=str(rank)) for rank in range(2)
    ]
    printed = [process.communicate(timeout=300)[0] for process in both]
    assert [process.returncode for process in both] == [1, 1], printed
    assert all(re.search(r"hidden_units \[16\], now \[16, 3\]", lines) for lines in printed), printed

    arrays, labels = table(301, 0)
    shutil.rmtree(data / "train")
    columns = [replace(COLUMNS[0], mean=600.0), *COLUMNS[1:]]
    write_dataset(data / "train", columns, arrays, labels, CLASSES, [301])
    process = start(data, "alone", {"hidden_units": [16], "epochs": 1})
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed
    assert "size (mean 500, now 600; std 100, now 100)" in printed
    assert "2 finished epochs and epochs is 1" in printed
    assert checkpoint.read_bytes() == content
    missing, mean = ([value, 0, 0, *[10.0] * 6] for value in (np.nan, 600.0))
    probabilities = answers(data / "alone" / "model", [missing, mean])
    np.testing.assert_allclose(probabilities[0], probabilities[1])


class Intruder:
    """Creates a file when it is unpickled."""

    def __init__(self, file):
        self._file = file

    def __reduce__(self):
        return Path.touch, (self._file,)


def test_a_checkpoint_runs_no_code(data):
    """A checkpoint may come from anyone who can write to the bucket."""
    proof, checkpoint = data / "proof", data / "alone" / "checkpoint" / "checkpoint.pt"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(pickle.dumps(Intruder(proof)))
    process = start(data, "alone", {"epochs": 1})
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 1, printed
    assert not proof.exists()


def test_the_curve_of_two_ranks_equals_that_of_one_process(data):
    """With all rows in each step, the curves differ only by rounding. The ranks have uneven parts of 301 rows."""
    options = {"epochs": 12, "batch_size": 400, "hidden_units": [16], "seed": 3}
    alone = train(data, "alone", 1, DESCENT, learning_rate=0.5, **options)
    together = train(data, "together", 2, DESCENT, learning_rate=0.25, scale_learning_rate=True, **options)
    assert alone[0]["loss"] > 2 * alone[-1]["loss"]
    for epoch, expected in zip(together, alone, strict=True):
        assert epoch == pytest.approx(expected, rel=1e-4)


@pytest.mark.command_line  # A client cannot pass SIGSTOP on.
def test_a_rank_ends_if_another_one_does_not_answer(data):
    """The connections stay open but nothing arrives, as if a machine were lost."""
    address = rendezvous(2)
    running = [start(data, "two", {"epochs": 100_000}, IMPATIENT, **address, RANK=str(rank)) for rank in (0, 1)]
    try:
        before = ""
        while "epoch 2/" not in before:
            line = running[0].stdout.readline()
            assert line, before
            before += line
        running[1].send_signal(signal.SIGSTOP)
        printed, _ = running[0].communicate(timeout=300)
        assert running[0].returncode == 138, printed
    finally:
        for process in running:
            process.kill()
            process.communicate()
