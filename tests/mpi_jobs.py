"""Local MPI jobs, for tests of trainers."""

import signal

from replicas import kill_replica
from step_lines import brief

from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.components.train.tell.step_log import StepLog


def train(digits, folder, workers, *, program, see=lambda line: None, parameters=None, **distribution):
    """Trains on the digits; returns what came of it, and what a person saw of it."""
    lines = []

    def show(entry):
        line = brief(entry)
        lines.append(line)
        see(line)

    request = Request(
        str(digits.folder / "train"),
        str(folder / "model"),
        program,
        ("run", str(folder)),
        str(digits.folder / "validation"),
        parameters or {},
        {"distribution_type": "MPI", "number_of_workers": workers, **distribution},
    )
    return launch(request, LocalRunner(), StepLog(show)), lines


def losses(outcome):
    (epochs,) = outcome.metrics.values()
    return [epoch["loss"] for epoch in epochs]


def kill_rank(rank, number=signal.SIGKILL):
    """Send a signal to the process of an mpirun rank."""
    kill_replica(rank, "OMPI_COMM_WORLD_RANK", number)
