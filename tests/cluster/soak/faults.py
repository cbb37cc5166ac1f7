"""Injects the faults of a training."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from cluster.jobs import Step, start_step
from cluster.soak import plan as kinds
from cluster.soak.place import Place, Proxies
from cluster.soak.plan import Fault, Plan
from cluster.soak.program import ROWS
from faulty_proxy import Fault as StoreFault
from kubernetes import client
from kubernetes.stream import stream

from kfp_distributed.components.train.run.runners.kubernetes.cluster_records.pods import replica_of

_ALWAYS = 10**9
"""Number of requests that a store which is away refuses: all."""


class Training:
    """A training of the soak while it runs.

    Attributes:
        plan: Its plan.
        steps: The processes of its step, in the order of their starts.
        killed: Those that were killed by a fault.
        injected: The kinds of faults that began.
    """

    def __init__(self, plan: Plan, place: Place, proxies: Proxies, request: dict) -> None:
        """Start the step of a training, and a thread for each of its faults.

        Args:
            plan: The training and its faults.
            place: Where it runs.
            proxies: Its own proxies.
            request: Arguments of the step.
        """
        self.plan, self.steps, self.killed, self.injected = plan, [], [], []
        self._place, self._proxies, self._request = place, proxies, request
        self._lock, self._acting, self._ended = threading.Lock(), 0, False
        self.start_step()
        self._threads = [threading.Thread(target=self._inject_at, args=(fault,), daemon=True) for fault in plan.faults]
        for thread in self._threads:
            thread.start()

    def start_step(self) -> None:
        """Start a process of the step, always with the same identity."""
        self.steps.append(start_step(self._place.namespace, self._proxies.environment, **self._request))

    def await_end(self, seconds: float) -> bool:
        """Wait until all steps have ended and no fault goes on; return whether they have within some seconds."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with self._lock:
                if not self._acting and all(step.process.poll() is not None for step in self.steps):
                    self._ended = True
                    break
            time.sleep(0.1)
        has_ended, self._ended = self._ended, True
        for thread in self._threads:
            thread.join(kinds.LONGEST_OUTAGE + 30)
        return has_ended

    def _inject_at(self, fault: Fault) -> None:
        """Inject a fault when its row is printed, unless the training ends before."""
        epoch, row = divmod(fault.row - 1, ROWS)
        while not self._has_printed("model saved to" if fault.kind == kinds.STEP_KILLED_LATE else _mark(epoch, row)):
            if self._ended:
                return
            time.sleep(0.3)
        with self._lock:
            if self._ended:
                return
            self._acting += 1
        try:
            self._injections()[fault.kind](fault)
        finally:
            with self._lock:
                self._acting -= 1

    def _has_printed(self, mark: str) -> bool:
        """Return whether the replica with the model has printed a text, according to a step or to the cluster."""
        prefix = f"[{self.plan.leader}] "
        texts = [text for step in list(self.steps) for _, text in list(step.lines) if text.startswith(prefix)]
        if any(mark in f"{text}\n" for text in texts):
            return True
        # The step cannot read logs while its API server is away.
        if not set(self.plan.kinds) & set(kinds.GROUPS["cluster"]):
            return False
        with suppress(client.ApiException):
            return mark in self._read_log(tail_lines=30)
        return False

    def _injections(self) -> dict[str, Callable[[Fault], None]]:
        return {
            kinds.REPLICA_KILLED: lambda fault: self._ask_to_fail(fault, "killed"),
            kinds.OUT_OF_MEMORY: lambda fault: self._ask_to_fail(fault, "out of memory"),
            kinds.POD_DELETED: self._delete_pod,
            kinds.EVICTED: self._evict,
            kinds.STEP_KILLED: self._kill_step,
            kinds.STEP_KILLED_LATE: self._kill_step,
            kinds.TWO_STEPS: self._start_second_step,
            kinds.API_AWAY: lambda fault: self._break_api(fault, "unreachable"),
            kinds.API_FAILS: lambda fault: self._break_api(fault, 500),
            kinds.KUBELET_RESTARTED: lambda fault: self._break_api(fault, "no kubelet"),
            kinds.STORE_AWAY: lambda fault: self._break_store(fault, StoreFault("", _ALWAYS, reset=True)),
            kinds.STORE_FAILS: lambda fault: self._break_store(fault, StoreFault("", _ALWAYS, status=503)),
            kinds.LOG_ROTATED: self._await_rotation,
        }

    def _pod(self, replica: str) -> str:
        """Return the name of the running pod of a replica; "" if there is none."""
        options = {"label_selector": f"kfp-distributed/job={self.steps[0].name}", "_preload_content": False}
        pods = json.loads(self._place.api.list_namespaced_pod(self._place.namespace, **options).data)["items"]
        running = [pod for pod in pods if _is_running(pod) and replica_of(pod) == replica]
        return str(running[0]["metadata"]["name"]) if running else ""

    def _ask_to_fail(self, fault: Fault, how: str) -> None:
        if pod := self._pod(fault.replica):
            command = ["sh", "-c", f"printf '{how}' > /tmp/soak-fault"]
            with suppress(client.ApiException, OSError):
                call, options = (
                    self._place.api.connect_get_namespaced_pod_exec,
                    {"stdout": True, "_request_timeout": 60},
                )
                stream(call, pod, self._place.namespace, command=command, **options)
                self.injected.append(fault.kind)

    def _delete_pod(self, fault: Fault) -> None:
        if pod := self._pod(fault.replica):
            with suppress(client.ApiException):
                self._place.api.delete_namespaced_pod(pod, self._place.namespace, grace_period_seconds=0)
                self.injected.append(fault.kind)

    def _evict(self, fault: Fault) -> None:
        if pod := self._pod(fault.replica):
            with suppress(client.ApiException):
                eviction = {"metadata": {"name": pod}}
                self._place.api.create_namespaced_pod_eviction(pod, self._place.namespace, eviction)
                self.injected.append(fault.kind)

    def _kill_step(self, fault: Fault) -> None:
        step = self.steps[-1]
        if step.process.poll() is not None:
            return
        step.process.kill()
        step.process.wait()
        self.killed.append(step)
        self.injected.append(fault.kind)
        time.sleep(fault.seconds)
        self.start_step()

    def _start_second_step(self, fault: Fault) -> None:
        self.start_step()
        self.injected.append(fault.kind)

    def _break_api(self, fault: Fault, how: str | int) -> None:
        self.injected.append(fault.kind)
        with self._proxies.api.inject(how):
            self._wait(fault.seconds)

    def _break_store(self, fault: Fault, how: StoreFault) -> None:
        self.injected.append(fault.kind)
        with _faulty(self._proxies.store.faults, how):
            self._wait(fault.seconds)

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not all(step.process.poll() is not None for step in self.steps):
            time.sleep(0.1)

    def _await_rotation(self, fault: Fault) -> None:
        """Note when the log file of the replica with the model begins with another line than at first."""
        while not all(step.process.poll() is not None for step in self.steps):
            with suppress(client.ApiException):
                if _begins_late(self._read_log(limit_bytes=100)):
                    self.injected.append(fault.kind)
                    return
            time.sleep(0.5)

    def _read_log(self, **options: int) -> str:
        """Return a part of the log of the replica with the model, whose lines a launcher prints; "" without a pod."""
        pod = self._pod("launcher-0" if self.plan.job == "MPIJob" else self.plan.leader)
        return self._place.api.read_namespaced_pod_log(pod, self._place.namespace, **options) if pod else ""


def _is_running(pod: Mapping[str, Any]) -> bool:
    return pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]


@contextmanager
def _faulty(faults: list[StoreFault], fault: StoreFault):
    faults.append(fault)
    try:
        yield
    finally:
        faults.remove(fault)


def _mark(epoch: int, row: int) -> str:
    """Return the end of the line of a row. Both numbers count from 0."""
    return f" epoch {epoch + 1} row {row + 1}\n"


def _begins_late(text: str) -> bool:
    """Return whether the first line of a log is padding, which follows the line of the start."""
    return "x" * 20 in text.partition("\n")[0]


def ended_steps(training: Training) -> list[Step]:
    """Return the steps of a training that were not killed by a fault."""
    return [step for step in training.steps if step not in training.killed]
