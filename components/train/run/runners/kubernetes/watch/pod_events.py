"""Which pods the step asks for warning events, and when. Sends no request.

A watch for each pod would need a connection for each replica. A watch of the events of all pods would deliver those of
the whole namespace. Only the events of a pod that is not ready matter: they say why a volume is not mounted, why the
network of the pod is missing, or that its node is lost. So the events of a pod are listed while it is not ready, unless
its own status has the reason, as it has if no node has room for the pod or if an image cannot be pulled.

The API server reads all events of the namespace for each such list, because it has no index of the objects that events
are about. Therefore a pod is asked less often the longer it waits, and a job sends one request at a time.
"""

import math
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from kfp_distributed.components.train.run.runners.kubernetes.cluster_records.pods import (
    has_own_reason,
    is_ready,
    pod_state,
)

FIRST_SECONDS = 5.0
"""Seconds that a pod is not ready before its events are listed. Most pods are ready by then."""

LONGEST_SECONDS = 300.0
"""Maximum seconds between two lists of the events of a pod. The seconds double from `FIRST_SECONDS`. It is the longest
time between two attempts of the kubelet to start a container."""


class PodEvents:
    """Order of the requests for the events of pods. Thread-safe.

    A pod that is not ready, without a reason in its own status, is due after 5, 10, 20, 40, 80, 160 and 320 seconds,
    and then every 300 seconds. A pod that has failed is due at once, before all others, and 5 s later, because an event
    may be written after the state of its pod. The others follow in the order in which they became due, so no pod is
    left out.
    """

    def __init__(self) -> None:
        """Create an order without pods."""
        self._lock = threading.Lock()
        # Time when a pod is due, and seconds until it is due again, by UID.
        self._due: dict[str, tuple[float, float]] = {}
        self._failed: set[str] = set()

    def update_all(self, pods: Iterable[Mapping[str, Any]], now: float) -> None:
        """Handle a list of all current pods of the job at a time in seconds."""
        current = {pod["metadata"]["uid"]: pod for pod in pods}
        with self._lock:
            self._due = {uid: due for uid, due in self._due.items() if uid in current}
            self._failed &= current.keys()
        for pod in current.values():
            self.update(pod, deleted=False, now=now)

    def update(self, pod: Mapping[str, Any], *, deleted: bool, now: float) -> None:
        """Handle a change of a pod.

        Args:
            pod: Current state of the pod.
            deleted: Whether the pod was deleted.
            now: Current time in seconds.
        """
        uid, state = pod["metadata"]["uid"], pod_state(pod).state
        with self._lock:
            if deleted or state == "succeeded" or (state != "failed" and (is_ready(pod) or has_own_reason(pod))):
                self._due.pop(uid, None)
            elif state == "failed":
                if uid not in self._failed:
                    self._failed.add(uid)
                    self._due[uid] = (-math.inf, FIRST_SECONDS)
            else:
                self._due.setdefault(uid, (now + FIRST_SECONDS, FIRST_SECONDS))

    def next_query(self, now: float) -> dict[str, str] | None:
        """Return the query for the events of the pod that is due first, and count it as asked.

        Args:
            now: Current time in seconds.

        Returns:
            The selectors; None if no pod is due.
        """
        with self._lock:
            uid, (due, seconds) = min(self._due.items(), key=lambda item: item[1][0], default=("", (math.inf, 0.0)))
            if due > now:
                return None
            following = math.inf if uid in self._failed else min(2 * seconds, LONGEST_SECONDS)
            self._due[uid] = (now + seconds, following)
        return {"fieldSelector": f"type=Warning,involvedObject.uid={uid}"}
