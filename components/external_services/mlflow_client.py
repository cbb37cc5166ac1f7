"""Client of the MLflow REST API, for MLflow 2 and 3.

It reads the environment variables of MLflow's own client, which Kubeflow Pipelines 2.17 sets in a step when its MLflow
integration is on (`backend/src/v2/common/plugins/mlflow/handler.go` of kubeflow/pipelines).
"""

import json
import math
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

import certifi
from urllib3 import PoolManager, Timeout
from urllib3.exceptions import HTTPError
from urllib3.util import make_headers

T = TypeVar("T")

REQUEST_SECONDS = 10.0
"""Timeout of a request. A log-batch of 1,000 metrics takes a server with SQLite about a second."""

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""The folder with the files `token` and `namespace` of this pod's service account. It exists only in pods."""

_CONNECT_SECONDS = 3.0
_WORKSPACE_HEADER = "X-MLFLOW-WORKSPACE"

# Limits of log-batch, from mlflow/utils/validation.py of MLflow 2.22 and 3.17.
_BATCH_METRICS = 1000
_BATCH_PARAMETERS = 100
_LONGEST_KEY = 250
_LONGEST_PARAMETER = 6000
_LONGEST_TAG = 5000


class MlflowError(Exception):
    """MLflow refused a request or did not answer.

    Attributes:
        status: HTTP status; 0 if there was no answer.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (0, 408, 429) or self.status >= 500


@dataclass(frozen=True)
class MlflowConnection:
    """Address of an MLflow server and the credentials for it. Its text form shows no secret.

    Attributes:
        address: URL of the server without credentials.
        authorization: Value of the HTTP header Authorization; "" for none.
        uses_pod_token: Whether each request carries the token of the pod's service account, which Kubernetes renews.
        workspace: Workspace of MLflow 3.10 and later; "" for none.
        verify: Whether to check the server's certificate.
        ca_bundle: PEM file with the certificate authorities to trust.
        client_certificate: PEM file with a client certificate and its key; "" for none.
    """

    address: str
    authorization: str = field(default="", repr=False)
    uses_pod_token: bool = False
    workspace: str = ""
    verify: bool = True
    ca_bundle: str = ""
    client_certificate: str = ""

    def headers(self) -> dict[str, str]:
        """Return the HTTP headers for a request.

        Raises:
            OSError: The token of the service account cannot be read.
        """
        authorization = self.authorization
        if self.uses_pod_token:
            authorization = f"Bearer {(SERVICE_ACCOUNT / 'token').read_text().strip()}"
        headers = {"Authorization": authorization, _WORKSPACE_HEADER: self.workspace}
        return {name: value for name, value in headers.items() if value}


def read_connection(variables: Mapping[str, str]) -> MlflowConnection:
    """Read the connection from environment variables as MLflow's own client does.

    Args:
        variables: Environment variables. MLFLOW_TRACKING_URI must be set.

    Raises:
        ValueError: MLFLOW_TRACKING_URI is no http:// or https:// address, or a value cannot be sent in an HTTP header.
            The message has no credentials.
    """
    parts = _split_address(variables["MLFLOW_TRACKING_URI"].strip())
    kind, username, password, token, workspace = (
        variables.get(name, "").strip()
        for name in (
            "MLFLOW_TRACKING_AUTH",
            "MLFLOW_TRACKING_USERNAME",
            "MLFLOW_TRACKING_PASSWORD",
            "MLFLOW_TRACKING_TOKEN",
            "MLFLOW_WORKSPACE",
        )
    )
    for name, value in (("MLFLOW_TRACKING_TOKEN", token), ("MLFLOW_WORKSPACE", workspace)):
        # Otherwise http.client refuses the header later, and its message has the value.
        if not re.fullmatch("[ -~]*", value):
            raise ValueError(f"{name} has a line break or a character that is not ASCII")
    in_pod = kind in ("kubernetes", "kubernetes-namespaced")
    authorization = ""
    if username and password and not in_pod:
        authorization = _basic(username, password)
    elif token:
        authorization = f"Bearer {token}"
    elif parts.username is not None and not in_pod:
        authorization = _basic(unquote(parts.username), unquote(parts.password or ""))
    namespace = SERVICE_ACCOUNT / "namespace"
    if kind == "kubernetes-namespaced" and not workspace and namespace.exists():
        workspace = namespace.read_text().strip()
    return MlflowConnection(
        address=urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", "")),
        authorization=authorization,
        uses_pod_token=in_pod and not authorization,
        workspace=workspace,
        verify=variables.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() not in ("true", "1"),
        ca_bundle=variables.get("MLFLOW_TRACKING_SERVER_CERT_PATH", ""),
        client_certificate=variables.get("MLFLOW_TRACKING_CLIENT_CERT_PATH", ""),
    )


def _split_address(uri: str) -> SplitResult:
    try:
        parts = urlsplit(uri)
    except ValueError:  # Its message may have the password.
        raise ValueError("MLFLOW_TRACKING_URI is not a valid address") from None
    if parts.scheme not in ("http", "https") or not parts.netloc.rpartition("@")[2]:
        scheme = f"the scheme {parts.scheme!r}" if parts.scheme else "no scheme"
        raise ValueError(f"MLFLOW_TRACKING_URI with {scheme} is not the address of a server: use http(s)://HOST[:PORT]")
    return parts


def _basic(username: str, password: str) -> str:
    # As MLflow's own client, which encodes UTF-8; `make_headers` encodes Latin-1.
    return make_headers(basic_auth=f"{username}:{password}".encode().decode("latin-1"))["authorization"]


class Metric(NamedTuple):
    """One value of a metric.

    Attributes:
        key: Name, such as "training/loss".
        value: Value; NaN and infinities are allowed.
        step: Epoch.
        time: Time in seconds since 1970.
    """

    key: str
    value: float
    step: int
    time: float


class Run(NamedTuple):
    """A run of MLflow.

    Attributes:
        id: ID of the run.
        artifact_uri: Folder of its artifacts.
        steps: Latest step of each metric.
    """

    id: str
    artifact_uri: str
    steps: Mapping[str, int]


class MlflowClient:
    """Sends requests to one MLflow server. No request is repeated.

    Each method raises MlflowError if the server refuses the request or does not answer.
    """

    def __init__(self, connection: MlflowConnection) -> None:
        self.connection = connection
        self._pool = PoolManager(
            # A redirect could send the credentials to another host.
            retries=False,
            timeout=Timeout(connect=_CONNECT_SECONDS, read=REQUEST_SECONDS),
            cert_reqs="CERT_REQUIRED" if connection.verify else "CERT_NONE",
            ca_certs=connection.ca_bundle or certifi.where(),
            cert_file=connection.client_certificate or None,
        )

    def find_experiment(self, name: str) -> str:
        """Return the ID of the experiment with a name, which is created if it is missing."""
        try:
            return self._get_experiment(name)
        except MlflowError as error:
            if error.status != 404:
                raise
        try:
            return self.post("experiments/create", {"name": name}, lambda answer: str(answer["experiment_id"]))
        except MlflowError as error:
            if error.status != 400:
                raise
            return self._get_experiment(name)  # Another step has just created it.

    def _get_experiment(self, name: str) -> str:
        path = f"experiments/get-by-name?experiment_name={quote(name, safe='')}"
        return self.call("GET", path, lambda answer: str(answer["experiment"]["experiment_id"]))

    def find_run(self, experiment: str, tag: str, value: str) -> Run | None:
        """Return the latest run of an experiment that has a tag with a value."""
        quoted = value.replace("'", "''")
        query = {"experiment_ids": [experiment], "filter": f"tags.`{tag}` = '{quoted}'", "max_results": 1}
        runs = self.post("runs/search", query, lambda answer: [_read_run(run) for run in answer.get("runs", ())])
        return runs[0] if runs else None

    def create_run(self, experiment: str, name: str, tags: Mapping[str, str], time: float) -> Run:
        """Create a run.

        Args:
            experiment: ID of the experiment.
            name: Name of the run.
            tags: Tags of the run.
            time: Start time in seconds since 1970.
        """
        body = {
            "experiment_id": experiment,
            "run_name": name,
            "start_time": round(time * 1000),
            "tags": _pairs(tags, _LONGEST_TAG),
        }
        return self.post("runs/create", body, lambda answer: _read_run(answer["run"]))

    def get_run(self, run_id: str) -> Run:
        """Return a run."""
        path = f"runs/get?run_id={quote(run_id, safe='')}"
        return self.call("GET", path, lambda answer: _read_run(answer["run"]))

    def update_run(self, run_id: str, status: str, time: float | None = None) -> None:
        """Set the status of a run.

        Args:
            run_id: ID of the run.
            status: "RUNNING", "FINISHED", "FAILED" or "KILLED".
            time: End time in seconds since 1970.
        """
        end = {} if time is None else {"end_time": round(time * 1000)}
        self.post("runs/update", {"run_id": run_id, "status": status, **end}, _ignore)

    def log_parameters(self, run_id: str, parameters: Mapping[str, str]) -> None:
        """Log parameters. Values of more than 6,000 characters are cut off."""
        for batch in _batches(_pairs(parameters, _LONGEST_PARAMETER), _BATCH_PARAMETERS):
            self.post("runs/log-batch", {"run_id": run_id, "params": batch}, _ignore)

    def log_metrics(self, run_id: str, metrics: Iterable[Metric]) -> None:
        """Log values of metrics."""
        entries = [
            {
                "key": valid_key(metric.key),
                # JSON has no NaN. Protobuf's JSON form of a double has these words for it.
                "value": metric.value if math.isfinite(metric.value) else _NOT_FINITE[str(metric.value)],
                "timestamp": round(metric.time * 1000),
                "step": metric.step,
            }
            for metric in metrics
        ]
        for batch in _batches(entries, _BATCH_METRICS):
            self.post("runs/log-batch", {"run_id": run_id, "metrics": batch}, _ignore)

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set tags of a run. Values of more than 5,000 characters are cut off."""
        for batch in _batches(_pairs(tags, _LONGEST_TAG), _BATCH_PARAMETERS):
            self.post("runs/log-batch", {"run_id": run_id, "tags": batch}, _ignore)

    def upload_artifact(self, run: Run, name: str, content: bytes, content_type: str) -> bool:
        """Upload a file as an artifact of a run through the MLflow server.

        Returns:
            Whether it was uploaded. It is not if the clients of this server write to the artifact store themselves.
        """
        prefix = "mlflow-artifacts:/"
        folder = run.artifact_uri.removeprefix(prefix)
        if folder == run.artifact_uri or folder.startswith("/"):
            return False
        path = f"{self.connection.address}/api/2.0/mlflow-artifacts/artifacts/{quote(f'{folder}/{name}')}"
        self._request("PUT", path, content, content_type)
        return True

    def post(self, path: str, body: Mapping[str, Any], read: Callable[[Any], T]) -> T:
        """Send a POST request with JSON. See `call`."""
        return self.call("POST", path, read, json.dumps(body, allow_nan=False).encode())

    def call(self, method: str, path: str, read: Callable[[Any], T], body: bytes | None = None) -> T:
        """Send a request.

        Args:
            method: HTTP method.
            path: Path below that of the API.
            read: Returns the result from the JSON of the answer. It may raise for JSON of another form.
            body: JSON to send. Default: none.
        """
        data = self._request(method, f"{self.connection.address}/api/2.0/mlflow/{path}", body, "application/json")
        try:
            return read(json.loads(data or b"{}"))
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
            raise MlflowError(200, f"{self.connection.address} does not answer as MLflow does") from None

    def _request(self, method: str, url: str, body: bytes | None, content_type: str) -> bytes:
        address = self.connection.address
        try:
            headers = {**self.connection.headers(), "Content-Type": content_type}
            response = self._pool.request(method, url, body=body, headers=headers, redirect=False)
        except (HTTPError, OSError) as error:
            # Some of urllib3's messages begin with the representation of a connection.
            reason = re.sub(r"^<?[\w.]*Connection.*?[)>]: ", "", str(error))
            raise MlflowError(0, f"{address} does not answer: {reason}") from None
        if response.status >= 300:
            raise MlflowError(response.status, f"{address} answers {response.status} {_reason(response.data)}".rstrip())
        return response.data


def _ignore(answer: object) -> None:
    """Do nothing: the answer has no result."""


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def valid_key(name: str) -> str:
    """Return a name in the form that MLflow accepts: a normalized path with underscores for other characters."""
    return posixpath.normpath(re.sub(r"[^\w./ -]", "_", name)[:_LONGEST_KEY])


def _pairs(values: Mapping[str, str], longest: int) -> list[dict[str, str]]:
    return [{"key": valid_key(name), "value": value[:longest]} for name, value in values.items()]


def _batches(entries: list[Any], size: int) -> Iterable[list[Any]]:
    return (entries[start : start + size] for start in range(0, len(entries), size))


def _read_run(run: Mapping[str, Any]) -> Run:
    metrics = run.get("data", {}).get("metrics", [])
    steps = {metric["key"]: int(metric.get("step", 0)) for metric in metrics}
    return Run(run["info"]["run_id"], run["info"].get("artifact_uri", ""), steps)


def _reason(data: bytes) -> str:
    """Return MLflow's error message, or the first words of any other answer."""
    text = data[:2000].decode(errors="replace")
    try:
        answer = json.loads(data)
        text = f"{answer['error_code']}: {answer['message']}"
    except (ValueError, TypeError, KeyError):
        pass
    return " ".join(text.split())[:300]
