"""The Kubernetes runner: lost responses of the API server, existing jobs, cancelled steps and the heartbeat."""

import json
import re
import shutil
import time
from dataclasses import replace
from http import HTTPStatus

import pytest
from kubernetes_api import KubernetesApi
from step_lines import brief_lines
from train.programs.jobs import make_job, wait_until, workers

from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.components.train.describe.manifests import job_objects
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.run.facts import JobAdopted, JobEvent, Tick
from kfp_distributed.components.train.run.runners.kubernetes import heartbeat as beats
from kfp_distributed.components.train.run.runners.kubernetes.heartbeat import Heartbeat
from kfp_distributed.components.train.run.runners.kubernetes.judge import failure_policy
from kfp_distributed.components.train.run.runners.kubernetes.logs import last_lines
from kfp_distributed.components.train.run.runners.kubernetes.runner import KubernetesRunner
from kfp_distributed.components.train.tell.log_format import log
from kfp_distributed.storage.errors import StorageError

pytestmark = pytest.mark.takes(10)

JOB, CODE = "tfjobs/a-job", "configmaps/a-job-code"
SECRET, CLAIM = "secrets/a-job-object-store", "persistentvolumeclaims/data"

FAILED, SUCCEEDED = (
    {"status": {"conditions": [{"type": condition, "status": "True", "message": "a message"}]}}
    for condition in ("Failed", "Succeeded")
)


@pytest.fixture
def api(monkeypatch):
    # The server runs no pods, so the wait for their last lines would always last its full time.
    monkeypatch.setattr(last_lines, "LAST_LINES_SECONDS", 0.1)
    with KubernetesApi() as server:
        yield server


def checked_runner(api, program=None, **distribution):
    """Return a runner that has checked a job with a Secret and a volume, and the job."""
    volumes = [{"name": "data", "path": "/data", "size": "1Gi"}]
    runner = KubernetesRunner(
        api.connect(), ClusterSettings("default", object_store={"AWS_SECRET_ACCESS_KEY": "a key"}), log
    )
    job = make_job((), workers(2, volumes=volumes, **distribution), program=program)
    runner.check(job)
    return runner, job


def start_job(api, **changes):
    runner, job = checked_runner(api, **changes)
    runner.start(job)
    return runner


def state(api):
    """Return all objects without the fields that the server generates. Owners are given by their keys."""
    keys = {content["metadata"]["uid"]: key for key, content in api.objects.items()}
    objects = json.loads(json.dumps(api.objects))
    for content in objects.values():
        metadata = content["metadata"]
        del metadata["uid"], metadata["resourceVersion"]
        metadata["ownerReferences"] = [keys[owner["uid"]] for owner in metadata.get("ownerReferences", ())]
    return objects


def owners(api):
    return {key: content["metadata"]["ownerReferences"] for key, content in state(api).items()}


CREATED = {JOB: [], CLAIM: [], CODE: [JOB], SECRET: [JOB]}
REQUESTS = [f"GET {CODE}", f"DELETE {SECRET}", *(f"POST {key}" for key in (CODE, SECRET, CLAIM, JOB))]


@pytest.mark.parametrize("fault", ["500", "cut"])
@pytest.mark.parametrize("request_", REQUESTS)
def test_a_lost_response_during_the_creation_of_a_job_changes_nothing(api, request_, fault):
    api.lose[request_] = fault
    runner = start_job(api)
    assert api.lose == {}
    assert owners(api) == CREATED
    with KubernetesApi() as reliable_api:
        start_job(reliable_api)
        assert state(api) == state(reliable_api)
    runner.stop()
    assert list(api.objects) == [CLAIM]


def owned_by(uid):
    return [{"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "name": "a-job", "uid": uid}]


@pytest.mark.parametrize("key", [CODE, SECRET])
def test_a_part_that_another_attempt_creates_at_the_same_time_is_adopted(api, key):
    def create_first(request):
        if request == f"POST {key}" and request not in api.requests:
            owner_references = owned_by(api.objects[JOB]["metadata"]["uid"])
            metadata = {"name": key.partition("/")[2], "ownerReferences": owner_references}
            api.put(key, {**part, "metadata": metadata})

    with KubernetesApi() as other_api:
        start_job(other_api)
        part = other_api.objects[key]
    runner, job = checked_runner(api)
    api.before = create_first
    runner.start(job)
    assert owners(api) == CREATED
    runner.stop()
    assert api.requests.count(f"POST {key}") == (2 if key == SECRET else 1)
    assert list(api.objects) == [CLAIM]


@pytest.mark.parametrize("moment", [f"POST {CODE}", f"POST {JOB}"], ids=["created first", "adopted job"])
def test_code_of_this_job_with_another_content_is_refused_and_its_keys_are_named(api, moment):
    """Whoever may create ConfigMaps could otherwise run code with the keys of the object store."""
    runner, job = checked_runner(api)
    if moment == f"POST {JOB}":
        start_job(api)

    def replace_code(*_):
        metadata = {"name": "a-job-code", "ownerReferences": owned_by(api.objects[JOB]["metadata"]["uid"])}
        description = job.description.to_json()
        api.put(
            CODE, {"metadata": metadata, "data": {"job.json": description}, "binaryData": {"library.zip": "RVZJTA=="}}
        )

    if moment == f"POST {JOB}":
        replace_code()
    else:
        api.before = lambda request: replace_code() if request == moment and CODE not in api.objects else None
    with pytest.raises(ClusterError, match=r"^configmaps default/a-job-code .*: library\.zip; ") as caught:
        runner.start(job)
    assert str(caught.value).endswith(": kubectl delete configmaps a-job-code -n default")
    runner.stop()
    assert list(api.objects) == [CLAIM]


def test_a_job_is_created_after_the_code_of_an_earlier_job_was_deleted(api):
    """Otherwise its pods could mount the ConfigMap of the earlier job."""
    start_job(api)
    api.collects_after = 3
    api.delete(JOB)
    assert CODE in api.objects
    code_existed = []
    api.before = lambda request: code_existed.append(CODE in api.objects) if request == f"POST {JOB}" else None
    start_job(api)
    assert code_existed == [False]
    assert owners(api) == CREATED


def test_code_of_a_deleted_owner_that_appears_during_the_creation_is_replaced(api):
    """Another attempt of this step created it for a job that was deleted."""
    runner, job = checked_runner(api)

    def create_first(request):
        if request == f"POST {CODE}" and request not in api.requests:
            api.put(CODE, {"metadata": {"name": "a-job-code", "ownerReferences": owned_by("deleted")}})
            api.before = lambda request: api.delete(CODE) if request == f"GET {CODE}" and CODE in api.objects else None

    api.before = create_first
    runner.start(job)
    assert owners(api) == CREATED


def test_code_without_an_owner_is_kept_and_named_before_the_job_is_created(api):
    api.put(CODE, {"metadata": {"name": "a-job-code"}, "data": {"key": "of another client"}})
    runner, job = checked_runner(api)
    command = "kubectl delete configmaps a-job-code -n default"
    with pytest.raises(ClusterError, match=f"^configmaps default/a-job-code .*{command}$"):
        runner.start(job)
    runner.stop()
    assert list(api.objects) == [CODE]
    assert f"POST {JOB}" not in api.requests


def test_the_step_does_not_change_or_delete_config_maps(api):
    runner = start_job(api, launcher_lost_timeout=60)
    next(fact for fact in runner.facts() if isinstance(fact, Tick))
    runner.stop()
    assert not [request for request in api.requests if re.match(r"(PATCH|DELETE) configmaps/", request)]


@pytest.mark.parametrize("status", [{}, SUCCEEDED])
def test_a_retried_step_adopts_its_job(api, status):
    start_job(api)
    api.put(JOB, {**api.objects[JOB], **status})
    before = state(api)
    runner = start_job(api)
    assert state(api) == before
    assert api.requests.count(f"POST {JOB}") == 1
    first = next(runner.facts())
    assert (type(first), first.text) == (JobAdopted, "adopted the existing TFJob default/a-job")


def test_a_quota_that_is_used_up_by_the_job_itself_does_not_end_it(api):
    """The API server checks quotas before names, also in a dry run."""
    start_job(api)
    api.full = "configmaps"
    del api.requests[:]
    runner = start_job(api)
    assert [request for request in api.requests if request.startswith("TRY")] == []
    assert owners(api) == CREATED
    runner.stop()


@pytest.fixture
def heartbeat(tmp_path):
    return tmp_path / "heartbeat"


def runner_with_heartbeat(api, heartbeat, **changes):
    runner, job = checked_runner(api, **changes)
    runner.check(replace(job, description=replace(job.description, heartbeat_uri=str(heartbeat))))
    return runner, job


def test_the_heartbeat_starts_before_the_job_and_ends_with_the_step(api, heartbeat, monkeypatch):
    monkeypatch.setattr(job_objects, "SHORTEST_LOST_SECONDS", 1.0)
    monkeypatch.setattr(beats, "HEARTBEAT_SECONDS", 0.1)
    heartbeat_existed = []
    api.before = lambda request: heartbeat_existed.append(heartbeat.exists()) if request == f"POST {JOB}" else None
    runner, job = runner_with_heartbeat(api, heartbeat, launcher_lost_timeout=8)
    runner.start(job)
    assert heartbeat_existed == [True]
    first = int(heartbeat.read_text())
    assert abs(first - time.time()) < 60
    assert wait_until(lambda: int(heartbeat.read_text()) > first)
    # The heartbeat does not depend on the API server.
    api.refuses = HTTPStatus.UNAUTHORIZED
    second = int(heartbeat.read_text())
    assert wait_until(lambda: int(heartbeat.read_text()) > second)
    api.refuses = None
    runner.stop()
    assert not heartbeat.exists()
    assert list(api.objects) == [CLAIM]


def test_without_launcher_lost_timeout_there_is_no_heartbeat(api, heartbeat):
    runner, job = runner_with_heartbeat(api, heartbeat, launcher_lost_timeout="unlimited")
    runner.start(job)
    assert not heartbeat.exists()
    runner.stop()


def test_a_heartbeat_that_cannot_be_written_fails_before_the_job_is_created(api, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    runner, job = runner_with_heartbeat(api, tmp_path / "file" / "heartbeat")
    with pytest.raises(StorageError):
        runner.start(job)
    runner.stop()
    assert list(api.objects) == []


def test_a_heartbeat_that_cannot_be_written_for_a_while_is_logged_once_and_retried(tmp_path):
    messages, folder = [], tmp_path / "folder"
    heartbeat = Heartbeat(str(folder / "heartbeat"), messages.append, log)
    heartbeat.begin()
    shutil.rmtree(folder)
    folder.write_text("a file with the name of the folder")
    assert [heartbeat.beat() for _ in range(2)] == [False, False]
    assert [text.partition(":")[0] for text in messages] == ["cannot write the heartbeat, retrying"]
    folder.unlink()
    assert heartbeat.beat()
    assert (folder / "heartbeat").exists()


def test_objects_that_cannot_be_deleted_are_named(api, capsys):
    runner = start_job(api)
    api.refuses = HTTPStatus.FORBIDDEN
    runner.stop()
    message = "cannot delete {}: Forbidden; to delete it: kubectl delete {} -n default"
    assert brief_lines(capsys.readouterr().out) == [
        message.format("/apis/kubeflow.org/v1/namespaces/default/tfjobs/a-job", "tfjobs a-job"),
        message.format("/api/v1/namespaces/default/secrets/a-job-object-store", "secrets a-job-object-store"),
    ]


def test_a_failed_job_of_the_previous_attempt_is_deleted_first(api):
    start_job(api)
    api.put(JOB, {**api.objects[JOB], **FAILED})
    failed, api.lingers = api.objects[JOB]["metadata"]["uid"], 0.2
    start_job(api)
    assert api.objects[JOB]["metadata"]["uid"] != failed
    assert owners(api) == CREATED


def test_a_job_with_another_specification_is_not_changed(api):
    start_job(api)
    before = state(api)
    runner, job = checked_runner(api, program={"command": ["another"]})
    command = "kubectl delete tfjobs a-job -n default"
    with pytest.raises(ClusterError, match=f"^TFJob default/a-job .*another specification.*: {command}$"):
        runner.start(job)
    runner.stop()
    assert state(api) == before


def test_a_job_with_another_specification_that_is_created_at_the_same_time_is_not_changed(api):
    other = {"metadata": {"name": "a-job", "annotations": {}}}

    def create_first(request):
        if request == f"POST {JOB}":
            api.put(JOB, other)

    runner, job = checked_runner(api)
    api.before = create_first
    with pytest.raises(ClusterError, match="with another specification"):
        runner.start(job)
    runner.stop()
    assert JOB in api.objects


KEPT = "kept TFJob default/a-job (keep_job); to delete it: kubectl delete tfjobs a-job -n default\n"
DELETED = "deleted TFJob default/a-job\n"


@pytest.mark.parametrize(
    ("keep_job", "ended", "remaining", "message"),
    [
        (False, False, [CLAIM], DELETED),
        (True, False, [CLAIM], DELETED),
        (False, True, [CLAIM], ""),
        (True, True, sorted([CLAIM, CODE, JOB]), KEPT),
    ],
)
def test_keep_job_only_keeps_a_finished_job(api, capsys, keep_job, ended, remaining, message):
    runner = start_job(api, keep_job=keep_job)
    if ended:
        api.put(JOB, {**api.objects[JOB], **SUCCEEDED})
        assert list(runner.facts())[-1].succeeded
    count = len(api.requests)
    runner.stop()
    assert (sorted(api.objects), brief_lines(capsys.readouterr().out)) == (remaining, message.splitlines())
    # The job is deleted first, because a cancel has time for one request.
    assert (keep_job and ended) or api.requests[count] == f"DELETE {JOB}"
    count = len(api.requests)
    runner.stop()
    assert api.requests[count:] == []


def test_a_job_that_a_sidecar_holds_succeeds_and_is_deleted_also_with_keep_job(api, capsys, monkeypatch):
    monkeypatch.setattr(last_lines, "LAST_LINES_SECONDS", 60.0)  # The end of the log is known here.
    runner = start_job(api, keep_job=True)
    labels = {"training.kubeflow.org/replica-type": "worker", "kfp-distributed/job": "a-job"}
    owner = {"kind": "TFJob", "uid": api.objects[JOB]["metadata"]["uid"]}
    trained, runs = {"terminated": {"exitCode": 0}}, {"running": {}}
    statuses = [{"name": "tensorflow", "state": trained}, {"name": "mesh", "state": runs}]
    pod = {
        "metadata": {"name": "a-job-worker-0", "labels": labels, "ownerReferences": [owner]},
        "spec": {"nodeName": "a", "restartPolicy": "Never"},
        "status": {"phase": "Running", "containerStatuses": statuses},
    }
    api.put("pods/a-job-worker-0", pod)
    end = list(runner.facts())[-1]
    assert (end.succeeded, end.reason) == (True, "")
    runner.stop()
    assert (sorted(api.objects), brief_lines(capsys.readouterr().out)) == ([CLAIM], DELETED.splitlines())
    read_logs = {request for request in api.requests if request.endswith("/log")}
    assert read_logs == {"GET a-job-worker-0/log"}


def test_no_deletion_is_logged_for_a_job_that_does_not_exist(api, capsys):
    runner = start_job(api)
    api.delete(JOB)
    runner.stop()
    assert (list(api.objects), capsys.readouterr().out) == ([CLAIM], "")


def test_a_runner_that_has_not_started_a_job_deletes_nothing(api):
    KubernetesRunner(api.connect(), ClusterSettings("default"), log).stop()
    assert api.requests == []
    checked_runner(api)[0].stop()
    assert [request for request in api.requests if request.startswith("DELETE")] == []


@pytest.mark.parametrize("lingers", [0, 2.4])
def test_a_list_from_before_the_job_was_recreated_does_not_end_it(api, monkeypatch, lingers):
    """The watch lists jobs between the deletion of the failed job and the creation of the next one.

    The deletion may take longer than a failure counts as recent.
    """
    monkeypatch.setattr(failure_policy, "RECENT_SECONDS", 2.0)
    runner = start_job(api)
    api.lingers = lingers
    lists = []

    def expire_watch(request):
        if request == f"POST {JOB}":
            before = api.requests.count("LIST tfjobs")
            api.expire("tfjobs")
            assert wait_until(lambda: api.requests.count("LIST tfjobs") > before)
            lists.append(before)

    api.before = expire_watch

    def fail():
        uid = api.objects[JOB]["metadata"]["uid"]
        labels = {"replica-type": "worker", "replica-index": "0"}
        metadata = {
            "name": "a-job-worker-0",
            "labels": {f"training.kubeflow.org/{key}": value for key, value in labels.items()},
            "ownerReferences": [{"kind": "TFJob", "uid": uid}],
        }
        api.put("pods/a-job-worker-0", {"metadata": metadata, "status": {"phase": "Failed"}})
        api.put(JOB, {**api.objects[JOB], **FAILED})

    facts = []
    for fact in runner.facts():
        if not facts:
            fail()
        facts.append(fact)
        if isinstance(fact, JobEvent) and fact.text.startswith("restart 1 of 3"):
            api.put(JOB, {**api.objects[JOB], **SUCCEEDED})
    runner.stop()
    assert (len(lists), facts[-1].succeeded, facts[-1].reason) == (1, True, "")
