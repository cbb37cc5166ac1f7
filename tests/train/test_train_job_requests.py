"""TrainJobs with their TrainingRuntime, created and deleted against a server that models the API server."""

from dataclasses import replace

import pytest
from kubernetes_api import KubernetesApi
from train.programs.jobs import make_job, workers

from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.describe.manifests.job_objects import plan_objects
from kfp_distributed.components.train.run.facts import JobEnded
from kfp_distributed.components.train.run.runners.kubernetes.create.train_job_requests import await_train_job_gone
from kfp_distributed.components.train.run.runners.kubernetes.logs import last_lines
from kfp_distributed.components.train.run.runners.kubernetes.runner import KubernetesRunner

pytestmark = pytest.mark.takes(3)

JOB = make_job((), workers(2))
JOB = replace(JOB, description=replace(JOB.description, heartbeat_uri=""))
FAILED = {"status": {"conditions": [{"type": "Failed", "status": "True", "message": "FailedJobs"}]}}
CREATION = ["POST trainingruntimes/a-job", "POST trainjobs/a-job", "PATCH trainingruntimes/a-job"]


@pytest.fixture
def api(monkeypatch):
    # The server runs no pods, so the wait for their last lines would always last its full time.
    monkeypatch.setattr(last_lines, "LAST_LINES_SECONDS", 0.1)
    with KubernetesApi() as server:
        server.served = {"trainer.kubeflow.org/v1alpha1": ["trainjobs", "trainingruntimes"]}
        server.train_job_fields = ["runtimePatches"]
        yield server


@pytest.fixture
def runner(api):
    runners = []

    def create():
        runners.append(KubernetesRunner(api.connect(), ClusterSettings("default"), lambda *line: None))
        runners[-1].check(JOB)
        return runners[-1]

    yield create
    for created in runners:
        created.stop()


def changes_of(api):
    """Return the requests that change TrainJobs and TrainingRuntimes."""
    return [request for request in api.requests if request.startswith(("POST train", "PATCH train", "DELETE train"))]


def owners_of(api, key):
    return [owner["uid"] for owner in api.objects[key]["metadata"]["ownerReferences"]]


def test_the_runtime_exists_before_its_train_job_and_is_deleted_with_it(api, runner):
    step = runner()
    step.start(JOB)
    assert changes_of(api) == CREATION
    uid = api.objects["trainjobs/a-job"]["metadata"]["uid"]
    assert owners_of(api, "trainingruntimes/a-job") == owners_of(api, "configmaps/a-job-code") == [uid]
    step.stop()
    assert api.objects == {}
    # A cancel has time for one request.
    assert changes_of(api)[len(CREATION)] == "DELETE trainjobs/a-job"


def test_the_webhook_learns_of_the_runtime_with_a_delay(api, runner):
    step = runner()
    api.learns_after = 3
    step.start(JOB)
    assert changes_of(api) == [CREATION[0], *[CREATION[1]] * 4, CREATION[2]]


def test_the_runtime_of_an_earlier_attempt_is_replaced(api, runner):
    """The step was killed after it had created the runtime, and nothing owns it."""
    api.put("trainingruntimes/a-job", {"metadata": {"name": "a-job"}, "spec": {"of": "an earlier version"}})
    runner().start(JOB)
    assert changes_of(api) == [CREATION[0], "DELETE trainingruntimes/a-job", *CREATION]
    assert api.objects["trainingruntimes/a-job"]["spec"].keys() == {"template"}


def test_a_train_job_that_is_refused_leaves_no_runtime(api, runner):
    step = runner()
    api.full = "trainjobs"
    with pytest.raises(ClusterError, match="exceeded quota"):
        step.start(JOB)
    assert "trainingruntimes/a-job" in api.objects
    step.stop()
    assert api.objects == {}


def test_a_retried_step_owns_the_runtime_by_the_job_that_it_adopts(api, runner):
    """The earlier attempt was killed before it could do so, and somebody has deleted the runtime in the other case."""
    for request in (CREATION[2:], ["PATCH trainingruntimes/a-job", CREATION[0], CREATION[2]]):
        first = runner()
        first.start(JOB)
        api.objects["trainingruntimes/a-job"]["metadata"]["ownerReferences"] = []
        if len(request) > 1:
            api.delete("trainingruntimes/a-job")
        del api.requests[:]
        second = runner()
        second.start(JOB)
        assert changes_of(api) == request
        assert owners_of(api, "trainingruntimes/a-job") == [api.objects["trainjobs/a-job"]["metadata"]["uid"]]
        second.stop()


def test_a_retried_step_owns_a_job_whose_runtime_is_deleted(api, runner):
    """Kubernetes deletes both with the pod of the killed attempt, and the webhook denies changes of the job."""
    runner().start(JOB)
    api.delete("trainingruntimes/a-job")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "step", "uid": "1234"}
    step = KubernetesRunner(api.connect(), ClusterSettings("default", owner=owner), lambda *line: None)
    step.check(JOB)
    step.start(JOB)
    assert owners_of(api, "trainjobs/a-job") == ["1234"]
    assert owners_of(api, "trainingruntimes/a-job") == [api.objects["trainjobs/a-job"]["metadata"]["uid"]]
    step.stop()


def test_a_failed_train_job_is_replaced_when_all_of_its_objects_are_gone(api, runner):
    """A deletion in the foreground would start it over, and Kubeflow Trainer would take an old JobSet for a new one."""
    runner().start(JOB)
    job = api.put("trainjobs/a-job", {**api.objects["trainjobs/a-job"], **FAILED})
    owned = {"ownerReferences": [{"uid": job["metadata"]["uid"], "kind": "TrainJob"}]}
    for key in ("jobsets/a-job", "jobs/a-job-worker-0", "configmaps/a-job-runtime-snapshot"):
        api.put(key, {"metadata": {"name": key.partition("/")[2], **owned}})
    api.collects_after = 2
    del api.requests[:]
    runner().start(JOB)
    assert api.policies["trainjobs/a-job"] == "Background"
    begin = api.requests.index("POST trainingruntimes/a-job")
    reads = api.requests[api.requests.index("DELETE trainjobs/a-job") : begin]
    for key in ("jobsets/a-job", "jobs/a-job-worker-0", "configmaps/a-job-runtime-snapshot"):
        assert f"GET {key}" in reads
    assert "jobsets/a-job" not in api.objects
    assert api.objects["trainjobs/a-job"]["metadata"]["uid"] != job["metadata"]["uid"]


def test_an_object_of_an_earlier_job_that_remains_is_named(api):
    api.put("jobsets/a-job", {"metadata": {"name": "a-job"}})
    objects = plan_objects(JOB, ClusterSettings("default", operator="trainer"))
    with pytest.raises(ClusterError, match=r"jobsets default/a-job of an earlier TrainJob .* kubectl delete jobsets"):
        await_train_job_gone(api.connect(), objects, 0.3)


def test_a_train_job_that_fails_by_itself_and_is_kept_remains_with_its_runtime(api, runner):
    kept = make_job((), workers(2, keep_job=True))
    step = KubernetesRunner(api.connect(), ClusterSettings("default"), lambda *line: None)
    step.check(kept)
    step.start(kept)
    api.put("trainjobs/a-job", {**api.objects["trainjobs/a-job"], **FAILED})
    assert [fact.reason for fact in step.facts() if isinstance(fact, JobEnded)] == ["TrainJob failed: FailedJobs."]
    step.stop()
    assert {"trainjobs/a-job", "trainingruntimes/a-job"} <= api.objects.keys()
