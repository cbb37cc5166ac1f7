"""Logs a training to MLflow while it runs.

The step sends everything, so the replicas need no credentials for MLflow. The leader stores the metrics of each epoch
in the object store, and the step reads them there. A background thread sends the requests: a server that is slow or
away delays only the end of the step, by at most `END_SECONDS`.
"""

import json
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kfp_distributed.components.external_services.mlflow_client import (
    Metric,
    MlflowClient,
    MlflowError,
    Run,
    read_connection,
    valid_key,
)
from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.components.train.run.facts import Log
from kfp_distributed.components.train.run.stored_metrics import Metrics, stored_metrics
from kfp_distributed.components.train.run.training_request.resume import training_folder
from kfp_distributed.components.train.tell.experiment_tracker import ExperimentTracker, RunStatus
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store

LOOK_SECONDS = 5.0
"""Seconds between two readings of the stored epochs."""

LONGEST_PAUSE_SECONDS = 60.0
"""Longest pause after a failed request. The first pause is twice `LOOK_SECONDS`, and each later one doubles it."""

END_SECONDS = 10.0
"""Longest time that the end of a step waits for a slow MLflow server."""

AWAY_SECONDS = 3.0
"""Longest time that the end of a step waits for a server that is away, or waits if the training was cancelled."""

JOB_TAG = "kfp_distributed.job"

PARENT_TAG = "mlflow.parentRunId"
"""Tag by which MLflow shows a run below another one."""

_END_PAUSE_SECONDS = 0.5

# Statuses that concern the content of one request. Another request may succeed.
_BAD_CONTENT = (400, 413, 422)

_LARGEST = sys.float_info.max

Send = Callable[[MlflowClient, Run], object]


class MlflowTracker(ExperimentTracker):
    """Logs one training to the run MLFLOW_RUN_ID, or to a new run if that variable is not set or it is a trial.

    A tracker ends only a run that it created. Kubeflow Pipelines creates a run for each task and ends it.
    """

    def __init__(self, variables: Mapping[str, str], log: Log, parent: str = "") -> None:
        """Create a tracker. No request is sent before the job starts.

        Args:
            variables: Environment variables of the step.
            log: Prints a line of the step's log.
            parent: Name of the search whose trial is tracked, in a run below that of the search. Default: "", none.
        """
        run_id = variables.get("MLFLOW_RUN_ID", "").strip()
        self._parent, self._parent_id = parent, run_id if parent else ""
        self.run_id = "" if parent else run_id
        self._owns_run = not self.run_id
        self._variables, self._log = variables, log
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._deadline = math.inf
        self._is_away = self._has_given_up = False
        self._run: Run | None = None
        self._store: Store | None = None
        self._end: tuple[RunStatus, Metrics, str, str] | None = None
        self._end_time = 0.0
        self._unsent: deque[tuple[str, Send]] = deque()
        """Requests to send, each with a name for the log."""
        self._refused: set[str] = set()
        """Names of the requests that MLflow has refused."""
        self._steps: dict[str, int] = {}
        """Latest step of each metric that was sent or is in `_unsent`."""

    def start(self, job: TrainingJob) -> None:
        """Begin to log a job: its parameters and tags, then the metrics of each epoch."""
        self._job = job
        parameters, tags = run_parameters(job), run_tags(job)
        self._unsent += [
            ("tags", lambda client, run: client.set_tags(run.id, tags)),
            ("parameters", lambda client, run: client.log_parameters(run.id, parameters)),
        ]
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    def finish(self, status: RunStatus, metrics: Metrics, report: str = "", report_uri: str = "") -> None:
        """Log the remaining metrics and the report, and end the run if this tracker created it."""
        if not self._thread or self._ending.is_set():
            return
        self._end = (status, metrics, report, report_uri)
        self._end_time = time.time()
        seconds = AWAY_SECONDS if self._is_away or status == "KILLED" else END_SECONDS
        self._deadline = time.monotonic() + AWAY_SECONDS
        self._ending.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._give_up(f"no answer within {seconds:g} s")

    def _work(self) -> None:
        """Send new data until the job has ended and everything is sent."""
        try:
            client = MlflowClient(read_connection(self._variables))
        except (ValueError, OSError) as error:
            self._warn(f"MLflow is not used: {error}")
            return
        pause = LOOK_SECONDS
        while True:
            is_end = self._ending.is_set()
            try:
                self._send(client, is_end)
            except Exception as error:  # noqa: BLE001 - tracking must never end a training
                is_final = isinstance(error, MlflowError) and not error.is_temporary
                if is_final or time.monotonic() + _END_PAUSE_SECONDS > self._deadline:
                    self._give_up(str(error))
                    return
                if not self._is_away and not is_end:
                    self._warn(f"The MLflow run gets the metrics later: {error}")
                self._is_away, pause = True, min(2 * pause, LONGEST_PAUSE_SECONDS)
            else:
                if is_end:
                    return
                self._is_away, pause = False, LOOK_SECONDS
            if is_end:
                time.sleep(_END_PAUSE_SECONDS)
            else:
                self._ending.wait(pause)

    def _give_up(self, reason: str) -> None:
        self._warn(f"The MLflow run is not complete: {reason}")
        self._has_given_up = True

    def _warn(self, text: str) -> None:
        # After the step has given up, the thread must not print: the interpreter may be ending.
        if not self._has_given_up:
            self._log("WARNING", text)

    def _send(self, client: MlflowClient, is_end: bool) -> None:
        """Send all new data."""
        if not self._run:
            self._run = self._open_run(client)
            self.run_id, self._steps = self._run.id, dict(self._run.steps)
        if is_end and self._end:
            self._add_end(*self._end)
            self._end = None
        elif not is_end and not self._unsent:
            self._add_metrics(self._read_metrics())
        while self._unsent:
            name, send = self._unsent[0]
            try:
                send(client, self._run)
            except MlflowError as error:
                if error.status not in _BAD_CONTENT:
                    raise
                # Once: MLflow would refuse the metrics of a deleted run after each epoch.
                if name not in self._refused:
                    self._refused.add(name)
                    self._warn(f"MLflow refused {name}: {error}")
            self._unsent.popleft()

    def _open_run(self, client: MlflowClient) -> Run:
        """Return the run to log to. A retry of the step gets the run that the previous attempt created."""
        if self.run_id:
            return client.get_run(self.run_id)
        experiment = self._variables.get("MLFLOW_EXPERIMENT_ID", "").strip() or client.find_experiment(
            self._variables.get("MLFLOW_EXPERIMENT_NAME", "").strip() or "Default"
        )
        if run := client.find_run(experiment, JOB_TAG, self._job.name):
            client.update_run(run.id, "RUNNING")
            return run
        tags = {JOB_TAG: self._job.name}
        if self._parent:
            parent = self._parent_id or getattr(client.find_run(experiment, JOB_TAG, self._parent), "id", "")
            if not parent:
                raise MlflowError(0, f"there is no run of {self._parent} yet")
            tags[PARENT_TAG] = parent
        return client.create_run(experiment, self._job.name, tags, time.time())

    def _read_metrics(self) -> Metrics:
        self._store = self._store or open_store(self._job.description.metrics_uri, retry_seconds=LOOK_SECONDS)
        return stored_metrics(self._store)

    def _add_metrics(self, stored: Metrics) -> None:
        if metrics := list(new_metrics(stored, self._steps, time.time())):
            self._steps |= {metric.key: metric.step for metric in metrics}
            self._unsent.append(("metrics", lambda client, run: client.log_metrics(run.id, metrics)))

    def _add_end(self, status: RunStatus, stored: Metrics, report: str, report_uri: str) -> None:
        self._add_metrics(stored)
        if report_uri:
            tags = {"kfp_distributed.report": report_uri}
            self._unsent.append(("tags", lambda client, run: client.set_tags(run.id, tags)))
        if self._owns_run:
            self._unsent.append(("the status", lambda client, run: client.update_run(run.id, status, self._end_time)))
        if report:
            # Last: a server that cannot store artifacts must not leave the run open.
            page = report.encode()
            self._unsent.append(
                ("the report", lambda client, run: client.upload_artifact(run, "report.html", page, "text/html"))
            )


def new_metrics(metrics: Metrics, logged: Mapping[str, int], now: float) -> Iterator[Metric]:
    """Yield the metrics of the epochs and steps that are not logged yet, in their order.

    The keys are "training/NAME" and "evaluator/NAME" for epochs, and "training_steps/NAME" for steps. The launcher of
    Kubeflow Pipelines logs the step's final metrics as NAME at step 0.

    Args:
        metrics: Epochs and steps of each replica that recorded any.
        logged: Latest epoch or step that is logged, by key. One that a restarted replica repeats is not logged again.
        now: Time in seconds since 1970.
    """
    for replica, rows in metrics.items():
        role = "evaluator" if replica.startswith("evaluator") else "training"
        for row in rows:
            number, group = ("epoch", role) if "epoch" in row else ("step", f"{role}_steps")
            for name, value in row.items():
                key, step = valid_key(f"{group}/{name}"), round(row[number])
                # A JSON integer may be too large for a double. A float may be NaN or infinite.
                is_double = isinstance(value, float) or abs(value) <= _LARGEST
                if name != number and step > logged.get(key, -1) and is_double:
                    yield Metric(key, float(value), step, now)


def run_parameters(job: TrainingJob) -> dict[str, str]:
    """Return the parameters of a run: program, arguments and distribution.

    The keys differ from those of the step's inputs, which the launcher of Kubeflow Pipelines logs with other values.
    """
    program = job.description.program
    kind = next((kind for kind in ("trainer", "function") if program.get(kind)), "command")
    values: dict[str, Any] = {
        f"program.{kind}": program[kind],
        "program.image": program.get("image") or None,
        **{f"parameters.{name}": value for name, value in job.description.parameters.items()},
        **{f"distribution.{name}": value for name, value in vars(job.specification).items()},
    }
    return {name: _text(value) for name, value in values.items() if value not in (None, ())}


def run_tags(job: TrainingJob) -> dict[str, str]:
    """Return the tags of a run: its job, and the addresses of its model and checkpoints."""
    return {
        JOB_TAG: job.name,
        **{f"kfp_distributed.{name}": value for name, value in job.labels.items()},
        "kfp_distributed.model": job.description.model_uri,
        "kfp_distributed.checkpoints": training_folder(job.description),
    }


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
