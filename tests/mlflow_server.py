"""A real MLflow server for tests, with login, from the environment `mlflow` of `make environments`."""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from environments import environment
from forked_replicas import forked
from process_hygiene import started

USERNAME = "admin"
PASSWORD = "tracking-password-of-the-tests"

# The application of `mlflow server --app-name basic-auth`, which would start three processes and take three times as
# long.
_SERVE = """
import os, sys
from pathlib import Path
from mlflow.server import app
from mlflow.server.auth import create_app
from werkzeug.serving import run_simple
Path("process-" + sys.argv[1]).write_text(str(os.getpid()))
run_simple("127.0.0.1", int(sys.argv[1]), create_app(app), threaded=True)
"""

_SETTINGS = """
[mlflow]
default_permission = READ
database_uri = sqlite:///{folder}/users.db
admin_username = {username}
admin_password = {password}
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
"""


class MlflowServer:
    """A running server.

    Attributes:
        address: Its URL.
        process: Its process.
        port: Its port.
        folder: Its folder, which several servers may share.
    """

    def __init__(self, port: int, process: "subprocess.Popen[str]", folder: Path) -> None:
        self.address = f"http://127.0.0.1:{port}"
        self.port = port
        self.process = process
        self.folder = folder

    def variables(self, **others: str) -> dict[str, str]:
        """Return the environment variables that KFP sets in a step, for login with a password."""
        login = {"MLFLOW_TRACKING_USERNAME": USERNAME, "MLFLOW_TRACKING_PASSWORD": PASSWORD}
        return {"MLFLOW_TRACKING_URI": self.address, **login, **others}

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request below /api/2.0/ and return the answer: JSON, or text."""
        request = urllib.request.Request(
            f"{self.address}/api/2.0/{path}",
            json.dumps(body).encode() if body is not None else None,
            {
                "Authorization": f"Basic {b64encode(f'{USERNAME}:{PASSWORD}'.encode()).decode()}",
                "Content-Type": "application/json",
            },
            method=method,
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            text = response.read().decode()
        return json.loads(text) if response.headers.get_content_type() == "application/json" else text

    def create_run(self, **tags: str) -> str:
        """Create a run in the default experiment, as KFP does for a task, and return its ID."""
        body = {"experiment_id": "0", "tags": [{"key": key, "value": value} for key, value in tags.items()]}
        return self.request("POST", "mlflow/runs/create", body)["run"]["info"]["run_id"]

    def run(self, run_id: str) -> "LoggedRun":
        """Return what the server knows of a run."""
        return LoggedRun(self.request("GET", f"mlflow/runs/get?run_id={run_id}")["run"])

    def history(self, run_id: str, key: str) -> list[tuple[int, Any]]:
        """Return the steps and values of a metric."""
        answer = self.request("GET", f"mlflow/metrics/get-history?run_id={run_id}&metric_key={key}")
        return [(metric["step"], metric["value"]) for metric in answer.get("metrics", [])]

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Stop the process for the block: connections are accepted, but get no answer."""
        # The process that a test has started may be the client of a fork, which cannot pass the signal on.
        number = int((self.folder / f"process-{self.port}").read_text())
        os.kill(number, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(number, signal.SIGCONT)


class LoggedRun:
    """A run as the server returns it."""

    def __init__(self, run: Mapping[str, Any]) -> None:
        info, data = run["info"], run["data"]
        self.id: str = info["run_id"]
        self.status: str = info["status"]
        self.parameters = {entry["key"]: entry["value"] for entry in data.get("params", [])}
        self.tags = {entry["key"]: entry["value"] for entry in data.get("tags", [])}
        self.metrics = {entry["key"]: (entry["step"], entry["value"]) for entry in data.get("metrics", [])}


@contextmanager
def mlflow_server(folder: Path) -> Iterator[MlflowServer]:
    """Run a server that keeps everything in a folder. Tests are skipped where the environment is missing."""
    python = environment("mlflow")
    settings = folder / "login.ini"
    settings.write_text(_SETTINGS.format(folder=folder, username=USERNAME, password=PASSWORD))
    variables = {
        "MLFLOW_AUTH_CONFIG_PATH": str(settings),
        "MLFLOW_FLASK_SERVER_SECRET_KEY": "tests",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{folder}/runs.db",
        "_MLFLOW_SERVER_REGISTRY_STORE": f"sqlite:///{folder}/runs.db",
        "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(folder / "artifacts"),
        "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
    }
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = folder / "server.log"
    with (
        log.open("a") as output,
        started(
            forked(python, "-c", _SERVE, str(port)),
            env={**os.environ, **variables},
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        server = MlflowServer(port, process, folder)
        until = time.monotonic() + 300
        while True:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            try:
                server.request("GET", "mlflow/experiments/get?experiment_id=0")
                break
            except (OSError, urllib.error.URLError):
                time.sleep(0.1)
        yield server
