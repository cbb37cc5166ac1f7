"""Stores what remains of a training when its job is gone: its log, its report and its summary."""

import re
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial

from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.components.train.run.facts import Log
from kfp_distributed.components.train.run.shown_progress.log_entry import LogEntry
from kfp_distributed.components.train.run.training_request.resume import training_folder
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
from kfp_distributed.storage.answers import seconds_since_answer
from kfp_distributed.storage.errors import KeyNotFound, StorageError
from kfp_distributed.storage.kubeflow.task_folder import pipeline_root
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.uri import join_uri

AWAY_SECONDS = 60.0
"""Seconds without an answer of the object store after which a step ends without its records. On a busy node a request
takes several seconds, and the end of a training is stored as long as requests are answered."""

KILLED_SECONDS = 2.0
"""Seconds by which the records may delay the end of a cancelled step, which is killed soon."""

PROGRESS_SECONDS = 10.0
"""Seconds between two lines which say that the step waits for its records."""

LOOK_SECONDS = 0.2
"""Interval at which the step looks whether its records are stored."""

_RETRY_SECONDS = 2.0
"""Seconds for which a request is retried while the training runs, and at the end of a cancelled step."""

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
        self._is_finished, self._is_over = False, False
        self._retry_seconds = _RETRY_SECONDS

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
        is_killed, begun = status == "KILLED", time.monotonic()
        self._retry_seconds = _RETRY_SECONDS if is_killed else AWAY_SECONDS
        self._stored_log.end(gives_up=is_killed)
        ending = threading.Thread(target=self._end, args=(_STATES[status], reason, report), daemon=True)
        ending.start()
        self._await(ending, is_killed, begun)
        if ending.is_alive():
            self._is_over = True  # A thread must not print while the interpreter ends.
            self._log("WARNING", f"summary and report of the training are not stored: {self._silence(is_killed)}")
        self._stored_log.close()

    def _await(self, ending: threading.Thread, is_killed: bool, begun: float) -> None:
        """Wait until all is stored, or the store has not answered for too long."""
        told = begun
        while True:
            ending.join(LOOK_SECONDS)
            if not ending.is_alive() and self._stored_log.is_stored(LOOK_SECONDS):
                return
            now, answered = time.monotonic(), seconds_since_answer()
            waited = now - begun
            if is_killed and waited >= KILLED_SECONDS:
                return
            if waited >= AWAY_SECONDS and (answered is None or answered >= AWAY_SECONDS):
                return
            if now - told >= PROGRESS_SECONDS:
                told = now
                self._log("INFO", f"storing log, report and summary of the training, for {waited:.0f} s so far")

    @staticmethod
    def _silence(is_killed: bool) -> str:
        if is_killed:
            return f"a cancelled step waits {KILLED_SECONDS:g} s for them"
        return f"the object store has not answered for {AWAY_SECONDS:g} s"

    def _end(self, state: TrainingState, reason: str, report: str) -> None:
        assert self._summary
        assert self._beginning
        self._beginning.join()
        self._summary = replace(self._summary, state=state, reason=reason, ended=time.time())
        self._store_summaries()
        if report:
            content = report.encode(errors="backslashreplace"), "text/html; charset=utf-8"
            self._write("the report is not stored beside the checkpoints", self._summary.folder, REPORT, *content)

    def _store_summaries(self) -> None:
        assert self._summary
        folder = self._summary.folder
        try:
            if not self._knows_begin:
                self._summary = replace(self._summary, created=self._first_begin(self._summary))
                self._knows_begin = True
        except (StorageError, ValueError, OSError) as error:
            # With another time, the index would have two entries of this training.
            self._warn(f"the summary of the training is not stored: {error}")
            return
        content = self._summary.to_json().encode(), "application/json"
        self._write("the summary of the training is not stored", folder, SUMMARY, *content)
        root = pipeline_root(self._summary.model)
        if root and "://" not in root:
            # The step runs on a user's machine. The folder is CHECKPOINT_URI/JOB.
            root = re.sub(rf"/{re.escape(self._summary.name)}(?=\?|$)", "", folder)
        if "://" in root and self._summary.namespace:
            self._write(_NOT_LISTED, root, self._summary.index_key, *content)

    def _first_begin(self, summary: TrainingSummary) -> float:
        """Return when the training began: an earlier attempt of this step may have started the job."""
        try:
            content = open_store(summary.folder, retry_seconds=self._retry_seconds).read(SUMMARY)
        except KeyNotFound:
            return summary.created
        with suppress(ValueError):  # Written by another version.
            return TrainingSummary.from_json(content).created
        return summary.created

    def _write(self, fault: str, folder: str, key: str, content: bytes, content_type: str) -> None:
        """Store an object. If that fails, the others are stored nevertheless."""
        try:
            open_store(folder, retry_seconds=self._retry_seconds).write(key, content, content_type)
        except (StorageError, ValueError, OSError) as error:
            self._warn(f"{fault}: {error}")

    def _warn(self, text: str) -> None:
        if not self._is_over:
            self._log("WARNING", text)
