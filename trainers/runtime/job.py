"""What every replica of a training job is told, as one JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

JOB_VARIABLE = "KFP_DISTRIBUTED_JOB"
"""Environment variable with the path of the job file."""

REPLICA_VARIABLE = "KFP_DISTRIBUTED_REPLICA"
"""Environment variable with the replica's name, such as "worker-0"."""

PEER_LOST = 138
"""Exit code of a replica that failed because another one did. From 128 on, operators start a replica again."""

TRAINING_METRICS = "training.json"
EVALUATOR_METRICS = "evaluator.json"
TENSORBOARD = "tensorboard"
"""Folder beside the metrics with what TensorBoard reads."""

PEAK_MEMORY = "peak-memory"
"""File in a replica's working directory: the KiB that the largest of its processes had, written when it ends."""


@dataclass(frozen=True)
class JobDescription:
    """One training job, as its replicas see it.

    Attributes:
        name: The job's name.
        program: A train_specification.
        parameters: The train_parameters, checked.
        train_uri: Folder of the training Dataset.
        validation_uri: Folder of the validation Dataset; "" where there is none.
        model_uri: Folder that gets the model.
        checkpoint_uri: Folder of the checkpoints.
        metrics_uri: Folder of training.json and evaluator.json.
        leader: The replica that saves the model, and whose end is the job's end.
        data_replicas: The replicas that read training shards, in the order of their ranks.
        parameter_servers: How many parameter servers the job has.
        tensorboard: Whether the program is given a folder for TensorBoard's logs.
        heartbeat_uri: Object that the train step rewrites while it follows the job; "" if it writes none.
    """

    name: str
    program: Mapping[str, Any]
    parameters: Mapping[str, Any]
    train_uri: str
    validation_uri: str
    model_uri: str
    checkpoint_uri: str
    metrics_uri: str
    leader: str
    data_replicas: tuple[str, ...]
    parameter_servers: int = 0
    tensorboard: bool = False
    heartbeat_uri: str = ""

    def to_json(self) -> str:
        """Return the job file's text."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> JobDescription:
        """Read a job file's text."""
        values = json.loads(text)
        return cls(**{**values, "data_replicas": tuple(values["data_replicas"])})
