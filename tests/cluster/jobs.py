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

_PROGRAM = Path(__file__).parent / "programs" / "launch_step.py"
_KINDS = (
    ("kubeflow.org", "v1", "tfjobs"),
    ("kubeflow.org", "v1", "pytorchjobs"),
    ("kubeflow.org", "v1", "mpijobs"),
    ("kubeflow.org", "v2beta1", "mpijobs"),
    ("batch", "v1", "jobs"),
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

    def wait_for(self, pattern: str, seconds: float = 120) -> float:
        """Waits for a line that the pattern is in; returns the line's time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for stamp, text in list(self.lines):
                if re.search(pattern, text):
                    return stamp
            if self.process.poll() is not None and not self._reader.is_alive():
                break
            time.sleep(0.05)
        raise AssertionError(f"no line has {pattern!r}:\n{self.log}")

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
    while True:
        found = _objects_of(step)
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.3)


def _objects_of(step: Step) -> list[str]:
    core, custom = client.CoreV1Api(), client.CustomObjectsApi()
    selector = f"kfp-distributed/job={step.name}"
    found = [
        f"pod {each.metadata.name}" for each in core.list_namespaced_pod(step.namespace, label_selector=selector).items
    ]
    maps = core.list_namespaced_config_map(step.namespace, label_selector=selector).items
    found += [f"configmap {each.metadata.name}" for each in maps]
    secrets = core.list_namespaced_secret(step.namespace, label_selector=selector).items
    found += [f"secret {each.metadata.name}" for each in secrets]
    services = core.list_namespaced_service(step.namespace).items
    found += [f"service {each.metadata.name}" for each in services if each.metadata.name.startswith(step.name)]
    for group, version, plural in _KINDS:
        try:
            items = custom.list_namespaced_custom_object(group, version, step.namespace, plural)["items"]
        except client.ApiException as error:
            if error.status != 404:
                raise
            continue
        found += [
            f"{plural} {each['metadata']['name']}" for each in items if each["metadata"]["name"].startswith(step.name)
        ]
    return found
