"""Runs a training: checks the request, starts the job, follows it to its end, and verifies the model."""

import select
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain

from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.components.train.run.conclusions.replica_status import LAST_LINES
from kfp_distributed.components.train.run.conclusions.stalls import Stalls, check_stalls
from kfp_distributed.components.train.run.conclusions.status import (
    JobStatus,
    add_output,
    advance,
    begin,
    failure_cause,
    final_failure,
)
from kfp_distributed.components.train.run.conclusions.time_budgets import expired_budget
from kfp_distributed.components.train.run.deadline import call_within
from kfp_distributed.components.train.run.facts import (
    Fact,
    JobEnded,
    JobEvent,
    LogLine,
    ReplicaChanged,
    ReplicaSample,
    Tick,
    clock,
    moment,
)
from kfp_distributed.components.train.run.runners.protocol import Runner
from kfp_distributed.components.train.run.shown_progress.printed_lines import read_line
from kfp_distributed.components.train.run.signals import ended_by_signals
from kfp_distributed.components.train.run.stored_metrics import Metrics, read_fine_tuning, read_metrics
from kfp_distributed.components.train.run.training_request.request import Request, plan_job
from kfp_distributed.components.train.run.training_request.resume import (
    check_resume,
    copy_training,
    training_folder,
)
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.model import ModelIncomplete, ModelManifest, model_of_request, verify_model
from kfp_distributed.storage.object_stores.buckets import require_bucket
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.uri import join_uri
from kfp_distributed.trainers.programs.program import LANGUAGE_EVALUATION
from kfp_distributed.trainers.runtime.job_description import STORE_SECONDS, TENSORBOARD, JobDescription
from kfp_distributed.trainers.runtime.outputs.fine_tuning_file import FineTuning

METRICS_SECONDS = 3.0
"""How long reading the metrics of a failed job may delay its error. They are two small objects."""


class TrainingFailed(Exception):
    """A training ended without a model. The text has the last log lines of the replica that failed, and the cause.

    Attributes:
        cause: The text with the frames of tracebacks, which the step's log has among the lines of the replica.
        status: Status of the job when it failed.
        metrics: Metrics of the epochs and steps that were finished by then, by replica.
    """

    def __init__(self, text: str, cause: str, status: JobStatus, metrics: Metrics) -> None:
        super().__init__(text)
        self.cause = cause
        self.status = status
        self.metrics = metrics


@dataclass(frozen=True)
class Outcome:
    """Result of a training that succeeded.

    Attributes:
        status: Final status of the job.
        model: Manifest of the model.
        metrics: Epochs and steps of each replica that recorded any.
        fine_tuning: What a fine-tuning tells besides.
    """

    status: JobStatus
    model: ModelManifest
    metrics: Metrics
    fine_tuning: FineTuning


def launch(
    request: Request,
    runner: Runner,
    on_fact: Callable[[Fact], object],
    on_start: Callable[[TrainingJob], object] = lambda job: None,
) -> Outcome:
    """Run a training. Call it in the main thread, because it handles signals.

    No process and no pod of the job is left running when it returns or raises.

    Args:
        request: Arguments of the step.
        runner: Where the replicas run.
        on_fact: Receives each fact for the step's log.
        on_start: Receives the job when it has started. Default: does nothing.

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
    resumes_other = check_resume(request.resume_from, description)
    for warning in job.warnings:
        on_fact(JobEvent(clock(), warning, "WARNING"))
    for note in job.notes:
        on_fact(JobEvent(clock(), note))
    # From here on: a previous attempt of this step may have left the job, which a cancel must delete as well.
    with ended_by_signals(runner.stop):
        if model_of_request(open_store(description.model_uri), description.request):
            status = _follow_previous(runner, job, on_fact, on_start)
        else:
            runner.check(job)
            # Replicas start by looking for a checkpoint, so wrong credentials of the store fail here.
            _require_bucket(request, description)
            if resumes_other:
                copied = copy_training(request.resume_from, description)
                on_fact(JobEvent(clock(), copied.describe(request.resume_from)))
            runner.start(job)
            on_start(job)
            status = follow_job(runner, job, on_fact)
    status, model = _judge(status, description, on_fact)
    metrics_uri = description.metrics_uri
    return Outcome(status, model, read_metrics(metrics_uri), read_fine_tuning(metrics_uri))


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
    runner: Runner, job: TrainingJob, on_fact: Callable[[Fact], object], on_start: Callable[[TrainingJob], object]
) -> JobStatus:
    """Follow what an earlier attempt of this step has left of a job that has saved its model."""
    status = begin(job, clock())
    event = JobEvent(clock(), "an earlier attempt of this step has the results; nothing is run again")
    on_fact(event)
    try:
        if runner.adopt(job):
            on_start(job)
            return follow_job(runner, job, on_fact)
    except (ClusterError, ValueError) as error:
        on_fact(JobEvent(clock(), f"the job of the earlier attempt cannot be found: {error}", "WARNING"))
    on_start(job)
    stopped = [ReplicaChanged(clock(), name, "stopped", reason="an earlier attempt") for name in status.replicas]
    facts: list[Fact] = [event, *stopped, JobEnded(clock(), True)]
    return reduce(advance, facts, status)


def _judge(
    status: JobStatus, description: JobDescription, on_fact: Callable[[Fact], object]
) -> tuple[JobStatus, ModelManifest]:
    """Return the final status and the model of a job that has ended.

    The model decides: if the job has saved a complete one, the training has succeeded, whatever failed afterwards.

    Raises:
        TrainingFailed: The job has left no complete model.
    """
    if status.ended is None or not status.ended.succeeded:
        # A store that does not answer must not delay the cause.
        saved = call_within(METRICS_SECONDS, lambda: _saved_if_readable(description))
        if not saved:
            raise training_failure(failure_cause(status, frames=False), status, description, failure_cause(status))
        event = JobEvent(clock(), f"the model is complete, so the training has succeeded: {description.model_uri}")
        on_fact(event)
        happened = moment(status.ended) if status.ended else None
        facts: list[Fact] = [event, JobEnded(clock(), True, happened=happened)]
        return reduce(advance, facts, status), saved
    try:
        model = verify_model(open_store(description.model_uri, retry_seconds=STORE_SECONDS))
        if model.request != description.request:
            text = f"the one in {description.model_uri} is of the job {model.job!r} with another request"
            raise ModelIncomplete(text)
    except (ModelIncomplete, StorageError) as error:
        fault = "left no complete model" if isinstance(error, ModelIncomplete) else "its model could not be read"
        text = f"The job succeeded, but {fault}: {error}."
        if isinstance(error, StorageError):
            status = advance(status, JobEnded(clock(), False, text))
        raise training_failure(text, status, description) from None
    return status, model


def training_failure(
    text: str, status: JobStatus, description: JobDescription, cause: str | None = None
) -> TrainingFailed:
    """Return the error of a job that was started and has left no model.

    Args:
        text: Why it failed, without the frames of tracebacks.
        status: Its status.
        description: Its description, which has the place of its metrics. If the object store does not answer within
            `METRICS_SECONDS`, the error has no metrics.
        cause: The text with the frames of tracebacks. Default: None, there are none.
    """
    metrics = call_within(METRICS_SECONDS, lambda: read_metrics(description.metrics_uri))
    return TrainingFailed(text, text if cause is None else cause, status, metrics or {})


def follow_job(runner: Runner, job: TrainingJob, on_fact: Callable[[Fact], object]) -> JobStatus:
    """Follow a job until it ends, exceeds a timeout, or nobody reads the output of this process any more.

    It neither starts nor stops the job.

    Args:
        runner: A runner that has started or adopted the job.
        job: The job.
        on_fact: Receives each fact for the step's log.

    Returns:
        The final status. `ended` says whether the job succeeded; whether there is a model is not checked.
    """
    status = begin(job, clock())
    lines: dict[str, deque[LogLine]] = defaultdict(lambda: deque(maxlen=LAST_LINES))
    samples: list[ReplicaSample] = []
    stalls = Stalls()
    for fact in chain(_first_events(job), _facts(runner)):
        if isinstance(fact, LogLine):
            on_fact(fact)
            # There may be millions of lines. The status keeps only the last ones, so it is updated less often.
            if not fact.is_remark:
                lines[fact.replica].append(fact)
            continue
        if isinstance(fact, ReplicaSample):
            samples.append(fact)
            on_fact(fact)
            continue
        status = add_output(status, chain(samples, *lines.values()))
        samples.clear()
        lines.clear()
        budget, end_reason, events = "", "", list[Fact]()
        if isinstance(fact, Tick):
            stalls, warnings = check_stalls(status, stalls, fact.time)
            events += warnings
            spec = job.specification
            if job.topology.optional and status.replicas[status.leader].state == "succeeded":
                # Kubernetes waits for all replicas of a Job, also for one that never starts.
                status = advance(status, JobEnded(fact.time, True))
                break
            expired = expired_budget(status, spec, fact.time)
            budget = expired.partition(" ")[0]
            end_reason = expired or final_failure(status, spec)
            if _reader_is_gone():
                end_reason = "Nobody reads the output of this step any more."
        if isinstance(fact, JobEnded) and not fact.succeeded:
            # The runner may have reached the restart limit first.
            events.append(replace(fact, reason=final_failure(status, job.specification) or fact.reason))
        else:
            events.append(JobEnded(fact.time, False, end_reason, budget=budget) if end_reason else fact)
        status = reduce(advance, events, status)
        for event in events:
            on_fact(event)
        if end_reason:
            break
    return status


def _first_events(job: TrainingJob) -> Iterator[JobEvent]:
    if not job.module and job.description.program.get("trainer") != LANGUAGE_EVALUATION:  # It is a training.
        yield JobEvent(clock(), f"checkpoints are stored in {training_folder(job.description)}")
    if job.description.tensorboard:
        yield JobEvent(clock(), f"TensorBoard's logs: {join_uri(job.description.metrics_uri, TENSORBOARD)}")


def _facts(runner: Runner) -> Iterator[Fact]:
    """Yield the facts of a runner, with the samples apart from the lines that have them.

    An error of the cluster becomes the end of the job, so that the failure has a status.
    """
    try:
        for fact in runner.facts():
            yield from read_line(fact)
    except ClusterError as error:
        yield JobEnded(clock(), False, f"{str(error).rstrip('.')}.")


def _reader_is_gone() -> bool:
    """Return whether standard output is a pipe or terminal without a reader, because its process was killed."""
    output = select.poll()
    output.register(1, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in output.poll(0))
