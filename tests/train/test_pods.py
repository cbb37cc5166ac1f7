"""The state of jobs and replicas as read from Kubernetes objects."""

from datetime import datetime, timezone

import pytest

from kfp_distributed.components.train.runners.kubernetes.pods import (
    INSTALLATION_FAILED,
    PodState,
    deletion_time,
    is_suspended,
    job_end,
    job_end_time,
    pod_state,
    replica_of,
    started_containers,
)


def pod(phase="Pending", node="node-1", main=None, init=None, conditions=(), limits=None, **status):
    """Return a pod with these states of its main container and its init container."""
    return {
        "metadata": {"name": "a-job-worker-0", "uid": "1"},
        "spec": {
            "containers": [{"name": "tensorflow", **({"resources": {"limits": limits}} if limits else {})}],
            **({"nodeName": node} if node else {}),
        },
        "status": {
            "phase": phase,
            "conditions": list(conditions),
            **({"initContainerStatuses": [{"name": "packages", "state": init}]} if init else {}),
            **({"containerStatuses": [{"name": "tensorflow", "state": main}]} if main else {}),
            **status,
        },
    }


WAITING = {"waiting": {"reason": "ContainerCreating"}}
INITIALIZING = {"waiting": {"reason": "PodInitializing"}}
NO_IMAGE = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "nowhere:1"'}}
UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/1 nodes are available: 1 Insufficient cpu.",
}


def terminated(code, reason="Error", message=""):
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


INSTALL_TIMES = {"startedAt": "2026-11-23T10:00:10Z", "finishedAt": "2026-11-23T10:04:15Z"}
INSTALLED = {"terminated": {"exitCode": 0, "reason": "Completed", **INSTALL_TIMES}}
FAILED_INSTALLATION = {"terminated": {"exitCode": 1, "reason": "Error", **INSTALL_TIMES}}


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        (
            {"training.kubeflow.org/replica-type": "ps", "training.kubeflow.org/replica-index": "1"},
            "ps-1",
        ),
        (
            {
                "training.kubeflow.org/replica-type": "worker",
                "training.kubeflow.org/replica-index": "0",
                "training.kubeflow.org/job-role": "master",
            },
            "worker-0",
        ),
        ({"training.kubeflow.org/job-role": "launcher"}, "launcher-0"),
        ({"batch.kubernetes.io/job-name": "a-job"}, "worker-0"),
    ],
)
def test_replica_of(labels, name):
    assert replica_of({"metadata": {"labels": labels}}) == name


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"metadata": {}}, PodState("waiting")),
        (pod(node=None), PodState("waiting")),
        (
            pod(node=None, conditions=[UNSCHEDULABLE]),
            PodState("waiting", None, "Unschedulable: 0/1 nodes are available: 1 Insufficient cpu."),
        ),
        (pod(main=WAITING), PodState("pulling")),
        (pod(main=NO_IMAGE), PodState("pulling", None, 'ImagePullBackOff: Back-off pulling image "nowhere:1"')),
        (
            pod(main=INITIALIZING, init=NO_IMAGE),
            PodState("pulling", None, 'ImagePullBackOff: Back-off pulling image "nowhere:1"'),
        ),
        (pod(main=INITIALIZING, init={"running": {}}), PodState("installing", None, "installing packages with pip")),
        (pod(main=INITIALIZING, init=INSTALLED), PodState("pulling", install_seconds=245)),
        (pod("Running", main={"running": {}}, init=INSTALLED), PodState("running", install_seconds=245)),
        (
            pod(initContainerStatuses=[{"name": "init-pytorch", "state": {"running": {}}}]),
            PodState("starting", None, "init container init-pytorch is running"),
        ),
        (pod("Running", main={"running": {}}, init=terminated(0, "Completed")), PodState("running")),
        (pod("Succeeded", main=terminated(0, "Completed")), PodState("succeeded", 0)),
        (pod("Succeeded", main=terminated(0, "Completed", "524288")), PodState("succeeded", 0, "", 524288)),
        (pod("Running", main=terminated(0, "Completed")), PodState("succeeded", 0)),
        (
            pod("Failed", main=terminated(0, "Completed"), reason="Evicted", message="disk"),
            PodState("failed", None, "Evicted: disk"),
        ),
        (pod("Failed", main=terminated(3)), PodState("failed", 3)),
        (pod("Failed", main=terminated(3, message="524288")), PodState("failed", 3, "", 524288)),
        (
            pod("Failed", main=terminated(128, "StartError", "no such file")),
            PodState("failed", 128, "StartError: no such file"),
        ),
        # The container has ended, but the phase of the pod has not changed yet.
        (pod("Running", main=terminated(137, "OOMKilled")), PodState("failed", 137, "OOMKilled")),
        (
            pod("Failed", main=terminated(137, "OOMKilled"), limits={"memory": "2Gi"}),
            PodState("failed", 137, "OOMKilled: the limit is 2Gi"),
        ),
        (pod("Failed", main=INITIALIZING, init=terminated(1)), PodState("failed", 1, INSTALLATION_FAILED)),
        (pod("Failed", main=INITIALIZING, init=FAILED_INSTALLATION), PodState("failed", 1, INSTALLATION_FAILED)),
        # The kubelet would retry the init container.
        (pod(main=INITIALIZING, init=terminated(1)), PodState("failed", 1, INSTALLATION_FAILED)),
        (pod("Failed", main=INITIALIZING, init=terminated(143)), PodState("failed", 143)),
        (
            pod("Failed", reason="Evicted", message="The node was low on resource: memory. "),
            PodState("failed", None, "Evicted: The node was low on resource: memory."),
        ),
    ],
)
def test_pod_state(state, expected):
    assert pod_state(state) == expected


def test_started_containers():
    assert started_containers({"metadata": {}}) == {}
    assert started_containers(pod(main=INITIALIZING, init={"running": {}})) == {"packages": (0, False)}
    assert started_containers(pod(main=terminated(1), init=terminated(0))) == {
        "packages": (0, True),
        "tensorflow": (0, True),
    }


def condition(name, message="", status="True"):
    return {"type": name, "status": status, "message": message}


@pytest.mark.parametrize(
    ("conditions", "end"),
    [
        (None, None),
        ([condition("Created"), condition("Running")], None),
        ([condition("Created"), condition("Succeeded")], (True, "")),
        ([condition("Complete"), condition("SuccessCriteriaMet")], (True, "")),
        ([condition("Failed", status="False"), condition("Restarting")], None),
        # Both may be true; their order has no meaning.
        ([condition("Failed", "1 worker failed"), condition("Succeeded")], (False, "1 worker failed")),
        ([condition("FailureTarget", "limit reached")], (False, "limit reached")),
    ],
)
def test_job_end(conditions, end):
    assert job_end({"status": {"conditions": conditions}}) == end


def test_a_job_without_status_has_not_ended():
    assert job_end({}) is None
    assert job_end_time({}) is None


def at(name, second, status="True"):
    return condition(name, status=status) | {"lastTransitionTime": f"2026-01-01T09:00:{second:02d}Z"}


@pytest.mark.parametrize(
    ("status", "second"),
    [
        ({"conditions": [at("Running", 1, "False"), at("Failed", 7)]}, 7),
        ({"conditions": [at("FailureTarget", 5), at("Failed", 7)]}, 5),
        ({"conditions": [at("Running", 1), at("Failed", 7, "False")]}, None),
        ({"conditions": [condition("Succeeded")]}, None),
        ({"completionTime": "2026-01-01T09:00:06Z"}, 6),
    ],
)
def test_job_end_time(status, second):
    assert job_end_time({"status": status}) == (second and datetime(2026, 1, 1, 9, 0, second, tzinfo=timezone.utc))


@pytest.mark.parametrize(
    ("metadata", "second"),
    [
        ({}, None),
        ({"deletionTimestamp": "2026-01-01T09:00:40Z", "deletionGracePeriodSeconds": 30}, 10),
        # The kubelet sets the grace period to 0 when the pod has ended.
        ({"deletionTimestamp": "2026-01-01T09:00:10Z", "deletionGracePeriodSeconds": 0}, 10),
        ({"deletionTimestamp": "2026-01-01T09:00:10Z"}, 10),
    ],
)
def test_deletion_time(metadata, second):
    expected = second and datetime(2026, 1, 1, 9, 0, second, tzinfo=timezone.utc)
    assert deletion_time({"metadata": metadata}) == expected


@pytest.mark.parametrize(
    ("spec", "suspended"),
    [({}, False), ({"suspend": True}, True), ({"runPolicy": {"suspend": True}}, True), ({"runPolicy": {}}, False)],
)
def test_is_suspended(spec, suspended):
    assert is_suspended({"spec": spec}) is suspended
