"""Runs a training: checks the request, starts the job, follows it to its end, and verifies the model."""

import json
import re
import select
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import NamedTuple

from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.components.startup_remarks import STARTUP_REMARK
from kfp_distributed.components.train.deadline import call_within
from kfp_distributed.components.train.job import (
    Fact,
    JobEnded,
    JobEvent,
    LogLine,
    Quiet,
    ReplicaChanged,
    ReplicaSample,
    TrainingJob,
    clock,
    moment,
)
from kfp_distributed.components.train.log_format import JOB, LogEntry
from kfp_distributed.components.train.replica_status import LAST_LINES
from kfp_distributed.components.train.request import Request, plan_job
from kfp_distributed.components.train.resume import (
    check_resume,
    copy_training,
    training_folder,
)
from kfp_distributed.components.train.runners.protocol import Runner
from kfp_distributed.components.train.signals import ended_by_signals
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
from kfp_distributed.storage.buckets import require_bucket
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.model import ModelIncomplete, ModelManifest, model_of_request, verify_model
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store
from kfp_distributed.storage.uri import join_uri
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


class _Log(NamedTuple):
    """Where entries of the log go. See `launch`."""

    show: Callable[[LogEntry], object]
    keep: Callable[[LogEntry], object] = lambda entry: None

    def __call__(self, entry: LogEntry) -> None:
        self.show(entry)
        self.keep(entry)


def launch(
    request: Request,
    runner: Runner,
    show: Callable[[LogEntry], object],
    on_start: Callable[[TrainingJob], object] = lambda job: None,
    keep: Callable[[LogEntry], object] = lambda entry: None,
) -> Outcome:
    """Run a training. Call it in the main thread, because it handles signals.

    No process and no pod of the job is left running when it returns or raises.

    Args:
        request: Arguments of the step.
        runner: Where the replicas run.
        show: Receives each entry of the step's log, such as `print`.
        on_start: Receives the job when it has started. Default: does nothing.
        keep: Receives the same entries as `show`, and TensorFlow's remarks at each start, which the step's log leaves
            out. Default: does nothing.

    Returns:
        The result of the training.

    Raises:
        ValueError: The request is wrong, or the bucket of the checkpoints does not exist. Nothing was started.
        StorageError: A dataset cannot be read. Nothing was started.
        TrainingFailed: The job failed, exceeded a timeout, or left no complete model.
        ClusterError: The cluster refused the job.
        SystemExit: The process received SIGTERM or SIGHUP.
    """
    job = plan_job(request)
    description = job.description
    log = _Log(show, keep)
    resumes_other = check_resume(request.resume_from, description)
    for warning in job.warnings:
        log(LogEntry(clock(), "WARNING", JOB, warning))
    # From here on: a previous attempt of this step may have left the job, which a cancel must delete as well.
    with ended_by_signals(runner.stop):
        if model_of_request(open_store(description.model_uri), description.request):
            status = _follow_previous(runner, job, log, on_start)
        else:
            runner.check(job)
            # Replicas start by looking for a checkpoint, so wrong credentials of the store fail here.
            _require_bucket(request, description)
            if resumes_other:
                copied = copy_training(request.resume_from, description)
                log(LogEntry(clock(), "INFO", JOB, copied.describe(request.resume_from)))
            runner.start(job)
            on_start(job)
            status = _follow(runner, job, log)
    status, model = _judge(status, description, log)
    return Outcome(status, model, read_metrics(description.metrics_uri))


def _require_bucket(request: Request, description: JobDescription) -> None:
    store = open_store(description.checkpoint_uri)
    if request.checkpoint_uri:
        require_bucket(store, "checkpoint_uri", request.checkpoint_uri)
    else:
        require_bucket(store, "the pipeline root, as the address of the model", request.model_uri)


def _saved_if_readable(description: JobDescription) -> ModelManifest | None:
    with suppress(StorageError):
        return model_of_request(open_store(description.model_uri, retry_seconds=0), description.request)
    return None


def _follow_previous(
    runner: Runner, job: TrainingJob, log: _Log, on_start: Callable[[TrainingJob], object]
) -> JobStatus:
    """Follow what an earlier attempt of this step has left of a job that has saved its model."""
    status = begin(job, clock())
    event = JobEvent(clock(), "an earlier attempt of this step has trained the model; nothing is trained again")
    log(LogEntry(event.time, "INFO", JOB, event.text))
    try:
        if runner.adopt(job):
            on_start(job)
            return _follow(runner, job, log)
    except ClusterError as error:
        log(LogEntry(clock(), "WARNING", JOB, f"the job of the earlier attempt cannot be found: {error}"))
    on_start(job)
    stopped = [ReplicaChanged(clock(), name, "stopped", reason="an earlier attempt") for name in status.replicas]
    facts: list[Fact] = [event, *stopped, JobEnded(clock(), True)]
    return reduce(advance, facts, status)


def _judge(status: JobStatus, description: JobDescription, log: _Log) -> tuple[JobStatus, ModelManifest]:
    """Return the final status and the model of a job that has ended.

    The model decides: if the job has saved a complete one, the training has succeeded, whatever failed afterwards.

    Raises:
        TrainingFailed: The job has left no complete model.
    """
    if status.ended is None or not status.ended.succeeded:
        # A store that does not answer must not delay the cause.
        saved = call_within(METRICS_SECONDS, lambda: _saved_if_readable(description))
        if not saved:
            raise _failed(failure_cause(status), status, description)
        text = f"the model is complete, so the training has succeeded: {description.model_uri}"
        log(LogEntry(clock(), "INFO", JOB, text))
        happened = moment(status.ended) if status.ended else None
        facts: list[Fact] = [JobEvent(clock(), text), JobEnded(clock(), True, happened=happened)]
        return reduce(advance, facts, status), saved
    try:
        model = verify_model(open_store(description.model_uri, retry_seconds=STORE_AWAY_SECONDS))
        if model.request != description.request:
            text = f"the one in {description.model_uri} is of the job {model.job!r} with another request"
            raise ModelIncomplete(text)
    except (ModelIncomplete, StorageError) as error:
        fault = "left no complete model" if isinstance(error, ModelIncomplete) else "its model could not be read"
        raise _failed(f"The job succeeded, but {fault}: {error}.", status, description) from None
    return status, model


def _failed(cause: str, status: JobStatus, description: JobDescription) -> TrainingFailed:
    """Return the error of a job that was started. If the object store does not answer in time, it has no metrics."""
    metrics = call_within(METRICS_SECONDS, lambda: read_metrics(description.metrics_uri))
    return TrainingFailed(cause, status, metrics or {})


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


def _follow(runner: Runner, job: TrainingJob, log: _Log) -> JobStatus:
    status = begin(job, clock())
    lines: dict[str, deque[LogLine]] = defaultdict(lambda: deque(maxlen=LAST_LINES))
    samples: list[ReplicaSample] = []
    stalls = Stalls()
    for fact in chain(_first_events(job), _facts(runner)):
        if isinstance(fact, LogLine):
            line = LogEntry(moment(fact), "INFO", fact.replica, fact.line)
            if re.search(STARTUP_REMARK, fact.line):
                log.keep(line)
                continue
            log(line)
            # There may be millions of lines. The status keeps only the last ones, so it is updated less often.
            lines[fact.replica].append(fact)
            continue
        if isinstance(fact, ReplicaSample):
            samples.append(fact)
            if entry := log_entry(fact):
                log(entry)
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
            log(entry)
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
