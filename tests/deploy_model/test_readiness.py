"""Whether a deployment is ready, and why not, from whole objects."""

import pytest

from kfp_distributed.components.deploy_model.readiness import Readiness, address_of, judge

READY = {
    "url": "http://digits-team.example.com",
    "conditions": [{"type": "Ready", "status": "True"}],
    "modelStatus": {"transitionStatus": "UpToDate", "states": {"targetModelState": "Loaded"}},
}


def service(status=READY, mode="Standard"):
    annotations = {"serving.kserve.io/deploymentMode": mode} if mode else {}
    return {"metadata": {"annotations": annotations}, "status": status}


def pod(deployment="new", ready=True, labels=None, metadata=None, node="node-1", **status):
    conditions = [{"type": "Ready", "status": str(ready)}, *status.pop("conditions", ())]
    return {
        "metadata": {
            "name": "p",
            "labels": {"kfp-distributed/deployment": deployment, **(labels or {})},
            **(metadata or {}),
        },
        "spec": {"nodeName": node} if node else {},
        "status": {"conditions": conditions, **status},
    }


def server(**state):
    return {"containerStatuses": [{"name": "kserve-container", "restartCount": 0, "ready": False, **state}]}


def look(service_, *pods, was_ready=False, is_new=False):
    return judge(service_, pods, "new", was_ready, is_new)


def test_the_own_pod_must_be_ready():
    assert look(service(), pod()) == Readiness("ready")
    assert look(service()).state == "waiting"
    assert look(service(), pod("old")).state == "waiting"
    assert look(service(), pod(ready=False), pod("old")).state == "waiting"


def test_a_service_without_an_address_is_not_ready_yet():
    without_url = {key: value for key, value in READY.items() if key != "url"}
    assert look(service(without_url), pod()) == Readiness("waiting", "its status has no address yet")
    assert look(service({**without_url, "address": {"url": "http://digits-predictor.team"}}), pod()).state == "ready"


def test_in_standard_mode_the_old_pods_must_be_gone():
    assert look(service(), pod(), pod("old")).state == "waiting"
    assert look(service(), pod(), pod("old", metadata={"deletionTimestamp": "now"})).state == "ready"


def test_in_knative_the_own_revision_must_be_the_newest_ready_one():
    revisions = {"latestReadyRevision": "r-2", "latestCreatedRevision": "r-2"}
    knative = service({**READY, "components": {"predictor": revisions}}, mode=None)
    own = pod(labels={"serving.knative.dev/revision": "r-2"})
    assert look(knative, own, pod("old")).state == "ready"
    assert look(knative, was_ready=True).state == "ready"
    assert look(knative, pod(labels={"serving.knative.dev/revision": "r-1"})).state == "waiting"
    behind = service({**READY, "components": {"predictor": {**revisions, "latestCreatedRevision": "r-3"}}}, mode=None)
    assert look(behind, own).state == "waiting"


def test_a_service_that_is_not_ready():
    status = {**READY, "conditions": [{"type": "Ready", "status": "Unknown", "reason": "ReplicaSetUpdated"}]}
    assert look(service(status), pod()) == Readiness("waiting", "Ready is Unknown: ReplicaSetUpdated")
    assert look(service(status), pod(), is_new=True) == Readiness("waiting")
    loading = {**READY, "modelStatus": {"states": {"targetModelState": "Loading"}}}
    assert look(service(loading), pod()).state == "waiting"


ENDED = {"exitCode": 1, "reason": "Error", "message": "Traceback\n\nRuntimeError: no model\n"}


@pytest.mark.parametrize(
    ("status", "readiness"),
    [
        (
            server(state={"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}),
            Readiness(
                "waiting",
                "container kserve-container of pod p waits, its image cannot be pulled: ImagePullBackOff: not found",
            ),
        ),
        (
            server(state={"waiting": {"reason": "InvalidImageName"}}),
            Readiness(
                "failed", "container kserve-container of pod p waits, its image cannot be pulled: InvalidImageName"
            ),
        ),
        (
            server(state={"waiting": {"reason": "CreateContainerConfigError", "message": "no secret"}}),
            Readiness(
                "waiting",
                "container kserve-container of pod p waits, it cannot start: CreateContainerConfigError: no secret",
            ),
        ),
        (server(state={"waiting": {"reason": "PodInitializing"}}), Readiness("waiting")),
        (server(state={"running": {}}), Readiness("waiting")),
        (
            server(state={"terminated": ENDED}),
            Readiness(
                "waiting",
                "container kserve-container of pod p ended (exit code 1): Traceback | RuntimeError: no model",
            ),
        ),
        (
            server(
                state={"waiting": {"reason": "CrashLoopBackOff"}},
                lastState={"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
                restartCount=1,
            ),
            Readiness(
                "failed",
                "container kserve-container of pod p needs more memory than its limit (OOMKilled): set memory",
                ("p", "kserve-container"),
            ),
        ),
        (
            server(state={"running": {}}, lastState={"terminated": ENDED}, restartCount=1),
            Readiness(
                "waiting",
                "container kserve-container of pod p ended (exit code 1): Traceback | RuntimeError: no model",
            ),
        ),
    ],
)
def test_reasons_of_a_container(status, readiness):
    assert look(service({}), pod(ready=False, **status)) == readiness


def test_a_pod_without_a_node():
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    expected = Readiness("waiting", "no node has room for pod p: Unschedulable: 0/1 nodes")
    assert look(service({}), pod(ready=False, node="", conditions=[scheduled])) == expected


def test_a_spec_that_kserve_refuses():
    failure = {"reason": "RuntimeNotRecognized", "message": "no such runtime"}
    status = {"modelStatus": {"transitionStatus": "InvalidSpec", "lastFailureInfo": failure}}
    reason = "KServe refuses the predictor (RuntimeNotRecognized: no such runtime)"
    assert look(service(status)) == Readiness("failed", reason)
    assert look(service(status), is_new=True) == Readiness("waiting")


def test_a_quota_is_in_the_condition_of_the_predictor():
    condition = {"type": "PredictorReady", "status": "False", "reason": "FailedCreate", "message": "exceeded quota: q"}
    expected = Readiness("waiting", "PredictorReady is False: FailedCreate: exceeded quota: q")
    assert look(service({"conditions": [condition]})) == expected


def test_address():
    status = {"url": "http://digits-team.example.com", "address": {"url": "http://digits-predictor.team"}}
    assert address_of({"status": status}) == "http://digits-predictor.team"
    assert address_of({"status": {"url": "http://digits-team.example.com"}}) == "http://digits-team.example.com"
    assert address_of({}) == ""
