"""Read any number of logs over a limited number of connections. Thin edge."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kfp_distributed.cluster_api.client import LOG_CONNECTIONS, ByteStream, ClusterApi, ClusterError
from kfp_distributed.components.train.describe.mpirun import LAUNCHER, RankLines
from kfp_distributed.components.train.run.runners.kubernetes.cluster_records.pods import started_containers
from kfp_distributed.components.train.run.runners.kubernetes.logs.log_turns import LogTurns, Turn
from kfp_distributed.components.train.run.runners.kubernetes.logs.pod_log import LogReader, StampedLine
from kfp_distributed.components.train.run.runners.kubernetes.logs.shown_lines import Stamp

_IDLE_SECONDS = 300.0
"""Seconds without data after which the connection of a followed log counts as broken. A replica may be silent for as
long."""

_READ_SECONDS = 15.0
"""The same for a read that does not follow. The kubelet needs less than a second to search 10 MiB of a log."""

TURN_BYTES = 4 * 1024 * 1024
"""Bytes with new lines after which a read ends if connections are shared. A replica may print faster than it is read.
"""

_FIRST_DELAY = 0.5
"""Seconds to wait after the end of a log. Usually the end of its container is reported within that time."""

_LONGEST_DELAY = 5.0

RESTART_SECONDS = 2.0
"""Seconds to wait before the pod is read if its log does not continue: the container may have been restarted."""


class LogSource(NamedTuple):
    """A start of a container.

    Attributes:
        uid: UID of the pod. The next pod of a replica may have the same name.
        container: Name of the container.
        restarts: Its restart count at this start.
    """

    uid: str
    container: str
    restarts: int


@dataclass(eq=False)
class _Log:
    """What is known of a log that is not read to its end.

    Attributes:
        replica: Name of the replica.
        path: Path of the pod.
        source: The start of the container.
        reader: Recognizes lines that were read before.
        ranks: Joins the lines of ranks, if the container is their launcher.
        latest_restarts: Restart count of the container's latest start.
        is_failing: Whether the log cannot be read.
        delay: Seconds until the next read, if the pod has to be read before.
        unfinished: Place within a line at which the last response ended.
        must_check: Whether to read the pod before the log.
        is_doubtful: Whether the last response did not continue the log.
        is_checked: Whether such a response is known to be of this start of the container.
    """

    replica: str
    path: str
    source: LogSource
    latest_restarts: int
    reader: LogReader = field(default_factory=LogReader)
    ranks: RankLines = field(default_factory=RankLines)
    is_failing: bool = False
    delay: float = _FIRST_DELAY
    unfinished: tuple[Stamp | None, int] | None = None
    must_check: bool = False
    is_doubtful: bool = False
    is_checked: bool = False

    def feed(self, data: bytes) -> list[StampedLine]:
        """Return the lines that `data` completes; the last lines for b"" at the end of the log."""
        lines = self.reader.feed(data, time.monotonic())
        if self.replica != LAUNCHER:
            return lines
        joined = [StampedLine(text, line.time) for line in lines for text in self.ranks.join(line.text)]
        return joined if data else [*joined, *map(StampedLine, self.ranks.end())]

    @property
    def is_previous(self) -> bool:
        """Whether the container was started again. Without "previous" the server returns the log of that start."""
        return self.latest_restarts > self.source.restarts


class _Result(NamedTuple):
    """The result of a read.

    Attributes:
        is_complete: Whether the log was read to its end, or does not exist any more.
        news: Whether it had new lines.
        more: Whether it has more of them.
        delay: Minimum seconds until the next read.
    """

    is_complete: bool = False
    news: bool = False
    more: bool = False
    delay: float = 0.0


class LogConnections:
    """Threads with one connection each, which read logs in the order of `LogTurns`."""

    def __init__(
        self,
        api: ClusterApi,
        show: Callable[[str, list[StampedLine]], None],
        warn: Callable[[str], None],
        start: Callable[[Callable[[], None]], object],
        connections: int = LOG_CONNECTIONS,
    ) -> None:
        """Create the object without a thread.

        Args:
            api: The cluster.
            show: Called with the name of a replica and its new lines. It may block.
            warn: Called with a message for the log.
            start: Starts a function in a thread.
            connections: Maximum number of threads. Default: `LOG_CONNECTIONS`.
        """
        self._api = api
        self._show = show
        self._warn = warn
        self._start = start
        self._connections = connections
        self._threads = 0
        self._is_closed = False
        # Protects all of the following.
        self._lock = threading.RLock()
        # Of the threads without a log, one waits until the next log is due. The others wait to take its place, so that
        # not all of them wake up for each log.
        self._due = threading.Condition(self._lock)
        self._idle = threading.Condition(self._lock)
        self._has_due_waiter = False
        self._turns = LogTurns[_Log](connections)
        self._logs: dict[LogSource, _Log | None] = {}
        self._streams: dict[_Log, ByteStream] = {}

    def close(self) -> None:
        """Request all threads to end. Each ends after its next response."""
        with self._lock:
            self._is_closed = True
            self._due.notify_all()
            self._idle.notify_all()

    def read(self, replica: str, path: str, source: LogSource, *, leader: bool) -> None:
        """Read a log from its beginning, unless it is read already.

        Args:
            replica: Name of the replica, for its lines.
            path: Path of the pod.
            source: The start of the container.
            leader: Whether the replica is the leader.
        """
        with self._lock:
            if source in self._logs:
                return
            log = self._logs[source] = _Log(replica, path, source, source.restarts)
            was_shared = self._turns.is_shared
            self._turns.add(log, time.monotonic(), first=leader)
            if self._turns.is_shared and not was_shared:
                for stream in self._streams.values():
                    stream.interrupt()
            if self._threads < min(self._connections, len(self._turns)):
                self._threads += 1
                self._start(self._work)
            self._due.notify()

    def end(self, source: LogSource, latest_restarts: int, *, failed: bool) -> None:
        """Record that a container has ended. Its log is read to its end.

        Args:
            source: The start of the container. If its log is not read, nothing happens.
            latest_restarts: Restart count of its latest start.
            failed: Whether its replica has failed.
        """
        with self._lock:
            if log := self._logs.get(source):
                log.latest_restarts = max(log.latest_restarts, latest_restarts)
                self._turns.end(log, time.monotonic(), first=failed)
                self._due.notify()

    @property
    def unread(self) -> list[bool]:
        """One item per ended container whose log is not read to its end: whether the log cannot be read."""
        with self._lock:
            return [log.is_failing for log in self._turns.ended]

    @property
    def failing(self) -> list[str]:
        """Names of the replicas of ended containers whose log cannot be read."""
        with self._lock:
            return sorted({log.replica for log in self._turns.ended if log.is_failing})

    def _work(self) -> None:
        while turn := self._next_turn():
            log = turn.log
            result = self._read(turn)
            if result.is_complete:
                self._show(log.replica, log.feed(b""))
            with self._lock:
                if result.is_complete:
                    self._turns.remove(log)
                    self._logs[log.source] = None
                else:
                    _, news, more, delay = result
                    now = time.monotonic()
                    self._turns.put_back(log, now, delay=delay, news=news, more=more, failing=log.is_failing)
                self._due.notify()

    def _next_turn(self) -> Turn[_Log] | None:
        """Wait for a log that is due; return None when the object is closed."""
        with self._lock:
            while not self._is_closed:
                if turn := self._turns.take(time.monotonic()):
                    if not self._has_due_waiter:
                        self._idle.notify()
                    return turn
                if self._has_due_waiter:
                    self._idle.wait()
                    continue
                self._has_due_waiter = True
                self._due.wait(self._turns.seconds_until_due(time.monotonic()))
                self._has_due_waiter = False
            return None

    def _read(self, turn: Turn[_Log]) -> _Result:
        log = turn.log
        if log.must_check:
            if not self._still_exists(log):
                return _Result(is_complete=True)
            with self._lock:
                turn = self._turns.renew(turn)
        try:
            return self._read_response(turn)
        except ClusterError as error:
            if error.status == 404 or (log.is_previous and error.status == 400):
                return _Result(is_complete=True)
            with self._lock:
                log.is_failing = not (turn.follow and self._turns.is_shared)
            return self._check_later(log) if log.is_failing else _Result(news=True)

    def _check_later(self, log: _Log) -> _Result:
        """Request the log again after its pod was read, because the container may have ended or been restarted."""
        delay, log.delay, log.must_check = log.delay, min(log.delay * 2, _LONGEST_DELAY), True
        return _Result(delay=delay)

    def _read_response(self, turn: Turn[_Log]) -> _Result:
        log, news_bytes, news, head = turn.log, 0, False, b""
        is_begun = log.is_previous or log.is_checked
        stream = self._open(turn)
        try:
            for data in stream:
                chunk = data
                if not is_begun:
                    head += data
                    if (continues := log.reader.continues(head)) is None:
                        continue
                    if not continues:
                        log.is_doubtful = log.must_check = True
                        return _Result(delay=RESTART_SECONDS)
                    chunk, is_begun = head, True
                lines = log.feed(chunk)
                log.is_failing = False
                if lines:
                    self._show(log.replica, lines)
                    news, log.delay, news_bytes = True, _FIRST_DELAY, news_bytes + len(chunk)
                if self._must_yield(turn, news_bytes):
                    return _Result(news=True, more=not turn.follow)
        finally:
            stream.close()
            with self._lock:
                self._streams.pop(log, None)
        if not is_begun and head:
            log.reader.feed(head, time.monotonic())
        return self._at_end(turn, news)

    def _at_end(self, turn: Turn[_Log], news: bool) -> _Result:
        """Return the result of a response that ended without an error.

        It also ends so if the API server loses the kubelet. If it ends within a line, this is the end of the log if the
        next one ends there, too.
        """
        log = turn.log
        log.is_failing = log.is_checked = False
        last_unfinished, log.unfinished = log.unfinished, log.reader.place_in_line
        if turn.has_ended:
            if log.unfinished in (None, last_unfinished):
                return _Result(is_complete=True)
        elif not turn.follow:
            return _Result(news=news)
        return self._check_later(log)._replace(news=news)

    def _open(self, turn: Turn[_Log]) -> ByteStream:
        log = turn.log
        query = {"container": log.source.container, "timestamps": "true", **log.reader.resume_query()}
        # A thread that reads the log of an earlier start gets all of it in any case.
        if log.is_previous:
            query["previous"] = "true"
        elif turn.follow:
            query["follow"] = "true"
        stream = self._api.stream(f"{log.path}/log", query, _IDLE_SECONDS if turn.follow else _READ_SECONDS)
        with self._lock:
            if turn.follow:
                self._streams[log] = stream
                if self._turns.is_shared:
                    stream.interrupt()
        return stream

    def _must_yield(self, turn: Turn[_Log], news_bytes: int) -> bool:
        """Return whether another log needs the connection."""
        with self._lock:
            return self._is_closed or (self._turns.is_shared and (turn.follow or news_bytes > TURN_BYTES))

    def _still_exists(self, log: _Log) -> bool:
        """Read the pod; return whether the log can be read, as far as it is known."""
        pod: Mapping[str, Any]
        try:
            pod = self._api.call("GET", log.path, away_seconds=0)
        except ClusterError as error:
            return error.status != 404
        if pod["metadata"]["uid"] != log.source.uid:
            return False
        restarts, has_ended = started_containers(pod).get(log.source.container, (log.source.restarts, False))
        if has_ended or restarts > log.source.restarts:
            self.end(log.source, restarts, failed=False)
        if log.is_doubtful and restarts == log.source.restarts:
            log.is_checked = True
            self._warn(f"lines of {log.replica} may be missing: its log was rotated before they were read")
        log.must_check = log.is_doubtful = False
        # Only the last two starts have logs.
        return restarts <= log.source.restarts + 1
