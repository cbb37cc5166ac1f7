"""Runs a training: checks the request, starts the job, follows it to its end, and verifies the model."""

import hashlib
import json
import re
import select
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any

from kfp_distributed.components.startup_remarks import STARTUP_REMARK
from kfp_distributed.components.train.datasets import check_datasets
from kfp_distributed.components.train.deadline import call_within
from kfp_distributed.components.train.job import (
    Fact,
    JobEnded,
    JobEvent,
    LogLine,
    Quiet,
    ReplicaSample,
    TrainingJob,
    clock,
)
from kfp_distributed.components.train.log_format import JOB, LogEntry
from kfp_distributed.components.train.replica_status import LAST_LINES
from kfp_distributed.components.train.resume import (
    CHECKPOINTS,
    METRICS,
    check_resume,
    copy_training,
    training_folder,
)
from kfp_distributed.components.train.runners.protocol import ClusterError, Runner
from kfp_distributed.components.train.signals import ended_by_signals
from kfp_distributed.components.train.specification import DistributionSpecification, parse_distribution
from kfp_distributed.components.train.stalls import Stalls, check_stalls
from kfp_distributed.components.train.status import (
    JobStatus,
    add_output,
    advance,
    begin,
    failure_cause,
    final_failure,
)
from kfp_distributed.components.train.step_log import log_entry, split_samples
from kfp_distributed.components.train.time_budgets import expired_budget
from kfp_distributed.components.train.topology import Topology, plan_topology
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.model import ModelIncomplete, ModelManifest, verify_model
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.shards import fetch_manifest
from kfp_distributed.storage.store import Store
from kfp_distributed.storage.uri import join_uri, parse_uri
from kfp_distributed.trainers.program import ELASTIC, TRAINERS, Program, check_batch, check_parameters, parse_program
from kfp_distributed.trainers.runtime.job import EVALUATOR_METRICS, TENSORBOARD, TRAINING_METRICS, JobDescription

STORE_AWAY_SECONDS = 600.0
"""How long to retry reading the model while the object store is away. The leader retries saving it as long."""

METRICS_SECONDS = 3.0
"""How long reading the metrics of a failed job may delay its error. They are two small objects."""

Metrics = Mapping[str, Sequence[Mapping[str, float]]]


class TrainingFailed(Exception):
    """A training ended without a model. The text has the last log lines of the replica that failed, and the cause.

    Attributes:
        status: Status of the job when it failed.
        metrics: Metrics of the epochs that were finished by then, by replica.
    """

    def __init__(self, cause: str, status: JobStatus, metrics: Metrics) -> None:
        super().__init__(cause)
        self.status = status
        self.metrics = metrics


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


@dataclass(frozen=True)
class Outcome:
    """Result of a training that succeeded.

    Attributes:
        status: Final status of the job.
        model: Manifest of the model.
        metrics: Epochs of each replica that recorded any: [{"epoch": 1, "loss": ..., ...}, ...].
    """

    status: JobStatus
    model: ModelManifest
    metrics: Metrics


def launch(
    request: Request,
    runner: Runner,
    show: Callable[[LogEntry], object],
    on_start: Callable[[TrainingJob], object] = lambda job: None,
) -> Outcome:
    """Run a training. Call it in the main thread, because it handles signals.

    No process and no pod of the job is left running when it returns or raises.

    Args:
        request: Arguments of the step.
        runner: Where the replicas run.
        show: Receives each entry of the step's log, such as `print`.
        on_start: Receives the job when it has started. Default: does nothing.

    Returns:
        The result of the training.

    Raises:
        ValueError: The request is wrong. Nothing was started.
        StorageError: A dataset cannot be read. Nothing was started.
        TrainingFailed: The job failed, exceeded a timeout, or left no complete model.
        ClusterError: The cluster refused the job.
        SystemExit: The process received SIGTERM or SIGHUP.
    """
    job = plan_job(request)
    description = job.description
    resumes_other = check_resume(request.resume_from, description)
    for warning in job.warnings:
        show(LogEntry(clock(), "WARNING", JOB, warning))
    # From here on: a previous attempt of this step may have left the job, which a cancel must delete as well.
    with ended_by_signals(runner.stop):
        runner.check(job)
        # Replicas start by looking for a checkpoint, so wrong credentials of the store fail here, before they start.
        open_store(description.checkpoint_uri).make_bucket()
        if resumes_other:
            name = copy_training(request.resume_from, description)
            show(LogEntry(clock(), "INFO", JOB, f"starts from checkpoint {name} of {request.resume_from}"))
        runner.start(job)
        on_start(job)
        status = _follow(runner, job, show)
    if status.ended is None or not status.ended.succeeded:
        raise _failed(failure_cause(status), status, description)
    try:
        model = verify_model(open_store(description.model_uri, retry_seconds=STORE_AWAY_SECONDS))
        if model.job != job.name:
            raise ModelIncomplete(f"the one in {description.model_uri} is of the job {model.job!r}")
    except (ModelIncomplete, StorageError) as error:
        fault = "left no complete model" if isinstance(error, ModelIncomplete) else "its model could not be read"
        cause = f"The job succeeded, but {fault}: {error}."
        raise _failed(cause, status, description) from None
    return Outcome(status, model, read_metrics(description.metrics_uri))


def _failed(cause: str, status: JobStatus, description: JobDescription) -> TrainingFailed:
    """Return the error of a job that was started. If the object store does not answer in time, it has no metrics."""
    metrics = call_within(METRICS_SECONDS, lambda: read_metrics(description.metrics_uri))
    return TrainingFailed(cause, status, metrics or {})


def plan_job(request: Request) -> TrainingJob:
    """Check a request and return its job. Nothing is started.

    Raises:
        ValueError: The request is wrong.
        StorageError: A dataset cannot be read.
    """
    specification = parse_distribution(request.distribution_specification)
    if request.checkpoint_uri:
        parse_uri(request.checkpoint_uri)
    program = parse_program(request.train_specification)
    _check_distribution(program, specification)
    parameters = check_parameters(program, request.train_parameters)
    topology = plan_topology(specification)
    ranks = _most_ranks(topology, specification)
    _check_batch(program, parameters, ranks, specification)
    # Each replica has a working directory of its own.
    train_uri, validation_uri, model_uri, checkpoint_uri = (
        uri if "://" in uri or not uri else str(Path(uri).absolute())
        for uri in (request.train_uri, request.validation_uri, request.model_uri, request.checkpoint_uri)
    )
    warnings = check_datasets(
        fetch_manifest(train_uri), fetch_manifest(validation_uri) if validation_uri else None, ranks
    )
    name = job_name(request.task_name, request.identity)
    # Replaces the last part of the model's path. A query with settings of the store may follow it.
    beside_model = re.sub(r"/[^/?]*/?(?=\?|$)", "/checkpoints", model_uri, count=1)
    folder = join_uri(checkpoint_uri or beside_model, name)
    description = JobDescription(
        name=name,
        program=dict(request.train_specification),
        parameters=parameters,
        train_uri=train_uri,
        validation_uri=validation_uri,
        model_uri=model_uri,
        checkpoint_uri=join_uri(folder, CHECKPOINTS),
        metrics_uri=join_uri(folder, METRICS),
        leader=topology.leader,
        data_replicas=topology.data_replicas,
        parameter_servers=specification.number_of_parameter_servers,
        tensorboard=specification.tensorboard,
        # Not below `checkpoint_uri`, which may be on a volume that the step does not mount.
        heartbeat_uri=join_uri(beside_model, name, "heartbeat"),
    )
    labels = {"run": _label(request.identity[0]), "task": _label(request.task_name)}
    return TrainingJob(name, topology, specification, description, labels=labels, warnings=tuple(warnings))


def _check_distribution(program: Program, specification: DistributionSpecification) -> None:
    """Check that a program supports a distribution.

    Raises:
        ValueError: The program does not support it.
    """
    types = TRAINERS[program.name] if program.kind == "trainer" else ()
    if types and specification.distribution_type not in types:
        others = " or ".join(name for name, kinds in TRAINERS.items() if specification.distribution_type in kinds)
        raise ValueError(
            f"distribution_type = {specification.distribution_type!r}: {program.name} is for {', '.join(types)}; "
            f"choose {others}"
        )
    if types and specification.min_workers and program.name not in ELASTIC:
        raise ValueError(f"min_workers = {specification.min_workers}: {program.name} is not elastic; remove it")
    if specification.tensorboard and "tensorboard_dir" not in program.folders:
        raise ValueError(f"tensorboard = true: {program.name} writes no logs, it has no parameter tensorboard_dir")


def _most_ranks(topology: Topology, specification: DistributionSpecification) -> int:
    """Return how many ranks may read training rows at most: one for each slot. An elastic job may get more workers."""
    added = (specification.max_workers or specification.number_of_workers) - specification.number_of_workers
    return (len(topology.data_replicas) + added) * specification.slots_per_worker


def _check_batch(
    program: Program, parameters: Mapping[str, Any], ranks: int, specification: DistributionSpecification
) -> None:
    """Check that an update of a built-in trainer has a row for each rank.

    Raises:
        ValueError: It has not.
    """
    # With parameter servers, an update belongs to one worker.
    if program.kind != "trainer" or specification.number_of_parameter_servers:
        return
    # A process of keras_classifier uses all of its GPUs. In the other trainers, each rank uses one.
    devices = max(1, specification.worker_gpus) if program.name == "keras_classifier" else 1
    defaults = {parameter.name: parameter.default for parameter in program.parameters}
    try:
        check_batch({**defaults, **parameters}["batch_size"], ranks * devices)
    except ValueError as error:
        raise ValueError(f"train_parameters of {program.name}: {error}") from None


def _label(text: str) -> str:
    """Return a text as a valid value of a Kubernetes label."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:63].strip("-_.")


def job_name(task_name: str, identity: Sequence[str]) -> str:
    """Return the name of a job, which is always the same for a task of a run.

    It is a DNS-1035 label of at most 50 characters, so that the names of its pods have at most 63.
    """
    readable = re.sub(r"[^a-z0-9]+", "-", task_name.lower()).strip("-")
    if not readable[:1].isalpha():
        readable = f"train-{readable}"
    return f"{readable[:36].strip('-')}-{hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]}"


def read_metrics(uri: str) -> Metrics:
    """Return the epochs that replicas recorded, by replica. Files that cannot be read are left out."""
    return stored_metrics(open_store(uri))


def stored_metrics(store: Store) -> Metrics:
    """Return the result of `read_metrics` from a store that was opened at their folder."""
    metrics = {}
    for key in (TRAINING_METRICS, EVALUATOR_METRICS):
        # A store that is away must not hide the outcome of the training. A user's program may write a file of another
        # form, in which case its replica has printed that.
        with suppress(StorageError, KeyError, TypeError, ValueError, OverflowError):
            content = json.loads(store.read(key))
            metrics[str(content["replica"])] = [
                {"epoch": epoch["epoch"] * 1.0}
                | {name: value for name, value in epoch.items() if isinstance(value, int | float)}
                for epoch in content["epochs"]
            ]
    return metrics


def _follow(runner: Runner, job: TrainingJob, show: Callable[[LogEntry], object]) -> JobStatus:
    status = begin(job, clock())
    lines: dict[str, deque[LogLine]] = defaultdict(lambda: deque(maxlen=LAST_LINES))
    samples: list[ReplicaSample] = []
    stalls = Stalls()
    for fact in chain(_first_events(job), _facts(runner)):
        if isinstance(fact, LogLine):
            if re.search(STARTUP_REMARK, fact.line):
                continue
            show(LogEntry(fact.time, "INFO", fact.replica, fact.line))
            # There may be millions of lines. The status keeps only the last ones, so it is updated less often.
            lines[fact.replica].append(fact)
            continue
        if isinstance(fact, ReplicaSample):
            samples.append(fact)
            if entry := log_entry(fact):
                show(entry)
            continue
        status = add_output(status, chain(samples, *lines.values()))
        samples.clear()
        lines.clear()
        end_reason, events = "", list[Fact]()
        if isinstance(fact, Quiet):
            stalls, warnings = check_stalls(status, stalls, fact.time)
            events += warnings
            spec = job.specification
            end_reason = expired_budget(status, spec, fact.time) or final_failure(status, spec)
            if _reader_is_gone():
                end_reason = "Nobody reads the output of this step any more."
        events.append(JobEnded(fact.time, False, end_reason) if end_reason else fact)
        status = reduce(advance, events, status)
        for entry in filter(None, map(log_entry, events)):
            show(entry)
        if end_reason:
            break
    return status


def _first_events(job: TrainingJob) -> Iterator[JobEvent]:
    yield JobEvent(clock(), f"checkpoints are stored in {training_folder(job.description)}")
    if job.description.tensorboard:
        yield JobEvent(clock(), f"TensorBoard's logs: {join_uri(job.description.metrics_uri, TENSORBOARD)}")


def _facts(runner: Runner) -> Iterator[Fact]:
    """Yield the facts of a runner, with the samples apart from the lines that have them.

    An error of the cluster becomes the end of the job, so that the failure has a status.
    """
    try:
        for fact in runner.facts():
            yield from split_samples(fact)
    except ClusterError as error:
        yield JobEnded(clock(), False, f"{str(error).rstrip('.')}.")


def _reader_is_gone() -> bool:
    """Return whether standard output is a pipe or terminal without a reader, because its process was killed."""
    output = select.poll()
    output.register(1, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in output.poll(0))
