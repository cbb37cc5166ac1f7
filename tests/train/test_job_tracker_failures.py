"""Failures, deletions of pods, and restarts, as the job_tracker reports them."""

import time
from dataclasses import replace

import pytest
from train.programs.jobs import make_job, workers
from train.test_job_tracker import RUNNING, job_of, pod_of, summarize
from train.test_pods import condition, terminated

from kfp_distributed.components.train.run.conclusions.failures import root_failure
from kfp_distributed.components.train.run.facts import clock
from kfp_distributed.components.train.run.runners.kubernetes.judge.job_tracker import JobTracker
from kfp_distributed.trainers.runtime.job_description import PEER_LOST, PREEMPTED


@pytest.fixture
def job_tracker():
    return JobTracker(make_job(["unused"], workers(2, restart_limit=1)), "TFJob")


def test_a_replica_restarts_up_to_the_limit(job_tracker):
    killed = {"phase": "Failed", "main": terminated(137)}
    assert summarize(job_tracker.update_pod(pod_of(1, "first", 1, **RUNNING))) == [("worker-1", "running", None, "", 0)]
    assert summarize(job_tracker.update_pod(pod_of(1, "first", 1, **killed))) == [("worker-1", "failed", 137, "", 0)]
    assert summarize(job_tracker.update_pod(pod_of(1, "first", 1, **killed), deleted=True)) == []
    assert summarize(job_tracker.update_pod(pod_of(1, "second", 2, **RUNNING))) == [
        ("worker-1", "running", None, "", 1)
    ]
    # Late news of the previous pod are ignored.
    assert summarize(job_tracker.update_pod(pod_of(1, "first", 1, **RUNNING))) == []
    assert job_tracker.end is None
    assert summarize(job_tracker.update_pod(pod_of(1, "second", 2, **killed))) == [("worker-1", "failed", 137, "", 1)]
    assert job_tracker.end == (False, "Restart limit reached (restart_limit=1).")


def test_the_operator_decides_about_a_permanent_failure(job_tracker):
    for created, uid in enumerate(("first", "second", "third")):
        list(job_tracker.update_pod(pod_of(1, uid, created, phase="Failed", main=terminated(1))))
    assert job_tracker.end is None
    list(job_tracker.update_job(job_of(condition("Failed", "1 worker failed"))))
    assert job_tracker.end == (False, "TFJob failed: 1 worker failed.")


def test_a_permanent_failure_of_an_mpi_worker_ends_the_job():
    """The kubelet restarts it for ever, and without it the operator creates no launcher."""
    job_tracker = JobTracker(make_job(["unused"], {"distribution_type": "MPI", "number_of_workers": 2}), "MPIJob")
    list(job_tracker.update_pod(pod_of(1, main=terminated(1))))
    assert job_tracker.end == (False, "Exit codes 1 to 127 are permanent failures and are not retried.")
    assert not job_tracker.can_restart


def test_a_deleted_pod_has_failed(job_tracker):
    list(job_tracker.update_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    assert summarize(job_tracker.update_pods([pod_of(0, **RUNNING)])) == []
    assert summarize(job_tracker.advance_time(clock() + 1)) == []
    assert summarize(job_tracker.advance_time(clock() + 4)) == [("worker-1", "failed", None, "pod deleted", 0)]
    assert summarize(job_tracker.advance_time(clock() + 5)) == []


def test_a_pod_that_is_killed_by_its_deletion_has_failed(job_tracker):
    killed = pod_of(1, deleted_at=9, phase="Failed", main=terminated(143))
    assert summarize(job_tracker.update_pod(killed)) == []
    # Its successor exists, so the job has not ended.
    assert summarize(job_tracker.update_pod(pod_of(1, "second", 1, **RUNNING))) == [
        ("worker-1", "failed", 143, "pod deleted", 0),
        ("worker-1", "running", None, "", 1),
    ]


def test_the_failure_of_a_deleted_pod_has_the_time_of_the_deletion(job_tracker):
    list(job_tracker.update_pod(pod_of(1, **RUNNING)))
    before = clock()
    assert list(job_tracker.update_pod(pod_of(1, deleted_at=11, **RUNNING), deleted=True)) == []
    after = clock()
    time.sleep(0.01)  # The clock is now later than at the deletion.
    (fact,) = job_tracker.advance_time(after + 4)
    assert before <= fact.time <= after


def test_a_pod_that_disappeared_between_watches_is_not_the_cause_of_another_failure(job_tracker):
    """The watch had expired. The operator has deleted the pod, but the end of the job is reported later."""
    list(job_tracker.update_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    assert summarize(job_tracker.update_pods([pod_of(0, phase="Failed", main=terminated(1))])) == [
        ("worker-0", "failed", 1, "", 0)
    ]
    facts = job_tracker.update_job(job_of(condition("Failed", "1 worker failed"), at=20))
    assert summarize(facts) == [("worker-1", "stopped", None, "job ended", 0)]
    assert not job_tracker.can_restart


def test_a_pod_that_the_operator_deletes_after_the_end_of_the_job_was_stopped(job_tracker):
    list(job_tracker.update_pod(pod_of(1, **RUNNING)))
    list(job_tracker.update_job(job_of(condition("Succeeded"))))
    killed = pod_of(1, deleted_at=9, phase="Failed", main=terminated(143))
    assert summarize(job_tracker.update_pod(killed)) == [("worker-1", "stopped", None, "job ended", 0)]


@pytest.mark.parametrize(("deleted_at", "state"), [(15, ("failed", "pod deleted")), (25, ("stopped", "job ended"))])
def test_timestamps_decide_whether_a_pod_was_deleted_before_the_end_of_the_job(job_tracker, deleted_at, state):
    list(job_tracker.update_pod(pod_of(1, **RUNNING)))
    list(job_tracker.update_job(job_of(condition("Failed"), at=20)))
    (fact,) = job_tracker.update_pod(pod_of(1, deleted_at=deleted_at, **RUNNING), deleted=True)
    assert (fact.state, fact.reason) == state


@pytest.mark.parametrize("job_first", [False, True])
@pytest.mark.parametrize(
    ("condition_", "failed_before", "state"),
    [
        ("Succeeded", False, ("stopped", "job ended")),
        ("Failed", True, ("stopped", "job ended")),
        ("Failed", False, ("failed", "pod deleted")),
    ],
)
@pytest.mark.parametrize("deleted_at", [19, 20, 21])
def test_a_pod_that_is_deleted_at_about_the_time_of_the_end_of_the_job(
    job_tracker, deleted_at, condition_, failed_before, state, job_first
):
    """The result of the job and earlier failures decide, in either order of the news."""
    list(job_tracker.update_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    if failed_before:
        list(job_tracker.update_pod(pod_of(0, phase="Failed", main=terminated(1))))
    news = [
        lambda: job_tracker.update_job(job_of(condition(condition_), at=20)),
        lambda: job_tracker.update_pod(pod_of(1, deleted_at=deleted_at, **RUNNING), deleted=True),
    ]
    (fact,) = [fact for update in (news if job_first else reversed(news)) for fact in update()]
    assert (fact.replica, fact.state, fact.reason) == ("worker-1", *state)


def test_a_deleted_pod_is_the_cause_of_the_failure_even_if_it_takes_long_to_end(job_tracker):
    list(job_tracker.update_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    list(job_tracker.update_pod(pod_of(1, deleted_at=20, **RUNNING)))
    facts = [*job_tracker.update_job(job_of(condition("Failed"), at=20))]
    # The operator then deletes the other pod, which ends first.
    facts += job_tracker.update_pod(pod_of(0, deleted_at=20, phase="Failed", main=terminated(143)))
    assert summarize(facts) == [
        ("worker-1", "failed", None, "pod deleted", 0),
        ("worker-0", "stopped", None, "job ended", 0),
    ]
    assert job_tracker.can_restart


def test_a_peer_that_fails_after_the_deletion_of_a_pod_is_not_the_cause(job_tracker):
    list(job_tracker.update_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    list(job_tracker.update_pod(pod_of(1, deleted_at=20, **RUNNING), deleted=True))
    facts = [*job_tracker.update_pod(pod_of(0, phase="Failed", main=terminated(1)))]
    facts += job_tracker.update_job(job_of(condition("Failed"), at=20))
    assert summarize(facts) == [
        ("worker-1", "failed", None, "pod deleted", 0),
        ("worker-0", "failed", 1, "", 0),
    ]


@pytest.mark.parametrize("code", [PEER_LOST, PREEMPTED])
def test_a_deleted_pod_is_the_cause_although_the_leader_ends_first(code):
    """The leader ends for it. The worker takes its grace period until then, or its end is reported later.

    That the leader has failed before, and was restarted, does not matter.
    """
    distribution = {"distribution_type": "PyTorch", "number_of_workers": 2, "restart_limit": 1}
    job_tracker = JobTracker(make_job(["unused"], distribution), "PyTorchJob")
    for start in (0, 1):
        assert job_tracker.end is None
        ended = {"phase": "Failed", "main": terminated(code)}
        masters = [pod_of(0, f"master-{start}", start, **state) for state in (RUNNING, ended)]
        for master in masters:
            master["metadata"]["labels"]["training.kubeflow.org/replica-type"] = "master"
        list(job_tracker.update_pods([masters[0], pod_of(1, f"worker-{start}", start, **RUNNING)]))
        deleted = pod_of(1, f"worker-{start}", start, deleted_at=9, **RUNNING)
        assert summarize(job_tracker.update_pod(deleted)) == []
        assert summarize(job_tracker.update_pod(masters[1])) == [
            ("worker-1", "failed", None, "pod deleted", start),
            ("master-0", "failed", code, "", start),
        ]
    assert job_tracker.end == (False, "Restart limit reached (restart_limit=1).")
    assert root_failure(job_tracker.policy.recent()).replica == "worker-1"


def test_a_pod_that_the_operator_deletes_after_it_has_replaced_another_one_is_not_the_cause(job_tracker):
    """An operator may create the successor of a deleted pod, and then fail the job for it."""
    list(job_tracker.update_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    list(job_tracker.update_pod(pod_of(1, **RUNNING), deleted=True))
    assert summarize(job_tracker.update_pod(pod_of(1, "second", 1))) == [
        ("worker-1", "failed", None, "pod deleted", 0),
        ("worker-1", "pulling", None, "", 1),
    ]
    list(job_tracker.update_pod(pod_of(0, deleted_at=11, **RUNNING), deleted=True))
    assert summarize(job_tracker.update_job(job_of(condition("Failed"), at=11)))[0] == (
        ("worker-0", "stopped", None, "job ended", 0)
    )


def test_a_deleted_pod_may_end_well_after_another_failure(job_tracker):
    """The code of that failure does not say that it followed from the end of another replica."""
    list(job_tracker.update_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    list(job_tracker.update_pod(pod_of(0, deleted_at=9, **RUNNING)))
    killed = pod_of(1, phase="Failed", main=terminated(137))
    assert summarize(job_tracker.update_pod(killed)) == [("worker-1", "failed", 137, "", 0)]
    ended = pod_of(0, deleted_at=9, phase="Succeeded", main=terminated(0))
    assert summarize(job_tracker.update_pod(ended)) == [("worker-0", "succeeded", 0, "", 0)]


def test_with_restart_limit_0_the_first_failure_ends_the_job(job_tracker):
    job_tracker = JobTracker(make_job(["unused"], workers(2, restart_limit=0)), "TFJob")
    list(job_tracker.update_pod(pod_of(1, phase="Failed", main=terminated(137))))
    assert job_tracker.end == (False, "Restart limit reached (restart_limit=0).")
    # The operator restarts the pod nevertheless, which is ignored.
    assert summarize(job_tracker.update_pod(pod_of(1, "second", 1, **RUNNING))) == []


@pytest.mark.parametrize("code", [134, 137, 138])
def test_the_exit_code_of_a_peer_does_not_matter_after_the_leader_has_succeeded(job_tracker, code):
    job_tracker = JobTracker(make_job(["unused"], workers(2, restart_limit=0)), "TFJob")
    list(job_tracker.update_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    list(job_tracker.update_pod(pod_of(0, phase="Succeeded", main=terminated(0))))
    ended = pod_of(1, phase="Failed", main=terminated(code))
    assert summarize(job_tracker.update_pod(ended)) == [("worker-1", "failed", code, "", 0)]
    assert job_tracker.end is None
    list(job_tracker.update_job(job_of(condition("Succeeded"))))
    assert job_tracker.end == (True, "")


def test_an_elastic_mpi_job_continues_without_a_worker():
    distribution = {"distribution_type": "MPI", "min_workers": 1, "restart_limit": 0}
    job_tracker = JobTracker(make_job(["unused"], distribution), "MPIJob")
    list(job_tracker.update_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    assert summarize(job_tracker.update_pod(pod_of(1, deleted_at=11, **RUNNING), deleted=True)) == []
    assert summarize(job_tracker.advance_time(clock() + 4)) == [("worker-1", "failed", None, "pod deleted", 0)]
    assert job_tracker.end is None
    launcher = pod_of(0, "launcher", phase="Failed", main=terminated(137))
    launcher["metadata"]["labels"]["training.kubeflow.org/replica-type"] = "launcher"
    assert summarize(job_tracker.update_pod(launcher)) == [("launcher-0", "failed", 137, "", 0)]
    assert job_tracker.end == (False, "Restart limit reached (restart_limit=0).")


@pytest.mark.parametrize("checkpoints", [("", "", ""), ("3", "3", "3"), ("", "3", "3"), ("3", "4", "4")])
@pytest.mark.parametrize("keys", [{}, {"min_workers": 2}])
def test_an_mpi_launcher_restarts_up_to_the_limit_whatever_its_exit_code(keys, checkpoints):
    """A newer checkpoint sets the count to 0. The operator does not restart a launcher at restart_limit 0."""
    specification = {"distribution_type": "MPI", "number_of_workers": 2, "restart_limit": 1, **keys}
    job_tracker, ends = JobTracker(make_job(["unused"], specification), "MPIJob"), []
    for start, (code, checkpoint) in enumerate(zip((143, 1, 1), checkpoints, strict=True)):
        job_tracker.policy.checkpoint = checkpoint
        for main in ({"running": {}}, terminated(code)):
            launcher = pod_of(0, "launcher", phase="Running", main=main)
            launcher["metadata"]["labels"]["training.kubeflow.org/replica-type"] = "launcher"
            launcher["status"]["containerStatuses"][0]["restartCount"] = start
            list(job_tracker.update_pod(launcher))
        ends.append(job_tracker.end)
    restarts = 2 if checkpoints[1] > checkpoints[0] else 1
    assert ends == [*[None] * restarts, *[(False, "Restart limit reached (restart_limit=1).")] * (3 - restarts)]
    assert not job_tracker.can_restart


def test_removing_workers_from_an_elastic_pytorch_job_does_not_count_as_restarts():
    distribution = {"distribution_type": "PyTorch", "number_of_workers": 2, "min_workers": 1, "restart_limit": 1}
    job_tracker = JobTracker(make_job(["unused"], distribution), "PyTorchJob")
    for number in range(3):
        worker = pod_of(1, f"pod-{number}", number, **RUNNING)
        assert summarize(job_tracker.update_pod(worker)) == [("worker-1", "running", None, "", 0)]
        assert summarize(job_tracker.update_pod(worker, deleted=True)) == []
        assert summarize(job_tracker.advance_time(clock() + 4)) == [("worker-1", "stopped", None, "pod deleted", 0)]
    # A killed worker has failed, and so has one that its node has refused.
    list(job_tracker.update_pod(pod_of(1, "killed", 4, phase="Failed", main=terminated(137))))
    assert job_tracker.end is None
    refused = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": ""}
    list(job_tracker.update_pod({**pod_of(1, "refused", 5), "status": refused}))
    assert job_tracker.end == (False, "Restart limit reached (restart_limit=1).")


def test_an_elastic_pytorch_job_that_fails_for_a_deleted_worker_restarts():
    distribution = {"distribution_type": "PyTorch", "number_of_workers": 2, "min_workers": 1}
    job_tracker = JobTracker(make_job(["unused"], distribution), "PyTorchJob")
    list(job_tracker.update_pod(pod_of(1, **RUNNING)))
    assert summarize(job_tracker.update_pod(pod_of(1, deleted_at=11, **RUNNING), deleted=True)) == []
    assert summarize(job_tracker.update_job(job_of(condition("Failed"), at=12))) == [
        ("worker-1", "failed", None, "pod deleted", 0)
    ]
    assert job_tracker.can_restart


def test_the_successor_of_a_deleted_pod_is_ignored_at_the_restart_limit(job_tracker):
    job_tracker = JobTracker(make_job(["unused"], workers(2, restart_limit=0)), "TFJob")
    list(job_tracker.update_pod(pod_of(1, **RUNNING)))
    assert summarize(job_tracker.update_pod(pod_of(1, deleted_at=11, **RUNNING), deleted=True)) == []
    successor = pod_of(1, "second", 1, **RUNNING)
    assert summarize(job_tracker.update_pod(successor)) == [("worker-1", "failed", None, "pod deleted", 0)]


def test_a_deleted_job_has_failed(job_tracker):
    list(job_tracker.update_job(None))
    assert job_tracker.end == (False, "The TFJob was deleted before it ended.")


def test_a_job_that_the_operator_fails_for_a_deleted_pod_restarts(job_tracker):
    list(job_tracker.update_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    list(job_tracker.update_pod(pod_of(1, deleted_at=15, **RUNNING), deleted=True))
    assert not job_tracker.can_restart
    list(job_tracker.update_job(job_of(condition("Failed"), at=20)))
    assert job_tracker.can_restart
    assert summarize([job_tracker.restart_event(), *job_tracker.restart()]) == [
        "restart 1 of 1: the whole job (worker-1 failed)",
        *((f"worker-{index}", "waiting", None, "", 1) for index in range(2)),
    ]
    assert job_tracker.end is None
    job_tracker.uid = "job-2"
    # Late news of the deleted job and its pods are ignored.
    assert summarize(job_tracker.update_job(job_of(condition("Failed"), at=25), deleted=True)) == []
    late, new = pod_of(0, **RUNNING), pod_of(0, "new", 1, **RUNNING)
    late["metadata"]["ownerReferences"] = [{"kind": "TFJob", "uid": "job-1"}]
    new["metadata"]["ownerReferences"] = [{"kind": "TFJob", "uid": "job-2"}]
    assert summarize(job_tracker.update_pod(late, deleted=True)) == []
    assert summarize(job_tracker.update_pod(new)) == [("worker-0", "running", None, "", 1)]
    # The job has reached its restart limit.
    list(job_tracker.update_pod(new, deleted=True))
    list(job_tracker.advance_time(clock() + 4))
    assert job_tracker.end == (False, "Restart limit reached (restart_limit=1).")
    assert not job_tracker.can_restart


def test_restarts_are_counted_for_each_replica(job_tracker):
    job_tracker = JobTracker(make_job(["unused"], workers(2, restart_limit=2)), "TFJob")
    list(job_tracker.update_pods([pod_of(0, **RUNNING), pod_of(1, "first", 1, phase="Failed", main=terminated(137))]))
    list(job_tracker.update_pod(pod_of(1, "second", 2, **RUNNING)))
    list(job_tracker.update_pod(pod_of(0, phase="Failed", main=terminated(137))))
    assert job_tracker.end is None
    list(job_tracker.update_job(job_of(condition("Failed"), at=20)))
    assert summarize([job_tracker.restart_event(), *job_tracker.restart()]) == [
        "restart 2 of 2: the whole job (worker-1 failed)",
        ("worker-0", "waiting", None, "", 1),
        ("worker-1", "waiting", None, "", 2),
    ]
    assert not job_tracker.can_restart


def test_a_pod_of_the_previous_job_is_recognised_by_its_creation_time(job_tracker):
    """The owner of the launcher of an MPIJob v2beta1 is a Job, not the MPIJob."""
    job_tracker = JobTracker(make_job(["unused"], workers(2, restart_limit=2)), "TFJob")
    killed = {"phase": "Failed", "main": terminated(137)}
    list(job_tracker.update_pods([pod_of(0, **RUNNING), pod_of(1, **killed)]))
    list(job_tracker.update_job(job_of(condition("Failed"), at=20)))
    list(job_tracker.restart())
    assert summarize(job_tracker.update_pod(pod_of(0, deleted_at=21, **RUNNING), deleted=True)) == []
    assert summarize(job_tracker.advance_time(clock() + 4)) == []
    assert summarize(job_tracker.update_pod(pod_of(0, "new", 1, **RUNNING))) == [("worker-0", "running", None, "", 1)]
    assert job_tracker.end is None


@pytest.mark.parametrize(("index", "expected"), [(0, ("succeeded", 0, "")), (1, ("failed", None, "pod deleted"))])
def test_a_deleted_worker_that_exits_with_0_has_not_succeeded(job_tracker, index, expected):
    list(job_tracker.update_pod(pod_of(index, **RUNNING)))
    ended = pod_of(index, deleted_at=12, phase="Succeeded", main=terminated(0))
    facts = [
        *job_tracker.update_pod(ended),
        *job_tracker.update_pod(ended, deleted=True),
        *job_tracker.advance_time(clock() + 4),
    ]
    assert [fact[1:4] for fact in summarize(facts)] == [expected]


def test_a_job_does_not_restart_if_the_last_failure_of_a_replica_is_permanent(job_tracker):
    job_tracker = JobTracker(make_job(["unused"], workers(2, restart_limit=3)), "TFJob")
    list(job_tracker.update_pods([pod_of(0, **RUNNING), pod_of(1, phase="Failed", main=terminated(137))]))
    list(job_tracker.update_pod(pod_of(1, "second", 1, **RUNNING)))
    list(job_tracker.update_pod(pod_of(1, "second", 1, phase="Failed", main=terminated(1))))
    list(job_tracker.update_job(job_of(condition("Failed"), at=20)))
    assert not job_tracker.can_restart


def test_a_job_does_not_restart_after_a_permanent_failure(job_tracker):
    list(job_tracker.update_pod(pod_of(1, phase="Failed", main=terminated(1))))
    list(job_tracker.update_job(job_of(condition("Failed"), at=20)))
    assert not job_tracker.can_restart


def test_a_succeeded_job_does_not_restart_if_the_deletion_of_its_pods_is_reported_first(job_tracker):
    """A worker was killed and restarted. At the end the operator deletes the pods, which is reported first."""
    killed = {"phase": "Failed", "main": terminated(137)}
    list(job_tracker.update_pods([pod_of(0, **RUNNING), pod_of(1, "first", 1, **killed)]))
    list(job_tracker.update_pod(pod_of(1, "second", 2, **RUNNING)))
    list(job_tracker.update_pod(pod_of(0, phase="Succeeded", main=terminated(0))))
    assert summarize(job_tracker.update_pod(pod_of(1, "second", 2, deleted_at=30, **RUNNING), deleted=True)) == []
    done = summarize(job_tracker.update_job(job_of(condition("Succeeded"), at=25)))
    assert done == [("worker-1", "stopped", None, "job ended", 1)]
    assert job_tracker.end == (True, "")
    assert not job_tracker.can_restart


def test_an_old_failure_is_not_the_cause_of_the_end_of_a_job(job_tracker):
    job_tracker = JobTracker(make_job(["unused"], workers(2, restart_limit=3)), "TFJob")
    list(job_tracker.update_pod(pod_of(1, "first", 1, phase="Failed", main=terminated(137))))
    (failure,) = job_tracker.policy.recent()
    job_tracker.policy.add(replace(failure, time=clock() - 3600), 0)
    list(job_tracker.update_pod(pod_of(1, "second", 2, **RUNNING)))
    list(job_tracker.update_pod(pod_of(0, phase="Failed", main=terminated(1))))
    list(job_tracker.update_job(job_of(condition("Failed"), at=20)))
    assert not job_tracker.can_restart
