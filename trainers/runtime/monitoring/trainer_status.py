"""Progress of a training as status.trainerStatus of its TrainJob: epochs or steps -> body of a request. Pure."""

import time
from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

from kfp_distributed.trainers.runtime.monitoring.progress import Progress

MAX_METRICS = 100
"""Number of metrics in the status, the first ones. Kubeflow Trainer allows 256, and 64 KiB for the whole body."""

_MAX_NAME = 64
"""Characters of the longest name of a metric that Kubeflow Trainer allows."""

_MAX_SECONDS = 2**31 - 1
"""The largest estimate that Kubeflow Trainer can store."""


class TimedProgress(NamedTuple):
    """The end of an epoch or a step.

    Attributes:
        progress: The epoch or step, their number, and the metrics.
        time: Time of the end in Unix seconds.
    """

    progress: Progress
    time: float


def measured_from(first: TimedProgress | None, last: TimedProgress) -> TimedProgress:
    """Return the progress since which the speed is measured.

    Args:
        first: The progress since which it was measured so far; None before the first one.
        last: The progress now.

    Returns:
        `last` if there is no other, or if the program has begun again at an earlier epoch or step, or counts another
        number or unit of them.
    """
    if first is None or last.progress.done <= first.progress.done:
        return last
    is_same = (last.progress.unit, last.progress.total) == (first.progress.unit, first.progress.total)
    return first if is_same else last


def status_body(first: TimedProgress, last: TimedProgress) -> Mapping[str, Any]:
    """Return the body of the request that replaces status.trainerStatus of a TrainJob.

    Args:
        first: The progress since which the speed is measured.
        last: The progress now. The estimate begins at its time, which is lastUpdatedTime.

    Returns:
        The body. There is no progressPercentage if the number of epochs or steps is 0, and no
        estimatedRemainingSeconds until two have ended. Metrics whose name has more than 64 characters are left out.
    """
    done, total, metrics = last.progress.done, last.progress.total, last.progress.metrics
    status: dict[str, Any] = {}
    if total > 0:
        status["progressPercentage"] = min(100, max(0, int(done * 100 // total)))
    is_open = last.progress.unit == "step" and not total  # The number of all steps may not be known.
    if done >= total and not is_open:
        status["estimatedRemainingSeconds"] = 0
    elif done > first.progress.done and not is_open:
        seconds_of_one = (last.time - first.time) / (done - first.progress.done)
        # The clock of the machine may have been set back.
        seconds = max(0, round(seconds_of_one * (total - done)))
        status["estimatedRemainingSeconds"] = min(seconds, _MAX_SECONDS)
    allowed = ((name, value) for name, value in metrics.items() if 1 <= len(name) <= _MAX_NAME)
    status["metrics"] = [{"name": name, "value": f"{value:.6g}"} for name, value in islice(allowed, MAX_METRICS)]
    status["lastUpdatedTime"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(last.time))
    return {"trainerStatus": status}
