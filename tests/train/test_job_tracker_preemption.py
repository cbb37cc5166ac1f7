"""Preemptions, as the job_tracker reports them: no failures of the program, with a limit of their own."""

from dataclasses import replace

import pytest
from train.programs.jobs import make_job, workers
from train.test_job_tracker import RUNNING, job_of, pod_of, summarize
from train.test_pods import condition, terminated

from kfp_distributed.components.train.run.facts import JobEvent, ReplicaChanged, clock
from kfp_distributed.components.train.run.runners.kubernetes.judge import failure_policy
from kfp_distributed.components.train.run.runners.kubernetes.judge.job_tracker import JobTracker
from kfp_distributed.trainers.runtime.job_description import PEER_LOST

PREEMPTED = "preempted: EvictionByEvictionAPI"


def tracker_of(**keys):
    """Return a job_tracker of two running workers, of which restart_limit permits no restart."""
    job_tracker = JobTracker(make_job(["unused"], workers(2, **{"restart_limit": 0, **keys})), "TFJob")
    list(job_tracker.update_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    return job_tracker


def preempted(index, uid="", created=0, deleted_at=11, status="True", **state):
    """Return a pod that the API server evicts."""
    evicted = pod_of(index, uid, created, deleted_at, **(state or RUNNING))
    disruption = {"type": "DisruptionTarget", "status": status, "reason": "EvictionByEvictionAPI"}
    evicted["status"]["conditions"] = [*evicted["status"].get("conditions", ()), disruption]
    return evicted


TERMINATED = {"phase": "Failed", "main": terminated(143)}


def test_preemptions_do_not_count_for_restart_limit():
    job_tracker = tracker_of()
    list(job_tracker.update_pod(preempted(1, **TERMINATED)))
    for number in range(1, 5):
        list(job_tracker.update_pod(pod_of(1, f"next-{number}", number, **RUNNING)))
        list(job_tracker.update_pod(preempted(1, f"next-{number}", number, **TERMINATED)))
    facts = summarize(job_tracker.update_pod(pod_of(1, "last", 5, **RUNNING)))
    assert facts[0] == ("worker-1", "failed", 143, PREEMPTED, 4)
    assert facts[-1] == ("worker-1", "running", None, "", 5)
    assert job_tracker.end is None
    assert job_tracker.policy.restarts.restarts == {}


def test_a_preempted_pod_is_announced_when_it_restarts():
    job_tracker = tracker_of()
    assert summarize(job_tracker.update_pod(preempted(1, **TERMINATED))) == []
    facts = list(job_tracker.update_pod(pod_of(1, "second", 1, **RUNNING)))
    assert summarize(facts) == [
        ("worker-1", "failed", 143, PREEMPTED, 0),
        "preemption 1: worker-1",
        ("worker-1", "running", None, "", 1),
    ]
    assert [fact.level for fact in facts if isinstance(fact, JobEvent)] == ["WARNING"]


def test_the_condition_is_kept_when_the_pod_disappears():
    job_tracker = tracker_of()
    list(job_tracker.update_pod(preempted(1)))
    assert summarize(job_tracker.update_pods([pod_of(0, **RUNNING)])) == []
    assert summarize(job_tracker.advance_time(clock() + 4)) == [("worker-1", "failed", None, PREEMPTED, 0)]
    assert job_tracker.end is None


def test_a_pod_that_was_not_deleted_after_all_is_not_preempted():
    job_tracker = tracker_of()
    list(job_tracker.update_pod(preempted(1, deleted_at=None)))
    list(job_tracker.update_pod(preempted(1, deleted_at=None, status="False")))
    list(job_tracker.update_pod(pod_of(1, phase="Failed", main=terminated(137))))
    assert job_tracker.end == (False, "Restart limit reached (restart_limit=0).")


def test_a_job_that_its_operator_fails_for_a_preemption_restarts():
    job_tracker = tracker_of(preemption_limit=2)
    list(job_tracker.update_pod(preempted(1)))
    # The peer has lost the replica that is being evicted.
    assert summarize(job_tracker.update_pod(pod_of(0, phase="Failed", main=terminated(PEER_LOST)))) == [
        ("worker-0", "failed", PEER_LOST, "", 0)
    ]
    assert summarize(job_tracker.update_job(job_of(condition("Failed"), at=20))) == [
        ("worker-1", "failed", None, PREEMPTED, 0)
    ]
    assert job_tracker.can_restart
    assert summarize([job_tracker.restart_event(), *job_tracker.restart()]) == [
        "preemption 1 of 2: the whole job (worker-1 was preempted)",
        ("worker-0", "waiting", None, "", 1),
        ("worker-1", "waiting", None, "", 1),
    ]
    # The next failure is one of the program.
    list(job_tracker.update_pod(pod_of(0, "new", 1, phase="Failed", main=terminated(137))))
    assert job_tracker.end == (False, "Restart limit reached (restart_limit=0).")
    assert not job_tracker.can_restart


@pytest.mark.parametrize("code", [PEER_LOST, 205])
def test_a_peer_may_fail_before_the_kubelet_reports_the_preemption(code):
    job_tracker = tracker_of()
    list(job_tracker.update_pod(pod_of(0, phase="Failed", main=terminated(code))))
    assert job_tracker.end == (False, "Restart limit reached (restart_limit=0).")
    assert not job_tracker.can_restart
    list(job_tracker.update_pod(preempted(1, deleted_at=None, **TERMINATED)))
    assert job_tracker.can_restart
    assert job_tracker.restart_event().text == "preemption 1: the whole job (worker-1 was preempted)"


def test_a_failure_of_a_replica_that_started_after_the_preemption_does_not_follow_from_it():
    job_tracker = tracker_of(restart_limit=3)
    list(job_tracker.update_pod(preempted(1, deleted_at=None, **TERMINATED)))
    list(job_tracker.update_pod(pod_of(1, "second", 1, **RUNNING)))
    list(job_tracker.update_pod(pod_of(1, "second", 1, phase="Failed", main=terminated(3))))
    list(job_tracker.update_job(job_of(condition("Failed"), at=20)))
    assert not job_tracker.can_restart


def test_an_exception_before_a_preemption_is_the_cause():
    job_tracker = tracker_of()
    list(job_tracker.update_pod(pod_of(0, phase="Failed", main=terminated(3))))
    (failure,) = job_tracker.policy.recent()
    job_tracker.policy.add(replace(failure, time=failure.time - 10), begun=0)
    list(job_tracker.update_pod(preempted(1)))
    list(job_tracker.update_job(job_of(condition("Failed"), at=20)))
    assert not job_tracker.can_restart


def test_preemption_limit_ends_the_job():
    job_tracker = tracker_of(preemption_limit=0)
    list(job_tracker.update_pod(preempted(1, deleted_at=None, **TERMINATED)))
    assert job_tracker.end == (False, "Preemption limit reached (preemption_limit=0).")
    assert not job_tracker.can_restart


def test_failures_count_from_0_after_a_newer_checkpoint():
    job_tracker, ends = tracker_of(restart_limit=1), []
    for number, checkpoint in enumerate(("00000001", "00000002", "00000002")):
        job_tracker.policy.checkpoint = checkpoint
        list(job_tracker.update_pod(pod_of(1, f"{number}", number + 1, phase="Failed", main=terminated(137))))
        ends.append(job_tracker.end)
    assert ends == [None, None, (False, "Restart limit reached (restart_limit=1).")]


def test_a_successor_of_the_same_second_is_accepted():
    job_tracker = tracker_of(restart_limit=1)
    list(job_tracker.update_pods([pod_of(0, **RUNNING), pod_of(1, phase="Failed", main=terminated(137))]))
    list(job_tracker.update_job(job_of(condition("Failed"), at=20)))
    list(job_tracker.restart())
    assert summarize(job_tracker.update_pod(pod_of(1, **RUNNING))) == []
    assert summarize(job_tracker.update_pod(pod_of(1, "second", **RUNNING))) == [("worker-1", "running", None, "", 1)]


def test_a_preemption_is_over_when_its_pod_has_ended_without_a_failure():
    """An evicted worker may save its results and exit with 0. A later failure of another replica is one of its own."""
    job_tracker = tracker_of()
    list(job_tracker.update_pod(preempted(1, deleted_at=None, phase="Succeeded", main=terminated(0))))
    now = clock() + 3600
    failure = ReplicaChanged(now, "worker-0", "failed", exit_code=137)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failure_policy, "clock", lambda: now)
        assert job_tracker.policy.add(failure, begun=0) == "Restart limit reached (restart_limit=0)."


def test_a_preempted_worker_of_an_elastic_job_does_not_excuse_later_failures():
    elastic = {"distribution_type": "PyTorch", "number_of_workers": 2, "min_workers": 1, "max_workers": 2}
    job_tracker = JobTracker(make_job(["unused"], {**elastic, "restart_limit": 0}), "PyTorchJob")
    list(job_tracker.update_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    list(job_tracker.update_pod(preempted(1)))
    list(job_tracker.update_pods([pod_of(0, **RUNNING)]))
    facts = summarize(job_tracker.advance_time(clock() + 4))
    assert facts == [("worker-1", "stopped", None, PREEMPTED, 0)]
    now = clock() + 3600
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failure_policy, "clock", lambda: now)
        assert job_tracker.policy.cause(ReplicaChanged(now, "worker-0", "failed", exit_code=137)) == "program"
