"""The state of jobs and replicas as read from Kubernetes objects."""

from datetime import UTC, datetime

import pytest

from kfp_distributed.components.train.run.runners.kubernetes.cluster_records.pods import (
    INSTALLATION_FAILED,
    PodState,
    deletion_time,
    failed_sidecars,
    is_suspended,
    job_end,
    job_end_time,
    pod_state,
    preemption_of,
    replica_of,
    restarts_in_place,
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
INSTALL_END = 1_795_428_255.0  # finishedAt
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
        ({"kfp-distributed/first-replica": "ps-0", "batch.kubernetes.io/job-completion-index": "1"}, "ps-1"),
        ({"kfp-distributed/first-replica": "master-0", "batch.kubernetes.io/job-completion-index": "0"}, "master-0"),
        ({"kfp-distributed/first-replica": "master-0", "batch.kubernetes.io/job-completion-index": "2"}, "worker-1"),
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
        (pod(main=INITIALIZING, init=INSTALLED), PodState("pulling", install_seconds=245, happened=INSTALL_END)),
        (pod("Running", main={"running": {}}, init=INSTALLED), PodState("running", install_seconds=245)),
        (
            pod(initContainerStatuses=[{"name": "init-pytorch", "state": {"running": {}}}]),
            PodState("starting", None, "waiting for the init container init-pytorch"),
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
        (
            pod("Failed", main=INITIALIZING, init=terminated(1)),
            PodState("failed", 1, INSTALLATION_FAILED),
        ),
        (
            pod("Failed", main=INITIALIZING, init=FAILED_INSTALLATION),
            PodState("failed", 1, INSTALLATION_FAILED, happened=INSTALL_END),
        ),
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


def with_sidecar(sidecar, phase="Running", restart_policy="Never", **state):
    """Return a pod whose first container is a sidecar in this state, as a service mesh injects it."""
    injected = pod(phase, **state)
    injected["spec"]["containers"].insert(0, {"name": "mesh", "resources": {"limits": {"memory": "64Mi"}}})
    injected["spec"]["restartPolicy"] = restart_policy
    injected["status"].setdefault("containerStatuses", []).insert(0, {"name": "mesh", "restartCount": 3, **sidecar})
    return injected


ON, DONE, LOST = ({"state": state} for state in ({"running": {}}, terminated(0, "Completed"), terminated(1)))
KILLED = {"state": terminated(137, "OOMKilled")}
UNPULLED = {"state": NO_IMAGE}
RUNS, TRAINED, FAILED = {"running": {}}, terminated(0, "Completed", "2048"), terminated(3)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        # A running training is running, whatever the sidecar does.
        (with_sidecar(KILLED, main=RUNS), PodState("running")),
        (with_sidecar(LOST, main=RUNS), PodState("running")),
        (with_sidecar(UNPULLED, "Pending", main=RUNS), PodState("running")),
        # A running sidecar is not the training.
        (with_sidecar(ON, "Pending", main=WAITING), PodState("pulling")),
        (
            with_sidecar(ON, "Pending", main=NO_IMAGE),
            PodState("pulling", None, 'ImagePullBackOff: Back-off pulling image "nowhere:1"'),
        ),
        # Success, whether the phase of the pod shows it or not.
        (with_sidecar(DONE, "Succeeded", main=TRAINED), PodState("succeeded", 0, "", 2048)),
        (with_sidecar(DONE, main=TRAINED), PodState("succeeded", 0, "", 2048)),
        (with_sidecar(ON, main=TRAINED), PodState("succeeded", 0, "", 2048, 0, ("mesh",))),
        (with_sidecar(UNPULLED, "Pending", main=TRAINED), PodState("succeeded", 0, "", 2048, 0, ("mesh",))),
        (with_sidecar(KILLED, main=TRAINED), PodState("succeeded", 0, "", 2048, 0, ("mesh",))),
        (with_sidecar(KILLED, "Failed", main=TRAINED), PodState("succeeded", 0, "", 2048, 0, ("mesh",))),
        (
            with_sidecar(KILLED, "Failed", main=TRAINED, reason="Evicted", message="disk"),
            PodState("failed", None, "Evicted: disk", 2048),
        ),
        (with_sidecar(ON, main=TRAINED, restart_policy="OnFailure"), PodState("succeeded", 0, "", 2048, 0, ("mesh",))),
        # Failure. If the kubelet restarts the container, nobody else must.
        (with_sidecar(ON, main=FAILED), PodState("failed", 3, "", 0, 0, ("mesh",))),
        (with_sidecar(ON, main=FAILED, restart_policy="OnFailure"), PodState("failed", 3)),
        (with_sidecar(LOST, main=FAILED), PodState("failed", 3)),
        (with_sidecar(LOST, "Failed", main=FAILED), PodState("failed", 3)),
        (
            with_sidecar(KILLED, main=terminated(137, "OOMKilled"), limits={"memory": "2Gi"}),
            PodState("failed", 137, "OOMKilled: the limit is 2Gi"),
        ),
    ],
)
def test_only_the_container_of_the_training_counts(state, expected):
    assert pod_state(state) == expected


def test_a_sidecar_hides_no_end_of_a_pod_that_is_being_deleted():
    deleted = {"name": "a-job-worker-0", "deletionTimestamp": "2026-01-01T09:00:40Z"}
    killed = {**with_sidecar(ON, main=terminated(143)), "metadata": deleted}
    assert pod_state(killed) == PodState("failed", 143)
    assert pod_state({**with_sidecar(ON, main=TRAINED), "metadata": deleted}) == PodState("succeeded", 0, "", 2048)
    # The sidecar was killed, too.
    gone = {**with_sidecar(KILLED, "Failed", main=TRAINED), "metadata": deleted}
    assert pod_state(gone) == PodState("failed", None, "", 2048)


def with_init(*statuses, native=(), phase="Pending", main=INITIALIZING, **status):
    """Return a pod with init containers; those of `native` are native sidecars."""
    initializing = pod(phase, main=main, initContainerStatuses=list(statuses), **status)
    names = [container["name"] for container in statuses]
    initializing["spec"]["initContainers"] = [
        {"name": name, **({"restartPolicy": "Always"} if name in native else {})} for name in names
    ]
    return initializing


def init(name, state, **more):
    return {"name": name, "state": state, **more}


MESH_STARTED = init("mesh", {"running": {}}, started=True)
MESH_STARTS = init("mesh", {"running": {}}, started=False)
CRASHED = {"state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}, "lastState": terminated(2)}


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (with_init(init("mesh-init", RUNS)), PodState("starting", None, "waiting for the init container mesh-init")),
        (
            with_init(init("mesh-init", terminated(2)), init("packages", INITIALIZING)),
            PodState("starting", None, "waiting for the init container mesh-init, which failed with exit code 2"),
        ),
        (
            with_init({"name": "mesh-init", **CRASHED}, init("packages", INITIALIZING)),
            PodState("starting", None, "waiting for the init container mesh-init, which failed with exit code 2"),
        ),
        # The usual start of a pod is no warning.
        (with_init(init("kubectl-delivery", INITIALIZING)), PodState("pulling")),
        (
            with_init(init("mesh-init", NO_IMAGE), init("packages", INITIALIZING)),
            PodState(
                "pulling",
                None,
                'waiting for the init container mesh-init: ImagePullBackOff: Back-off pulling image "nowhere:1"',
            ),
        ),
        (
            with_init(init("mesh-init", terminated(0)), init("packages", RUNS)),
            PodState("installing", None, "installing packages with pip"),
        ),
        # A native sidecar runs as long as the pod.
        (
            with_init(MESH_STARTED, init("packages", RUNS), native=["mesh"]),
            PodState("installing", None, "installing packages with pip"),
        ),
        (
            with_init(MESH_STARTED, init("packages", INSTALLED), native=["mesh"]),
            PodState("pulling", install_seconds=245, happened=INSTALL_END),
        ),
        (
            with_init(MESH_STARTS, native=["mesh"]),
            PodState("starting", None, "waiting for the init container mesh"),
        ),
        (with_init(init("mesh", terminated(1)), native=["mesh"], phase="Running", main=RUNS), PodState("running")),
        (with_init(MESH_STARTED, native=["mesh"], phase="Running", main=FAILED), PodState("failed", 3)),
        (
            with_init(MESH_STARTED, native=["mesh"], phase="Running", main=TRAINED),
            PodState("succeeded", 0, "", 2048),
        ),
        # The kubelet does not retry an init container of a pod with restartPolicy Never.
        (
            with_init(init("mesh-init", terminated(2)), phase="Failed"),
            PodState("failed", None, "init container mesh-init failed with exit code 2"),
        ),
        # The node was lost, and with it the sidecar.
        (with_init(init("mesh", terminated(137)), native=["mesh"], phase="Failed", main=RUNS), PodState("failed")),
    ],
)
def test_init_containers_that_the_cluster_adds_are_waited_for(state, expected):
    assert pod_state(state) == expected


def test_failed_sidecars():
    assert failed_sidecars(with_sidecar(KILLED, main=RUNS)) == {"mesh": "exit code 137, OOMKilled"}
    assert failed_sidecars(with_sidecar(LOST, "Pending")) == {"mesh": "exit code 1"}
    assert failed_sidecars(with_sidecar(ON, main=RUNS)) == {}
    assert failed_sidecars(with_sidecar(KILLED, main=TRAINED)) == {}
    assert failed_sidecars(with_sidecar(KILLED, "Failed", main=RUNS)) == {}


def test_only_containers_of_the_training_are_read_and_restart():
    injected = with_sidecar(ON, main=RUNS)
    assert started_containers(injected) == {"tensorflow": (0, False)}
    assert started_containers(with_init(MESH_STARTED, init("packages", RUNS), native=["mesh"])) == {
        "packages": (0, False)
    }
    assert restarts_in_place(injected) == 0


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
    assert job_end_time({"status": status}) == (second and datetime(2026, 1, 1, 9, 0, second, tzinfo=UTC))


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
    expected = second and datetime(2026, 1, 1, 9, 0, second, tzinfo=UTC)
    assert deletion_time({"metadata": metadata}) == expected


@pytest.mark.parametrize(
    ("spec", "suspended"),
    [({}, False), ({"suspend": True}, True), ({"runPolicy": {"suspend": True}}, True), ({"runPolicy": {}}, False)],
)
def test_is_suspended(spec, suspended):
    assert is_suspended({"spec": spec}) is suspended


NODE_SHUTDOWN = "preempted: NodeShutdown: Pod was rejected"


def disrupted(status="True", reason="EvictionByEvictionAPI", message=""):
    return {"type": "DisruptionTarget", "status": status, "reason": reason, "message": message}


@pytest.mark.parametrize(
    ("status", "deleted", "expected"),
    [
        ({}, True, ""),
        ({"conditions": [disrupted()]}, True, "preempted: EvictionByEvictionAPI"),
        (
            {"conditions": [disrupted(reason="PreemptionByScheduler", message="a pod with a higher priority")]},
            False,
            "preempted: PreemptionByScheduler: a pod with a higher priority",
        ),
        # It was not deleted after all.
        ({"conditions": [disrupted("False")], "phase": "Failed"}, False, ""),
        # Older than the condition.
        ({"phase": "Failed", "reason": "NodeShutdown", "message": "Pod was rejected"}, False, NODE_SHUTDOWN),
        ({"phase": "Running", "reason": "NodeLost"}, True, "preempted: NodeLost"),
        # The pod has exceeded its own limit.
        ({"phase": "Failed", "reason": "Evicted", "message": "disk"}, False, ""),
        ({"phase": "Failed", "reason": "OutOfcpu"}, False, ""),
    ],
)
def test_preemption_of(status, deleted, expected):
    metadata = {"deletionTimestamp": "2026-01-01T09:00:40Z"} if deleted else {}
    assert preemption_of({"metadata": metadata, "status": status}) == expected


@pytest.mark.parametrize("code", [1, 137, 143])
def test_the_exit_code_of_a_preempted_pod_does_not_matter(code):
    preempted = pod("Failed", main=terminated(code), reason="Terminated", message="")
    assert pod_state(preempted) == PodState("failed", code, "preempted: Terminated", preempted=True)
