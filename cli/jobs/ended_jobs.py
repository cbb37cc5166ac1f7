"""Trainings whose jobs are gone, from what their steps have stored in the object store."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from kfp_distributed.components.train.describe.durations import format_seconds
from kfp_distributed.components.train.describe.task_path import format_task
from kfp_distributed.components.train.run.shown_progress.log_entry import LogEntry
from kfp_distributed.components.train.tell.stored_log import read_log
from kfp_distributed.components.train.tell.training_summary import INDEX, LOGS, REPORT, TrainingSummary
from kfp_distributed.storage.errors import KeyNotFound
from kfp_distributed.storage.kubeflow.credentials import Credentials
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store
from kfp_distributed.storage.uri import join_uri

_ALIVE_SECONDS = 120.0
"""Age in seconds of a heartbeat up to which its step lives. A step writes one every 30 s."""

_RETRY_SECONDS = 3.0

_MOMENT_LENGTH = len("20261125T205331Z-")


class EndedRow(NamedTuple):
    """A row of the table of ended trainings. The fields are its columns."""

    name: str
    type: str
    state: str
    replicas: str
    ended: str
    duration: str
    task: str
    run: str


def read_summaries(store: Store, namespace: str, limit: int, name: str = "") -> Iterator[TrainingSummary]:
    """Yield the summaries of a namespace's trainings, newest first.

    Args:
        store: Store, opened at the pipeline root or at a checkpoint_uri.
        namespace: The namespace.
        limit: Maximum number of summaries.
        name: Name of the job. Default: "", all.

    Raises:
        StorageError: The store cannot be read.
    """
    folder = f"{INDEX}/{namespace}"
    for key in sorted(store.children(folder), reverse=True):
        if limit and (not name or key[_MOMENT_LENGTH:] == f"{name}.json"):
            try:
                yield TrainingSummary.from_json(store.read(f"{folder}/{key}"))
            except (ValueError, KeyNotFound):  # Written by another version, or deleted by the rules of the bucket.
                continue
            limit -= 1


def ended_rows(
    summaries: Iterable[TrainingSummary],
    is_running: Callable[[TrainingSummary], bool],
    now: datetime,
    look_up: Callable[[TrainingSummary], TrainingSummary] = lambda summary: summary,
) -> list[EndedRow]:
    """Return the rows of trainings that have ended.

    Args:
        summaries: Summaries of trainings.
        is_running: Returns whether a training has not ended. Asked if its summary says so.
        now: Current time.
        look_up: Returns the summary of a training that has ended with what else is known. Default: nothing else.
    """
    return [
        _ended_row(look_up(summary), now.timestamp())
        for summary in summaries
        if summary.state != "running" or not is_running(summary)
    ]


def alive_seconds(summary: TrainingSummary, credentials: Credentials, now: datetime) -> float | None:
    """Return the age of the heartbeat of a training's step in seconds; None if the step does not live any more.

    A step lives without a job while it creates its job again, and until it has stored its end.

    Raises:
        StorageError: The store cannot be read.
    """
    if summary.state != "running" or not summary.heartbeat:
        return None
    with suppress(KeyNotFound, ValueError):
        beat = float(open_store(summary.heartbeat, credentials, _RETRY_SECONDS).read(""))
        age = max(0.0, now.timestamp() - beat)
        return age if age <= _ALIVE_SECONDS else None
    return None


def with_known_end(summary: TrainingSummary, credentials: Credentials) -> TrainingSummary:
    """Return the summary of a training that has no job. With a complete model it has succeeded, even if its step died.

    Raises:
        StorageError: The store cannot be read.
    """
    # A path is one of the machine of the step.
    if summary.state == "running" and "://" in summary.model:
        with suppress(KeyNotFound, ValueError):
            model = open_store(summary.model, credentials, _RETRY_SECONDS)
            if ModelManifest.from_json(model.read(MODEL_MANIFEST)).job == summary.name:
                return replace(summary, state="succeeded")
    return summary


def _ended_row(summary: TrainingSummary, now: float) -> EndedRow:
    ended = summary.ended
    return EndedRow(
        summary.name,
        kind_of(summary),
        state_of(summary),
        str(len(summary.replicas)),
        "" if ended is None else f"{format_seconds(max(0, round(now - ended)))} ago",
        "" if ended is None else format_seconds(max(0, round(ended - summary.created))),
        format_task(summary.labels),
        summary.labels.get("run", ""),
    )


def kind_of(summary: TrainingSummary) -> str:
    """Return the kind of the job's object, such as "TFJob"."""
    return summary.kind or f"{summary.type.removesuffix('Job')}Job"


def state_of(summary: TrainingSummary) -> str:
    """Return the state of a training whose job is gone. It is "lost" if its step was killed before it had a model."""
    return "lost" if summary.state == "running" else summary.state


def describe_end(summary: TrainingSummary, now: datetime, has_report: bool) -> list[str]:
    """Return lines that say how a training has ended, and where its records are.

    Args:
        summary: Summary of the training.
        now: Current time.
        has_report: Whether its report is stored. A step that is cancelled or killed stores none.
    """
    state, when = state_of(summary), ""
    if summary.ended is not None:
        when = f" {format_seconds(max(0, round(now.timestamp() - summary.ended)))} ago"
    how = f": {summary.reason}" if summary.reason else "."
    return [
        f"{kind_of(summary)} {summary.namespace}/{summary.name} {state}{when}{how}",
        *([f"Report: {join_uri(summary.folder, REPORT)}"] if has_report else []),
        f"Checkpoints, metrics and log: {summary.folder}",
    ]


def has_report(summary: TrainingSummary, credentials: Credentials) -> bool:
    """Return whether the report of a training is stored.

    Raises:
        StorageError: The store cannot be read.
    """
    return open_store(summary.folder, credentials, _RETRY_SECONDS).exists(REPORT)


def read_stored_log(summary: TrainingSummary, credentials: Credentials) -> Iterator[LogEntry]:
    """Yield the entries of the log of a training. See `read_log`."""
    yield from read_log(open_store(join_uri(summary.folder, LOGS), credentials, _RETRY_SECONDS))
