"""The times of facts that are read long after they have happened, and of those that are read at once."""

from datetime import UTC, datetime
from functools import reduce

import pytest
from kubernetes_api import KubernetesApi
from train.programs.jobs import make_job, workers
from train.test_follow import JOB, follow, pod

from kfp_distributed.components.train.run.conclusions import status as job_status
from kfp_distributed.components.train.run.conclusions.history import add_change, add_sample
from kfp_distributed.components.train.run.conclusions.time_budgets import expired_budget
from kfp_distributed.components.train.run.facts import (
    JobAdopted,
    JobEnded,
    JobEvent,
    LogLine,
    ReplicaChanged,
    ReplicaSample,
    Span,
    Tick,
    clock,
    moment,
)
from kfp_distributed.components.train.run.runners.kubernetes.cluster_records.record_times import (
    happened_before,
    seconds_of,
)
from kfp_distributed.components.train.run.runners.kubernetes.logs import last_lines
from kfp_distributed.components.train.run.runners.kubernetes.watch.watcher import Watcher
from kfp_distributed.components.train.tell.report import job_page

CREATED = 1_767_258_000.0  # 2026-01-01T09:00:00Z
NOW = CREATED + 3600


def at(seconds):
    """Return the time so many seconds after the creation of the job, as objects have it."""
    return datetime.fromtimestamp(CREATED + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture
def api(monkeypatch):
    monkeypatch.setattr(last_lines, "LAST_LINES_SECONDS", 0.1)
    with KubernetesApi() as server:
        yield server


def status_of(*facts, **distribution):
    return reduce(job_status.advance, facts, job_status.begin(make_job((), workers(2, **distribution)), NOW))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (at(7), CREATED + 7),
        ("2026-01-01T09:00:07.250000Z", CREATED + 7.25),
        ("2026-01-01T11:00:07+02:00", CREATED + 7),
        ("", None),
        (None, None),
    ],
)
def test_seconds_of(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    ("recorded", "happened"), [(None, None), (NOW - 2.5, NOW - 2.5), (NOW - 1.9, None), (NOW, None), (NOW + 60, None)]
)
def test_a_record_counts_if_it_is_older_than_its_resolution(recorded, happened):
    assert happened_before(recorded, NOW) == happened


def test_a_job_that_ended_long_ago_has_the_times_of_its_records(api):
    """Read as `watch` and an adopting step do."""
    with_watcher = Watcher(api.connect())
    follower = follow(api, with_watcher, restart_limit=0)
    end = {"exitCode": 1, "startedAt": at(3), "finishedAt": at(7)}
    failed = {"phase": "Failed", "containerStatuses": [{"name": "tensorflow", "state": {"terminated": end}}]}
    running = {
        "phase": "Running",
        "containerStatuses": [{"name": "tensorflow", "state": {"running": {"startedAt": at(4)}}}],
    }
    api.put("pods/a-job-worker-0", pod(0, running))
    event = {"reason": "FailedCreatePod", "message": "too many", "lastTimestamp": at(8)}
    api.put("events/a", {"metadata": {"name": "a"}, "type": "Warning", "involvedObject": {"name": "a-job"}, **event})
    facts, failure = [], {"type": "Failed", "status": "True", "lastTransitionTime": at(9)}
    for fact in follower.facts():
        facts.append(fact)
        if isinstance(fact, ReplicaChanged) and fact.state == "running":
            api.put("pods/a-job-worker-1", pod(1, failed))
        if isinstance(fact, Tick) and any(isinstance(fact, JobEvent) for fact in facts):
            api.put(JOB, {**api.objects[JOB], "status": {"conditions": [failure]}})
    with_watcher.close()
    assert {
        type(fact).__name__ + getattr(fact, "state", ""): moment(fact) - CREATED for fact in facts[:-1]
    }.items() >= {
        ("ReplicaChangedrunning", 4.0),
        ("ReplicaChangedfailed", 7.0),
        ("JobEvent", 8.0),
    }
    # Time budgets go by the clock of this process.
    assert all(abs(fact.time - clock()) < 60 for fact in facts)


def test_a_pod_that_was_deleted_while_it_ran_failed_at_its_deletion(api):
    watcher = Watcher(api.connect())
    follower = follow(api, watcher, restart_limit=0)
    running = {
        "phase": "Running",
        "containerStatuses": [{"name": "tensorflow", "state": {"running": {"startedAt": at(4)}}}],
    }
    worker = pod(0, running)
    api.put("pods/a-job-worker-0", worker)
    times = {}
    for fact in follower.facts():
        if isinstance(fact, ReplicaChanged):
            times[fact.state] = moment(fact) - CREATED
            if fact.state == "running":
                ending = {"deletionTimestamp": at(90), "deletionGracePeriodSeconds": 30}
                api.put("pods/a-job-worker-0", {**worker, "metadata": {**worker["metadata"], **ending}})
                api.delete("pods/a-job-worker-0")
    watcher.close()
    assert (times["running"], times["failed"]) == (4.0, 60.0)


def test_the_durations_of_an_adopted_job_are_those_of_its_records():
    facts = [
        JobAdopted(NOW, CREATED, "adopted the existing TFJob"),
        ReplicaChanged(NOW + 0.1, "worker-0", "running", happened=CREATED + 3),
        ReplicaChanged(NOW + 0.1, "worker-1", "running"),
        LogLine(NOW + 0.2, "worker-0", "ValueError: bad shape", happened=CREATED + 6.5),
        ReplicaSample(NOW + 0.2, "worker-0", 100.0, happened=CREATED + 5),
        ReplicaChanged(NOW + 0.5, "worker-0", "failed", 1, happened=CREATED + 7),
        JobEnded(NOW + 0.6, False, "TFJob failed.", happened=CREATED + 9),
    ]
    status = status_of(*facts)
    cause = job_status.failure_cause(status)
    assert cause.splitlines()[0] == "2026-01-01T09:00:07Z ERROR worker-0 ValueError: bad shape"
    assert "worker-0 failed with exit code 1, 7 s after the start of the job" in cause
    assert status.spans["worker-0"] == (
        Span("waiting", CREATED, CREATED + 3),
        Span("running", CREATED + 3, CREATED + 7),
        Span("failed", CREATED + 7, None, "exit code 1"),
    )
    page = job_page(status, {}, cause=cause)
    assert page.outcome == "failed after 9 s"
    assert page.events.rows == (
        ("3 s", "worker-0: running"),
        ("7 s", "worker-0: failed (exit code 1)"),
        ("9 s", "the job failed: TFJob failed."),
        ("1 h", "adopted the existing TFJob"),
        ("1 h", "worker-1: running"),
    )
    assert (status.started, status.replicas["worker-0"].heard) == (NOW, NOW + 0.2)


def test_time_budgets_of_an_adopted_job_go_by_the_clock_of_this_process():
    running = [ReplicaChanged(NOW, f"worker-{index}", "running", happened=CREATED + 3) for index in range(2)]
    line = LogLine(NOW, "worker-0", "step", happened=CREATED + 4)
    status = status_of(JobAdopted(NOW, CREATED), *running, line)
    for name in ("total_timeout", "silence_timeout", "progress_timeout", "running_timeout"):
        budgets = make_job((), workers(2, **{name: 60})).specification
        assert expired_budget(status, budgets, NOW + 59) == ""
        assert expired_budget(status, budgets, NOW + 60).startswith(f"{name} ran out after ")


def test_no_duration_is_negative_if_the_clock_of_a_node_is_behind():
    early = [
        ReplicaChanged(NOW + 1, "worker-0", "running", happened=CREATED),
        ReplicaChanged(NOW + 2, "worker-0", "failed", 1, happened=CREATED - 60),
        JobEnded(NOW + 3, False, "TFJob failed.", happened=CREATED - 50),
    ]
    status = status_of(*early)
    assert status.spans["worker-0"] == (
        Span("running", NOW, NOW),
        Span("failed", NOW, None, "exit code 1"),
    )
    assert "worker-0 failed with exit code 1, 0 s after the start of the job" in job_status.failure_cause(status)
    assert job_page(status, {}).outcome == "failed after 0 s"


def test_a_sample_of_a_clock_that_was_set_back_is_left_out():
    samples = ()
    for happened in (10.0, 11.0, 5.0, 12.0):
        samples = add_sample(samples, ReplicaSample(NOW, "worker-0", happened=happened))
    assert [sample.happened for sample in samples] == [10.0, 11.0, 12.0]


def test_the_span_of_a_state_begins_when_it_happened():
    spans = add_change({}, ReplicaChanged(NOW, "worker-0", "running", happened=CREATED))
    assert spans == {"worker-0": (Span("running", CREATED),)}
