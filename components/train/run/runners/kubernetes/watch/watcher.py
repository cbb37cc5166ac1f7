"""Watch objects and read logs: threads that resume after each disconnect and put news into one queue. Thin edge."""

import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from kfp_distributed.cluster_api.client import (
    LATE_SECONDS,
    LOG_CONNECTIONS,
    WATCH_SECONDS,
    ClusterApi,
    ClusterError,
)
from kfp_distributed.components.train.run.runners.kubernetes.cluster_records.pods import pod_state, started_containers
from kfp_distributed.components.train.run.runners.kubernetes.logs.log_connections import LogConnections, LogSource
from kfp_distributed.components.train.run.runners.kubernetes.logs.pod_log import StampedLine

LONGEST_DELAY = 5.0
"""Maximum seconds before a request that failed is sent again."""

QUEUED_CHUNKS = 100
"""Maximum number of chunks of logs in the queue; each has up to 64 KiB."""

T = TypeVar("T")


class Listed(NamedTuple):
    """All current objects of a source. Objects of a watch that are not listed do not exist any more.

    Attributes:
        source: Name of the watch, such as "pods".
        objects: The objects.
    """

    source: str
    objects: list[dict[str, Any]]


class Changed(NamedTuple):
    """An object was added, modified or deleted.

    Attributes:
        source: Name of the watch, such as "pods".
        change: "ADDED", "MODIFIED" or "DELETED".
        object: The object; its last state if it was deleted.
    """

    source: str
    change: str
    object: dict[str, Any]


class Printed(NamedTuple):
    """A container printed lines.

    Attributes:
        replica: Name of the replica.
        lines: The lines.
    """

    replica: str
    lines: list[StampedLine]


class ObjectRead(NamedTuple):
    """An object was read.

    Attributes:
        object: The object; None if it does not exist.
        uid: UID of the object that was followed when the read was requested.
    """

    object: dict[str, Any] | None
    uid: str


class RequestFailed(NamedTuple):
    """A request failed and is retried, or an answer is not complete.

    Attributes:
        text: Message for the log.
    """

    text: str


class ThreadFailed(NamedTuple):
    """A thread has ended with an unexpected exception."""

    error: Exception


News = Listed | Changed | ObjectRead | Printed | RequestFailed | ThreadFailed


class Watcher:
    """Threads that put news of objects and logs into one queue.

    The number of log chunks in the queue is limited: threads that follow logs wait for a slow reader, and memory stays
    bounded. News of objects never wait, so that the end of a pod is not reported late.

    Attributes:
        news: The queue.
        closed: Set when the threads should end.
    """

    def __init__(
        self,
        api: ClusterApi,
        watch_seconds: int = WATCH_SECONDS,
        late_seconds: float = LATE_SECONDS,
        log_connections: int = LOG_CONNECTIONS,
        longest_delay: float = LONGEST_DELAY,
        queued_chunks: int = QUEUED_CHUNKS,
    ) -> None:
        """Create a watcher without threads.

        Args:
            api: The cluster.
            watch_seconds: Seconds after which the server is asked to end a watch. Default: 60.
            late_seconds: Seconds after which the end of a watch is overdue, and the watch counts as broken. Default:
                15.
            log_connections: Maximum number of connections that read logs. Default: `LOG_CONNECTIONS`.
            longest_delay: Maximum seconds before a request that failed is sent again. Default: 5.
            queued_chunks: Maximum number of chunks of logs in the queue. Default: 100.
        """
        self._watch_seconds = watch_seconds
        self._late_seconds = late_seconds
        self._longest_delay = longest_delay
        self.news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._free_chunks = threading.Semaphore(queued_chunks)
        self._api = api
        self.closed = threading.Event()
        self._logs = LogConnections(
            api, self._print, lambda text: self.news.put(RequestFailed(text)), self._start, log_connections
        )

    def close(self) -> None:
        """Request all threads to end. Each ends after its next response."""
        self.closed.set()
        self._logs.close()

    def watch(self, source: str, path: str, query: Mapping[str, str]) -> None:
        """Start to watch the objects of a path.

        Args:
            source: Name of the watch, for its news.
            path: Path of the collection.
            query: Selectors.
        """
        self._start(self._watch, source, path, query)

    def follow_logs(
        self, replica: str, path: str, pod: Mapping[str, Any], deleted: bool, *, leader: bool = False
    ) -> None:
        """Start to read the logs of the pod's own containers, not of sidecars. Each start is read once.

        Args:
            replica: Name of the replica, for its lines.
            path: Path of the pod.
            pod: Current state of the pod.
            deleted: Whether the pod was deleted.
            leader: Whether the replica is the leader. Its lines go before those of others.
        """
        uid, failed = pod["metadata"]["uid"], pod_state(pod).state == "failed"
        for container, (restarts, has_ended) in started_containers(pod).items():
            if not deleted:
                self._logs.read(replica, path, LogSource(uid, container, restarts), leader=leader)
            for restart in range(restarts + 1):
                # An earlier start of the container has ended if there is a later one.
                if restart < restarts or has_ended or deleted:
                    self._logs.end(LogSource(uid, container, restart), restarts, failed=failed or restart < restarts)

    def read_once(self, path: str, uid: str) -> None:
        """Read an object in a thread, which retries until the API server answers, and put an `ObjectRead`.

        Args:
            path: Path of the object.
            uid: UID of the object that is followed, for the news.
        """
        self._start(self._read_once, path, uid)

    @property
    def unread(self) -> list[bool]:
        """One item per ended container whose log is not read to its end: whether the log cannot be read."""
        return self._logs.unread

    @property
    def failing_logs(self) -> list[str]:
        """Names of the replicas of ended containers whose log cannot be read."""
        return self._logs.failing

    def repeat(self, function: Callable[[], bool], seconds: float) -> None:
        """Call a function at regular intervals in a thread.

        Args:
            function: Returns whether it succeeded. If not, it is called again after `longest_delay`.
            seconds: Interval in seconds.
        """

        def call_repeatedly() -> None:
            while not self.closed.is_set():
                self.closed.wait(seconds if function() else self._longest_delay)

        self._start(call_repeatedly)

    def ask(self, source: str, path: str, next_query: Callable[[], Mapping[str, str] | None]) -> None:
        """Start to list objects whenever there is a query, with at most one request per second.

        Args:
            source: Name of the lists, for their news.
            path: Path of the collection.
            next_query: Called every second in a thread. Returns the selectors of the next list; None for no request.
        """
        logged_error = ""

        def ask_once() -> bool:
            nonlocal logged_error
            if (query := next_query()) is None:
                return True
            try:
                self.news.put(Listed(source, self._api.list_objects(path, query).items))
                logged_error = ""
                return True
            except ClusterError as error:
                if error.status and logged_error != str(error):
                    logged_error = str(error)
                    self.news.put(RequestFailed(f"cannot list {source}, retrying: {error}"))
                return False

        self.repeat(ask_once, 1.0)

    def run(self, function: Callable[[], T]) -> Future[T]:
        """Call a function in a thread, and return its future result or exception."""
        future: Future[T] = Future()

        def set_result() -> None:
            try:
                future.set_result(function())
            except Exception as error:  # noqa: BLE001 - raised where the result is read
                future.set_exception(error)

        self._start(set_result)
        return future

    def _start(self, function: Callable[..., None], *arguments: object) -> threading.Thread:
        def run() -> None:
            try:
                function(*arguments)
            except Exception as error:  # noqa: BLE001 - raised where the news are read
                self.news.put(ThreadFailed(error))

        # A daemon, because a blocking read cannot be interrupted and must not delay the end of the process.
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def take(self, seconds: float) -> News | None:
        """Return the next news, or None if there are none within so many seconds."""
        with suppress(queue.Empty):
            news = self.news.get(timeout=seconds)
            if isinstance(news, Printed):
                self._free_chunks.release()
            return news
        return None

    def _print(self, replica: str, lines: list[StampedLine]) -> None:
        while lines and not self.closed.is_set():
            if self._free_chunks.acquire(timeout=1):
                self.news.put(Printed(replica, lines))
                return

    def _watch(self, source: str, path: str, query: Mapping[str, str]) -> None:
        version, delay, logged_error = "", 0.1, ""
        while not self.closed.is_set():
            try:
                if not version:
                    objects, version = self._api.list_objects(path, query)
                    self.news.put(Listed(source, objects))
                events = self._api.watch(path, query, version, self._watch_seconds, self._late_seconds)
                for event in events:
                    if self.closed.is_set():
                        return
                    version, delay, logged_error = event.version, 0.1, ""
                    if event.change != "BOOKMARK":
                        self.news.put(Changed(source, event.change, event.object))
            except ClusterError as error:
                if error.status == 410:
                    version = ""
                elif error.status and logged_error != str(error):
                    logged_error = str(error)
                    self.news.put(RequestFailed(f"cannot watch {source}, retrying: {error}"))
            self.closed.wait(delay)
            delay = min(delay * 2, self._longest_delay)

    def _read_once(self, path: str, uid: str) -> None:
        logged_error = ""
        while not self.closed.is_set():
            try:
                self.news.put(ObjectRead(self._api.read(path), uid))
                return
            except ClusterError as error:
                if error.status and logged_error != str(error):
                    logged_error = str(error)
                    self.news.put(RequestFailed(f"cannot read {path}, retrying: {error}"))
            self.closed.wait(self._longest_delay)
