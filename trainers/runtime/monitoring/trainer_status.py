"""Progress of a training as status.trainerStatus of its TrainJob: ends of epochs -> body of a request. Pure."""

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


class EpochEnd(NamedTuple):
    """The end of an epoch.

    Attributes:
        progress: The epoch, the number of epochs, and the metrics.
        time: Time of the end in Unix seconds.
    """

    progress: Progress
    time: float


def measured_from(first: EpochEnd | None, last: EpochEnd) -> EpochEnd:
    """Return the epoch from whose end the speed is measured.

    Args:
        first: The epoch from which it was measured so far; None before the first one.
        last: The epoch that has ended.

    Returns:
        `last` if there is no other, or if the program has begun again with an earlier epoch or another number of them.
    """
    if first is None or last.progress.epoch <= first.progress.epoch or last.progress.epochs != first.progress.epochs:
        return last
    return first


def status_body(first: EpochEnd, last: EpochEnd) -> Mapping[str, Any]:
    """Return the body of the request that replaces status.trainerStatus of a TrainJob.

    Args:
        first: The epoch from whose end the speed is measured.
        last: The epoch that has ended last. The estimate begins at its end, which is lastUpdatedTime.

    Returns:
        The body. There is no progressPercentage if the number of epochs is 0, and no estimatedRemainingSeconds until
        two epochs have ended. Metrics whose name has more than 64 characters are left out.
    """
    epoch, epochs, metrics = last.progress.epoch, last.progress.epochs, last.progress.metrics
    status: dict[str, Any] = {}
    if epochs > 0:
        status["progressPercentage"] = min(100, max(0, int(epoch * 100 // epochs)))
    if epoch >= epochs:
        status["estimatedRemainingSeconds"] = 0
    elif epoch > first.progress.epoch:
        seconds_of_epoch = (last.time - first.time) / (epoch - first.progress.epoch)
        # The clock of the machine may have been set back.
        seconds = max(0, round(seconds_of_epoch * (epochs - epoch)))
        status["estimatedRemainingSeconds"] = min(seconds, _MAX_SECONDS)
    allowed = ((name, value) for name, value in metrics.items() if 1 <= len(name) <= _MAX_NAME)
    status["metrics"] = [{"name": name, "value": f"{value:.6g}"} for name, value in islice(allowed, MAX_METRICS)]
    status["lastUpdatedTime"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(last.time))
    return {"trainerStatus": status}
