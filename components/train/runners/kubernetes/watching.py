"""What the API server tells of objects and logs while it happens: threads that never lose their place. Thin edge."""

import json
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from kfp_distributed.components.train.runners.kubernetes.cluster_api import ClusterApi
from kfp_distributed.components.train.runners.kubernetes.pod_log import LogReader
from kfp_distributed.components.train.runners.kubernetes.pods import started_containers
from kfp_distributed.components.train.runners.protocol import ClusterError

_WATCH_SECONDS = 240
"""After so long the server ends a watch, and it is begun again where it was."""

_IDLE_SECONDS = 300.0
"""A connection on which nothing came for so long may be dead without our knowing."""

_LATEST_DELAY = 5.0

_READS = 100
"""How many reads of logs, each of 64 KiB at most, may wait to be told."""

_LOG_DELAY = 0.5
"""Within this time we mostly hear that a container has ended, whose log has."""


class Listed(NamedTuple):
    """All objects of a kind, as they are now: what is not among them is gone."""

    source: str
    objects: list[dict[str, Any]]


class Changed(NamedTuple):
    """One object is there, or is another than it was, or is gone."""

    source: str
    change: Literal["ADDED", "MODIFIED", "DELETED"]
    object: dict[str, Any]


class Printed(NamedTuple):
    """A container printed lines."""

    replica: str
    lines: list[str]


class Trouble(NamedTuple):
    """Something is refused to us, and we go on asking."""

    text: str


class ThreadFailed(NamedTuple):
    """A thread has ended by an exception that nobody expected, and tells nothing any more."""

    error: Exception


class _Follower(NamedTuple):
    """Who tells what a container prints, until all is told and it is known, to us or to it, to have ended."""

    thread: threading.Thread
    ended: threading.Event
    failing: threading.Event


News = Listed | Changed | Printed | Trouble | ThreadFailed


class Watcher:
    """Threads that put what they are told into one queue.

    There is room for so many reads of logs: a slow reader slows their threads down, and no line is kept in memory for
    long. What objects tell never waits for that, so that the end of a pod is not heard of after all other's lines.

    Attributes:
        news: What was told.
        closed: Set once nobody is to tell anything any more.
    """

    def __init__(self, api: ClusterApi) -> None:
        self.news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._room = threading.Semaphore(_READS)
        self._api = api
        self.closed = threading.Event()
        # Of each start of a container: (uid of the pod, name, number).
        self._logs: dict[tuple[str, str, int], _Follower] = {}

    def close(self) -> None:
        """Ends the threads, each with the next thing that it is told."""
        self.closed.set()

    def watch(self, source: str, path: str, query: Mapping[str, str]) -> None:
        """Begins to tell of the objects of a path."""
        self._begin(self._watch, source, path, query)

    def follow_logs(self, replica: str, path: str, pod: Mapping[str, Any], deleted: bool) -> None:
        """Begins to tell what the containers of a pod print, each start of each once.

        Args:
            replica: Whose lines they are.
            path: Of the pod.
            pod: As it is now.
            deleted: Whether it is gone.
        """
        uid = pod["metadata"]["uid"]  # A replica's next pod may have the same name.
        for container, (start, is_over) in started_containers(pod).items():
            if (uid, container, start) not in self._logs and not deleted:
                events = threading.Event(), threading.Event()
                thread = self._begin(self._follow_log, replica, path, uid, container, start, *events)
                self._logs[uid, container, start] = _Follower(thread, *events)
            for number in range(start + 1):
                # An earlier start of a container has ended when there is a later one.
                over = number < start or is_over or deleted
                if over and (follower := self._logs.get((uid, container, number))):
                    follower.ended.set()

    @property
    def unread(self) -> list[bool]:
        """For each container that has ended, and of which lines are still to come: whether they could not be read."""
        return [each.failing.is_set() for each in self._logs.values() if each.ended.is_set() and each.thread.is_alive()]

    def repeat(self, work: Callable[[], bool], seconds: float) -> None:
        """Does something every so often, by a thread of its own; again soon where it did not work."""

        def go_on() -> None:
            while not self.closed.is_set():
                self.closed.wait(seconds if work() else _LATEST_DELAY)

        self._begin(go_on)

    def _begin(self, work: Callable[..., None], *arguments: object) -> threading.Thread:
        def run() -> None:
            try:
                work(*arguments)
            except Exception as error:  # noqa: BLE001 - it is raised where the news are read
                self.news.put(ThreadFailed(error))

        # Of no importance to the end of the process: a read that waits cannot be interrupted.
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def take(self, seconds: float) -> News | None:
        """The next news; None where there is none for so long."""
        with suppress(queue.Empty):
            news = self.news.get(timeout=seconds)
            if isinstance(news, Printed):
                self._room.release()
            return news
        return None

    def _print(self, replica: str, lines: list[str]) -> None:
        while lines and not self.closed.is_set():
            if self._room.acquire(timeout=1):
                self.news.put(Printed(replica, lines))
                return

    def _watch(self, source: str, path: str, query: Mapping[str, str]) -> None:
        version, delay, told = "", 0.1, ""
        while not self.closed.is_set():
            try:
                if not version:
                    listed = self._api.call("GET", path, query=query)
                    version = listed["metadata"]["resourceVersion"]
                    self.news.put(Listed(source, listed["items"]))
                place = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true"}
                for line in self._api.lines(
                    path, {**query, **place, "timeoutSeconds": str(_WATCH_SECONDS)}, _IDLE_SECONDS
                ):
                    event = json.loads(line)
                    if self.closed.is_set():
                        return
                    if event["type"] == "ERROR":
                        # 410 Gone mostly: the place is too old, so we look at everything again.
                        version = ""
                        break
                    version, delay, told = event["object"]["metadata"]["resourceVersion"], 0.1, ""
                    if event["type"] != "BOOKMARK":
                        self.news.put(Changed(source, event["type"], event["object"]))
            except ClusterError as error:
                if error.status == 410:
                    version = ""
                elif error.status and told != str(error):
                    told = str(error)
                    self.news.put(Trouble(f"cannot watch the {source}: {error}"))
            except (ValueError, KeyError, TypeError):  # A line cut in the middle, or a gateway's answer.
                pass
            self.closed.wait(delay)
            delay = min(delay * 2, _LATEST_DELAY)

    def _follow_log(
        self,
        replica: str,
        path: str,
        uid: str,
        container: str,
        start: int,
        ended: threading.Event,
        failing: threading.Event,
    ) -> None:
        query = {"container": container, "follow": "true", "timestamps": "true"}
        log, delay = LogReader(), _LOG_DELAY
        while not self.closed.is_set():
            was_ended = ended.is_set()
            try:
                for data in self._api.stream(f"{path}/log", {**query, **log.place()}, _IDLE_SECONDS):
                    if lines := log.feed(data, time.monotonic()):
                        self._print(replica, lines)
                        delay = _LOG_DELAY
                    failing.clear()
                if was_ended:
                    self._print(replica, log.feed(b"", time.monotonic()))
                    return
                # The end of a connection is no end of the container.
                ended.wait(delay)
            except ClusterError as error:
                if error.status == 404 or ("previous" in query and error.status == 400):
                    return
                failing.set()
                self.closed.wait(delay)
            delay = min(delay * 2, _LATEST_DELAY)
            with suppress(ClusterError):
                pod = self._api.read(path)
                if pod is None or pod["metadata"]["uid"] != uid:
                    return
                started, is_over = started_containers(pod).get(container, (start, False))
                if started > start:
                    # Without this it would be the log of the later start.
                    query["previous"] = query.pop("follow", "true")
                if is_over or started > start:
                    ended.set()
