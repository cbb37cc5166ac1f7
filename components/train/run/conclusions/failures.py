"""Failures of replicas: their description, and which of several was the first. Pure."""

import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from kfp_distributed.components.train.run.facts import ReplicaChanged
from kfp_distributed.trainers.runtime.job_description import (
    CHECKPOINT_REJECTED,
    PEER_LOST,
    PREEMPTED,
    PROGRAM_CODE_RESERVED,
    STORE_AWAY,
    STORE_FAILED,
    STORE_UNREACHED,
)

Cause = Literal["program", "preemption", "outage"]
"""Cause of a failure, which decides for what it counts: the program for restart_limit, a preemption for
preemption_limit, and an outage of the object store for no limit."""

SAME_MOMENT_SECONDS = 2.0
"""Failures within so many seconds have one cause. A peer of a failed replica loses its connection within milliseconds.
Python and TensorFlow then take up to about two seconds to shut down."""

RECENT_SECONDS = 60.0
"""A failure counts as the cause if it happened within so many seconds of the last progress. Peers of a lost TensorFlow
worker exit after up to 25 s."""

FOR_GOOD = "Exit codes 1 to 127 are permanent failures and are not retried."
"""Reason of a failed job whose program would fail in the same way again."""

POD_DELETED = "pod deleted"
"""Reason of a failed replica whose pod was deleted, and not by its operator or for a preemption."""

STORE_DID_NOT_ANSWER = "the object store did not answer"

_OWN_CODES = {
    STORE_AWAY: STORE_DID_NOT_ANSWER,
    STORE_UNREACHED: "the object store has not answered since the replica started",
    STORE_FAILED: "a request to the object store failed",
    PROGRAM_CODE_RESERVED: f"the program ended with exit code {STORE_AWAY} or {STORE_UNREACHED}, which are reserved",
    PREEMPTED: "it saved a checkpoint because a replica must end soon",
    CHECKPOINT_REJECTED: "it failed right after it had restored a checkpoint",
}

_RANK = r"(?:\[[\w,.-]+\](?:<\w+>)?:)*"
"""Beginning of a line that launchers of ranks add: "[rank1]:" of torchrun, "[1,0]<stderr>:" of mpirun. torch adds
"[rank1]: ", with a space."""

# Two blanks and a bar are before a group of exceptions, more blanks before those in it.
_EXCEPTION = re.compile(rf"{_RANK} ?(?:  \| )?(?P<line>(?P<name>(?:[^\W\d]\w*\.)*[A-Z]\w*)(?:: .*|:? *))", re.DOTALL)
_ERROR_NAME = re.compile(r".*(Error|Exception|Interrupt)")
_TRACEBACK_LINE = re.compile(rf"{_RANK}  +\S.*", re.DOTALL)
_FIRST_LINE = "Traceback (most recent call last)"
_FRAME = re.compile(rf"{_RANK}(?P<indent> ?(?:[ |]*\| )?)  (?:File \".*\", line \d+, in |\[Previous line repeated )")
"""A frame of a traceback. Those of an exception group begin with a bar."""

_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_LAUNCHER_ERROR = "ChildFailedError"
"""torchrun raises it after the exception of a rank."""

_LONGEST_EXCEPTION = 1000
"""Maximum number of characters of an exception in a sentence. The last log lines have all of it."""

_SIGNALS = {number.value: number.name for number in signal.Signals}


def own_cause(failure: ReplicaChanged, store_is_away: bool) -> Cause:
    """Return the cause of a failure, apart from the failures of other replicas.

    Args:
        failure: The failure.
        store_is_away: Whether an object store that has not answered a replica since its start is known to be away: it
            has answered the job before, and nobody meanwhile. If not, the replica may never reach the store, which is
            no outage.
    """
    if failure.preempted:
        return "preemption"
    is_outage = failure.exit_code == STORE_AWAY or (failure.exit_code == STORE_UNREACHED and store_is_away)
    return "outage" if is_outage else "program"


def is_of_program(failure: ReplicaChanged) -> bool:
    """Return whether the program of the replica is the cause, so that it would fail again. A lack of memory is one.

    Otherwise it is a preemption, a deletion, the object store, or another replica.
    """
    elsewhere = (STORE_AWAY, STORE_UNREACHED, STORE_FAILED, PEER_LOST)
    return not failure.preempted and failure.exit_code not in elsewhere and failure.reason != POD_DELETED


def how_it_ended(end: ReplicaChanged) -> str:
    """Return exit code, signal and reason of an ended replica as text, such as "signal 9 (SIGKILL), OOMKilled"."""
    number = _killed_by(end)
    code = "" if end.exit_code is None else f"exit code {end.exit_code}"
    how = code if end.signal is None else f"signal {end.signal}"
    if number in _SIGNALS:
        how += f" ({_SIGNALS[number]})"
    # The kubelet kills what has not ended within the grace period of its pod.
    is_ended_by_cluster = end.preempted or end.reason == POD_DELETED
    memory = "often a lack of memory" if number == signal.SIGKILL and not is_ended_by_cluster else ""
    return ", ".join(filter(None, (how, memory, _OWN_CODES.get(end.exit_code or 0), end.reason)))


def exception_line(lines: Sequence[str]) -> str:
    """Return the line of the last Python exception in log lines, such as "ValueError: bad shape"; "" if there is none.

    It is a line that begins with the name of an exception. Any name counts after an indented line of a traceback, and
    elsewhere those that end with Error, Exception or Interrupt.
    """
    for before, line in reversed(list(zip(("", *lines), lines, strict=False))):
        match = _EXCEPTION.fullmatch(line)
        if not match or match["name"].endswith(_LAUNCHER_ERROR):
            continue
        if _ERROR_NAME.fullmatch(match["name"]) or _TRACEBACK_LINE.fullmatch(before):
            text = match["line"].rstrip(" :")
            return text if len(text) <= _LONGEST_EXCEPTION else f"{text[:_LONGEST_EXCEPTION]}..."
    return ""


def lines_of_cause(lines: Sequence[str], usual: int, *, frames: bool) -> list[str]:
    """Return the last lines of a replica, more of them if they would begin within its last exception.

    The frames of tracebacks are not counted. If an exception, with those that led to it, has more than 2 * `usual`
    lines, "…" stands for the text of those that led to it. If it has more lines alone, "…" stands for its end.

    Args:
        lines: The known lines.
        usual: Number of lines to return otherwise.
        frames: Whether to return the frames of tracebacks.
    """
    kept = [number for number, is_frame in enumerate(_are_frames(lines)) if not is_frame]
    if not kept:
        return list(lines[-usual:]) if frames else []
    first, *rest = _parts_of_cause([re.sub(f"^{_RANK} ?", "", lines[number]) for number in kept], usual)

    def part(numbers: range) -> list[str]:
        if not frames:
            return [lines[kept[number]] for number in numbers]
        # The known lines may begin with frames.
        starts = [0, *kept[1:], len(lines)]
        return list(lines[starts[numbers.start] : starts[numbers.stop]])

    return part(first) + [line for numbers in rest for line in ("…", *part(numbers))]


def _parts_of_cause(plain: Sequence[str], usual: int) -> list[range]:
    """Return the numbers of the lines to return, in parts that "…" separates. See `lines_of_cause`.

    Args:
        plain: The lines without frames and without what launchers add.
        usual: Number of lines to return if they begin outside of the last exception.
    """
    count, most = len(plain), 2 * usual
    begin = max(0, count - usual)
    starts = [number for number, line in enumerate(plain) if line.startswith(_FIRST_LINE)]
    if not starts:
        return [range(begin, count)]
    first = last = starts.pop()
    end = last + 2  # The first line is followed by the name of the exception, whose text may have more lines.
    while end < count and plain[end].startswith((" ", "\t")):
        end += 1
    joint = last
    # With the exceptions that led to it.
    while starts and (joints := [number for number in range(starts[-1], first) if plain[number].startswith(_CHAINED)]):
        joint = joints[-1] if first == last else joint
        first = starts.pop()
    if not first < begin < end:
        return [range(begin, count)]
    if count - first <= most:
        return [range(first, count)]
    if count - joint < most:
        return [range(first, first + most - 1 - (count - joint)), range(joint, count)]
    return [range(last, last + most - 1), range(0)] if count - last > most else [range(last, count)]


def _are_frames(lines: Iterable[str]) -> Iterator[bool]:
    """Yield for each log line whether it is of a frame of a traceback, each of which may have source lines."""
    source = ""
    for line in lines:
        if frame := _FRAME.match(line):
            source = rf"{_RANK}{re.escape(frame['indent'])}    "
        elif not source or not re.match(source, line):
            source = ""
        yield bool(source)


def was_killed(end: ReplicaChanged) -> bool:
    """Return whether a signal ended a replica, as far as is known."""
    return _killed_by(end) is not None


def _killed_by(end: ReplicaChanged) -> int | None:
    """Return the number of the signal that killed a replica. Shells and containers report it as exit code 128 + n."""
    wrapped = (end.exit_code or 0) - 128 if end.exit_code not in (PEER_LOST, *_OWN_CODES) else 0
    return wrapped if wrapped in _SIGNALS else end.signal


def root_failure(failed: Iterable[ReplicaChanged]) -> ReplicaChanged:
    """Return the failure that caused the others: the first one, unless the order of detection is not reliable.

    When a replica is killed, its peers fail too and may be detected first. Within `SAME_MOMENT_SECONDS` of the first
    failure, the order of precedence is: a preemption, an object store that does not answer, a signal or the loss of a
    pod, an exit code, SIGABRT or PEER_LOST. The peers of a failed replica end with the last two.
    """
    by_time = sorted(failed, key=lambda failure: failure.time)
    moment = [failure for failure in by_time if failure.time - by_time[0].time <= SAME_MOMENT_SECONDS]
    return min(
        moment,
        key=lambda failure: (
            ("preemption", "outage", "program").index(own_cause(failure, store_is_away=True)),
            failure.exit_code == PEER_LOST or _killed_by(failure) == signal.SIGABRT,
            failure.exit_code is not None and not _killed_by(failure),
        ),
    )
