"""A step that Argo retries while the job of its previous attempt is being deleted."""

import re

import pytest
from kubernetes_api import KubernetesApi
from step_lines import brief_lines
from train.programs.jobs import make_job, workers

from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.run.runners.kubernetes.create import previous_attempt
from kfp_distributed.components.train.run.runners.kubernetes.runner import KubernetesRunner
from kfp_distributed.components.train.tell.log_format import log

JOB, POD = "tfjobs/a-job", "pods/a-job-worker-0"
STEP_POD = {"apiVersion": "v1", "kind": "Pod", "name": "executor", "uid": "uid-of-the-executor"}


@pytest.fixture
def api():
    with KubernetesApi() as server:
        yield server


def start(api):
    runner = KubernetesRunner(api.connect(), ClusterSettings("default", owner=STEP_POD), log)
    job = make_job((), workers(1))
    runner.check(job)
    runner.start(job)
    return runner


def terminating_pod():
    metadata = {"labels": {"kfp-distributed/job": "a-job"}, "deletionTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": {"name": "a-job-worker-0", **metadata}, "spec": {}, "status": {"phase": "Running"}}


def test_a_job_is_created_after_the_pods_of_the_previous_attempt_have_ended(api, capsys):
    """They may store a checkpoint, from which the new job resumes."""
    api.put(POD, terminating_pod())

    def end_pod(request):
        if request == "WATCH pods":
            api.delete(POD)
            api.requests.append("pod ended")

    api.before = end_pod
    start(api).stop()
    assert [request for request in api.requests if request in ("pod ended", f"POST {JOB}")] == [
        "pod ended",
        f"POST {JOB}",
    ]
    assert re.fullmatch("waiting for pods .*: a-job-worker-0", brief_lines(capsys.readouterr().out)[0])


def test_pods_that_do_not_end_are_named_with_the_command_that_deletes_them(api, monkeypatch):
    monkeypatch.setattr(previous_attempt, "pods_gone_seconds", lambda grace_seconds: 1.0)
    api.put(POD, terminating_pod())
    with pytest.raises(ClusterError) as error:
        start(api)
    assert "the deleted job a-job have not ended within 1 s: a-job-worker-0" in str(error.value)
    assert str(error.value).endswith(": kubectl delete pods a-job-worker-0 --force -n default")
    assert JOB not in api.objects


def test_a_job_that_is_deleted_while_the_next_attempt_adopts_it_is_recreated(api):
    """The garbage collector deletes the job together with its owner, the pod of the previous attempt."""
    start(api)
    first = api.objects[JOB]["metadata"]["uid"]

    def collect(request):
        if request == f"PATCH {JOB}" and api.objects[JOB]["metadata"]["uid"] == first:
            api.delete(JOB)

    api.before = collect
    start(api)
    assert api.objects[JOB]["metadata"]["uid"] != first
    assert api.requests.count(f"POST {JOB}") == 2
