"""Jobs whose pods have sidecars: they neither fail a replica nor hold the job."""

import pytest
from train.programs.jobs import make_job, workers
from train.test_job_tracker import RUNNING, job_of, pod_of, summarize
from train.test_pods import DONE, KILLED, ON, condition, terminated, with_sidecar

from kfp_distributed.components.train.run.conclusions.failures import FOR_GOOD
from kfp_distributed.components.train.run.runners.kubernetes.judge.job_tracker import JobTracker

LIMIT_REACHED = "Restart limit reached (restart_limit=1)."


@pytest.fixture
def job_tracker():
    return running(restart_limit=1)


def running(restart_limit):
    """Return a job_tracker of a running TFJob of two workers with sidecars."""
    job_tracker = JobTracker(make_job(["unused"], workers(2, restart_limit=restart_limit)), "TFJob")
    list(job_tracker.update_pods([beside(index, ON, **RUNNING) for index in range(2)]))
    return job_tracker


def beside(index, sidecar, *, uid="", created=0, **state):
    """Return the pod of a worker with a sidecar in this state."""
    return {**with_sidecar(sidecar, **state), "metadata": pod_of(index, uid, created)["metadata"]}


def judge(job_tracker):
    return job_tracker.end, job_tracker.ended_by_itself, job_tracker.is_held


def held(replica, kind="TFJob"):
    return f"{replica} has ended, but its pod does not show it because of sidecar mesh: the step ends the {kind}"


def test_a_sidecar_that_fails_is_reported_once_and_fails_nothing():
    job_tracker = running(restart_limit=0)
    failed = beside(1, KILLED, **RUNNING)
    event = "worker-1: sidecar mesh failed with exit code 137, OOMKilled, training continues"
    assert summarize(job_tracker.update_pod(failed)) == [event]
    assert summarize(job_tracker.update_pod(failed)) == []
    # Without a sidecar in the pod of the leader, the operator sees the end.
    assert summarize(job_tracker.update_pod(beside(0, DONE, phase="Succeeded", main=terminated(0)))) == [
        ("worker-0", "succeeded", 0, "", 0)
    ]
    assert judge(job_tracker) == (None, False, False)
    list(job_tracker.update_job(job_of(condition("Succeeded"))))
    assert judge(job_tracker) == ((True, ""), True, False)


def test_a_job_ends_with_its_leader_although_a_sidecar_runs_on(job_tracker):
    assert summarize(job_tracker.update_pod(beside(1, ON, main=terminated(0)))) == [("worker-1", "succeeded", 0, "", 0)]
    assert judge(job_tracker) == (None, False, False)
    assert summarize(job_tracker.update_pod(beside(0, ON, main=terminated(0)))) == [
        ("worker-0", "succeeded", 0, "", 0),
        held("worker-0"),
    ]
    assert judge(job_tracker) == ((True, ""), True, True)


@pytest.mark.parametrize("job_first", [False, True])
def test_an_operator_that_fails_a_job_for_a_sidecar_does_not_decide(job_first):
    job_tracker = running(restart_limit=0)
    job, pod = job_of(condition("Failed", "1 replica failed")), beside(0, KILLED, phase="Failed", main=terminated(0))
    if job_first:
        list(job_tracker.update_job(job))
        assert judge(job_tracker) == ((False, "TFJob failed: 1 replica failed."), True, False)
    assert summarize(job_tracker.update_pod(pod)) == [("worker-0", "succeeded", 0, "", 0), held("worker-0")]
    list(job_tracker.update_job(job))
    assert judge(job_tracker) == ((True, ""), True, not job_first)


def test_a_job_that_its_operator_fails_for_the_sidecar_of_a_worker_restarts(job_tracker):
    """The operator deletes the leader before it has saved its model."""
    list(job_tracker.update_pod(beside(1, KILLED, phase="Failed", main=terminated(0))))
    assert judge(job_tracker) == (None, False, False)
    list(job_tracker.update_job(job_of(condition("Failed", "1 Worker replica failed"), at=20)))
    assert judge(job_tracker) == ((False, "TFJob failed: 1 Worker replica failed."), True, False)
    assert job_tracker.can_restart
    assert summarize([job_tracker.restart_event(), *job_tracker.restart()]) == [
        "restart 1 of 1: the whole job (a sidecar of worker-1 failed)",
        *((f"worker-{index}", "waiting", None, "", 1) for index in range(2)),
    ]


def test_a_permanent_failure_beside_a_running_sidecar_ends_the_job(job_tracker):
    assert summarize(job_tracker.update_pod(beside(1, ON, main=terminated(3)))) == [
        ("worker-1", "failed", 3, "", 0),
        held("worker-1"),
    ]
    assert judge(job_tracker) == ((False, FOR_GOOD), True, True)
    assert not job_tracker.can_restart
    # Its peer was killed before: the root failure decides.
    list(job_tracker.update_pod(beside(0, ON, main=terminated(137))))
    assert job_tracker.can_restart


def test_a_killed_replica_beside_a_running_sidecar_restarts_up_to_the_limit(job_tracker):
    killed = {"main": terminated(137, "OOMKilled")}
    assert summarize(job_tracker.update_pod(beside(1, ON, **killed))) == [
        ("worker-1", "failed", 137, "OOMKilled", 0),
        held("worker-1"),
    ]
    assert job_tracker.can_restart
    assert summarize([job_tracker.restart_event(), *job_tracker.restart()]) == [
        "restart 1 of 1: the whole job (worker-1 failed)",
        *((f"worker-{index}", "waiting", None, "", 1) for index in range(2)),
    ]
    assert judge(job_tracker) == (None, False, False)
    list(job_tracker.update_pod(beside(1, ON, uid="second", created=1, **RUNNING)))
    list(job_tracker.update_pod(beside(1, ON, uid="second", created=1, **killed)))
    assert judge(job_tracker) == ((False, LIMIT_REACHED), False, False)
    assert not job_tracker.can_restart


def test_the_restarts_of_another_replica_use_up_the_limit(job_tracker):
    killed = {"phase": "Failed", "main": terminated(137)}
    list(job_tracker.update_pod(beside(1, DONE, **killed)))
    list(job_tracker.update_pod(beside(1, ON, uid="second", created=1, **RUNNING)))
    list(job_tracker.update_pod(beside(0, ON, main=terminated(137))))
    assert judge(job_tracker) == ((False, LIMIT_REACHED), True, True)
    assert not job_tracker.can_restart


def test_a_container_that_the_kubelet_restarts_beside_a_sidecar_ends_nothing(job_tracker):
    failed = beside(1, ON, main=terminated(1), restart_policy="OnFailure")
    assert summarize(job_tracker.update_pod(failed)) == [("worker-1", "failed", 1, "", 0)]
    assert judge(job_tracker) == (None, False, False)


def test_an_elastic_mpi_job_continues_without_a_worker_that_a_sidecar_holds():
    distribution = {"distribution_type": "MPI", "min_workers": 1, "restart_limit": 0}
    job_tracker = JobTracker(make_job(["unused"], distribution), "MPIJob")
    list(job_tracker.update_pods([beside(index, ON, **RUNNING) for index in range(2)]))
    assert summarize(job_tracker.update_pod(beside(1, ON, main=terminated(1)))) == [("worker-1", "failed", 1, "", 0)]
    assert judge(job_tracker) == (None, False, False)


def test_a_failure_after_the_success_of_the_leader_does_not_count(job_tracker):
    list(job_tracker.update_pod(beside(0, DONE, phase="Succeeded", main=terminated(0))))
    assert summarize(job_tracker.update_pod(beside(1, ON, main=terminated(1)))) == [("worker-1", "failed", 1, "", 0)]
    assert judge(job_tracker) == (None, False, False)
    list(job_tracker.update_job(job_of(condition("Succeeded"))))
    assert judge(job_tracker) == ((True, ""), True, False)


def test_a_deleted_pod_with_a_sidecar_has_failed_as_one_without(job_tracker):
    deleted = beside(1, ON, main=terminated(143))
    deleted["metadata"] |= {"deletionTimestamp": "2026-01-01T09:00:25Z", "deletionGracePeriodSeconds": 10}
    assert summarize(job_tracker.update_pod(deleted)) == []
    assert summarize(job_tracker.update_job(job_of(condition("Failed"), at=20))) == [
        ("worker-1", "failed", 143, "pod deleted", 0)
    ]
    assert judge(job_tracker) == ((False, "TFJob failed."), True, False)
    assert job_tracker.can_restart
