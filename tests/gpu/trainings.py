"""Trainings with one rank on the GPU of this machine, as the step `train` runs them.

With KFP_DISTRIBUTED_TEST_GPU=cpu they run on the CPU with smaller models, so that a machine without a GPU can show that
the tests still fit the library. Only what is said about CUDA is not checked then.
"""

import os
from pathlib import Path
from typing import NamedTuple

from kfp_distributed.components.train.run.facts import LogLine
from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.training_request.request import Request

ON_GPU = os.environ.get("KFP_DISTRIBUTED_TEST_GPU") != "cpu"


class Training(NamedTuple):
    """A training that has ended: its metrics of steps or epochs, the folder of its model, and its log."""

    rows: list
    model: Path
    log: str


def train(data, place, specification, parameters):
    """Train on the datasets of a folder, in one process: a job with several would need a GPU for each."""
    request = Request(
        train_uri=str(data / "train"),
        validation_uri=str(data / "validation"),
        model_uri=str(place / "model"),
        train_specification=specification,
        train_parameters=parameters,
        distribution_specification={"worker_gpus": 1, "total_timeout": 200},
        identity=(str(place),),
    )
    facts = []
    outcome = launch(request, LocalRunner(), facts.append)
    (rows,) = outcome.metrics.values()
    return Training(list(rows), place / "model", "\n".join(fact.line for fact in facts if isinstance(fact, LogLine)))
