"""The model servers of a local run. The run owns their processes, because they serve longer than the steps run."""

import json
import os
import re
import select
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingUnixStreamServer
from typing import NamedTuple

from kfp_distributed.components.deploy_model.local_deployment import socket_address
from kfp_distributed.library.archive import ARCHIVE_KEY, make_archive
from kfp_distributed.library.content import STEP_PACKAGES, read_library
from kfp_distributed.processes.group import ProcessGroup

_ANNOUNCEMENT = re.compile(r"^serving \S+ \d+ at (http://[^/\s]+)", re.MULTILINE)
"""The line that `kfp-distributed serve` prints when its port listens."""

_SHOWN_LINES = 10


class ServerFailed(Exception):
    """A model server does not answer. The message has the reason and the last lines of its output."""


class _Server(NamedTuple):
    """A model server: its name in the group of processes, its process, its model and its address."""

    child: str
    process: subprocess.Popen[bytes]
    uri: str
    url: str

    def serves(self, uri: str) -> bool:
        """Return whether it serves a model, and has not ended."""
        return self.uri == uri and self.process.poll() is None


class LocalServers(ThreadingUnixStreamServer):
    """Starts a model server for each name that a step requests.

    A step sends one line of JSON with `name`, `uri`, `timeout_seconds` and `python`, and gets one with `url` or
    `error`.

    Args:
        socket_path: Path of the Unix socket. Only users who may enter its folder can send requests.
        group: Process group of the model servers, which ends them.
        logs: Folder for the output of each server.

    Raises:
        OSError: The path has more than 103 bytes, on macOS.
    """

    daemon_threads = True  # A request in progress does not hold the end of the run.

    def __init__(self, socket_path: Path, group: ProcessGroup, logs: Path) -> None:
        self._group, self._logs = group, logs
        self._servers: dict[str, _Server] = {}
        self._started = 0
        self._lock = threading.Lock()
        with socket_address(socket_path) as address:
            super().__init__(address, _Handler)

    def serve_model(self, name: str, uri: str, timeout_seconds: float, step: socket.socket, python: str = "") -> str:
        """Serve a model, and return the address of its server when it answers. Then end the previous server.

        Args:
            name: Name of the model in URLs.
            uri: Address of the model.
            timeout_seconds: Seconds until the server must answer.
            step: Connection of the step, which closes it when it ends.
            python: Path of the Python that serves it, which needs not have the library. Default: "", this one.

        Raises:
            ServerFailed: The server has ended or does not answer in time, or the step has ended. A previous server of
                this name serves on.
        """
        with self._lock:
            self._started += 1
            child = f"{name}-{self._started}"
            current = self._servers.get(name)
        if current and current.serves(uri):
            return current.url
        self._logs.mkdir(exist_ok=True)
        log = self._logs / f"{child}.log"
        with log.open("wb") as output:
            program = [python or sys.executable, "-m", "kfp_distributed.cli.main"]
            serve, environment = ["serve", uri, "--name", name, "--port", "0"], {**os.environ}
            if python not in ("", sys.executable):
                environment |= {"PYTHONPATH": self._library(), "_KFP_RUNTIME": "true"}  # It needs not have kfp either.
            process = self._group.start(child, [*program, *serve], env=environment, stdout=output)
        try:
            url = _wait_for_address(process, log, timeout_seconds, step)
        except BaseException:
            self._group.stop([child])
            raise
        with self._lock:
            previous, server = self._servers.get(name), _Server(child, process, uri, url)
            # Another step may have deployed the same meanwhile, and has its address.
            kept = previous if previous and previous.serves(uri) else server
            self._servers[name] = kept
        self._group.stop(other.child for other in (previous, server) if other and other is not kept)
        return kept.url

    def _library(self) -> str:
        """Return the path of an archive with this library."""
        archive = self._logs / ARCHIVE_KEY
        with self._lock:
            if not archive.exists():
                archive.write_bytes(make_archive(read_library((*STEP_PACKAGES, "cli"))))
        return str(archive)


class _Handler(StreamRequestHandler):
    """Answers the request of a step."""

    server: LocalServers

    def handle(self) -> None:
        request = json.loads(self.rfile.readline())
        try:
            answer = {"url": self.server.serve_model(**request, step=self.connection)}
        except (ServerFailed, OSError, RuntimeError) as error:
            answer = {"error": str(error)}
        with suppress(OSError):  # The step has ended.
            self.wfile.write(json.dumps(answer).encode() + b"\n")


def _wait_for_address(process: subprocess.Popen[bytes], log: Path, timeout_seconds: float, step: socket.socket) -> str:
    deadline = time.monotonic() + timeout_seconds
    while True:
        has_ended = process.poll() is not None
        output = log.read_text(encoding="utf-8", errors="replace")
        lines = "\n".join(output.splitlines()[-_SHOWN_LINES:])
        if has_ended:
            raise ServerFailed(
                f"the model server ended with exit code {process.returncode}. Its output ends with:\n{lines}"
            )
        if announcement := _ANNOUNCEMENT.search(output):
            return announcement[1]
        if time.monotonic() > deadline:
            raise ServerFailed(
                f"the model server does not answer after {timeout_seconds:g} s. Its output ends with:\n{lines}"
            )
        if select.select([step], [], [], 0.05)[0]:
            raise ServerFailed("the step has ended")
