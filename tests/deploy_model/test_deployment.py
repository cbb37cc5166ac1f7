"""Deployments against an API server: creation, update, undo, conflicts, adoption and broken watches."""

import os
import signal

import pytest
from digits_deployments import KEY, changes, copies, deploy_without_end, pod_suffix, served

from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.components.deploy_model.deployment import DeploymentFailed
from kfp_distributed.components.deploy_model.service_checks import PERMISSIONS, check_kserve

pytestmark = pytest.mark.takes(7)

ADDRESS = "http://digits-predictor.default.svc.cluster.local"


def test_a_first_deployment_creates_the_service(api, deploy):
    url, _ = deploy(3)
    assert url == ADDRESS
    assert changes(api) == [f"POST {KEY}"]
    assert served(api) == 3


def test_a_second_version_replaces_the_first(api, deploy, bucket):
    deploy(3)
    assert copies(bucket) == [3]
    deploy(4, task="another")
    assert changes(api) == [f"POST {KEY}", f"PUT {KEY}"]
    assert served(api) == 4
    assert copies(bucket) == [4]


def test_a_retried_step_adopts_its_deployment(api, deploy):
    deploy(3)
    _, lines = deploy(3)
    assert changes(api) == [f"POST {KEY}"]
    assert lines == ["adopted the deployment of s3://models/digits/3, which an earlier attempt has begun"]


def test_a_lost_response_of_the_creation_deploys_once(api, deploy):
    api.lose[f"POST {KEY}"] = "cut"
    assert deploy(3)[0] == ADDRESS
    assert [request for request in changes(api) if request.startswith("PUT")] == []


def test_the_leftover_readiness_of_the_old_version_does_not_count(api, deploy):
    deploy(3)
    api.outcomes[4] = "pending"
    api.set_status = lambda name, outcome: None  # The status stays Ready, as before KServe has seen the change.
    with pytest.raises(DeploymentFailed, match="not ready after"):
        deploy(4, seconds=2)


def test_a_version_that_cannot_be_fetched_is_undone(api, deploy, bucket):
    deploy(3)
    before = api.objects[KEY]
    api.outcomes[4] = "initializer"
    with pytest.raises(DeploymentFailed) as error:
        deploy(4, task="another")
    suffix = pod_suffix(4, "another")
    assert str(error.value) == (
        "s3://models/digits/4 is not ready: container storage-initializer of pod "
        f"digits-predictor-{suffix} could not fetch the model (exit code 1): RuntimeError: Unable to locate "
        "credentials. KServe reads the keys of the object store from a Secret that the ServiceAccount of the server "
        "lists. Pass a service_account that lists such a Secret, which has AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, and the annotation serving.kserve.io/s3-endpoint. InferenceService default/digits has "
        "s3://models/digits/3 again. It is ready."
    )
    assert api.objects[KEY]["spec"] == before["spec"]
    assert api.objects[KEY]["metadata"]["annotations"] == before["metadata"]["annotations"]
    assert copies(bucket) == [3]


def test_a_first_version_that_fails_is_deleted(api, deploy, bucket):
    api.outcomes[3] = "crash"
    api.logs[f"digits-predictor-{pod_suffix(3)}"] = "loading\nSegmentation fault\n"
    with pytest.raises(DeploymentFailed) as error:
        deploy(3)
    assert "ended (exit code 3). Its last lines:\nloading\nSegmentation fault" in str(error.value)
    assert str(error.value).endswith("InferenceService default/digits was deleted, because it had no version before.")
    assert KEY not in api.objects
    assert copies(bucket) == []


def test_a_failed_deployment_after_one_that_was_killed_restores_the_last_good_version(api, deploy):
    deploy(3)
    api.outcomes |= dict.fromkeys((4, 5), "pending")
    stored = api.objects[KEY]
    deploy_without_end(api, 4)
    assert served(api) == 4
    with pytest.raises(DeploymentFailed, match=r"has s3://models/digits/3 again\. It is ready"):
        deploy(5, task="another", seconds=1)
    assert api.objects[KEY]["spec"] == stored["spec"]


def test_a_version_whose_status_is_that_of_the_version_before_is_not_restored(api, deploy):
    deploy(3)
    api.outcomes |= {4: "pending", 5: "initializer"}
    api.set_status = lambda name, outcome: None  # KServe has not seen version 4 yet, so the status stays Ready.
    deploy_without_end(api, 4)
    with pytest.raises(DeploymentFailed, match=r"has s3://models/digits/3 again\. It is ready"):
        deploy(5, task="another")
    assert served(api) == 3


def test_a_retried_step_undoes_what_its_killed_attempt_has_deployed(api, deploy):
    deploy(3)
    api.outcomes[4] = "pending"
    deploy_without_end(api, 4)
    with pytest.raises(DeploymentFailed, match=r"has s3://models/digits/3 again\. It is ready"):
        deploy(4, task="killed", seconds=1)
    assert served(api) == 3


def test_the_deployment_of_another_step_is_not_undone(api, deploy):
    deploy(3)
    api.outcomes[4] = "pending"
    deploy_without_end(api, 4)
    with pytest.raises(DeploymentFailed, match="is left as it is, because another step has deployed this version"):
        deploy(4, task="another", seconds=1)
    assert served(api) == 4


def test_what_somebody_else_has_deployed_meanwhile_stays(api, deploy):
    deploy(3)
    api.outcomes[4] = "pending"
    api.before = lambda request: deploy_without_end(api, 5) if served(api) == 4 else None
    with pytest.raises(DeploymentFailed) as error:
        deploy(4, task="another")
    assert "somebody else has deployed another version (run run-1)" in str(error.value)
    assert "is left as it is, because somebody has changed it meanwhile" in str(error.value)
    assert served(api) == 5


def test_a_retried_step_does_not_replace_what_others_have_deployed_since(api, deploy, bucket):
    deploy(3)
    deploy_without_end(api, 4)
    deploy(5, task="newer")
    before = len(changes(api))
    message = (
        r"an earlier attempt of this step has deployed to InferenceService default/digits, which run run-1 has changed "
        r"to s3://models/digits/5 since\. It is left as it is\. To replace it by s3://models/digits/4, start a new run"
    )
    with pytest.raises(ValueError, match=message):
        deploy(4, task="killed")
    deploy(3, task="newest")
    with pytest.raises(ValueError, match=r"to s3://models/digits/3 since"):
        deploy(4, task="killed")
    api.outcomes[5] = "initializer"
    with pytest.raises(DeploymentFailed, match=r"has s3://models/digits/3 again\. It is ready"):
        deploy(5, task="failing")
    with pytest.raises(ValueError, match=r"to s3://models/digits/3 since"):
        deploy(4, task="killed")
    assert (len(changes(api)), served(api)) == (before + 3, 3)
    deploy(4, task="a new run")
    assert served(api) == 4


def test_an_edit_by_hand_is_not_undone(api, deploy):
    deploy(3)
    api.outcomes[4] = "pending"

    def edit(request):
        stored = api.objects[KEY]
        if served(api) == 3 or "maxReplicas" in stored["spec"]["predictor"]:
            return
        api.put(KEY, {**stored, "spec": {"predictor": {**stored["spec"]["predictor"], "maxReplicas": 3}}})

    api.before = edit  # At the first request after the version was deployed.
    with pytest.raises(DeploymentFailed, match="is left as it is, because somebody has changed it meanwhile"):
        deploy(4, task="another", seconds=2)
    assert served(api) == 4


def test_a_conflict_is_planned_again(api, deploy):
    deploy(3)
    seen = []

    def change_first(request):
        if request == f"PUT {KEY}" and not seen:
            seen.append(request)
            stored = api.objects[KEY]
            labels = {**stored["metadata"]["labels"], "team": "vision"}
            api.put(KEY, {**stored, "metadata": {**stored["metadata"], "labels": labels}})

    api.before = change_first
    assert deploy(4, task="another")[0] == ADDRESS
    assert api.objects[KEY]["metadata"]["labels"]["team"] == "vision"
    assert served(api) == 4


def test_a_service_of_another_tool_is_refused(api, deploy):
    api.objects[KEY] = {
        "metadata": {"name": "digits", "namespace": "default", "uid": "u", "resourceVersion": "1", "generation": 1},
        "spec": {"predictor": {"sklearn": {}}},
    }
    with pytest.raises(ValueError, match=r"kubectl label inferenceservice digits -n default --overwrite app\.kube"):
        deploy(3)
    assert changes(api) == []


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"canary_percent": 20}, "canary_percent=20 needs KServe's mode Knative .* in the mode Standard"),
        ({"min_replicas": 0}, "min_replicas=0 needs KServe's mode Knative"),
    ],
)
def test_what_needs_knative_is_refused_in_standard_mode(api, deploy, parameters, message):
    with pytest.raises(ValueError, match=message):
        deploy(3, **parameters)
    assert changes(api) == []


def test_the_first_deployment_has_no_canary(api, deploy):
    api.mode = None
    with pytest.raises(ValueError, match="there is no InferenceService digits yet"):
        deploy(3, canary_percent=20)
    assert changes(api) == []


def test_a_format_without_runtime_is_named(api, deploy):
    api.react = lambda service: api.set_status("digits", "invalid")
    with pytest.raises(DeploymentFailed, match=r"KServe refuses the predictor \(NoSupportingRuntime: No runtime found"):
        deploy(3)
    assert KEY not in api.objects


def test_broken_and_expired_watches_are_resumed(api, deploy):
    api.outcomes[3] = "pending"
    api.breaks = 3

    def become_ready(request):
        if request != "WATCH inferenceservices" or api.breaks or not api.outcomes:
            return
        api.outcomes.clear()
        api.expire("inferenceservices", lambda: api.react(api.objects[KEY]))
        api.expire("pods")

    api.before = become_ready
    assert deploy(3)[0] == ADDRESS


def test_a_cancelled_step_undoes_its_deployment(api, deploy):
    deploy(3)
    api.outcomes[4] = "pending"
    cancelled = []

    def cancel(request):
        if served(api) == 4 and not cancelled:
            cancelled.append(request)
            os.kill(os.getpid(), signal.SIGTERM)

    api.before = cancel
    with pytest.raises(SystemExit):
        deploy(4, task="another")
    assert cancelled
    assert served(api) == 3


def test_an_api_server_that_is_away_is_awaited(api, deploy):
    api.broken, broken = {"WATCH pods", f"GET {KEY}"}, []

    def note(request):
        broken.extend(api.broken & {request})
        if len(broken) == 4:
            api.broken.clear()

    api.before = note
    assert deploy(3)[0] == ADDRESS
    assert len(broken) == 4


def test_the_cluster_is_checked_before(api):
    check_kserve(api.connect())
    assert [request for request in api.requests if request.startswith("MAY")] == [
        f"MAY {verb} {resource.partition('/')[0]}" for verb, _, resource in PERMISSIONS
    ]
    api.denied = {"update inferenceservices"}
    with pytest.raises(ValueError, match=r"update inferenceservices\.serving\.kserve\.io; run .* --deploy"):
        check_kserve(api.connect())
    api.served = {}
    with pytest.raises(ValueError, match=r"does not serve InferenceService: install KServe 0\.11"):
        check_kserve(api.connect())


def test_a_refused_creation_changes_nothing(api, deploy):
    api.full = KEY
    with pytest.raises((ValueError, ClusterError), match="exceeded quota"):
        deploy(3)
    assert changes(api) == []


def test_a_version_that_has_all_requests_becomes_no_canary(api, deploy, bucket):
    api.mode = None
    deploy(3)
    deploy(4, task="another")
    before = len(changes(api))
    with pytest.raises(
        ValueError, match="canary_percent=20 is not allowed, because s3://models/digits/4 has all requests already"
    ):
        deploy(4, task="third", canary_percent=20)
    assert len(changes(api)) == before
