"""The process of a trial: a training like any other, whose end the step reads from a file.

`python -m kfp_distributed.components.tune.trial FOLDER` runs the trial that is described in FOLDER.
"""

import json
import os
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
from kfp_distributed.components.train.tell.choose_tracker import choose_tracker
from kfp_distributed.components.train.tell.log_format import log
from kfp_distributed.components.train.tell.training_summary import REPORT
from kfp_distributed.components.tune.search import TrialEnd
from kfp_distributed.storage.files import unfinished_file
from kfp_distributed.storage.uri import join_uri

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


def report_of_trial(request: Request) -> str:
    """Return the address at which the records of a trial have its report."""
    return join_uri(request.folder, REPORT)


class _Report(NamedTuple):
    """The report of a trial: a file here, and the address at which the records have it."""

    path: str
    uri: str


def describe_trial(folder: Path, request: Request, runner: RunnerChoice, search: str) -> None:
    """Write what the process of a trial reads.

    Args:
        folder: A folder of its own.
        request: The training.
        runner: Where its replicas run.
        search: Name of the search.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _END).unlink(missing_ok=True)
    described = {"request": asdict(request), "runner": runner._asdict(), "search": search}
    (folder / _DESCRIPTION).write_text(json.dumps(described))


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
    report = _Report(str(folder / REPORT), report_of_trial(request))
    tracker = choose_tracker(os.environ, log, described["search"])
    try:
        outcome = run_recorded(lambda say: (request, runner.choose(say, request.model_uri)), report, tracker)
        end: dict[str, Any] = {"state": "complete", "metrics": outcome.model.metrics}
    except JobFailed as failure:
        cause = failure.cause.rpartition("\n")[2]
        end = {"state": "failed" if failure.is_of_program else "lost", "cause": cause}
    with unfinished_file(folder / _END) as file:
        file.write(json.dumps(end).encode())


if __name__ == "__main__":
    main()
