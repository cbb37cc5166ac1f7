"""The examples with a convolutional network, on two ranks of the local runner."""

import ast
import inspect
import re
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from environments import trainer_python
from evaluations import evaluate_model
from horovod_convolution import horovod_convolution
from multi_worker_convolution import multi_worker_convolution
from PIL import Image
from step_lines import into

from kfp_distributed.components import prepare_data
from kfp_distributed.components.model_formats.load import load_model
from kfp_distributed.components.train.run.launch import Outcome, launch
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.storage.model import read_model_folder
from kfp_distributed.trainers import train_specification
from kfp_distributed.trainers.runtime.outputs.metrics_file import read_epochs

pytestmark = pytest.mark.takes(25)

PARAMETERS = {"batch_size": 144, "learning_rate": 6e-3}
FIRST, ALL = 3, 6
"""Number of epochs of the first training, and with those of the training that resumes from its checkpoint."""
LEAST_ACCURACY = 0.95
"""On the 179 validation digits. Both examples had 1.0 with the seed 0. Guessing has 0.1."""

TOLERANCE = 1e-2
"""Relative tolerance of each metric. The sums of two versions of TensorFlow have other rounding errors."""

EXAMPLES = {
    multi_worker_convolution: {"distribution_type": "TF", "number_of_workers": 2, "number_of_parameter_servers": 0},
    horovod_convolution: {"distribution_type": "MPI", "number_of_workers": 2},
}
FOLDERS_OF_RANKS = {multi_worker_convolution: ("worker-0", "worker-1"), horovod_convolution: ("rank-0", "rank-1")}


@dataclass(frozen=True)
class Trained:
    """A training of one rank, and one of two ranks that resumes from its checkpoint.

    Attributes:
        outcomes: Outcome of each.
        lines: Log of each.
        ranks: Working directory of each rank of the second one.
        folder: Folder with the second model.
    """

    outcomes: list[Outcome]
    lines: list[list[str]]
    ranks: tuple[Path, ...]
    folder: Path


def prepare(source, folder):
    """Prepare a source, and return the folder with its splits."""
    names = ("train_dataset", "validation_dataset", "test_dataset", "overview")
    outputs = {name: SimpleNamespace(path=str(folder / name), uri=str(folder / name), metadata={}) for name in names}
    prepare_data.python_func(**outputs, source=str(source))
    return folder


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return prepare("digits", tmp_path_factory.mktemp("prepared"))


def train(function, data, folder, parameters, distribution, model="model"):
    """Train with a function; return the outcome and the log."""
    request = Request(
        train_uri=str(data / "train_dataset"),
        validation_uri=str(data / "validation_dataset"),
        model_uri=str(folder / model),
        checkpoint_uri=str(folder / "checkpoints"),
        train_specification=train_specification(function),
        train_parameters=parameters,
        distribution_specification=distribution,
        identity=(str(folder),),
    )
    lines = []
    return launch(request, LocalRunner(), into(lines)), lines


def with_a_lost_checkpoint(
    train_dir, validation_dir, model_dir, checkpoint_dir, metrics_dir, example: str, mark: str, options: dict
):
    """Train as the example does, but let worker 1 begin without the checkpoint at its first start."""
    import os
    import shutil
    import sys
    from pathlib import Path

    if os.environ["KFP_DISTRIBUTED_REPLICA"] == "worker-1" and not Path(mark).exists():
        Path(mark).touch()
        shutil.rmtree(checkpoint_dir)
    sys.path.append(example)
    from multi_worker_convolution import multi_worker_convolution

    multi_worker_convolution(train_dir, validation_dir, model_dir, checkpoint_dir, metrics_dir, **options)


@pytest.fixture(scope="module")
def trained_by(prepared, tmp_path_factory):
    """A function that trains twice with an example, once for all tests, and returns what came of it."""

    @cache
    def train_twice(function):
        folder, distribution = tmp_path_factory.mktemp("trained"), EXAMPLES[function]
        with pytest.MonkeyPatch.context() as patch:
            if function is horovod_convolution:
                patch.setenv("KFP_DISTRIBUTED_HOROVOD_PYTHON", trainer_python("horovod"))
            one_rank = {**distribution, "number_of_workers": 1}
            first = train(function, prepared, folder, {**PARAMETERS, "epochs": FIRST}, one_rank)
            (folder / "jobs").mkdir()
            patch.setattr(tempfile, "tempdir", str(folder / "jobs"))  # Where the runner creates the folder of the job.
            program, parameters = function, {**PARAMETERS, "epochs": ALL}
            if function is multi_worker_convolution:
                source = Path(inspect.getfile(function)).parent
                program, parameters = (
                    with_a_lost_checkpoint,
                    {"example": str(source), "mark": str(folder / "mark"), "options": parameters},
                )
            second = train(program, prepared, folder, parameters, {**distribution, "keep_job": True})
        ranks = tuple(next((folder / "jobs").rglob(name)) for name in FOLDERS_OF_RANKS[function])
        return Trained(*map(list, zip(first, second, strict=True)), ranks, folder)

    return train_twice


@pytest.fixture(params=EXAMPLES, ids=lambda function: function.__name__)
def trained(request, trained_by):
    return trained_by(request.param)


def test_two_ranks_learn_and_their_model_is_evaluated(trained, prepared):
    # The model in the evaluation has the results of the training, which may use another version of TensorFlow.
    last = trained.outcomes[1].metrics["worker-0"][-1]
    evaluation, _ = evaluate_model(trained.folder / "model", prepared / "validation_dataset")
    assert evaluation.scores.accuracy == pytest.approx(last["val_accuracy"])
    assert evaluation.scores.loss == pytest.approx(last["val_loss"], rel=1e-3)
    assert evaluation.scores.accuracy >= LEAST_ACCURACY
    signature = read_model_folder(trained.folder / "model").signature
    assert signature["inputs"]
    assert signature == load_model(trained.folder / "model").signature.to_dict()


def test_each_rank_reads_its_own_rows(trained):
    rows = re.findall(r"^\[worker-(\d)\] \w+ (\d) of 2 has (\d+) rows", "\n".join(trained.lines[1]), re.MULTILINE)
    assert {*rows} == {("0", "0", "719"), ("1", "1", "719")}, "1438 rows in total"


def test_a_resumed_training_continues_after_the_last_epoch(trained):
    for lines, begin, end in zip(trained.lines, (1, FIRST + 1), (FIRST, ALL), strict=True):
        log = "\n".join(lines)
        assert re.findall(r"rows; (\d+) of \d+ epochs are done$", log, re.MULTILINE)[-1] == str(begin - 1)
        epochs = re.findall(r"^\[worker-0\] epoch (\d+)/", log, re.MULTILINE)
        assert epochs == [str(epoch) for epoch in range(begin, end + 1)]
    history = trained.outcomes[1].metrics["worker-0"]
    assert [epoch["epoch"] for epoch in history] == list(range(1, ALL + 1))
    losses = [epoch["loss"] for epoch in history]
    assert losses[FIRST] < losses[FIRST - 2], "with the weights of the checkpoint"


def test_workers_with_different_checkpoints_restart(trained_by):
    log = "\n".join(trained_by(multi_worker_convolution).lines[1])
    assert "the workers have different checkpoints" in log
    assert "restart 1 of 3: all replicas" in log


def names(folder):
    return {file.name for file in folder.rglob("*") if file.is_file()}


def checkpoint(epoch):
    return {"checkpoint", f"ckpt-{epoch}.index", f"ckpt-{epoch}.data-00000-of-00001"}


def test_only_the_first_rank_saves(trained):
    """Both ranks begin with the files of the first training."""
    first, second = trained.ranks
    assert names(first / "checkpoint_dir") == checkpoint(ALL)
    assert names(second / "checkpoint_dir") == checkpoint(FIRST)
    epochs = [read_epochs(folder / "metrics_dir" / "training.json")[-1]["epoch"] for folder in trained.ranks]
    assert epochs == [ALL, FIRST]
    assert "saved_model.pb" in names(first / "model_dir")
    assert names(second / "model_dir") == set()


def test_both_examples_have_the_same_curve(trained_by):
    """They train the same network on the same rows, with the gradients of both ranks."""
    one, other = (trained_by(function).outcomes[1].metrics["worker-0"] for function in EXAMPLES)
    for epoch, expected in zip(one, other, strict=True):
        assert epoch == pytest.approx(expected, rel=TOLERANCE)


def source_of(function, name):
    tree = ast.parse(inspect.getsource(function))
    return next(ast.unparse(node) for node in ast.walk(tree) if getattr(node, "name", "") == name)


@pytest.mark.parametrize("name", ["read", "build"])
def test_both_examples_have_the_same_network(name):
    assert source_of(multi_worker_convolution, name) == source_of(horovod_convolution, name)


def test_a_folder_of_colour_images_of_another_size(tmp_path):
    """One process, without a validation dataset. Both examples read and build in the same way."""
    random = np.random.default_rng(0)
    for number, name in enumerate(("red", "green", "blue")):
        (tmp_path / "images" / name).mkdir(parents=True)
        for file in range(40):
            pixels = random.integers(0, 128, (23, 14, 3))
            pixels[..., number] += 60
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "images" / name / f"{file}.png")
    data = prepare(tmp_path / "images", tmp_path / "prepared")
    (tmp_path / "out").mkdir()
    _, lines = train(multi_worker_convolution, data, tmp_path / "out", {"epochs": 12, "batch_size": 16}, {})
    assert any("worker 0 of 1 has 96 rows" in line for line in lines)
    evaluation, _ = evaluate_model(tmp_path / "out" / "model", data / "test_dataset")
    assert evaluation.scores.accuracy >= 0.9
