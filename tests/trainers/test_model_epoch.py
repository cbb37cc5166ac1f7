"""The metrics file has the epoch of the model, whose metrics are those of the model's manifest."""

import json

import pytest

from kfp_distributed.trainers.runtime.outputs.epoch_metrics import record_epoch
from kfp_distributed.trainers.runtime.outputs.metrics_file import mark_model_epoch, read_model_metrics


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "training.json"
    for epoch in (1, 2, 3):
        record_epoch(file, "worker-0", epoch, 3, {"loss": epoch / 2})
    return file


def test_metrics_of_the_model_are_those_of_its_epoch(file):
    unmarked = file.read_bytes()
    assert read_model_metrics(file) == {"epoch": 3, "loss": 1.5}
    mark_model_epoch(file, 2)
    assert json.loads(file.read_text())["model_epoch"] == 2
    assert read_model_metrics(file) == {"epoch": 2, "loss": 1.0}
    mark_model_epoch(file, None)
    assert file.read_bytes() == unmarked
    mark_model_epoch(file, 2)
    record_epoch(file, "worker-0", 4, 4, {"loss": 2.0})
    assert read_model_metrics(file) == {"epoch": 4, "loss": 2.0}, "a training that goes on has no model yet"


def test_an_epoch_whose_metrics_are_lost_keeps_its_number(file):
    mark_model_epoch(file, 9)
    assert read_model_metrics(file) == {"epoch": 9}


def test_without_a_metrics_file_nothing_is_known(tmp_path):
    mark_model_epoch(tmp_path / "training.json", 2)
    assert read_model_metrics(tmp_path / "training.json") == {}
    assert list(tmp_path.iterdir()) == []
