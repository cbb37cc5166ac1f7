"""The description of a training job, which every replica reads as a JSON file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

JOB_VARIABLE = "KFP_DISTRIBUTED_JOB"
"""Environment variable with the path of this file."""

LOST_SECONDS_VARIABLE = "KFP_DISTRIBUTED_LAUNCHER_LOST_SECONDS"
"""Environment variable with launcher_lost_timeout in seconds. Without it, a replica does not read the heartbeat."""

GRACE_VARIABLE = "KFP_DISTRIBUTED_GRACE_SECONDS"
"""Environment variable with termination_grace_seconds, after which the kubelet kills a container."""

GPUS_VARIABLE = "KFP_DISTRIBUTED_GPUS"
"""Environment variable of a pod of type Job or PyTorch with the number of its GPUs, if it has any."""

REPLICA_FOLDER_VARIABLE = "KFP_DISTRIBUTED_REPLICA_FOLDER"
"""Environment variable with the working directory of the replica, which its ranks share."""

REPLICA_VARIABLE = "KFP_DISTRIBUTED_REPLICA"
"""Environment variable with the name of the replica, such as "worker-0"."""

PEER_LOST = 138
"""Exit code of a replica that failed because another one did. Operators restart a replica with a code from 128 on."""

STORE_AWAY = 140
"""Exit code of a replica whose object store has answered it, and then did not answer any more. Its operator restarts
it, as for every code from 128 on. These restarts have no limit, so no other failure may have this code."""

STORE_FAILED = 146
"""Exit code of a replica whose object store refused a request, or answered in another way than expected."""

STORE_UNREACHED = 147
"""Exit code of a replica whose object store has not answered since the replica started. It may never reach the store,
so these restarts count for restart_limit unless the store is known to have answered a replica of the job before."""

STORE_SECONDS = 600.0
"""Seconds for which a replica or a step waits for an object store that is away. A replica waits at its start, and when
it saves the model. Then it ends with STORE_AWAY or STORE_UNREACHED, and is restarted. A step waits as long to read what
its replicas have stored. Then it fails."""

PROGRAM_CODE_RESERVED = 204
"""Exit code of a replica whose program ended with STORE_AWAY or STORE_UNREACHED by itself."""

CHECKPOINT_REJECTED = 144
"""Exit code of a replica whose program failed right after it had restored a checkpoint. The next start gets the one
before."""

PREEMPTED = 145
"""Exit code of a leader that has saved a checkpoint and ended, because it or another replica must end soon."""

TRAINING_METRICS = "training.json"
EVALUATOR_METRICS = "evaluator.json"
FINE_TUNING = "fine_tuning.json"
"""File beside the metrics with the tokens of a language model's rows and its answers to held-out prompts."""

TRAINING_DATA = "training-data.json"
"""File beside the metrics with the datasets that trained the checkpoints, as in model.json."""

BASE_MODEL = "base_model.json"
"""File of a model that was fine-tuned, with the attribute `base` of its manifest."""

TENSORBOARD = "tensorboard"
"""Folder beside the metrics with the logs for TensorBoard."""

PEAK_MEMORY = "peak-memory"
"""File in the working directory of a replica with the peak memory of its largest process in KiB, written at its end."""


@dataclass(frozen=True)
class JobDescription:
    """A training job, as its replicas see it.

    Attributes:
        name: Name of the job.
        program: The train_specification.
        parameters: The checked train_parameters.
        train_uri: Folder of the training dataset.
        validation_uri: Folder of the validation dataset; "" for none.
        model_uri: Folder to store the model in.
        checkpoint_uri: Folder of the checkpoints.
        metrics_uri: Folder of training.json and evaluator.json.
        leader: Name of the replica that saves the model. The job ends when it ends.
        data_replicas: Names of the replicas that read training shards, by rank.
        parameter_servers: Number of parameter servers. Default: 0.
        tensorboard: Whether the program receives a folder for TensorBoard's logs. Default: false.
        heartbeat_uri: Object that the train step rewrites while it follows the job. Default: "", no heartbeat.
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

    @property
    def request(self) -> str:
        """SHA-256 of this description, by which a finished training is recognized as the one that is requested."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> str:
        """Return the text of the job file."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> JobDescription:
        """Parse the text of a job file."""
        values = json.loads(text)
        return cls(**{**values, "data_replicas": tuple(values["data_replicas"])})
