"""Pods that run compiled steps as the launcher of KFP would start them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compiled import executors
from kubernetes import watch

from kfp_distributed.trainers.programs.requirements import STOCK_IMAGE

_RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@dataclass(frozen=True)
class StepContainer:
    """A compiled step as the launcher of KFP would start it.

    Attributes:
        step: Name of the step.
        image: Image of the step in its YAML.
        command: Command and arguments.
    """

    step: str
    image: str
    command: Sequence[str]

    def spec(self) -> dict:
        """Return the container, for a pod with a volume `work`."""
        env = {
            "HOME": "/steps",
            # Only in a stock image may pip use a package index.
            **({"PIP_DEFAULT_TIMEOUT": "60"} if self.image == STOCK_IMAGE else {"PIP_INDEX_URL": "http://127.0.0.1:9"}),
        }
        # The variables that KFP sets. The steps find the object store by themselves.
        fields = {"KFP_POD_NAME": "metadata.name", "KFP_POD_UID": "metadata.uid"}
        return {
            "name": self.step.replace("_", "-"),
            "image": self.image,
            "command": [*self.command],
            "workingDir": "/steps",
            "env": [
                *({"name": name, "value": value} for name, value in env.items()),
                *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
            ],
            "volumeMounts": [
                {"name": "work", "mountPath": "/steps"},
                # kfp maps outputs of a pipeline root s3:// to this folder.
                {"name": "work", "mountPath": "/s3", "subPath": "s3"},
            ],
            # The library's images have a user that is not root.
            "securityContext": {**_RESTRICTED, **({"runAsUser": 1000} if self.image == STOCK_IMAGE else {})},
        }


def logs_of(api, pod) -> dict[str, str]:
    """Wait for the end of a pod; return the logs of its started containers, by name."""
    name, namespace = pod.metadata.name, pod.metadata.namespace
    end_of(api, namespace, name)
    status = api.read_namespaced_pod_status(name, namespace).status
    states = [*(status.init_container_statuses or ()), *(status.container_statuses or ())]
    return {
        state.name: api.read_namespaced_pod_log(name, namespace, container=state.name)
        for state in states
        if state.state.terminated
    }


def end_of(api, namespace: str, name: str) -> str:
    """Wait for the end of a pod and return its phase. The watch is repeated if it ends first."""
    phase, deadline = "Pending", time.monotonic() + 800
    while phase not in ("Succeeded", "Failed") and time.monotonic() < deadline:
        selector = f"metadata.name={name}"
        for event in watch.Watch().stream(
            api.list_namespaced_pod, namespace, field_selector=selector, timeout_seconds=60
        ):
            phase = event["object"].status.phase
            if phase in ("Succeeded", "Failed"):
                break
    return phase


def image_of(specs: Path, step: str) -> str:
    return executors(specs / f"{step}.yaml")[step.replace("_", "-")]["image"]
