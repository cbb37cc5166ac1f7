"""Record when a job of the cluster exists, when its last pod ends and when its operator has recorded its end."""

import json
import statistics
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from kfp_distributed.cluster_api.configuration import connect
from kfp_distributed.components.train.describe.manifests import JOB_LABEL


class Times(NamedTuple):
    """Seconds of one run: until the job exists, from its end and its last pod's end to the return, and in total."""

    before: float
    after: float
    last_pod: float
    total: float


class JobLife(threading.Thread):
    """A thread that watches a job."""

    def __init__(self, namespace: str, resource: tuple[str, str], name: str, pods: str = JOB_LABEL) -> None:
        """Create the thread.

        Args:
            namespace: Namespace of the job.
            resource: "group/version" and plural of the job.
            name: Name of the job.
            pods: Label of the pods whose value is the name of the job.
        """
        super().__init__(daemon=True)
        version, plural = resource
        self._namespace, self._path = namespace, f"/apis/{version}/namespaces/{namespace}/{plural}"
        self._name, self._label = name, pods
        self._pods = threading.Thread(target=self._watch_pods, daemon=True)
        self.begin = self.end = self.last_pod = 0.0

    def run(self) -> None:
        """Watch the job until it has ended."""
        self._pods.start()
        query = {"fieldSelector": f"metadata.name={self._name}", "watch": "1"}
        for line in connect(self._namespace).lines(self._path, query, 600):
            self.begin = self.begin or time.monotonic()
            if _has_ended(json.loads(line)["object"]):
                self.end = time.monotonic()
                return

    def times(self, started: float, returned: float) -> Times:
        """Return the times of a run."""
        self.join(10)
        return Times(self.begin - started, returned - self.end, returned - self.last_pod, returned - started)

    def _watch_pods(self) -> None:
        query = {"labelSelector": f"{self._label}={self._name}", "watch": "1"}
        ended_pods: set[str] = set()
        for line in connect(self._namespace).lines(f"/api/v1/namespaces/{self._namespace}/pods", query, 600):
            pod = json.loads(line)["object"]
            name = pod["metadata"]["name"]
            if name not in ended_pods and pod["status"].get("phase") in ("Succeeded", "Failed"):
                self.last_pod = time.monotonic()
                ended_pods.add(name)


def _has_ended(job: dict[str, Any]) -> bool:
    conditions = job.get("status", {}).get("conditions") or []
    ends = ("Succeeded", "Complete", "Failed")
    return any(condition["type"] in ends and condition["status"] == "True" for condition in conditions)


def spread(seconds: Sequence[float]) -> str:
    """Return the median of times in seconds with their minimum and maximum."""
    return f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"
