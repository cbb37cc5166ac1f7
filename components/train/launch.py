"""The one flow of a training: check everything, start the job, follow it to its end, look at what came of it."""

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
from kfp_distributed.components.train.deadline import call_within
from kfp_distributed.components.train.job import Fact, JobEnded, JobEvent, LogLine, Quiet, TrainingJob, clock
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
from kfp_distributed.components.train.status import (
    LAST_LINES,
    JobStatus,
    advance,
    begin,
    describe,
    expired_budget,
    failure_cause,
    final_failure,
)
from kfp_distributed.components.train.topology import Topology, plan_topology
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.model import ModelIncomplete, ModelManifest, verify_model
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.shards import fetch_manifest
from kfp_distributed.storage.store import Store
from kfp_distributed.storage.uri import join_uri, parse_uri
from kfp_distributed.trainers.program import ELASTIC, TRAINERS, Program, check_parameters, parse_program
from kfp_distributed.trainers.runtime.job import EVALUATOR_METRICS, TENSORBOARD, TRAINING_METRICS, JobDescription

STORE_AWAY_SECONDS = 600.0
"""How long the object store may be away when a model is there: as long as its leader tries to save it."""

METRICS_SECONDS = 3.0
"""How long reading the metrics of a failed job may delay its error. They are two small objects."""

Metrics = Mapping[str, Sequence[Mapping[str, float]]]


class TrainingFailed(Exception):
    """A training did not end with a model; the text says why in a few plain sentences.

    Attributes:
        status: Where the job stood when that was clear.
        metrics: The epochs that the replicas had kept by then.
    """

    def __init__(self, cause: str, status: JobStatus, metrics: Metrics) -> None:
        super().__init__(cause)
        self.status = status
        self.metrics = metrics


@dataclass(frozen=True)
class Request:
    """What a `train` step is asked for. Folders are URIs or local paths.

    Attributes:
        train_uri: Folder of the training Dataset.
        validation_uri: Folder of the validation Dataset; "" where there is none.
        model_uri: Folder that gets the model.
        train_specification: What to run.
        train_parameters: Its arguments.
        distribution_specification: How it is distributed.
        checkpoint_uri: Folder for the checkpoints of all jobs; "" means the folder `checkpoints` beside the model.
        identity: The run ID, then what tells this training from all others of all runs.
        task_name: For people to recognise the job by.
        resume_from: Folder of another training, whose newest checkpoint this one starts from; "" for none.
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
    """What came of a training.

    Attributes:
        status: How it went.
        model: The manifest of the model.
        metrics: For each replica that kept any its epochs: [{"epoch": 1, "loss": ..., ...}, ...].
    """

    status: JobStatus
    model: ModelManifest
    metrics: Metrics


def launch(
    request: Request,
    runner: Runner,
    show: Callable[[str], None],
    on_start: Callable[[TrainingJob], object] = lambda job: None,
) -> Outcome:
    """Runs a training from its dicts to its model. In the main thread, which alone gets signals.

    Args:
        request: What to run, on what data, how, and where the model goes.
        runner: Where the replicas run.
        show: Takes each line that a person who looks at the step should see.
        on_start: Receives the job when it has started.

    Raises:
        ValueError: The request is wrong; nothing was started.
        StorageError: The dataset cannot be read; nothing was started.
        TrainingFailed: The job failed, ran out of time, or left no whole model. Nothing is left running.
        ClusterError: The cluster refused the job; nothing is left running.
        SystemExit: SIGTERM or SIGHUP came. Nothing is left running.
    """
    job = plan_job(request)
    description = job.description
    resumes_other = check_resume(request.resume_from, description)
    # An earlier start of this step may have left the job, and a cancel ends that too.
    with ended_by_signals(runner.stop):
        runner.check(job)
        # Replicas begin by looking for a checkpoint: whether the store lets us in is known before they start.
        open_store(description.checkpoint_uri).make_bucket()
        if resumes_other:
            name = copy_training(request.resume_from, description)
            show(f"starts from checkpoint {name} of {request.resume_from}")
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
        fault = "left no whole model" if isinstance(error, ModelIncomplete) else "its model could not be looked at"
        cause = f"The job succeeded, but {fault}: {error}."
        raise _failed(cause, status, description) from None
    return Outcome(status, model, read_metrics(description.metrics_uri))


def _failed(cause: str, status: JobStatus, description: JobDescription) -> TrainingFailed:
    """The error of a started job. A store that does not answer must not hold it back; the report then has no curves."""
    metrics = call_within(METRICS_SECONDS, lambda: read_metrics(description.metrics_uri))
    return TrainingFailed(cause, status, metrics or {})


def plan_job(request: Request) -> TrainingJob:
    """Checks a request and makes the job of it; nothing is started.

    Raises:
        ValueError: Something in it is wrong; the text names it.
        StorageError: A Dataset cannot be read.
    """
    specification = parse_distribution(request.distribution_specification)
    if request.checkpoint_uri:
        parse_uri(request.checkpoint_uri)
    program = parse_program(request.train_specification)
    _check_distribution(program, specification)
    parameters = check_parameters(program, request.train_parameters)
    topology = plan_topology(specification)
    # Each replica has a working directory of its own.
    train_uri, validation_uri, model_uri, checkpoint_uri = (
        uri if "://" in uri or not uri else str(Path(uri).absolute())
        for uri in (request.train_uri, request.validation_uri, request.model_uri, request.checkpoint_uri)
    )
    _check_data(train_uri, validation_uri, topology, specification)
    name = job_name(request.task_name, request.identity)
    # The last part of the model's path, which a store's settings may follow.
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
        # Not under `checkpoint_uri`: that may be a volume, which the step does not mount.
        heartbeat_uri=join_uri(beside_model, name, "heartbeat"),
    )
    labels = {"run": _label(request.identity[0]), "task": _label(request.task_name)}
    return TrainingJob(name, topology, specification, description, labels=labels)


def _check_distribution(program: Program, specification: DistributionSpecification) -> None:
    """Checks that a program can be distributed in the specified way.

    Raises:
        ValueError: It cannot.
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


def _check_data(
    train_uri: str, validation_uri: str, topology: Topology, specification: DistributionSpecification
) -> None:
    """Reads the manifests of the Datasets, and checks that there is a row for each rank.

    Raises:
        ValueError: There are too few rows.
        StorageError: A Dataset cannot be read.
    """
    # A replica has a rank for each of its slots, and an elastic job may get more workers.
    added = (specification.max_workers or specification.number_of_workers) - specification.number_of_workers
    readers = (len(topology.data_replicas) + added) * specification.slots_per_worker
    rows = fetch_manifest(train_uri).rows
    if rows < readers:
        raise ValueError(f"train_dataset: {rows} rows are too few for {readers} ranks that read it; use fewer workers")
    if validation_uri:
        fetch_manifest(validation_uri)


def _label(text: str) -> str:
    """A text as the value of a Kubernetes label."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:63].strip("-_.")


def job_name(task_name: str, identity: Sequence[str]) -> str:
    """Names a job: a DNS-1035 label of at most 50 characters, so that names of pods fit, always the same for a task."""
    readable = re.sub(r"[^a-z0-9]+", "-", task_name.lower()).strip("-")
    if not readable[:1].isalpha():
        readable = f"train-{readable}"
    return f"{readable[:36].strip('-')}-{hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]}"


def read_metrics(uri: str) -> Metrics:
    """Reads what the replicas kept of their epochs, by the replica's name; what cannot be read is left out."""
    return stored_metrics(open_store(uri))


def stored_metrics(store: Store) -> Metrics:
    """Return the metrics of `read_metrics` from a store that is open at their folder."""
    found = {}
    for key in (TRAINING_METRICS, EVALUATOR_METRICS):
        # A store that is away must hide neither a model nor why there is none. A program of the user's may keep
        # something else there, of which the replica has said so.
        with suppress(StorageError, KeyError, TypeError, ValueError, OverflowError):
            kept = json.loads(store.read(key))
            found[str(kept["replica"])] = [
                {"epoch": entry["epoch"] * 1.0}
                | {key: each for key, each in entry.items() if isinstance(each, int | float)}
                for entry in kept["epochs"]
            ]
    return found


def _follow(runner: Runner, job: TrainingJob, show: Callable[[str], None]) -> JobStatus:
    status = begin(job, clock())
    told = [JobEvent(clock(), f"checkpoints are stored in {training_folder(job.description)}")]
    if job.description.tensorboard:
        told.append(JobEvent(clock(), f"TensorBoard's logs: {join_uri(job.description.metrics_uri, TENSORBOARD)}"))
    lines: dict[str, deque[LogLine]] = defaultdict(lambda: deque(maxlen=LAST_LINES))
    for fact in chain(told, _facts(runner)):
        if isinstance(fact, LogLine):
            if re.search(STARTUP_REMARK, fact.line):
                continue
            show(f"[{fact.replica}] {fact.line}")
            # There may be millions of lines, and of those before the newest the status keeps nothing.
            lines[fact.replica].append(fact)
            continue
        status = reduce(advance, chain(*lines.values()), status)
        lines.clear()
        over = ""
        if isinstance(fact, Quiet):
            spec = job.specification
            over = expired_budget(status, spec, fact.time) or final_failure(status, spec)
            if _reader_is_gone():
                over = "Nobody reads this step's output any more."
        if over:
            fact = JobEnded(fact.time, False, over)
        status = advance(status, fact)
        if text := describe(fact):
            show(text)
        if over:
            break
    return status


def _facts(runner: Runner) -> Iterator[Fact]:
    """The runner's facts. A cluster that refuses what a started job needs ends the job, so its failure has a status."""
    try:
        yield from runner.facts()
    except ClusterError as error:
        yield JobEnded(clock(), False, f"{str(error).rstrip('.')}.")


def _reader_is_gone() -> bool:
    """Whether our output is a pipe or terminal that nobody reads any more: who ran this step was killed."""
    output = select.poll()
    output.register(1, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in output.poll(0))
