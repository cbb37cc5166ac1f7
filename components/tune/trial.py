"""The process of a trial: a training like any other, whose end the step reads from a file.

`python -m kfp_distributed.components.tune.trial FOLDER` runs the trial that is described in FOLDER.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from kfp_distributed.components.train.describe.task_path import TaskPath
from kfp_distributed.components.train.recorded_job import JobFailed, run_recorded
from kfp_distributed.components.train.run.facts import Log
from kfp_distributed.components.train.run.runners.protocol import Runner
from kfp_distributed.components.train.run.runners.runner_choice import choose_runner
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.components.train.tell.experiment_tracker import ExperimentTracker
from kfp_distributed.components.tune.search import TrialEnd
from kfp_distributed.storage.files import unfinished_file
from kfp_distributed.storage.uri import uri_beside

_DESCRIPTION, _END = "trial.json", "end.json"


class RunnerChoice(NamedTuple):
    """Where the replicas of all trials run. See `choose_runner`.

    Attributes:
        name: "auto", "kubernetes" or "local".
        secret: Name of the Secret of another cluster. Default: "", the step's own cluster.
        task_config: Settings of the KFP task. Default: none.
    """

    name: str
    secret: str = ""
    task_config: Mapping[str, Any] | None = None

    def choose(self, say: Log, model_uri: str) -> Runner:
        """Return the runner of a trial."""
        return choose_runner(self.name, say, model_uri, self.secret, self.task_config)


class _Report:
    """The report of a trial: a file here, and an object beside the model if that is in a store."""

    def __init__(self, folder: Path, model_uri: str) -> None:
        self.path = str(folder / "report.html")
        self.uri = uri_beside(model_uri, f"{Path(model_uri).name}-report") if "://" in model_uri else self.path


def describe_trial(folder: Path, request: Request, runner: RunnerChoice) -> None:
    """Write what the process of a trial reads.

    Args:
        folder: A folder of its own.
        request: The training.
        runner: Where its replicas run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _END).unlink(missing_ok=True)
    (folder / _DESCRIPTION).write_text(json.dumps({"request": asdict(request), "runner": runner._asdict()}))


def read_end(folder: Path, metric: str) -> TrialEnd | None:
    """Return how a trial has ended; None if its process was ended before.

    Args:
        folder: As of `describe_trial`.
        metric: Name of the metric of the model that is the value of the trial.
    """
    file = folder / _END
    if not file.exists():
        return None
    end = json.loads(file.read_text())
    if end["state"] != "complete":
        return TrialEnd(end["state"], cause=end["cause"])
    value = end["metrics"].get(metric)
    if value is None:
        names = ", ".join(end["metrics"]) or "none"
        return TrialEnd("failed", cause=f"the metrics of its model have no {metric}; they are: {names}")
    return TrialEnd("complete", float(value))


def _request(fields: Mapping[str, Any]) -> Request:
    path = TaskPath(**{name: tuple(values) for name, values in fields["task_path"].items()})
    return Request(**{**fields, "identity": tuple(fields["identity"]), "task_path": path})


def main() -> None:
    """Run a trial. Its lines have the form of the log of a step."""
    folder = Path(sys.argv[1])
    described = json.loads((folder / _DESCRIPTION).read_text())
    request, runner = _request(described["request"]), RunnerChoice(**described["runner"])
    report = _Report(folder, request.model_uri)
    try:
        outcome = run_recorded(
            lambda say: (request, runner.choose(say, request.model_uri)), report, ExperimentTracker()
        )
        end: dict[str, Any] = {"state": "complete", "metrics": outcome.model.metrics}
    except JobFailed as failure:
        cause = failure.cause.rpartition("\n")[2]
        end = {"state": "failed" if failure.is_of_program else "lost", "cause": cause}
    with unfinished_file(folder / _END) as file:
        file.write(json.dumps(end).encode())


if __name__ == "__main__":
    main()
