"""A real server of Kubeflow's Model Registry for tests, with a PostgreSQL database.

Releases have no program for a machine without containers. Build `model-registry` of github.com/kubeflow/model-registry
by `go build`, and put it on the PATH. Release v0.3.3 works with PostgreSQL 15.
"""

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from process_hygiene import started


class ModelRegistryServer:
    """A running server at `address`."""

    def __init__(self, address: str) -> None:
        self.address = address

    def resources(self, path: str, **query: str) -> list[dict[str, Any]]:
        """Return the resources below a path of the API."""
        url = f"{self.address}/api/model_registry/v1alpha3/{path}?{urlencode({'pageSize': '100', **query})}"
        with urllib.request.urlopen(url, timeout=120) as response:
            return json.load(response)["items"]

    def versions(self, model_name: str) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
        """Return the versions of a model, each with its artifacts."""
        models = [model for model in self.resources("registered_models") if model["name"] == model_name]
        (model,) = models
        versions = self.resources(f"registered_models/{model['id']}/versions", orderBy="ID")
        return [(version, self.resources(f"model_versions/{version['id']}/artifacts")) for version in versions]


@contextmanager
def model_registry_server() -> Iterator[ModelRegistryServer]:
    """Run a server with an empty database. Tests are skipped where the server or PostgreSQL is missing."""
    program = shutil.which("model-registry")
    if not program:
        pytest.skip("no program model-registry on the PATH")
    port = _free_port()
    with _postgres() as database:
        argv = [program, "proxy", "--hostname=127.0.0.1", f"--port={port}", "--embedmd-database-type=postgres"]
        log = database / "server.log"
        source = f"host={database} user=tests dbname=postgres sslmode=disable"
        with (
            log.open("w") as output,
            started([*argv, f"--embedmd-database-dsn={source}"], stdout=output, stderr=subprocess.STDOUT) as process,
        ):
            server = ModelRegistryServer(f"http://127.0.0.1:{port}")
            _wait(lambda: server.resources("registered_models"), process, log)
            yield server


@contextmanager
def _postgres() -> Iterator[Path]:
    """Run PostgreSQL without a network, and return the folder with its socket and its logs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("no PostgreSQL here: apt-get install postgresql")
    bin_folder = found[-1].parent
    # PostgreSQL refuses to run as root, and another user cannot read the folders of pytest.
    user: dict[str, Any] = {"user": "nobody"} if os.getuid() == 0 else {}
    with tempfile.TemporaryDirectory() as name:
        folder, data = Path(name), Path(name, "data")
        if user:
            shutil.chown(folder, **user)
        initdb = [bin_folder / "initdb", "--username=tests", "--auth=trust", "--no-sync", "--pgdata", data]
        subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, cwd=folder, **user)
        argv = [str(bin_folder / "postgres"), "-D", str(data), "-k", str(folder), "-c", "listen_addresses=", "-F"]
        log = folder / "postgres.log"
        with (
            log.open("w") as output,
            started(argv, stdout=output, stderr=subprocess.STDOUT, cwd=folder, **user) as process,
        ):
            ready = [bin_folder / "pg_isready", "--quiet", "--host", folder]
            _wait(lambda: subprocess.run(ready, check=True, cwd=folder), process, log)
            yield folder


def _wait(ask: Any, process: "subprocess.Popen[str]", log: Path) -> None:
    until = time.monotonic() + 300
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        try:
            ask()
            return
        except (OSError, urllib.error.URLError, subprocess.CalledProcessError):
            time.sleep(0.1)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]
