"""Train steps on the cluster of KUBECONFIG, as processes of this machine, and the objects that they leave."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kubernetes import client

from kfp_distributed.components.train.run.runners.kubernetes.cluster_records.pods import replica_of
from kfp_distributed.components.train.run.training_request.request import job_name
from kfp_distributed.storage.kubeflow.kfp_backend import RUNTIME_VARIABLE

SECONDS = 50
"""Maximum seconds until a failure is reported on a busy machine.

On one that is not busy it takes 1 to 3, and docs/reference/failures.md promises 15.
"""

_PROGRAM = Path(__file__).parent / "programs" / "launch_step.py"
_JOB_KINDS = (
    ("apis/batch/v1", ("jobs",)),
    ("apis/kubeflow.org/v1", ("tfjobs", "pytorchjobs", "mpijobs")),
    ("apis/kubeflow.org/v2beta1", ("mpijobs",)),
    ("apis/trainer.kubeflow.org/v1alpha1", ("trainjobs", "trainingruntimes")),
)
# Objects that a step, operators and gang schedulers create for a job. A cluster may not serve all of these kinds.
_KINDS = (
    ("api/v1", ("pods", "services", "configmaps", "secrets", "serviceaccounts")),
    ("apis/rbac.authorization.k8s.io/v1", ("roles", "rolebindings")),
    *_JOB_KINDS,
    ("apis/jobset.x-k8s.io/v1alpha2", ("jobsets",)),
    ("apis/scheduling.volcano.sh/v1beta1", ("podgroups",)),
    ("apis/scheduling.x-k8s.io/v1alpha1", ("podgroups",)),
)


both_operators = pytest.mark.parametrize(
    "operator", ["training-operator", pytest.param("trainer", marks=pytest.mark.trainer)], indirect=True
)
"""Mark of a test that runs with the training operator, and where the cluster has it with Kubeflow Trainer."""

_KINDS_OF_TYPES = {"Job": "Job", "TF": "TFJob", "PyTorch": "PyTorchJob", "MPI": "MPIJob"}


@dataclass
class Step:
    """A train step. `lines` has the lines of its log so far, with their times."""

    process: subprocess.Popen
    name: str
    namespace: str
    request: dict
    lines: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self):
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            stamp, _, text = line.rstrip("\n").partition(" ")
            # Lines of a traceback have no timestamp.
            has_stamp = re.fullmatch(r"\d+\.\d{3}", stamp)
            self.lines.append((float(stamp), text) if has_stamp else (time.time(), line.rstrip("\n")))

    @property
    def kind(self) -> str:
        """Kind of its job, such as "TFJob"."""
        distribution = self.request["distribution_specification"]
        distribution_type = distribution.get("distribution_type", "Job")
        is_train_job = distribution_type != "Job" and distribution.get("operator") == "trainer"
        return "TrainJob" if is_train_job else _KINDS_OF_TYPES[distribution_type]

    def pod_of(self, replica: str) -> str:
        """Return the name of the newest pod of a replica."""
        pods = client.CoreV1Api().list_namespaced_pod(
            self.namespace, label_selector=f"kfp-distributed/job={self.name}", _preload_content=False
        )
        items = [pod for pod in json.loads(pods.data)["items"] if replica_of(pod) == replica]
        return max(items, key=lambda pod: pod["metadata"]["creationTimestamp"])["metadata"]["name"]

    @property
    def log(self) -> str:
        return "\n".join(text for _, text in self.lines)

    @property
    def timed_log(self) -> str:
        """The log, each line with the seconds since the first one."""
        return "\n".join(f"{stamp - self.lines[0][0]:7.1f} {text}" for stamp, text in list(self.lines))

    def wait_for(self, pattern: str, seconds: float = 240, after: int = 0) -> float:
        """Wait for a line that contains the pattern, ignoring the first `after` lines; return the line's time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for stamp, text in self.lines[after:]:
                if re.search(pattern, text):
                    return stamp
            if self.process.poll() is not None and not self._reader.is_alive():
                break
            time.sleep(0.05)
        raise AssertionError(f"no line contains {pattern!r}:\n{self.log}")

    def assert_logged_within(self, seconds: float, since: float, pattern: str, after: int = 0) -> None:
        """Wait for a line that contains the pattern; assert that it was logged soon enough after the time `since`."""
        delay = self.wait_for(pattern, after=after) - since
        assert 0 <= delay < seconds, f"{pattern!r} was logged {delay:.1f} s after its cause:\n{self.log}"

    def verdict(self, seconds: float = 300) -> dict:
        """Wait for the end of the step and return its verdict."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            log = self.timed_log
            self.process.send_signal(signal.SIGTERM)
            raise AssertionError(f"still running after {seconds} s:\n{log}") from None
        self._reader.join(60)
        assert self.lines, "the step printed nothing"
        assert self.lines[-1][1].startswith("VERDICT "), self.log
        return json.loads(self.lines[-1][1].removeprefix("VERDICT "))

    def end(self) -> None:
        """Wait for the end of a cancelled step. If it had to be killed, delete its job."""
        try:
            self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.returncode == -signal.SIGKILL:
            delete_job(self)


def start_step(namespace: str, environment: dict[str, str], **request) -> Step:
    """Start a train step whose pods run in a namespace."""
    identity = request.setdefault("identity", [f"run-{uuid.uuid4().hex[:8]}", "train", "1"])
    request["namespace"] = namespace
    process = subprocess.Popen(
        [sys.executable, str(_PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, RUNTIME_VARIABLE: "true", **environment},
    )
    process.stdin.write(json.dumps(request))
    process.stdin.close()
    return Step(process, job_name(request.get("task_name", "train"), identity), namespace, request)


def delete_job(step: Step) -> None:
    """Delete the job of a step, if it exists."""
    with client.ApiClient() as api:
        for group, plurals in _JOB_KINDS:
            for plural in plurals:
                _call(api, f"/{group}/namespaces/{step.namespace}/{plural}/{step.name}", "DELETE")


def job_of(step: Step, namespace: str = "") -> dict:
    """Return the object of the job of a step.

    Args:
        step: The step.
        namespace: Namespace of the job. Default: that of the step.
    """
    groups = {"Job": ("batch", "v1"), "TrainJob": ("trainer.kubeflow.org", "v1alpha1")}
    group = groups.get(step.kind, ("kubeflow.org", "v1"))
    name = (namespace or step.namespace, f"{step.kind.lower()}s", step.name)
    return client.CustomObjectsApi().get_namespaced_custom_object(*group, *name)


def left_behind(step: Step, seconds: float = 120) -> list[str]:
    """Return the remaining objects of a job in its namespace, once there are none or after `seconds`."""
    deadline = time.monotonic() + seconds
    with client.ApiClient() as api:
        while True:
            objects = _objects_of(api, step)
            if not objects or time.monotonic() > deadline:
                return objects
            time.sleep(1)


def _objects_of(api: client.ApiClient, step: Step) -> list[str]:
    objects = []
    for group, plurals in _KINDS:
        for plural in plurals:
            items = _call(api, f"/{group}/namespaces/{step.namespace}/{plural}", "GET").get("items", [])
            objects += [f"{plural} {item['metadata']['name']}" for item in items if _belongs(item, step.name)]
    return objects


def _call(api: client.ApiClient, path: str, method: str) -> dict:
    """Return the response of the API server; {} if it does not have the object or kind."""
    options = {"auth_settings": ["BearerToken"], "response_type": "object", "_return_http_data_only": True}
    # By default the deletion of a Job keeps its pods.
    query = [("propagationPolicy", "Background")] if method == "DELETE" else []
    try:
        return api.call_api(path, method, query_params=query, **options)
    except client.ApiException as error:
        if error.status != 404:
            raise
        return {}


def _belongs(item: dict, job: str) -> bool:
    """Return whether an object belongs to a job, by its name or label."""
    metadata = item["metadata"]
    has_name = metadata["name"] == job or metadata["name"].startswith(f"{job}-")
    return has_name or (metadata.get("labels") or {}).get("kfp-distributed/job") == job
