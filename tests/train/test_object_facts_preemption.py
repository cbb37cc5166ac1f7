"""Preemptions, as the object_facts reports them: no failures of the program, with a limit of their own."""

from dataclasses import replace

import pytest
from train.programs.jobs import make_job, workers
from train.test_object_facts import RUNNING, job_of, pod_of, summarize
from train.test_pods import condition, terminated

from kfp_distributed.components.train.run.facts import JobEvent, ReplicaChanged, clock
from kfp_distributed.components.train.run.runners.kubernetes.judge import failure_limits
from kfp_distributed.components.train.run.runners.kubernetes.judge.object_facts import ObjectFacts
from kfp_distributed.trainers.runtime.job_description import PEER_LOST

PREEMPTED = "preempted: EvictionByEvictionAPI"


def tracker_of(**keys):
    """Return a object_facts of two running workers, of which restart_limit permits no restart."""
    object_facts = ObjectFacts(make_job(["unused"], workers(2, **{"restart_limit": 0, **keys})), "TFJob")
    list(object_facts.update_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    return object_facts


def preempted(index, uid="", created=0, deleted_at=11, status="True", **state):
    """Return a pod that the API server evicts."""
    evicted = pod_of(index, uid, created, deleted_at, **(state or RUNNING))
    disruption = {"type": "DisruptionTarget", "status": status, "reason": "EvictionByEvictionAPI"}
    evicted["status"]["conditions"] = [*evicted["status"].get("conditions", ()), disruption]
    return evicted


TERMINATED = {"phase": "Failed", "main": terminated(143)}


def test_preemptions_do_not_count_for_restart_limit():
    object_facts = tracker_of()
    list(object_facts.update_pod(preempted(1, **TERMINATED)))
    for number in range(1, 5):
        list(object_facts.update_pod(pod_of(1, f"next-{number}", number, **RUNNING)))
        list(object_facts.update_pod(preempted(1, f"next-{number}", number, **TERMINATED)))
    facts = summarize(object_facts.update_pod(pod_of(1, "last", 5, **RUNNING)))
    assert facts[0] == ("worker-1", "failed", 143, PREEMPTED, 4)
    assert facts[-1] == ("worker-1", "running", None, "", 5)
    assert object_facts.end is None
    assert object_facts.judge.restarts.restarts == {}


def test_a_preempted_pod_is_announced_when_it_restarts():
    object_facts = tracker_of()
    assert summarize(object_facts.update_pod(preempted(1, **TERMINATED))) == []
    facts = list(object_facts.update_pod(pod_of(1, "second", 1, **RUNNING)))
    assert summarize(facts) == [
        ("worker-1", "failed", 143, PREEMPTED, 0),
        "preemption 1: worker-1",
        ("worker-1", "running", None, "", 1),
    ]
    assert [fact.level for fact in facts if isinstance(fact, JobEvent)] == ["WARNING"]


def test_the_condition_is_kept_when_the_pod_disappears():
    object_facts = tracker_of()
    list(object_facts.update_pod(preempted(1)))
    assert summarize(object_facts.update_pods([pod_of(0, **RUNNING)])) == []
    assert summarize(object_facts.advance_time(clock() + 4)) == [("worker-1", "failed", None, PREEMPTED, 0)]
    assert object_facts.end is None


def test_a_pod_that_was_not_deleted_after_all_is_not_preempted():
    object_facts = tracker_of()
    list(object_facts.update_pod(preempted(1, deleted_at=None)))
    list(object_facts.update_pod(preempted(1, deleted_at=None, status="False")))
    list(object_facts.update_pod(pod_of(1, phase="Failed", main=terminated(137))))
    assert object_facts.end == (False, "Restart limit reached (restart_limit=0).")


def test_a_job_that_its_operator_fails_for_a_preemption_restarts():
    object_facts = tracker_of(preemption_limit=2)
    list(object_facts.update_pod(preempted(1)))
    # The peer has lost the replica that is being evicted.
    assert summarize(object_facts.update_pod(pod_of(0, phase="Failed", main=terminated(PEER_LOST)))) == [
        ("worker-0", "failed", PEER_LOST, "", 0)
    ]
    assert summarize(object_facts.update_job(job_of(condition("Failed"), at=20))) == [
        ("worker-1", "failed", None, PREEMPTED, 0)
    ]
    assert object_facts.can_restart
    assert summarize([object_facts.restart_event(), *object_facts.restart()]) == [
        "preemption 1 of 2: the whole job (worker-1 was preempted)",
        ("worker-0", "waiting", None, "", 1),
        ("worker-1", "waiting", None, "", 1),
    ]
    # The next failure is one of the program.
    list(object_facts.update_pod(pod_of(0, "new", 1, phase="Failed", main=terminated(137))))
    assert object_facts.end == (False, "Restart limit reached (restart_limit=0).")
    assert not object_facts.can_restart


@pytest.mark.parametrize("code", [PEER_LOST, 205])
def test_a_peer_may_fail_before_the_kubelet_reports_the_preemption(code):
    object_facts = tracker_of()
    list(object_facts.update_pod(pod_of(0, phase="Failed", main=terminated(code))))
    assert object_facts.end == (False, "Restart limit reached (restart_limit=0).")
    assert not object_facts.can_restart
    list(object_facts.update_pod(preempted(1, deleted_at=None, **TERMINATED)))
    assert object_facts.can_restart
    assert object_facts.restart_event().text == "preemption 1: the whole job (worker-1 was preempted)"


def test_a_failure_of_a_replica_that_started_after_the_preemption_does_not_follow_from_it():
    object_facts = tracker_of(restart_limit=3)
    list(object_facts.update_pod(preempted(1, deleted_at=None, **TERMINATED)))
    list(object_facts.update_pod(pod_of(1, "second", 1, **RUNNING)))
    list(object_facts.update_pod(pod_of(1, "second", 1, phase="Failed", main=terminated(3))))
    list(object_facts.update_job(job_of(condition("Failed"), at=20)))
    assert not object_facts.can_restart


def test_an_exception_before_a_preemption_is_the_cause():
    object_facts = tracker_of()
    list(object_facts.update_pod(pod_of(0, phase="Failed", main=terminated(3))))
    (failure,) = object_facts.judge.recent()
    object_facts.judge.add(replace(failure, time=failure.time - 10), begun=0)
    list(object_facts.update_pod(preempted(1)))
    list(object_facts.update_job(job_of(condition("Failed"), at=20)))
    assert not object_facts.can_restart


def test_preemption_limit_ends_the_job():
    object_facts = tracker_of(preemption_limit=0)
    list(object_facts.update_pod(preempted(1, deleted_at=None, **TERMINATED)))
    assert object_facts.end == (False, "Preemption limit reached (preemption_limit=0).")
    assert not object_facts.can_restart


def test_failures_count_from_0_after_a_newer_checkpoint():
    object_facts, ends = tracker_of(restart_limit=1), []
    for number, checkpoint in enumerate(("00000001", "00000002", "00000002")):
        object_facts.judge.checkpoint = checkpoint
        list(object_facts.update_pod(pod_of(1, f"{number}", number + 1, phase="Failed", main=terminated(137))))
        ends.append(object_facts.end)
    assert ends == [None, None, (False, "Restart limit reached (restart_limit=1).")]


def test_a_successor_of_the_same_second_is_accepted():
    object_facts = tracker_of(restart_limit=1)
    list(object_facts.update_pods([pod_of(0, **RUNNING), pod_of(1, phase="Failed", main=terminated(137))]))
    list(object_facts.update_job(job_of(condition("Failed"), at=20)))
    list(object_facts.restart())
    assert summarize(object_facts.update_pod(pod_of(1, **RUNNING))) == []
    assert summarize(object_facts.update_pod(pod_of(1, "second", **RUNNING))) == [("worker-1", "running", None, "", 1)]


def test_a_preemption_is_over_when_its_pod_has_ended_without_a_failure():
    """An evicted worker may save its results and exit with 0. A later failure of another replica is one of its own."""
    object_facts = tracker_of()
    list(object_facts.update_pod(preempted(1, deleted_at=None, phase="Succeeded", main=terminated(0))))
    now = clock() + 3600
    failure = ReplicaChanged(now, "worker-0", "failed", exit_code=137)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failure_limits, "clock", lambda: now)
        assert object_facts.judge.add(failure, begun=0) == "Restart limit reached (restart_limit=0)."


def test_a_preempted_worker_of_an_elastic_job_does_not_excuse_later_failures():
    elastic = {"distribution_type": "PyTorch", "number_of_workers": 2, "min_workers": 1, "max_workers": 2}
    object_facts = ObjectFacts(make_job(["unused"], {**elastic, "restart_limit": 0}), "PyTorchJob")
    list(object_facts.update_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    list(object_facts.update_pod(preempted(1)))
    list(object_facts.update_pods([pod_of(0, **RUNNING)]))
    facts = summarize(object_facts.advance_time(clock() + 4))
    assert facts == [("worker-1", "stopped", None, PREEMPTED, 0)]
    now = clock() + 3600
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failure_limits, "clock", lambda: now)
        assert object_facts.judge.cause(ReplicaChanged(now, "worker-0", "failed", exit_code=137)) == "program"
