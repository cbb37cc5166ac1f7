"""Summary of a training, which is stored beside its checkpoints and found when its job is gone. Pure."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal, get_args

TrainingState = Literal["running", "succeeded", "failed", "cancelled"]

SUMMARY, REPORT, LOGS = "summary.json", "report.html", "logs"
"""Names of the summary, the report and the folder of the logs in the folder of a training."""

INDEX = "kfp-distributed"
"""Folder in the pipeline root with a summary of each training."""


@dataclass(frozen=True)
class TrainingSummary:
    """What is known of a training without its job.

    Attributes:
        name: Name of the job.
        type: distribution_type, such as "TF"; "" for one process.
        namespace: Namespace of the step; "" outside of a pod.
        labels: `TrainingJob.labels`: run, task, sub-pipeline, iteration.
        replicas: Names of the replicas.
        created: Start of the job in seconds since 1970.
        folder: URI of the folder with checkpoints, metrics, log and report.
        model: URI of the model.
        state: State of the training.
        reason: Why it failed. Default: "".
        ended: End in seconds since 1970. Default: None, it has not ended.
        heartbeat: URI of the object that the step rewrites every 30 s while it lives. Default: "", none.
        kind: Kind of the job's object, such as "TrainJob". Default: "", it has none.
    """

    name: str
    type: str
    namespace: str
    labels: Mapping[str, str]
    replicas: tuple[str, ...]
    created: float
    folder: str
    model: str
    state: TrainingState = "running"
    reason: str = ""
    ended: float | None = None
    heartbeat: str = ""
    kind: str = ""

    @property
    def index_key(self) -> str:
        """Key in the index. Keys of a namespace sort by time."""
        return f"{INDEX}/{self.namespace}/{format_moment(self.created)}-{self.name}.json"

    def to_json(self) -> str:
        """Return the summary as JSON."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> "TrainingSummary":
        """Parse the result of `to_json`.

        Raises:
            ValueError: The text has another form.
        """
        try:
            content: dict[str, Any] = json.loads(text)
            summary = cls(**{**content, "replicas": tuple(content["replicas"]), "labels": dict(content["labels"])})
            ended = 0.0 if summary.ended is None else summary.ended
            if summary.state not in get_args(TrainingState) or not isinstance(summary.created + ended, int | float):
                raise ValueError(f"state {summary.state!r} from {summary.created!r} to {summary.ended!r}")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"this is no summary of a training: {error!r}") from None
        return summary


def format_moment(seconds: float, fraction: bool = False) -> str:
    """Return a time in UTC as a name that sorts by time, such as "20261125T205331Z", with milliseconds on request."""
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%dT%H%M%S")
    return f"{text}{int(seconds % 1 * 1000):03d}Z" if fraction else f"{text}Z"
