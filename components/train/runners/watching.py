"""What the API server tells of objects and logs while it happens: threads that never lose their place. Thin edge."""

import json
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from kfp_distributed.components.train.runners.cluster_api import ClusterApi
from kfp_distributed.components.train.runners.lines import LONGEST_LINE
from kfp_distributed.components.train.runners.protocol import ClusterError

_WATCH_SECONDS = 240
"""After so long the server ends a watch, and it is begun again where it was."""

_IDLE_SECONDS = 300.0
"""A connection on which nothing came for so long may be dead without our knowing."""

_LATEST_DELAY = 5.0


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
    """A container printed a line."""

    replica: str
    line: str


News = Listed | Changed | Printed


class Watcher:
    """Threads that put what they are told into one queue.

    The queue is bounded: a slow reader slows the threads down, and no line is kept in memory for long.
    """

    def __init__(self, api: ClusterApi) -> None:
        self.news: queue.Queue[News] = queue.Queue(maxsize=10_000)
        self._api = api
        self._closed = threading.Event()

    def close(self) -> None:
        """Ends the threads, each with the next thing that it is told."""
        self._closed.set()

    def watch(self, source: str, path: str, query: Mapping[str, str]) -> None:
        """Begins to tell of the objects of a path."""
        self._begin(self._watch, source, path, query)

    def follow_log(self, replica: str, path: str, container: str, ended: Callable[[], bool]) -> threading.Thread:
        """Begins to tell what a container prints; `ended` says whether it is known to have ended."""
        return self._begin(self._follow_log, replica, path, container, ended)

    def _begin(self, work: Callable[..., None], *arguments: object) -> threading.Thread:
        # Of no importance to the end of the process: a read that waits cannot be interrupted.
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        thread.start()
        return thread

    def _put(self, news: News) -> None:
        while not self._closed.is_set():
            with suppress(queue.Full):
                self.news.put(news, timeout=1)
                return

    def _watch(self, source: str, path: str, query: Mapping[str, str]) -> None:
        version, delay = "", 0.1
        while not self._closed.is_set():
            try:
                if not version:
                    listed = self._api.call("GET", path, query=query)
                    version = listed["metadata"]["resourceVersion"]
                    self._put(Listed(source, listed["items"]))
                place = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true"}
                for line in self._api.lines(
                    path, {**query, **place, "timeoutSeconds": str(_WATCH_SECONDS)}, _IDLE_SECONDS
                ):
                    event = json.loads(line)
                    if self._closed.is_set():
                        return
                    if event["type"] == "ERROR":
                        # 410 Gone mostly: the place is too old, so we look at everything again.
                        version = ""
                        break
                    version, delay = event["object"]["metadata"]["resourceVersion"], 0.1
                    if event["type"] != "BOOKMARK":
                        self._put(Changed(source, event["type"], event["object"]))
            except ClusterError as error:
                if error.status == 410:
                    version = ""
            except ValueError:  # A line that was cut in the middle.
                pass
            self._closed.wait(delay)
            delay = min(delay * 2, _LATEST_DELAY)

    def _follow_log(self, replica: str, path: str, container: str, ended: Callable[[], bool]) -> None:
        query = {"container": container, "follow": "true", "timestamps": "true"}
        last, same, delay = "", 0, 0.1
        while not self._closed.is_set():
            was_ended, skip, whole = ended(), same, False
            try:
                for stamped in self._api.lines(path, query, _IDLE_SECONDS):
                    stamp, _, line = stamped.partition(" ")
                    if stamp < last or (stamp == last and skip > 0):
                        skip -= stamp == last
                        continue
                    last, same = (stamp, same + 1) if stamp == last else (stamp, 1)
                    delay = 0.1
                    # A progress bar overwrites its line: the last text is what a terminal would show.
                    self._put(Printed(replica, line.rstrip("\r").rpartition("\r")[2][:LONGEST_LINE]))
                whole = True
            except ClusterError as error:
                if error.status == 404:
                    return
            if whole and (was_ended or ended()):
                return
            if last:
                # Whole seconds are all that the server takes here, so a part comes again and is passed over.
                query["sinceTime"] = f"{last[:19]}{_zone(last)}"
            time.sleep(delay)
            delay = min(delay * 2, _LATEST_DELAY)


def _zone(stamp: str) -> str:
    """The time zone of a time such as 2026-01-01T00:00:00.123456789+02:00, which nodes have their own of."""
    return stamp[-6:] if stamp[-6:-5] in ("+", "-") else "Z"
