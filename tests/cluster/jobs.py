"""Train steps on the cluster of KUBECONFIG, as processes of this machine, and what they leave."""

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

from kubernetes import client

from kfp_distributed.components.train.launch import job_name

SECONDS = 15
"""Within which a failure is told, as docs/reliability.md has it, on a machine that others use too."""

_PROGRAM = Path(__file__).parent / "programs" / "launch_step.py"
_JOB_KINDS = (
    ("apis/batch/v1", ("jobs",)),
    ("apis/kubeflow.org/v1", ("tfjobs", "pytorchjobs", "mpijobs")),
    ("apis/kubeflow.org/v2beta1", ("mpijobs",)),
)
# What a step makes, and what operators and gang schedulers make for a job; a cluster may not have all of these.
_KINDS = (
    ("api/v1", ("pods", "services", "configmaps", "secrets", "serviceaccounts")),
    ("apis/rbac.authorization.k8s.io/v1", ("roles", "rolebindings")),
    *_JOB_KINDS,
    ("apis/scheduling.volcano.sh/v1beta1", ("podgroups",)),
    ("apis/scheduling.x-k8s.io/v1alpha1", ("podgroups",)),
)


@dataclass
class Step:
    """One train step: its lines with their times, as they come."""

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
            # A traceback has no times.
            found = (float(stamp), text) if re.fullmatch(r"\d+\.\d{3}", stamp) else (time.time(), line.rstrip("\n"))
            self.lines.append(found)

    @property
    def log(self) -> str:
        return "\n".join(text for _, text in self.lines)

    def wait_for(self, pattern: str, seconds: float = 120, after: int = 0) -> float:
        """Waits for a line that the pattern is in, `after` so many lines; returns the line's time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for stamp, text in self.lines[after:]:
                if re.search(pattern, text):
                    return stamp
            if self.process.poll() is not None and not self._reader.is_alive():
                break
            time.sleep(0.05)
        raise AssertionError(f"no line has {pattern!r}:\n{self.log}")

    def told_within(self, seconds: float, since: float, pattern: str, after: int = 0) -> None:
        """Waits for a line that the pattern is in, which comes at most so many seconds after a moment."""
        took = self.wait_for(pattern, after=after) - since
        assert 0 <= took < seconds, f"{pattern!r} came {took:.1f} s after its cause:\n{self.log}"

    def verdict(self, seconds: float = 300) -> dict:
        """Waits for the step's end and returns its verdict."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGTERM)
            raise AssertionError(f"still running after {seconds} s:\n{self.log}") from None
        self._reader.join(10)
        assert self.lines, "the step printed nothing"
        assert self.lines[-1][1].startswith("VERDICT "), self.log
        return json.loads(self.lines[-1][1].removeprefix("VERDICT "))

    def end(self) -> None:
        """Waits for the end of a step that was told to end, and deletes the job that a killed step left."""
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.returncode == -signal.SIGKILL:
            with client.ApiClient() as api:
                for group, plurals in _JOB_KINDS:
                    for plural in plurals:
                        _call(api, f"/{group}/namespaces/{self.namespace}/{plural}/{self.name}", "DELETE")


def start_step(namespace: str, environment: dict[str, str], **request) -> Step:
    """Starts a train step whose pods run in a namespace."""
    identity = request.setdefault("identity", [f"run-{uuid.uuid4().hex[:8]}", "train", "1"])
    request["namespace"] = namespace
    process = subprocess.Popen(
        [sys.executable, str(_PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
    )
    process.stdin.write(json.dumps(request))
    process.stdin.close()
    return Step(process, job_name(request.get("task_name", "train"), identity), namespace, request)


def left_behind(step: Step, seconds: float = 60) -> list[str]:
    """What there is of a job in its namespace, once nothing goes away any more, after `seconds` at the latest."""
    until = time.monotonic() + seconds
    with client.ApiClient() as api:
        while True:
            found = _objects_of(api, step)
            if not found or time.monotonic() > until:
                return found
            time.sleep(1)


def _objects_of(api: client.ApiClient, step: Step) -> list[str]:
    found = []
    for group, plurals in _KINDS:
        for plural in plurals:
            listed = _call(api, f"/{group}/namespaces/{step.namespace}/{plural}", "GET").get("items", [])
            found += [f"{plural} {each['metadata']['name']}" for each in listed if _belongs(each, step.name)]
    return found


def _call(api: client.ApiClient, path: str, method: str) -> dict:
    """The API server's answer; {} where it has no such object or kind."""
    options = {"auth_settings": ["BearerToken"], "response_type": "object", "_return_http_data_only": True}
    # The default for a Job is to keep its pods.
    query = [("propagationPolicy", "Background")] if method == "DELETE" else []
    try:
        return api.call_api(path, method, query_params=query, **options)
    except client.ApiException as error:
        if error.status != 404:
            raise
        return {}


def _belongs(found: dict, job: str) -> bool:
    """Whether an object is a job's, by its name or our label."""
    about = found["metadata"]
    named = about["name"] == job or about["name"].startswith(f"{job}-")
    return named or (about.get("labels") or {}).get("kfp-distributed/job") == job
