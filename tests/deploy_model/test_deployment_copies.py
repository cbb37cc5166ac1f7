"""The copies that deployments make, keep and delete."""

import pytest
from digits_deployments import KEY, TASK, changes, copies, deploy_without_end, pod_suffix, served, version

from kfp_distributed.components.deploy_model.deployment import DeploymentFailed
from kfp_distributed.components.deploy_model.deployment_request import DeploymentRequest
from kfp_distributed.components.deploy_model.inference_service import deployment_id
from kfp_distributed.components.deploy_model.served_copies import ServedCopies, copy_uri
from kfp_distributed.storage.opener import open_store


def test_a_retried_step_finishes_what_its_killed_attempt_has_begun(api, deploy, bucket):
    deploy(3)
    deploy_without_end(api, 4)
    assert copies(bucket) == [3, 4]
    deploy(4, task="killed")
    assert (served(api), copies(bucket)) == (4, [4])


def test_objects_that_a_killed_attempt_has_copied_are_not_copied_again(api, deploy, bucket):
    copied = ServedCopies(open_store(str(bucket)), version(3), "digits")
    uri = copy_uri(version(3), "digits", deployment_id(None, DeploymentRequest("digits"), version(3), TASK))
    assert copied.copy(uri) == 2
    (graph,) = bucket.glob(".served/*/3/saved_model.pb")
    written = graph.stat().st_mtime_ns
    graph.with_name("variables").joinpath("variables.index").write_bytes(b"")
    _, lines = deploy(3)
    assert graph.stat().st_mtime_ns == written
    assert lines[0] == f"the object store has copied 1 objects of s3://models/digits/3 to {uri}"


def test_a_copy_that_lacks_objects_is_completed_when_it_is_deployed_again(api, deploy, bucket):
    deploy(3)
    for file in bucket.glob(".served/*/3/saved_model.pb"):
        file.unlink()
    deploy(3, task="another")
    assert changes(api) == [f"POST {KEY}"]
    assert copies(bucket) == [3]


def test_a_canary_keeps_the_copies_until_it_is_promoted(api, deploy, bucket):
    api.mode = None
    deploy(3)
    deploy(4, task="canary", canary_percent=20)
    deploy(5, task="another canary", canary_percent=20)
    assert copies(bucket) == [3, 4, 5]
    deploy(5, task="promotion")
    assert (served(api), copies(bucket)) == (5, [5])


def test_an_undo_does_not_restore_a_version_without_copy(api, deploy, bucket):
    deploy(3)
    deploy(4, task="another")
    assert copies(bucket) == [4]
    api.set_status("digits", "pending")  # As after a node has failed.
    api.outcomes[5] = "initializer"
    with pytest.raises(DeploymentFailed, match=r"has s3://models/digits/4 again\. It is ready"):
        deploy(5, task="third")
    assert copies(bucket) == [4]


def test_the_copy_that_another_step_would_restore_is_kept(api, deploy, bucket):
    deploy(3)
    api.outcomes[4] = "pending"

    def deploy_next(request):
        if served(api) == 4:
            api.set_status("digits", "ready")
            deploy_without_end(api, 5)

    api.before = deploy_next
    with pytest.raises(DeploymentFailed, match="somebody else has deployed another version"):
        deploy(4, task="another")
    assert copies(bucket) == [3, 4, 5]


def test_a_copy_that_may_still_be_loaded_is_kept(api, deploy, bucket):
    deploy(3)
    api.outcomes |= {3: "pending", 4: "initializer"}
    with pytest.raises(DeploymentFailed, match=r"has s3://models/digits/3 again\. It is not ready"):
        deploy(4, task="another", undo_seconds=1)
    assert copies(bucket) == [3, 4]


def test_the_copy_of_another_service_is_not_deleted(api, deploy, bucket):
    deploy(3)
    foreign = "s3://models/.served/other-0123456789abcdef-0123456789abcdef/"
    folder = bucket / foreign.removeprefix("s3://models/") / "3"
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"graph")
    api.objects[KEY]["spec"]["predictor"]["model"]["storageUri"] = foreign
    deploy(4, task="another")
    assert copies(bucket) == [3, 3, 4]


def test_the_copy_is_deleted_while_a_finalizer_keeps_the_service(api, deploy, bucket):
    api.outcomes[3] = "initializer"
    api.delete = lambda key: api.put(
        key, {**api.objects[key], "metadata": {**api.objects[key]["metadata"], "deletionTimestamp": "now"}}
    )
    with pytest.raises(DeploymentFailed, match="was deleted, because it had no version before"):
        deploy(3)
    assert KEY in api.objects
    assert copies(bucket) == []


def test_a_retried_step_does_not_restore_a_version_whose_copy_it_has_deleted(api, deploy, bucket):
    deploy(3)
    deploy(4, task="another")
    assert copies(bucket) == [4]
    api.objects[f"pods/digits-predictor-{pod_suffix(4, 'another')}"]["status"] = {}
    api.set_status("digits", "pending")  # As after a node has failed.
    with pytest.raises(DeploymentFailed, match="left as it is, because the copy of s3://models/digits/3 was deleted"):
        deploy(4, task="another", seconds=1)
    assert (served(api), copies(bucket)) == (4, [4])
