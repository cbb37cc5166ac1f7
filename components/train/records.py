"""Stores what remains of a training when its job is gone: its log, its report and its summary."""

import threading
import time
from dataclasses import replace
from functools import partial

from kfp_distributed.components.train.deadline import call_within
from kfp_distributed.components.train.job import TrainingJob
from kfp_distributed.components.train.log_format import LogEntry
from kfp_distributed.components.train.resume import training_folder
from kfp_distributed.components.train.stored_log import StoredLog
from kfp_distributed.components.train.tracker import Log, RunStatus
from kfp_distributed.components.train.training_summary import (
    LOGS,
    REPORT,
    SUMMARY,
    State,
    TrainingSummary,
    format_moment,
)
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.task_folder import pipeline_root
from kfp_distributed.storage.uri import join_uri

END_SECONDS = 5.0
"""Seconds by which the records may delay the end of a step."""

KILLED_SECONDS = 2.0
"""Seconds by which they may delay the end of a cancelled step, which is killed soon."""

_RETRY_SECONDS = 2.0

_STATES: dict[RunStatus, State] = {"FINISHED": "succeeded", "FAILED": "failed", "KILLED": "cancelled"}


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
        self._is_finished = False

    def add(self, entry: LogEntry) -> None:
        """Add an entry to the stored log."""
        self._stored_log.add(entry)

    def start(self, job: TrainingJob, namespace: str, model_uri: str) -> None:
        """Begin to store the log of a job that has started, also the entries before.

        Args:
            job: The job.
            namespace: Namespace of its pods; "" if it has none.
            model_uri: URI of the step's output. The replicas may save the model elsewhere first.
        """
        self._summary = TrainingSummary(
            name=job.name,
            type=job.topology.distribution_type,
            namespace=namespace,
            labels=job.labels,
            replicas=tuple(replica.name for replica in job.topology.replicas),
            created=self._begun,
            folder=training_folder(job.description),
            model=model_uri,
        )
        folder = join_uri(self._summary.folder, LOGS, format_moment(self._begun, fraction=True))
        try:
            self._stored_log.start(open_store(folder, retry_seconds=_RETRY_SECONDS))
        except (StorageError, ValueError, OSError) as error:
            self._log("WARNING", f"the log is not stored: {error}")
        self._beginning = threading.Thread(target=self._begin, args=(self._summary,), name="records", daemon=True)
        self._beginning.start()

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
        end = partial(self._end, _STATES[status], reason, report)
        if not call_within(seconds, end):
            self._log("WARNING", f"the summary of the training is not stored within {seconds:g} s")
        self._stored_log.close(max(0.0, until - time.monotonic()))

    def _begin(self, summary: TrainingSummary) -> None:
        try:
            store = open_store(summary.folder, retry_seconds=_RETRY_SECONDS)
            if store.exists(SUMMARY):  # An earlier attempt of this step has started the job.
                self._summary = replace(summary, created=TrainingSummary.from_json(store.read(SUMMARY)).created)
            self._write()
        except (StorageError, ValueError, OSError) as error:
            self._log("WARNING", f"the summary of the training is not stored: {error}")

    def _end(self, state: State, reason: str, report: str) -> bool:
        assert self._summary
        assert self._beginning
        self._beginning.join()
        self._summary = replace(self._summary, state=state, reason=reason, ended=time.time())
        try:
            self._write()
            if report:
                store = open_store(self._summary.folder, retry_seconds=_RETRY_SECONDS)
                store.write(REPORT, report.encode(), "text/html; charset=utf-8")
        except (StorageError, ValueError, OSError) as error:
            self._log("WARNING", f"the end of the training is not stored: {error}")
        return True

    def _write(self) -> None:
        assert self._summary
        content = self._summary.to_json().encode()
        open_store(self._summary.folder, retry_seconds=_RETRY_SECONDS).write(SUMMARY, content, "application/json")
        root = pipeline_root(self._summary.model)
        if root and self._summary.namespace:
            open_store(root, retry_seconds=_RETRY_SECONDS).write(self._summary.index_key, content, "application/json")
