"""The examples that classify texts, on two ranks of the local runner."""

import csv
import json
import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import make_tiny_bert
import pytest
from environments import TEST_ENVIRONMENTS, environment, trainer_python
from fine_tuning import PACKAGES, fine_tuning
from forked_replicas import forked
from make_messages_csv import TEAMS, write_messages
from step_lines import into
from text_classification import text_classification

from kfp_distributed.components import prepare_data
from kfp_distributed.components.train.run.launch import Outcome, launch
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.trainers import train_specification
from kfp_distributed.trainers.runtime.outputs.metrics_file import read_epochs

pytestmark = pytest.mark.takes(63)

LEAST_ACCURACY = 0.85
"""On the 400 validation texts. Guessing has 0.25, and no program has more than some 0.98: the hints contradict each
other. text_classification had 0.975, and fine_tuning of a BERT with random weights 0.965 when it was resumed."""

FIRST, ALL = "first", "all"
EPOCHS = {text_classification: {FIRST: 2, ALL: 6}, fine_tuning: {FIRST: 2, ALL: 5}}
"""Number of epochs of the first training, and with those of the training that resumes from its checkpoint."""

RANKS = ("master-0", "worker-0")
DISTRIBUTION = {"distribution_type": "PyTorch", "number_of_workers": 1}
MODEL_FILES = {
    text_classification: {"model.pt", "vocabulary.json"},
    fine_tuning: {
        "config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    },
}


@dataclass(frozen=True)
class Trained:
    """Two trainings. The second one resumes from the checkpoint of the first one.

    Attributes:
        epochs: Number of epochs of each, with those of its checkpoint.
        outcomes: Outcome of each.
        lines: Log of each.
        ranks: Working directory of each rank of the second one.
        model: Folder with the second model.
    """

    epochs: tuple[int, ...]
    outcomes: tuple[Outcome, ...]
    lines: tuple[list[str], ...]
    ranks: tuple[Path, ...]
    model: Path


@pytest.fixture(scope="module")
def messages(tmp_path_factory):
    """Folder with messages.csv and its splits."""
    folder = tmp_path_factory.mktemp("messages")
    write_messages(folder / "messages.csv")
    names = ("train_dataset", "validation_dataset", "test_dataset", "overview")
    outputs = {name: SimpleNamespace(path=str(folder / name), uri=str(folder / name), metadata={}) for name in names}
    prepare_data.python_func(
        **outputs,
        source=str(folder / "messages.csv"),
        label_column="team",
        columns={"message": "text"},
        split={"validation_fraction": 0.25, "test_fraction": 0},
    )
    return folder


@pytest.fixture(scope="module")
def tiny_bert(messages):
    """Folder of a BERT with random weights."""
    command = forked(
        environment("transformers"), make_tiny_bert.__file__, messages / "messages.csv", messages / "tiny-bert"
    )
    subprocess.run(command, check=True)
    return messages / "tiny-bert"


def train(function, messages, folder, parameters, distribution):
    """Train with a function; return the outcome and the log."""
    request = Request(
        train_uri=str(messages / "train_dataset"),
        validation_uri=str(messages / "validation_dataset"),
        model_uri=str(folder / "model"),
        checkpoint_uri=str(folder / "checkpoints"),
        train_specification=train_specification(function),
        train_parameters={"text_column": "message", **parameters},
        distribution_specification=distribution,
        identity=(str(folder),),
    )
    lines = []
    return launch(request, LocalRunner(), into(lines)), lines


@pytest.fixture(scope="module")
def trained_by(messages, tmp_path_factory, request):
    """A function that trains twice with an example, once for all tests, and returns what came of it."""

    @cache
    def train_twice(function):
        folder = tmp_path_factory.mktemp("trained")
        python, parameters = None, {}
        if function is fine_tuning:
            python = environment("transformers")
            parameters = {"pretrained": str(request.getfixturevalue("tiny_bert")), "learning_rate": 2e-3}
        epochs = EPOCHS[function]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KFP_DISTRIBUTED_PYTORCH_PYTHON", str(python or trainer_python("pytorch")))
            first = train(function, messages, folder, {**parameters, "epochs": epochs[FIRST]}, DISTRIBUTION)
            (folder / "jobs").mkdir()
            patch.setattr(tempfile, "tempdir", str(folder / "jobs"))  # Where the runner creates the folder of the job.
            kept = {**DISTRIBUTION, "keep_job": True}
            second = train(function, messages, folder, {**parameters, "epochs": epochs[ALL]}, kept)
        ranks = tuple(next((folder / "jobs").rglob(name)) for name in RANKS)
        return Trained((epochs[FIRST], epochs[ALL]), *zip(first, second, strict=True), ranks, folder / "model")

    return train_twice


@pytest.fixture(params=EPOCHS, ids=lambda function: function.__name__)
def trained(request, trained_by):
    return trained_by(request.param)


def test_two_ranks_learn_to_classify_other_texts(trained):
    last = trained.outcomes[1].metrics["master-0"][-1]
    assert last["val_accuracy"] >= LEAST_ACCURACY


def test_each_rank_reads_its_own_rows(trained):
    rows = re.findall(r"^\[([\w-]+)\] rank (\d) of 2 has (\d+) rows", "\n".join(trained.lines[0]), re.MULTILINE)
    assert sorted(rows) == [("master-0", "0", "600"), ("worker-0", "1", "600")], "1200 rows in total"


def test_a_resumed_training_continues_after_the_last_epoch(trained):
    first, last = trained.epochs
    for lines, begin, end in zip(trained.lines, (1, first + 1), trained.epochs, strict=True):
        log = "\n".join(lines)
        assert re.findall(r"; (\d+) of \d+ epochs are done$", log, re.MULTILINE) == [str(begin - 1)] * 2
        epochs = re.findall(r"^\[master-0\] epoch (\d+)/", log, re.MULTILINE)
        assert epochs == [str(epoch) for epoch in range(begin, end + 1)]
    history = trained.outcomes[1].metrics["master-0"]
    assert [epoch["epoch"] for epoch in history] == list(range(1, last + 1))
    assert history[first]["loss"] < history[first - 1]["loss"], "with the weights of the checkpoint"


def names(folder):
    return {file.name for file in folder.rglob("*") if file.is_file()}


def test_only_the_first_rank_saves(trained):
    """Both ranks begin with the files of the first training."""
    master, worker = trained.ranks
    assert names(master / "checkpoint_dir") == {"checkpoint.pt"}
    assert (master / "checkpoint_dir" / "checkpoint.pt").read_bytes() != (
        worker / "checkpoint_dir" / "checkpoint.pt"
    ).read_bytes()
    epochs = [read_epochs(folder / "metrics_dir" / "training.json")[-1]["epoch"] for folder in trained.ranks]
    assert epochs == [trained.epochs[1], trained.epochs[0]]
    assert names(worker / "model_dir") == set()


@pytest.mark.parametrize("function", EPOCHS, ids=lambda function: function.__name__)
def test_the_files_of_the_model(trained_by, function):
    assert names(trained_by(function).model) == {*MODEL_FILES[function], "model.json"}


def test_the_vocabulary_has_the_words_of_all_ranks(trained_by, messages):
    with (messages / "messages.csv").open() as file:
        words = {word for row in csv.DictReader(file) for word in re.findall(r"\w+", row["message"].lower())}
    saved = json.loads((trained_by(text_classification).model / "vocabulary.json").read_text())
    assert {*saved["words"]} == words, "each word is in a training row"
    assert len(saved["words"]) == len(words)
    assert saved["classes"] == sorted(TEAMS)


LOAD = """
import json, sys
from transformers import pipeline
classify = pipeline("text-classification", model=sys.argv[1])
print(json.dumps(classify(json.loads(sys.argv[2]))))
"""


def test_transformers_loads_the_fine_tuned_model(trained_by):
    model = trained_by(fine_tuning).model
    texts = [f"The {words} is wrong." * 5 for words in (team.split()[0] for team in TEAMS.values())]
    command = forked(environment("transformers"), "-c", LOAD, model, json.dumps(texts))
    answers = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert [answer["label"] for answer in answers] == list(TEAMS)


def test_the_packages_of_the_pipeline_are_those_of_the_environment():
    assert {*PACKAGES} <= {*TEST_ENVIRONMENTS["transformers"]()}
    assert train_specification(fine_tuning, packages=PACKAGES)["packages"] == PACKAGES


def test_a_folder_without_a_model_is_refused(messages, tmp_path, monkeypatch):
    monkeypatch.setenv("KFP_DISTRIBUTED_PYTORCH_PYTHON", str(environment("transformers")))
    with pytest.raises(Exception, match=r"pretrained='absent' is not a folder with config\.json"):
        train(fine_tuning, messages, tmp_path, {"pretrained": "absent"}, {"distribution_type": "PyTorch"})
