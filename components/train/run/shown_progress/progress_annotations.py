"""Progress of a training as annotations of its job, for people who only have kubectl. Pure."""

import json
import math
import time
from itertools import islice

from kfp_distributed.components.train.run.facts import JobEnded
from kfp_distributed.components.train.run.shown_progress.log_entry import TIME_FORMAT
from kfp_distributed.components.train.run.shown_progress.training_progress import ReplicaProgress, TrainingProgress

ALL_ANNOTATIONS = tuple(
    f"kfp-distributed/{name}" for name in ("epoch", "step", "percentage", "estimated-end", "metrics", "progress")
)
"""Names of the annotations. docs/reference/annotations.md describes their values."""

EPOCH, STEP, PERCENTAGE, ESTIMATED_END, METRICS, PROGRESS = ALL_ANNOTATIONS

MAX_METRICS = 100
"""Number of metrics in METRICS, the first ones. The API server limits the size of all annotations to 256 KiB."""

_METRICS_OF_LINE = 4
"""Number of metrics in PROGRESS, the first ones."""


def progress_annotations(progress: TrainingProgress, leader: str, ended: JobEnded | None = None) -> dict[str, str]:
    """Return the progress of a training as annotations.

    Args:
        progress: Progress of the replicas.
        leader: Name of the replica whose progress is that of the training. If it reports neither epochs nor steps, as
            the launcher of an MPI job, the replica that has ended one last is taken.
        ended: How the job ended. Default: None, it has not ended.

    Returns:
        Values by name, without those that are not known. {} before the end of the first epoch or step.
    """
    training = [(replica, replica.progress) for replica in progress.replicas.values() if replica.progress]
    if not training:
        return {}
    replica, last = max(training, key=lambda pair: (pair[0].name == leader, pair[0].last_time))
    annotations = {
        name: text.partition(" ")[2]
        for name, unit in ((EPOCH, "epoch"), (STEP, "step"))
        for text in (replica.epoch, str(last))
        if text.startswith(unit)
    }
    if last.total:
        annotations[PERCENTAGE] = str(min(100, last.done * 100 // last.total))
    numbers = {name: value if math.isfinite(value) else None for name, value in replica.metrics.items()}
    annotations[METRICS] = json.dumps(dict(islice(numbers.items(), MAX_METRICS)))
    if replica.estimated_end is not None and not ended:
        annotations[ESTIMATED_END] = f"{time.strftime(TIME_FORMAT, time.gmtime(replica.estimated_end))}Z"
    return {**annotations, PROGRESS: _line(replica, annotations, ended)}


def _line(replica: ReplicaProgress, annotations: dict[str, str], ended: JobEnded | None) -> str:
    parts = [("succeeded" if ended.succeeded else "failed")] if ended else []
    percentage = f" ({annotations[PERCENTAGE]}%)" if PERCENTAGE in annotations else ""
    parts += filter(None, (replica.epoch, f"{replica.progress}{percentage}"))
    if ESTIMATED_END in annotations:
        parts.append(f"ends about {annotations[ESTIMATED_END]}")
    if metrics := [f"{name}={value:.4f}" for name, value in islice(replica.metrics.items(), _METRICS_OF_LINE)]:
        parts.append(" ".join(metrics))
    return ", ".join(parts)
