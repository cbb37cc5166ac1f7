"""How replicas fail: which failure the others followed from, and how one ended, in words. Pure."""

import signal
from collections.abc import Iterable

from kfp_distributed.components.train.job import ReplicaChanged
from kfp_distributed.trainers.runtime.job import PEER_LOST

SAME_MOMENT_SECONDS = 2.0
"""Failures this close together have one cause. A peer of a dead replica ends within milliseconds of the broken
connection; Python and TensorFlow then take up to about two seconds to shut down."""

RECENT_SECONDS = 60.0
"""A failure counts as the cause if it happened within so many seconds of the last log line. Peers of a lost TensorFlow
worker exit after up to 25 s."""

FOR_GOOD = "Exit codes from 1 to 127 are not tried again."
"""Why a job has failed whose program would do the same again."""

_SIGNALS = {each.value: each.name for each in signal.Signals}


def how_it_ended(end: ReplicaChanged) -> str:
    """Exit code or signal in words, such as "signal 9 (SIGKILL)"."""
    number = _killed_by(end)
    code = "" if end.exit_code is None else f"exit code {end.exit_code}"
    how = code if end.signal is None else f"signal {end.signal}"
    if number in _SIGNALS:
        how += f" ({_SIGNALS[number]})"
    memory = "often a lack of memory" if number == signal.SIGKILL else ""
    return ", ".join(filter(None, (how, memory, end.reason)))


def _killed_by(end: ReplicaChanged) -> int | None:
    """The signal that killed it; a shell or a container tells of it as exit code 128 + signal."""
    wrapped = (end.exit_code or 0) - 128 if end.exit_code != PEER_LOST else 0
    return wrapped if wrapped in _SIGNALS else end.signal


def root_failure(failed: Iterable[ReplicaChanged]) -> ReplicaChanged:
    """The failure that the others followed from: the first one, where time alone tells.

    When a replica is killed its peers fail too, and may be seen to do so first. So within `SAME_MOMENT_SECONDS` a
    signal, or the end of a pod without an exit code, counts before an exit code. Last count PEER_LOST and, before it,
    SIGABRT: so end the peers of a failed replica.
    """
    by_time = sorted(failed, key=lambda each: each.time)
    moment = [each for each in by_time if each.time - by_time[0].time <= SAME_MOMENT_SECONDS]
    return min(
        moment,
        key=lambda each: (
            each.exit_code == PEER_LOST or _killed_by(each) == signal.SIGABRT,
            each.exit_code is not None and not _killed_by(each),
        ),
    )
