"""A built-in trainer whose loss or weights become NaN ends at once, on all ranks, and is not retried."""

import re
import time

import pytest
from environments import environment_of
from step_lines import into

from kfp_distributed.components.train.run.launch import TrainingFailed, launch
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.trainers.epochs.divergence import end_if_diverged

pytestmark = pytest.mark.takes(30)

MPI = {"distribution_type": "MPI", "number_of_workers": 2}
SECONDS = 400
"""A job takes 10 to 30 s on two idle cores. A rank that waits for another one would take minutes."""


@pytest.mark.parametrize(
    ("trainer", "distribution"),
    [
        ("keras_classifier", {"distribution_type": "TF", "number_of_parameter_servers": 0}),
        ("keras_classifier", {"distribution_type": "TF", "number_of_workers": 1}),
        ("keras_horovod", {**MPI, "min_workers": 1}),
        # No other test starts torch_horovod by its command line.
        pytest.param("torch_horovod", MPI, marks=pytest.mark.command_line),
        ("torch_classifier", {"distribution_type": "PyTorch", "number_of_workers": 1}),
    ],
    ids=["MultiWorkerMirrored", "ParameterServer", "Horovod elastic", "Horovod torch", "DDP"],
)
def test_a_training_that_diverges_ends_at_once(digits, tmp_path, trainer, distribution):
    request = Request(
        train_uri=str(digits.folder / "train"),
        validation_uri=str(digits.folder / "validation"),
        model_uri=str(tmp_path / "model"),
        train_specification={"trainer": trainer},
        train_parameters={"epochs": 1000, "learning_rate": 1e30},
        distribution_specification=distribution,
        identity=(str(tmp_path),),
    )
    lines, begin = [], time.monotonic()
    with environment_of(trainer), pytest.raises(TrainingFailed) as raised:
        launch(request, LocalRunner(), into(lines))
    assert time.monotonic() - begin < SECONDS, "a rank waited for another"
    assert re.search(r"failed with exit code 1\b", str(raised.value))
    assert "the training diverged in epoch 1: the loss is nan" in str(raised.value)
    assert "learning_rate (now 1e+30)" in str(raised.value)
    assert not any("restart" in line for line in lines), lines
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("loss", "has_finite_weights", "cause"),
    [
        (float("nan"), True, "the loss is nan"),
        (float("inf"), True, "the loss is inf"),
        (0.5, False, "the weights are not finite"),
    ],
)
def test_the_error_names_what_diverged(loss, has_finite_weights, cause):
    with pytest.raises(SystemExit, match=f"^the training diverged in epoch 7: {cause}. No model is saved"):
        end_if_diverged("epoch 7", loss, has_finite_weights, 0.1)


def test_a_training_that_does_not_diverge_continues():
    end_if_diverged("epoch 7", 0.5, True, 0.1)
