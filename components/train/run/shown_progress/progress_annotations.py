"""Progress of a training as annotations of its job, for people who only have kubectl. Pure."""

import json
import math
import time
from itertools import islice

from kfp_distributed.components.train.run.facts import JobEnded
from kfp_distributed.components.train.run.shown_progress.log_entry import TIME_FORMAT
from kfp_distributed.components.train.run.shown_progress.training_progress import ReplicaProgress, TrainingProgress

ALL_ANNOTATIONS = tuple(
    f"kfp-distributed/{name}" for name in ("epoch", "percentage", "estimated-end", "metrics", "progress")
)
"""Names of the annotations. docs/reference/annotations.md describes their values."""

EPOCH, PERCENTAGE, ESTIMATED_END, METRICS, PROGRESS = ALL_ANNOTATIONS

MAX_METRICS = 100
"""Number of metrics in METRICS, the first ones. The API server limits the size of all annotations to 256 KiB."""

_METRICS_OF_LINE = 4
"""Number of metrics in PROGRESS, the first ones."""


def progress_annotations(progress: TrainingProgress, leader: str, ended: JobEnded | None = None) -> dict[str, str]:
    """Return the progress of a training as annotations.

    Args:
        progress: Progress of the replicas.
        leader: Name of the replica whose progress is that of the training. If it reports no epochs, as the launcher of
            an MPI job, the replica that has ended an epoch last is taken.
        ended: How the job ended. Default: None, it has not ended.

    Returns:
        Values by name, without ESTIMATED_END if there is no estimate. {} before the end of the first epoch.
    """
    training = [replica for replica in progress.replicas.values() if replica.epochs]
    if not training:
        return {}
    replica = max(training, key=lambda replica: (replica.name == leader, replica.last_epoch_time))
    percentage = str(min(100, replica.epoch * 100 // replica.epochs))
    numbers = {name: value if math.isfinite(value) else None for name, value in replica.metrics.items()}
    annotations = {
        EPOCH: f"{replica.epoch}/{replica.epochs}",
        PERCENTAGE: percentage,
        METRICS: json.dumps(dict(islice(numbers.items(), MAX_METRICS))),
    }
    if replica.estimated_end is not None and not ended:
        annotations[ESTIMATED_END] = f"{time.strftime(TIME_FORMAT, time.gmtime(replica.estimated_end))}Z"
    return {**annotations, PROGRESS: _line(replica, annotations, ended)}


def _line(replica: ReplicaProgress, annotations: dict[str, str], ended: JobEnded | None) -> str:
    parts = [("succeeded" if ended.succeeded else "failed")] if ended else []
    parts.append(f"epoch {annotations[EPOCH]} ({annotations[PERCENTAGE]}%)")
    if ESTIMATED_END in annotations:
        parts.append(f"ends about {annotations[ESTIMATED_END]}")
    if metrics := [f"{name}={value:.4f}" for name, value in islice(replica.metrics.items(), _METRICS_OF_LINE)]:
        parts.append(" ".join(metrics))
    return ", ".join(parts)
