"""Following a job on an API server with broken watches, refused requests or unreadable logs."""

import time
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus

import pytest
from kubernetes_api import KubernetesApi
from train.programs.jobs import make_job, workers

from kfp_distributed.components.train.describe.manifests import job_kind
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.describe.manifests.job_objects import plan_objects
from kfp_distributed.components.train.run.facts import JobEnded, JobEvent, LogLine, ReplicaChanged, Tick
from kfp_distributed.components.train.run.runners import newest_checkpoint
from kfp_distributed.components.train.run.runners.kubernetes.follow import Follower
from kfp_distributed.components.train.run.runners.kubernetes.logs import last_lines
from kfp_distributed.components.train.run.runners.kubernetes.logs.pod_log import StampedLine
from kfp_distributed.components.train.run.runners.kubernetes.watch import pod_events
from kfp_distributed.components.train.run.runners.kubernetes.watch.watcher import (
    Listed,
    Printed,
    RequestFailed,
    Watcher,
)
from kfp_distributed.trainers.runtime.job_description import STORE_UNREACHED

pytestmark = pytest.mark.takes(7)

JOB = "tfjobs/a-job"
SUCCEEDED = {"status": {"conditions": [{"type": "Succeeded", "status": "True"}]}}


@pytest.fixture
def api(monkeypatch):
    # The server runs no pods, so the wait for their last lines would always last its full time.
    monkeypatch.setattr(last_lines, "LAST_LINES_SECONDS", 0.1)
    with KubernetesApi() as server:
        yield server


@pytest.fixture
def watcher(api):
    watcher = Watcher(api.connect(), longest_delay=0.1)
    yield watcher
    watcher.close()


def follow(api, watcher, checkpoint_uri="", **distribution):
    """Return a follower of a new job."""
    job = make_job((), workers(2, **distribution))
    job = replace(job, description=replace(job.description, checkpoint_uri=checkpoint_uri))
    objects = plan_objects(job, ClusterSettings("default", image="image"))
    follower = Follower(api.connect(), watcher, objects)
    follower.attach(api.connect().call("POST", objects.jobs_path, objects.manifest))
    follower.begin()
    return follower


def pod(index, status):
    labels = {"training.kubeflow.org/replica-type": "worker", "training.kubeflow.org/replica-index": str(index)}
    metadata = {"labels": {**labels, "kfp-distributed/job": "a-job"}, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": {"name": f"a-job-worker-{index}", **metadata}, "spec": {"nodeName": "a"}, "status": status}


def test_a_follower_only_reads_from_the_cluster(api, watcher):
    follower = follow(api, watcher)
    before = len(api.requests)
    for fact in follower.facts():
        if isinstance(fact, Tick):
            api.put(JOB, {**api.objects[JOB], **SUCCEEDED})
    assert fact.succeeded
    assert {request.split()[0] for request in api.requests[before:]} <= {"GET", "LIST", "WATCH"}


@pytest.mark.parametrize("answer", [HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN])
def test_expired_credentials_end_the_job_after_launcher_lost_timeout(api, watcher, answer):
    facts = []
    for fact in follow(api, watcher, launcher_lost_timeout=1).facts():
        facts.append(fact)
        if isinstance(fact, Tick) and not api.refuses:
            api.refuses = answer
            for kind in ("tfjobs", "pods", "events"):
                api.expire(kind)
    assert fact.reason.startswith("The API server refuses")
    assert fact.reason.endswith(f": {answer.phrase}.")
    warnings = [fact.text for fact in facts if isinstance(fact, JobEvent) and "cannot watch" in fact.text]
    assert sorted(warnings) == [
        f"cannot watch {source}, retrying: {answer.phrase}" for source in ("events of a-job", "job", "pods")
    ]


def warning(name, reason, uid=""):
    metadata = {"name": f"{name}.{reason}", "creationTimestamp": "2026-01-01T00:00:00Z"}
    about = {"name": name, "uid": uid}
    return {"metadata": metadata, "type": "Warning", "involvedObject": about, "reason": reason, "message": "text"}


def put_event(api, event):
    api.put(f"events/{event['metadata']['name']}", event)


def test_only_the_warnings_of_the_job_and_of_pods_that_are_not_ready_are_requested(api, watcher, monkeypatch):
    monkeypatch.setattr(pod_events, "FIRST_SECONDS", 0.0)
    follower = follow(api, watcher)
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    for index, status in enumerate(({"phase": "Pending"}, ready)):
        uid = api.put(f"pods/a-job-worker-{index}", pod(index, status))["metadata"]["uid"]
        put_event(api, warning(f"a-job-worker-{index}", "FailedMount", uid))
    put_event(api, warning("a-job-worker-0", "FailedMount-of-an-earlier-pod", "earlier"))
    for name in ("other-job", "other-job-worker-0", "a-job2"):
        put_event(api, warning(name, "FailedMount", name))
    put_event(api, {**warning("a-job", "Started"), "type": "Normal"})
    texts = []
    for fact in follower.facts():
        if isinstance(fact, Tick) and "WATCH events" in api.requests and not texts:
            put_event(api, warning("a-job", "FailedCreatePod"))
            texts.append("begun")
        if isinstance(fact, JobEvent):
            texts.append(fact.text)
        if len(texts) == 3:
            api.put(JOB, {**api.objects[JOB], **SUCCEEDED})
    assert set(texts) == {"begun", "a-job: FailedCreatePod: text", "a-job-worker-0: FailedMount: text"}
    assert {key for key in api.sent if key.startswith("events/")} == {
        "events/a-job.FailedCreatePod",
        "events/a-job-worker-0.FailedMount",
    }


def test_the_events_of_an_mpi_job_include_those_of_the_job_of_its_launcher():
    job = make_job((), workers(2))
    objects = plan_objects(job, ClusterSettings("default", image="image"))
    assert objects.event_names == ("a-job",)
    assert replace(objects, kind=job_kind("MPI", "v2beta1")).event_names == ("a-job", "a-job-launcher")


def test_pods_are_asked_again_after_a_refusal(api, watcher):
    queries = iter([{"fieldSelector": "involvedObject.color=red"}, {"fieldSelector": "involvedObject.uid=a"}])
    put_event(api, warning("a-job-worker-0", "FailedMount", "a"))
    watcher.ask("events of pods", "/api/v1/namespaces/default/events", lambda: next(queries, None))
    assert watcher.take(120) == RequestFailed(
        "cannot list events of pods, retrying: field label not supported: involvedObject.color"
    )
    assert watcher.take(120) == Listed("events of pods", [api.objects["events/a-job-worker-0.FailedMount"]])


@pytest.mark.parametrize("page", ["html", "json"])
@pytest.mark.parametrize("kind", ["tfjobs", "pods"])
def test_a_watch_continues_after_the_page_of_a_proxy(api, watcher, kind, page):
    api.lose[f"LIST {kind}"] = page
    steps, deadline = [], time.monotonic() + 120
    for fact in follow(api, watcher).facts():
        assert time.monotonic() < deadline, f"the watch of {kind} has ended"
        if isinstance(fact, Tick) and f"WATCH {kind}" in api.requests and not steps:
            api.put("pods/a-job-worker-0", pod(0, {"phase": "Failed", "reason": "Evicted"}))
            steps.append("pod")
        if isinstance(fact, ReplicaChanged):
            steps.append(fact.state)
            api.put(JOB, {**api.objects[JOB], **SUCCEEDED})
    assert (steps, fact.succeeded) == (["pod", "failed"], True)


def test_an_exception_in_a_thread_is_raised_in_the_step(api, watcher):
    def fail():
        raise RuntimeError("a bug")

    watcher.repeat(fail, 1)
    with pytest.raises(RuntimeError, match=r"^a bug$"):
        list(follow(api, watcher).facts())


@pytest.mark.parametrize("is_recreated", [False, True])
def test_a_job_that_is_deleted_while_its_watch_is_interrupted_has_failed(api, watcher, is_recreated):
    def delete():
        job = api.delete(JOB)
        if is_recreated:
            api.put(JOB, {"metadata": {"name": "a-job"}, "spec": job["spec"]})

    for fact in follow(api, watcher).facts():
        if isinstance(fact, Tick) and JOB in api.objects and api.requests.count("WATCH tfjobs") == 1:
            api.expire("tfjobs", delete)
    assert (fact.succeeded, fact.reason) == (False, "The TFJob was deleted before it ended.")


def test_an_api_server_that_does_not_answer_about_the_job_ends_no_training(api, watcher):
    """The job is missing in a list, which may be older than the job, and cannot be read."""
    follower = follow(api, watcher)
    job, lines = api.objects[JOB], []
    api.broken = {f"GET {JOB}"}
    api.expire("tfjobs", lambda: api.delete(JOB))
    deadline = time.monotonic() + 120
    for fact in follower.facts():
        assert time.monotonic() < deadline
        if isinstance(fact, LogLine):
            lines.append(fact.line)
            api.put(JOB, {**job, **SUCCEEDED})
            api.broken = set()
        elif isinstance(fact, Tick) and api.requests.count(f"GET {JOB}") > 2 and not lines:
            watcher.news.put(Printed("worker-0", [StampedLine("step")]))
    assert (set(lines), fact.succeeded) == ({"step"}, True)


def test_a_failed_job_ends_while_another_replica_prints(api, watcher):
    follower = follow(api, watcher, restart_limit=0)
    for index, status in enumerate(({"phase": "Running"}, {"phase": "Failed", "reason": "Evicted"})):
        api.put(f"pods/a-job-worker-{index}", pod(index, status))
    facts, deadline = [], time.monotonic() + 120
    for fact in follower.facts():
        facts.append(fact)
        assert time.monotonic() < deadline, "waits for a replica that prints forever"
        if isinstance(fact, ReplicaChanged | LogLine):
            watcher.news.put(Printed("worker-0", [StampedLine("step")]))
    failure = next(
        index for index, fact in enumerate(facts) if isinstance(fact, ReplicaChanged) and fact.state == "failed"
    )
    # Timeouts are checked at each Tick. The wait for the last lines counts for none of them.
    assert not [fact for fact in facts[failure:] if isinstance(fact, Tick)]
    assert facts[-1].reason == "Restart limit reached (restart_limit=0)."


def test_a_job_with_an_unreadable_log_ends_while_another_replica_prints(api, watcher, monkeypatch):
    monkeypatch.setattr(last_lines, "LAST_LINES_SECONDS", 1.0)
    api.broken = {"GET a-job-worker-1/log"}
    follower = follow(api, watcher, restart_limit=0)
    killed = {"name": "training", "state": {"terminated": {"exitCode": 137}}}
    api.put("pods/a-job-worker-0", pod(0, {"phase": "Running"}))
    api.put("pods/a-job-worker-1", pod(1, {"phase": "Failed", "containerStatuses": [killed]}))
    watcher.repeat(lambda: watcher.news.put(Printed("worker-0", [StampedLine("step")])) is None, 0.05)
    facts, deadline = [], time.monotonic() + 120
    for fact in follower.facts():
        facts.append(fact)
        assert time.monotonic() < deadline, "waits for a log that cannot be read"
    assert facts[-1].reason == "Restart limit reached (restart_limit=0)."
    assert any(isinstance(fact, LogLine) for fact in facts)
    warnings = [fact.text for fact in facts if isinstance(fact, JobEvent) and fact.level == "WARNING"]
    assert warnings == ["the last lines of worker-1 may be missing: its log could not be read until the job ended"]


def test_a_restart_of_the_whole_job_is_returned_to_the_caller(api, watcher):
    follower = follow(api, watcher)
    api.put("pods/a-job-worker-0", pod(0, {"phase": "Failed", "reason": "Evicted"}))
    api.put(JOB, {**api.objects[JOB], "status": {"conditions": [{"type": "Failed", "status": "True"}]}})
    restarts = []

    def attempt():
        restarts.append((yield from follower.facts()))

    facts = list(attempt())
    assert not [fact for fact in facts if isinstance(fact, JobEnded)]
    assert [event.text for event in restarts] == ["restart 1 of 3: the whole job (worker-0 failed)"]
    assert [(fact.replica, fact.state, fact.restart) for fact in follower.restarted()] == [
        ("worker-0", "waiting", 1),
        ("worker-1", "waiting", 1),
    ]


@pytest.mark.parametrize(
    ("sample", "restarts"),
    [
        ("sample memory=5MiB store=3s", ["restart: the whole job (worker-0: the object store did not answer)"]),
        ("sample memory=5MiB", []),
    ],
)
def test_samples_tell_whether_a_replica_without_an_answer_ends_in_an_outage(api, watcher, sample, restarts):
    """A step that adopts the job reads the sample from the log of an earlier start."""
    follower = follow(api, watcher, restart_limit=0)
    unreached = {"name": "tensorflow", "state": {"terminated": {"exitCode": STORE_UNREACHED}}}
    watcher.news.put(Printed("worker-1", [StampedLine(sample, time.time() - 3600)]))
    returned = []

    def attempt():
        returned.append((yield from follower.facts()))

    for fact in attempt():
        if isinstance(fact, LogLine):
            api.put("pods/a-job-worker-0", pod(0, {"phase": "Failed", "containerStatuses": [unreached]}))
            api.put(JOB, {**api.objects[JOB], "status": {"conditions": [{"type": "Failed", "status": "True"}]}})
    assert [event.text for event in filter(None, returned)] == restarts
    assert not restarts or not isinstance(fact, JobEnded)
    # News of the pod and of the job may arrive in either order.
    assert restarts or fact.reason in ("Restart limit reached (restart_limit=0).", "TFJob failed.")


def test_the_logs_of_ended_replicas_are_read_before_a_restart_deletes_them(api, watcher, monkeypatch):
    """The API server was away when they ended."""
    monkeypatch.setattr(last_lines, "LAST_LINES_SECONDS", 5.0)
    follower = follow(api, watcher)
    unread = [[False]] * 20 + [[]]

    def read_unread(_):
        if len(unread) == 2:
            watcher.news.put(Printed("worker-0", [StampedLine("the last line")]))
        return unread.pop(0) if len(unread) > 1 else unread[0]

    monkeypatch.setattr(Watcher, "unread", property(read_unread))
    api.put("pods/a-job-worker-0", pod(0, {"phase": "Failed", "reason": "Evicted"}))
    api.put(JOB, {**api.objects[JOB], "status": {"conditions": [{"type": "Failed", "status": "True"}]}})
    assert "the last line" in [fact.line for fact in follower.facts() if isinstance(fact, LogLine)]


def test_failures_are_counted_since_the_newest_checkpoint(api, watcher, tmp_path, monkeypatch):
    monkeypatch.setattr(newest_checkpoint, "VALID_SECONDS", -1.0)
    follower = follow(api, watcher, str(tmp_path), restart_limit=1)
    killed = {
        "phase": "Failed",
        "containerStatuses": [{"name": "tensorflow", "state": {"terminated": {"exitCode": 137}}}],
    }
    failures = 0
    for fact in follower.facts():
        is_failure = isinstance(fact, ReplicaChanged) and fact.state == "failed"
        if is_failure or (isinstance(fact, Tick) and not failures):
            failures += 1
            (tmp_path / f"0000000{min(failures, 2)}.json").write_text("{}")
            with suppress(KeyError):
                api.delete("pods/a-job-worker-0")
            api.put("pods/a-job-worker-0", pod(0, killed))
    # Three failures, of which the first has an older checkpoint.
    assert (failures, fact.reason) == (4, "Restart limit reached (restart_limit=1).")
