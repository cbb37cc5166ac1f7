"""Decide which log is read next over a limited number of connections. Pure: the caller passes the time."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

READS_PER_SECOND = 100
"""Reads of shared connections per second, at most. The kubelet searches the file of a log from its beginning for each.

Each of 1,000 logs is therefore read every 10 s."""

FIRST_SECONDS = 1.0
"""Seconds between two reads of the leader's log, and of each log of a job with fewer than 100."""

_SILENT_FACTOR = 2
"""A log without news at its last read waits so many times as long."""

_HEAD_START_SECONDS = 60.0
"""Seconds by which the last lines of the leader and of a failed replica go before other logs."""

_HEAD_STARTS = 4
"""Number of reads of an ended log that have a head start. With more, a log that breaks again and again would starve
others."""

AnyLog = TypeVar("AnyLog", bound=Hashable)


class Turn(NamedTuple, Generic[AnyLog]):
    """A log that is to be read now.

    Attributes:
        log: The log.
        follow: Whether to wait for new lines at its end.
        has_ended: Whether its container is known to have ended, so this read can be the last one.
    """

    log: AnyLog
    follow: bool
    has_ended: bool


@dataclass
class _Place:
    """State of one log. It is due at a time in seconds; None while it is being read."""

    due: float | None
    is_first: bool
    has_ended: bool = False
    is_failing: bool = False
    reads_failing: bool = False
    ends_anew: bool = False
    head_starts: int = _HEAD_STARTS

    @property
    def has_head_start(self) -> bool:
        return self.is_first and self.has_ended and self.head_starts > 0


class LogTurns(Generic[AnyLog]):
    """Logs that are not read to their end, and when each is read next.

    Each log is followed over its own connection while there are enough connections. Otherwise they are *shared*: a
    connection reads a log to its present end and goes on with another one. Logs have due times, and the one with the
    earliest is read next. No log starves: a log that is read again gets a due time in the future, so each other log is
    read a limited number of times before a log that is due.

    Logs that cannot be read occupy at most a quarter of the connections, because a lost node delays each response.
    All times are in seconds of one monotonic clock.
    """

    def __init__(self, connections: int) -> None:
        """Create a schedule without logs.

        Args:
            connections: Maximum number of logs that are read at the same time.
        """
        self._connections = connections
        self._places: dict[AnyLog, _Place] = {}
        self._reading = self._reading_failing = 0

    def __len__(self) -> int:
        """Return the number of logs."""
        return len(self._places)

    @property
    def is_shared(self) -> bool:
        """Whether there are more logs than connections."""
        return len(self._places) > self._connections

    @property
    def ended(self) -> list[AnyLog]:
        """Logs whose container has ended and that are not read to their end."""
        return [log for log, place in self._places.items() if place.has_ended]

    def add(self, log: AnyLog, now: float, *, first: bool) -> None:
        """Add a log, which is due at once.

        Args:
            log: The log.
            now: Current time.
            first: Whether it is that of the leader.
        """
        self._places[log] = _Place(now, first)

    def end(self, log: AnyLog, now: float, *, first: bool) -> None:
        """Record that a container has ended. Its log is due at once, or after the present read.

        Args:
            log: The log. If it is not in the schedule, nothing changes.
            now: Current time.
            first: Whether its last lines go before others, because its replica has failed.
        """
        place = self._places.get(log)
        if place is None:
            return
        place.is_first |= first
        if not place.has_ended:
            place.has_ended = place.ends_anew = True
            if place.due is not None:
                place.due = min(place.due, now)

    def take(self, now: float) -> Turn[AnyLog] | None:
        """Return the log to read now; None if none is due or no connection is free.

        The caller calls `put_back` or `remove` after the read.
        """
        if self._reading >= self._connections:
            return None
        may_fail = self._may_take_failing
        best: tuple[float, AnyLog, _Place] | None = None
        for log, place in self._places.items():
            if place.due is None or place.due > now or (place.is_failing and not may_fail):
                continue
            order = place.due - (_HEAD_START_SECONDS if place.has_head_start else 0.0)
            if best is None or order < best[0]:
                best = order, log, place
        if best is None:
            return None
        _, log, place = best
        place.head_starts -= place.has_head_start
        place.due, place.reads_failing, place.ends_anew = None, place.is_failing, False
        self._reading += 1
        self._reading_failing += place.reads_failing
        return Turn(log, not self.is_shared, place.has_ended)

    def renew(self, turn: Turn[AnyLog]) -> Turn[AnyLog]:
        """Return a turn whose read has not begun with what is known now."""
        place = self._places[turn.log]
        place.ends_anew = False
        return turn._replace(has_ended=place.has_ended)

    def put_back(
        self,
        log: AnyLog,
        now: float,
        *,
        delay: float = 0.0,
        news: bool = False,
        more: bool = False,
        failing: bool = False,
    ) -> None:
        """Set when a log is read again.

        Args:
            log: A log that was taken.
            now: Current time.
            delay: Minimum seconds until then. A container that ended during the read is read at once.
            news: Whether it had new lines.
            more: Whether it is known to have more of them.
            failing: Whether it could not be read.
        """
        place = self._places[log]
        self._release(place)
        place.is_failing = failing
        wait = delay
        if self.is_shared and not (place.has_ended or more):
            wait = max(wait, self._period(place, news))
        place.due = now if place.ends_anew and not failing else now + wait

    def _period(self, place: _Place, news: bool) -> float:
        if place.is_first:
            return FIRST_SECONDS
        return max(FIRST_SECONDS, len(self._places) / READS_PER_SECOND) * (1 if news else _SILENT_FACTOR)

    def remove(self, log: AnyLog) -> None:
        """Remove a log that was taken and is read to its end."""
        self._release(self._places.pop(log))

    def _release(self, place: _Place) -> None:
        self._reading -= 1
        self._reading_failing -= place.reads_failing

    def seconds_until_due(self, now: float) -> float | None:
        """Return the seconds until `take` may return a log; None if only another call changes that."""
        if self._reading >= self._connections:
            return None
        may_fail = self._may_take_failing
        places = self._places.values()
        times = [place.due for place in places if place.due is not None and (may_fail or not place.is_failing)]
        return max(0.0, min(times) - now) if times else None

    @property
    def _may_take_failing(self) -> bool:
        return self._reading_failing < max(1, self._connections // 4)
