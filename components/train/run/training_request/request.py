"""The request of a `train` step, and the job that it asks for."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kfp_distributed.components.train.describe.distributions import parse_distribution
from kfp_distributed.components.train.describe.specification import DistributionSpecification
from kfp_distributed.components.train.describe.task_path import TaskPath
from kfp_distributed.components.train.describe.topology import Topology, plan_topology
from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.components.train.run.training_request.datasets import (
    check_choice,
    check_datasets,
    check_trainable,
)
from kfp_distributed.components.train.run.training_request.gpu_memory import plan_evaluation, plan_memory, read_config
from kfp_distributed.components.train.run.training_request.resume import CHECKPOINTS, METRICS
from kfp_distributed.storage.model import ModelIncomplete
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.shards import fetch_manifest
from kfp_distributed.storage.uri import join_uri, parse_uri, uri_beside
from kfp_distributed.trainers.programs.base_model import check_files, hub_hint, is_in_store, parse_hub, stored_files
from kfp_distributed.trainers.programs.chat_template import check_chat_template
from kfp_distributed.trainers.programs.language_parameters import check_sharding, micro_batches
from kfp_distributed.trainers.programs.model_size import check_length
from kfp_distributed.trainers.programs.program import (
    ELASTIC,
    JOB_TYPES,
    LANGUAGE_EVALUATION,
    LANGUAGE_MODEL,
    OF_TEXTS,
    TRAINERS,
    Program,
    check_batch,
    check_parameters,
    parameters_name,
    parse_program,
)
from kfp_distributed.trainers.runtime.job_description import JobDescription

_NAME_LENGTH = 30
"""Maximum number of characters of a job's name before the hash."""


@dataclass(frozen=True)
class Request:
    """Arguments of a `train` step. Folders are URIs or local paths.

    Attributes:
        train_uri: Folder of the training dataset.
        model_uri: Folder to save the model in.
        train_specification: What each replica runs.
        identity: ID of the pipeline run, followed by values that identify this training within the run.
        validation_uri: Folder of the validation dataset. Default: "", no validation.
        train_parameters: Arguments of the trainer or function. Default: none.
        distribution_specification: Type of the job and number and size of its replicas. Default: None, one process.
        task_name: Name of the task, which becomes part of the job's name. Default: "train".
        checkpoint_uri: Folder for the checkpoints of all jobs. Default: "", the folder `checkpoints` beside the model.
        resume_from: Folder of another training, whose latest checkpoint this one starts from. Default: "", none.
        task_path: Position of the task in its pipeline, which becomes part of the job's name. Default: the top level.
        trainers: Names of the built-in programs that are allowed. Default: those of TRAINERS.
    """

    train_uri: str
    model_uri: str
    train_specification: Mapping[str, Any]
    identity: tuple[str, ...]
    validation_uri: str = ""
    train_parameters: Mapping[str, Any] = field(default_factory=dict)
    distribution_specification: Any = None
    checkpoint_uri: str = ""
    task_name: str = "train"
    resume_from: str = ""
    task_path: TaskPath = field(default_factory=TaskPath)
    trainers: Sequence[str] = tuple(TRAINERS)

    @property
    def job_name(self) -> str:
        """Name of the job. See `job_name`."""
        return job_name(self.task_name, self.identity, self.task_path)

    @property
    def folder(self) -> str:
        """Folder of the checkpoints, metrics and records of the training, CHECKPOINT_URI/JOB."""
        root = self.checkpoint_uri or uri_beside(self.model_uri, "checkpoints")
        return join_uri(root if "://" in root else str(Path(root).absolute()), self.job_name)


def plan_job(request: Request) -> TrainingJob:
    """Check a request and return its job. Nothing is started.

    Raises:
        ValueError: The request is wrong.
        StorageError: A dataset cannot be read.
    """
    specification = parse_distribution(request.distribution_specification)
    if request.checkpoint_uri:
        parse_uri(request.checkpoint_uri)
    program = parse_program(request.train_specification, request.trainers)
    check_distribution(program, specification)
    parameters = check_parameters(program, request.train_parameters)
    topology = plan_topology(specification)
    ranks = most_ranks(topology, specification)
    _check_batch(program, parameters, ranks, specification)
    # Each replica has a working directory of its own.
    train_uri, validation_uri, model_uri = (
        uri if "://" in uri or not uri else str(Path(uri).absolute())
        for uri in (request.train_uri, request.validation_uri, request.model_uri)
    )
    train, validation = fetch_manifest(train_uri), fetch_manifest(validation_uri) if validation_uri else None
    trainer = program.name if program.kind == "trainer" else ""
    if trainer:
        check_trainable(train, trainer, parameters, validation)
    note, warnings = "", list[str]()
    if trainer in OF_TEXTS:
        warnings += _check_model_and_template(trainer, parameters, ranks)
    if trainer == LANGUAGE_MODEL:
        parameters, note = _plan_memory(parameters, ranks, specification)
    if trainer == LANGUAGE_EVALUATION:
        parameters = plan_evaluation(parameters, ranks, specification.worker_gpu_memory)
    else:
        warnings += check_datasets(train, validation, 1 if program.rows == "all" else ranks)
    if program.reads_store:
        check_choice(parameters, trainer, train, validation)
    name = request.job_name
    description = JobDescription(
        name=name,
        program=dict(request.train_specification),
        parameters=parameters,
        train_uri=train_uri,
        validation_uri=validation_uri,
        model_uri=model_uri,
        checkpoint_uri=join_uri(request.folder, CHECKPOINTS),
        metrics_uri=join_uri(request.folder, METRICS),
        leader=topology.leader,
        data_replicas=topology.data_replicas,
        parameter_servers=specification.number_of_parameter_servers,
        tensorboard=specification.tensorboard,
        # Not below `checkpoint_uri`, which may be on a volume that the step does not mount.
        heartbeat_uri=uri_beside(model_uri, "checkpoints", name, "heartbeat"),
    )
    labels = {"run": label_value(request.identity[0]), "task": label_value(request.task_name)}
    labels |= {name: label_value(text) for name, text in request.task_path.labels.items()}
    notes = (note,) if note else ()
    return TrainingJob(name, topology, specification, description, labels=labels, warnings=tuple(warnings), notes=notes)


def check_distribution(program: Program, specification: DistributionSpecification) -> None:
    """Check that a program supports a distribution.

    Raises:
        ValueError: The program does not support it.
    """
    types = JOB_TYPES[program.name] if program.kind == "trainer" else ()
    if types and specification.distribution_type not in types:
        others = " or ".join(name for name, kinds in TRAINERS.items() if specification.distribution_type in kinds)
        raise ValueError(
            f"distribution_type = {specification.distribution_type!r}: {program.name} is for {', '.join(types)}"
            + f"; choose {others}" * (program.name in TRAINERS)
        )
    if types and specification.min_workers and program.name not in ELASTIC:
        raise ValueError(f"min_workers = {specification.min_workers}: {program.name} is not elastic; remove it")
    gpus, slots = specification.worker_gpus, specification.slots_per_worker
    if types and program.name in OF_TEXTS and gpus not in (0, slots):
        raise ValueError(
            f"worker_gpus = {gpus}: {program.name} uses a GPU for each rank, and a replica has {slots}; "
            f'set worker_gpus to {slots}, or "distribution_type": "PyTorch" without slots_per_worker, so that '
            "master and workers have a rank for each GPU"
        )
    if specification.tensorboard and "tensorboard_dir" not in program.folders:
        raise ValueError(f"tensorboard = true: {program.name} writes no logs, it has no parameter tensorboard_dir")


def most_ranks(topology: Topology, specification: DistributionSpecification) -> int:
    """Return how many ranks may read training rows at most: one for each slot. An elastic job may get more workers."""
    added = (specification.max_workers or specification.number_of_workers) - specification.number_of_workers
    return (len(topology.data_replicas) + added) * specification.slots_per_worker


def _check_batch(
    program: Program, parameters: Mapping[str, Any], ranks: int, specification: DistributionSpecification
) -> None:
    """Check that an update of a built-in trainer has a row for each rank, and that `language_model` can divide it.

    An evaluation has no updates.

    Raises:
        ValueError: It has not, or cannot.
    """
    # With parameter servers, an update belongs to one worker.
    if program.kind != "trainer" or specification.number_of_parameter_servers or program.name == LANGUAGE_EVALUATION:
        return
    # A process of keras_classifier uses all of its GPUs. In the other trainers, each rank uses one.
    devices = max(1, specification.worker_gpus) if program.name == "keras_classifier" else 1
    values = {parameter.name: parameter.default for parameter in program.parameters} | {**parameters}
    try:
        check_batch(values["batch_size"], ranks * devices)
        if program.name == LANGUAGE_MODEL:
            micro_batches(values["batch_size"], values["micro_batch_size"], ranks)
    except ValueError as error:
        raise ValueError(f"train_parameters of {program.name}: {error}") from None


def _check_model_and_template(program: str, parameters: Mapping[str, Any], ranks: int) -> list[str]:
    """Check sharding, the chat template, the model and max_length, and return warnings.

    A model of a store is there, and a folder is a full path.

    Raises:
        ValueError: They are not so.
        StorageError: The store cannot be read.
    """
    address = parameters["base_model"]
    try:
        check_sharding(parameters, ranks)
        check_chat_template(parameters.get("chat_template", ""))
        if is_in_store(address):
            check_files(address, [file.path for file in stored_files(open_store(address))])
        elif parse_hub(address):
            return []
        elif not Path(address).is_absolute():
            raise ValueError(
                f"base_model is {address!r}; allowed are an address such as s3://bucket/model, "
                f"hf://OWNER/NAME@REVISION, and the full path of a folder of each replica{hub_hint(address)}"
            )
        config: Mapping[str, Any] = {}
        with suppress(OSError, ValueError):  # Only the replicas have the folder, or they find that it is not valid.
            config = read_config(address)
        return [*filter(None, [check_length(config, parameters)])]
    except (ModelIncomplete, ValueError) as error:
        raise ValueError(f"{parameters_name(program)}: {error}") from None


def _plan_memory(
    parameters: Mapping[str, Any], ranks: int, specification: DistributionSpecification
) -> tuple[dict[str, Any], str]:
    """Return the result of `plan_memory`. Its errors name the trainer."""
    memory = specification.worker_gpu_memory
    try:
        if parameters.get("method") == "qlora" and not specification.worker_gpus:
            raise ValueError('method is "qlora", which needs GPUs: set worker_gpus, or set method to "lora"')
        if memory and not specification.worker_gpus:
            raise ValueError(f"worker_gpu_memory is {memory!r}, and there are no GPUs: set worker_gpus, too")
        return plan_memory(parameters, ranks, memory)
    except ValueError as error:
        raise ValueError(f"train_parameters of {LANGUAGE_MODEL}: {error}") from None


def label_value(text: str) -> str:
    """Return a text as a valid value of a Kubernetes label, in which other characters are "-"."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:63].strip("-_.")


def job_name(task_name: str, identity: Sequence[str], path: TaskPath = TaskPath()) -> str:  # noqa: B008 - immutable
    """Return the name of a job, which is always the same for a task of a run.

    It is a DNS-1035 label of at most 43 characters, so that the names of its pods have at most 63: JobSet appends texts
    such as "-evaluator-0-0-xxxxx" and "-worker-0-9999-xxxxx". Its parts are the sub-pipelines, the task, the iterations
    and a hash of the identity, such as "tune-train-1-0123456789ab". The end of long names is left out.
    """
    iterations = "".join(f"-{index}" for index in path.iterations)[-_NAME_LENGTH + 1 :]
    readable = re.sub(r"[^a-z0-9]+", "-", "-".join([*path.sub_pipelines, task_name]).lower()).strip("-")
    if not readable[:1].isalpha():
        readable = f"train-{readable}"
    readable = f"{readable[: _NAME_LENGTH - len(iterations)].strip('-')}{iterations}"
    return f"{readable}-{hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]}"
