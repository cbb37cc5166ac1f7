"""Stores what remains of a training when its job is gone: its log, its report and its summary."""

import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial

from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.components.train.run.deadline import call_within
from kfp_distributed.components.train.run.facts import Log
from kfp_distributed.components.train.run.log_entry import LogEntry
from kfp_distributed.components.train.run.resume import training_folder
from kfp_distributed.components.train.tell.experiment_tracker import RunStatus
from kfp_distributed.components.train.tell.stored_log import StoredLog
from kfp_distributed.components.train.tell.training_summary import (
    LOGS,
    REPORT,
    SUMMARY,
    TrainingState,
    TrainingSummary,
    format_moment,
)
from kfp_distributed.storage.errors import KeyNotFound, StorageError
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.task_folder import pipeline_root
from kfp_distributed.storage.uri import join_uri

END_SECONDS = 5.0
"""Seconds by which the records may delay the end of a step."""

KILLED_SECONDS = 2.0
"""Seconds by which they may delay the end of a cancelled step, which is killed soon."""

_RETRY_SECONDS = 2.0

_NOT_LISTED = "the training is not listed by `kfp-distributed jobs --ended`"

_STATES: dict[RunStatus, TrainingState] = {"FINISHED": "succeeded", "FAILED": "failed", "KILLED": "cancelled"}


class Records:
    """Stores the records of one training in its folder. No method raises, because no training depends on them."""

    def __init__(self, log: Log) -> None:
        """Create the records of a training that has not started.

        Args:
            log: Prints a line of the step's log. A thread calls it.
        """
        self._log = log
        self._begun = time.time()
        self._stored_log = StoredLog(log)
        self._summary: TrainingSummary | None = None
        self._beginning: threading.Thread | None = None
        self._knows_begin = False
        self._is_finished = False

    def add(self, entry: LogEntry) -> None:
        """Add an entry to the stored log."""
        self._stored_log.add(entry)

    def warn_of_unknown_root(self, model_uri: str) -> None:
        """Log that the training is not listed, if the URI of the step's output has no known pipeline root."""
        if "://" in model_uri and not pipeline_root(model_uri):
            self._log("WARNING", f"{_NOT_LISTED}: {model_uri} has no known pipeline root")

    def start(self, job: TrainingJob, namespace: str, model_uri: str, kind: str = "") -> None:
        """Begin to store the log of a job that has started, also the entries before.

        Args:
            job: The job.
            namespace: Namespace of its pods; "" if it has none.
            model_uri: URI of the step's output. The replicas may save the model elsewhere first.
            kind: Kind of the job's object. Default: "", it has none.
        """
        if namespace:
            self.warn_of_unknown_root(model_uri)
        has_heartbeat = namespace and job.specification.launcher_lost_timeout is not None
        self._summary = TrainingSummary(
            name=job.name,
            type=job.topology.distribution_type,
            namespace=namespace,
            labels=job.labels,
            replicas=tuple(replica.name for replica in job.topology.replicas),
            created=self._begun,
            folder=training_folder(job.description),
            model=model_uri,
            heartbeat=job.description.heartbeat_uri if has_heartbeat else "",
            kind=kind,
        )
        logs = join_uri(self._summary.folder, LOGS, format_moment(self._begun, fraction=True))
        self._stored_log.start(partial(open_store, logs, retry_seconds=_RETRY_SECONDS))
        beginning = threading.Thread(target=self._store_summaries, name="records", daemon=True)
        beginning.start()
        self._beginning = beginning  # Only now, because a signal may come before.

    def finish(self, status: RunStatus, reason: str = "", report: str = "") -> None:
        """Store the end of the training. Only the first call counts.

        Args:
            status: How the training ended.
            reason: Why it failed. Default: none.
            report: HTML page of the report. Default: none.
        """
        if self._is_finished or not self._summary or not self._beginning:
            return
        self._is_finished = True
        seconds = KILLED_SECONDS if status == "KILLED" else END_SECONDS
        until = time.monotonic() + seconds
        self._stored_log.end()
        end = partial(self._end, _STATES[status], reason, report)
        if not call_within(seconds, end):
            self._log("WARNING", f"summary and report of the training are not stored within {seconds:g} s")
        self._stored_log.close(max(0.0, until - time.monotonic()))

    def _end(self, state: TrainingState, reason: str, report: str) -> bool:
        assert self._summary
        assert self._beginning
        self._beginning.join()
        self._summary = replace(self._summary, state=state, reason=reason, ended=time.time())
        self._store_summaries()
        if report:
            content = report.encode(errors="backslashreplace"), "text/html; charset=utf-8"
            self._write("the report is not stored beside the checkpoints", self._summary.folder, REPORT, *content)
        return True

    def _store_summaries(self) -> None:
        assert self._summary
        folder = self._summary.folder
        try:
            if not self._knows_begin:
                self._summary = replace(self._summary, created=self._first_begin(self._summary))
                self._knows_begin = True
        except (StorageError, ValueError, OSError) as error:
            # With another time, the index would have two entries of this training.
            self._log("WARNING", f"the summary of the training is not stored: {error}")
            return
        content = self._summary.to_json().encode(), "application/json"
        self._write("the summary of the training is not stored", folder, SUMMARY, *content)
        root = pipeline_root(self._summary.model)
        if root and self._summary.namespace:
            self._write(_NOT_LISTED, root, self._summary.index_key, *content)

    def _first_begin(self, summary: TrainingSummary) -> float:
        """Return when the training began: an earlier attempt of this step may have started the job."""
        try:
            content = open_store(summary.folder, retry_seconds=_RETRY_SECONDS).read(SUMMARY)
        except KeyNotFound:
            return summary.created
        with suppress(ValueError):  # Written by another version.
            return TrainingSummary.from_json(content).created
        return summary.created

    def _write(self, fault: str, folder: str, key: str, content: bytes, content_type: str) -> None:
        """Store an object. If that fails, the others are stored nevertheless."""
        try:
            open_store(folder, retry_seconds=_RETRY_SECONDS).write(key, content, content_type)
        except (StorageError, ValueError, OSError) as error:
            self._log("WARNING", f"{fault}: {error}")
