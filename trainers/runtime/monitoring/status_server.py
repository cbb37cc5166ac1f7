"""Posts the progress of a training to the status server of Kubeflow Trainer, which shows it in the TrainJob.

Kubeflow Trainer sets the variables KUBEFLOW_TRAINER_SERVER_... where its feature TrainJobStatus is on. Without them,
nothing is posted. A request never fails the training. It delays a fork, and the end of the process, by at most 3 s.
"""

import atexit
import json
import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kfp_distributed.trainers.runtime.monitoring.progress import Progress
from kfp_distributed.trainers.runtime.monitoring.trainer_status import TimedProgress, measured_from, status_body

URL_VARIABLE = "KUBEFLOW_TRAINER_SERVER_URL"
"""Environment variable with the address of status.trainerStatus of this TrainJob."""

CA_VARIABLE = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
"""Environment variable with the path of the certificates that have signed the server's."""

TOKEN_VARIABLE = "KUBEFLOW_TRAINER_SERVER_TOKEN"
"""Environment variable with the path of the token."""

REPORTER_VARIABLE = "KFP_DISTRIBUTED_REPORTS_PROGRESS"
"""Environment variable of the process that reports the progress of the job, and of the command that it runs."""

POST_SECONDS = 10.0
"""Minimum seconds between two requests. The server accepts five requests per second from the whole cluster."""

_TIMEOUT_SECONDS = 3.0
"""Timeout of a request, and the time by which the last request may delay the end of the process."""

_request = threading.RLock()
"""Held during a request. A process forks before or after one: locks of OpenSSL that a thread has would stay locked in
the fork, where its next use of TLS would never end.

A fork waits for at most _TIMEOUT_SECONDS, in which a server that works answers. Then, and if a signal handler raises
while it waits, the process forks during the request.
"""


def _wait_for_request() -> None:
    _request.acquire(timeout=_TIMEOUT_SECONDS)


def _release_request() -> None:
    with suppress(RuntimeError):  # This thread does not have the lock: it did not wait until the end of the request.
        _request.release()


def _begin_in_fork() -> None:
    global _request  # A thread that the fork does not have may hold the other one.
    _request = threading.RLock()


os.register_at_fork(before=_wait_for_request, after_in_parent=_release_request, after_in_child=_begin_in_fork)

_TOKEN = re.compile(r"[\w.~+/=-]+", re.ASCII)


class StatusPosts:
    """Posts the progress in a thread, which starts with the first epoch or step. Only the latest one is posted.

    Once there is a step, epochs are not posted: two units would have no common speed.
    """

    def __init__(self, post: Callable[[Mapping[str, Any]], object], interval_seconds: float = POST_SECONDS) -> None:
        """Create the object without starting the thread.

        Args:
            post: Sends one body. It may raise anything.
            interval_seconds: Minimum seconds between two requests, except before the last one.
        """
        self._post, self._interval_seconds = post, interval_seconds
        self._changed = threading.Condition()
        self._first: TimedProgress | None = None
        self._last: TimedProgress | None = None
        self._posted: TimedProgress | None = None
        self._is_ending = self._is_warned = False
        self._process = os.getpid()
        self._thread: threading.Thread | None = None

    def add(self, last: TimedProgress) -> None:
        """Add the end of an epoch or a step. It returns at once.

        Raises:
            RuntimeError: The thread cannot be started.
        """
        with self._changed:
            if self._last and (self._last.progress.unit, last.progress.unit) == ("step", "epoch"):
                return
            self._first, self._last = measured_from(self._first, last), last
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="status server", daemon=True)
            self._thread.start()

    def finish(self, seconds: float = _TIMEOUT_SECONDS) -> None:
        """Post the latest progress unless it is posted, and end the thread. A fork, which has no thread, posts nothing.

        Args:
            seconds: Seconds after which this returns in any case.
        """
        if os.getpid() != self._process:
            return
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        if self._thread:
            self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_ending or self._last != self._posted)
                first, last, is_last = self._first, self._last, self._is_ending
            if first and last and last != self._posted:
                self._try(first, last)
            if is_last:
                return
            with self._changed:
                self._changed.wait_for(lambda: self._is_ending, self._interval_seconds)

    def _try(self, first: TimedProgress, last: TimedProgress) -> None:
        try:
            with _request:
                self._post(status_body(first, last))
            self._posted = last
        except Exception as error:  # noqa: BLE001 - what only shows the training must not fail it
            if not self._is_warned:
                self._is_warned = True
                text = "cannot post the progress to the status server of Kubeflow Trainer, retrying"
                print(f"warning: {text}: {type(error).__name__}: {error}", flush=True)


def post_status(body: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Replace status.trainerStatus of this TrainJob.

    The certificates and the token are read for each request, because they are replaced while the pod runs. A proxy of
    the environment is not used, and no redirect is followed.

    Args:
        body: Body of the request.
        environment: Environment variables.

    Raises:
        OSError: A file is missing, or the server does not answer, is not trusted or refuses the request.
        HTTPException: The answer is not HTTP.
        ValueError: The address or the token is malformed.
    """
    url = urlsplit(environment[URL_VARIABLE])
    token = Path(environment[TOKEN_VARIABLE]).read_text().strip()
    if not _TOKEN.fullmatch(token):  # http.client would name it in its error.
        raise ValueError(f"{environment[TOKEN_VARIABLE]} contains no token")
    if url.scheme != "https" or not url.hostname:
        raise ValueError(f"{URL_VARIABLE} is {environment[URL_VARIABLE]!r}; allowed is https://HOST:PORT/PATH")
    trusted = ssl.create_default_context(cafile=environment[CA_VARIABLE])
    connection = HTTPSConnection(url.hostname, url.port, timeout=_TIMEOUT_SECONDS, context=trusted)
    try:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection.request("POST", url.path, json.dumps(body, ensure_ascii=False).encode(), headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise OSError(f"{answer.status} {answer.reason}: {answer.read(1000).decode(errors='replace')}")
    finally:
        connection.close()


def report_progress_from_here() -> None:
    """Let this process, or the command that it runs, report the progress of the job.

    Each request replaces the whole status, so no other process of the job may report its own progress.
    """
    os.environ[REPORTER_VARIABLE] = "1"


def report_progress(progress: Progress) -> None:
    """Report an epoch or a step, if this process reports the progress of the job and there is a status server.

    It returns at once. A thread sends the request.
    """
    if all(os.environ.get(name) for name in (REPORTER_VARIABLE, URL_VARIABLE, CA_VARIABLE, TOKEN_VARIABLE)):
        with suppress(RuntimeError):  # No thread can be started.
            _posts(os.getpid()).add(TimedProgress(progress, time.time()))


@cache
def _posts(process: int) -> StatusPosts:  # A fork that trains posts its own progress.
    posts = StatusPosts(partial(post_status, environment=dict(os.environ)))
    atexit.register(posts.finish)
    return posts
