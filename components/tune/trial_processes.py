"""The running trials of a step: each is a process, which this process reads and ends."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import IO

from kfp_distributed.components.train.run.facts import clock
from kfp_distributed.components.train.run.shown_progress.log_entry import JOB, LogEntry
from kfp_distributed.components.train.run.stored_metrics import Metrics, read_metrics
from kfp_distributed.components.train.run.training_request.request import plan_job
from kfp_distributed.components.train.tell.log_format import parse_line
from kfp_distributed.components.tune.search import RunningTrial, TrialEnd
from kfp_distributed.components.tune.search_plan import SearchPlan
from kfp_distributed.components.tune.study import TrialValues
from kfp_distributed.components.tune.trial import RunnerChoice, describe_trial, read_end
from kfp_distributed.processes.group import ProcessGroup
from kfp_distributed.trainers.runtime.monitoring.progress import parse_progress

_STOP_SECONDS = 60.0
"""Seconds that a trial has to delete its job. KFP's pods have 30 until they are killed."""

_STORED_SECONDS = 1.0
"""Interval at which the metrics of an epoch are read that a replica has printed. They are stored in the background."""


def values_of_epochs(metrics: Metrics, metric: str) -> list[tuple[int, float]]:
    """Return the epochs that have a metric, in their order, each with its value.

    The replica that trains and the evaluator of a job may both have epochs. One of them has the metric of its rows.
    """
    rows = (row for rows in metrics.values() for row in rows if {"epoch", metric} <= {*row})
    return sorted({int(row["epoch"]): row[metric] for row in rows}.items())


class Trials:
    """Starts the processes of trials. As a context, it ends those that run when it exits, and if this process dies."""

    def __init__(
        self, plan: SearchPlan, runner: RunnerChoice, folder: Path, show: Callable[[LogEntry], object]
    ) -> None:
        """Create the trials of a search. Nothing is started.

        Args:
            plan: The search.
            runner: Where the replicas of the trials run.
            folder: Folder for the files of the trials.
            show: Receives the lines of the trials. Threads call it.
        """
        self._plan, self._runner, self._folder, self._show = plan, runner, folder, show
        self._processes = ProcessGroup(_STOP_SECONDS)
        self._has_changed = threading.Event()
        self._faults: list[OSError] = []

    def __enter__(self) -> "Trials":
        """Begin to guard the processes."""
        self._processes.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """End the processes."""
        self._processes.__exit__(*error)

    def start(self, trial: TrialValues) -> RunningTrial:
        """Start or continue a trial. One whose request is wrong has failed.

        Raises:
            StorageError: The dataset cannot be read.
        """
        name, request = str(trial.number), self._plan.request(trial)
        folder = self._folder / name
        try:
            metrics_uri = plan_job(request).description.metrics_uri
        except ValueError as error:
            return _RefusedTrial(f"{type(error).__name__}: {error}")
        describe_trial(folder, request, self._runner, self._plan.template.job_name)
        words = [sys.executable, "-m", "kfp_distributed.components.tune.trial", str(folder)]
        # A step of a pipeline has unpacked the library, and knows its folder by sys.path alone.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        process = self._processes.start(name, words, env=environment, stdout=subprocess.PIPE)
        training = _TrialProcess(name, process, folder, metrics_uri, self._plan.metric)
        threading.Thread(target=self._read, args=(training,), daemon=True).start()
        return training

    def wait(self, trials: Collection[RunningTrial]) -> None:
        """Return when one of the trials may have an epoch or have ended.

        Args:
            trials: Trials that `start` has returned.

        Raises:
            OSError: The output of this process cannot be written.
        """
        unread = any(isinstance(trial, _TrialProcess) and trial.has_unread_epoch for trial in trials)
        ended = any(trial.ended() for trial in trials)
        self._has_changed.wait(0 if ended else _STORED_SECONDS if unread else None)
        self._has_changed.clear()  # Before the trials are looked at, so that no change is lost.
        if self._faults:
            raise self._faults[0]

    def stop(self, trials: Collection[RunningTrial]) -> None:
        """End trials, each with its job.

        Args:
            trials: Trials that `start` has returned.
        """
        self._processes.stop([trial.name for trial in trials if isinstance(trial, _TrialProcess)])

    def stop_all(self) -> None:
        """End all trials that run."""
        self._processes.stop()

    def _read(self, training: "_TrialProcess") -> None:
        """Show the lines of a trial, and note its epochs and its end."""
        output: IO[bytes] = training.process.stdout  # type: ignore[assignment]  # It is a pipe.
        try:
            for line in output:
                text = line.decode(errors="replace").rstrip("\n")
                entry = parse_line(text) or LogEntry(clock(), "INFO", JOB, text)
                self._show(
                    LogEntry(entry.time, entry.level, f"trial-{training.name}", f"{entry.replica}: {entry.message}")
                )
                progress = parse_progress(entry.message)
                if progress and progress.unit == "epoch":
                    training.printed_epoch = progress.done
                    self._has_changed.set()
        except OSError as error:  # Nobody reads the output of this process any more.
            self._faults.append(error)
        else:
            training.process.wait()
        self._has_changed.set()


class _TrialProcess:
    """A trial whose process has started."""

    def __init__(
        self, name: str, process: subprocess.Popen[bytes], folder: Path, metrics_uri: str, metric: str
    ) -> None:
        self.name, self.process, self.printed_epoch = name, process, 0
        self._folder, self._metrics_uri, self._metric = folder, metrics_uri, metric
        self._metrics: Metrics | None = None

    @property
    def has_unread_epoch(self) -> bool:
        rows = (row for rows in (self._metrics or {}).values() for row in rows)
        return self.printed_epoch > max((row.get("epoch", 0) for row in rows), default=0)

    def epochs(self) -> Sequence[tuple[int, float]]:
        if self._metrics is None or self.has_unread_epoch or self.ended():
            # A store that does not answer has none.
            self._metrics = read_metrics(self._metrics_uri) or self._metrics or {}
        return values_of_epochs(self._metrics, self._metric)

    def ended(self) -> TrialEnd | None:
        if self.process.poll() is None:
            return None
        # It ends without a record if it was stopped or killed.
        cause = f"its process ended with {self.process.returncode}"
        return read_end(self._folder, self._metric) or TrialEnd("lost", cause=cause)


class _RefusedTrial:
    """A trial whose request is wrong."""

    def __init__(self, cause: str) -> None:
        self._cause = cause

    def epochs(self) -> Sequence[tuple[int, float]]:
        return ()

    def ended(self) -> TrialEnd | None:
        return TrialEnd("failed", cause=self._cause)
