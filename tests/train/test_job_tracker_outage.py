"""Outages of the object store, as the job_tracker reports them: no failures of the program, and without a limit."""

import pytest
from train.programs.jobs import make_job, workers
from train.test_job_tracker import RUNNING, job_of, pod_of, summarize
from train.test_job_tracker_preemption import preempted
from train.test_pods import condition, terminated

from kfp_distributed.components.train.run.facts import LogLine, clock
from kfp_distributed.components.train.run.runners.kubernetes.judge.job_tracker import JobTracker
from kfp_distributed.trainers.runtime.job_description import PEER_LOST, STORE_AWAY, STORE_FAILED, STORE_UNREACHED

AWAY = {"phase": "Failed", "main": terminated(STORE_AWAY)}


@pytest.fixture
def job_tracker():
    """A job_tracker of two running workers. No limit permits a restart."""
    job_tracker = JobTracker(make_job(["unused"], workers(2, restart_limit=0, preemption_limit=0)), "TFJob")
    list(job_tracker.update_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    return job_tracker


def failed(index, code, uid="", created=0):
    return pod_of(index, uid, created, phase="Failed", main=terminated(code))


def counts(job_tracker):
    return job_tracker.policy.restarts.restarts, job_tracker.policy.restarts.preemptions


def test_an_outage_counts_for_no_limit(job_tracker):
    texts = []
    list(job_tracker.update_pod(failed(1, STORE_AWAY)))
    for number in range(1, 5):
        texts += summarize(job_tracker.update_pod(pod_of(1, f"next-{number}", number, **RUNNING)))
        list(job_tracker.update_pod(failed(1, STORE_AWAY, f"next-{number}", number)))
    assert texts[:2] == [
        "restart: worker-1 (worker-1: the object store did not answer)",
        ("worker-1", "running", None, "", 1),
    ]
    assert job_tracker.end is None
    assert counts(job_tracker) == ({}, 0)


@pytest.mark.parametrize("code", [1, PEER_LOST, 134, 137, 143, 205])
@pytest.mark.parametrize("peer_is_first", [False, True])
def test_the_ends_of_its_peers_follow_from_an_outage(job_tracker, code, peer_is_first):
    pods = [failed(1, STORE_AWAY), failed(0, code)]
    for pod in reversed(pods) if peer_is_first else pods:
        list(job_tracker.update_pod(pod))
    list(job_tracker.update_job(job_of(condition("Failed"), at=20)))
    assert job_tracker.can_restart
    assert summarize([job_tracker.restart_event(), *job_tracker.restart()]) == [
        "restart: the whole job (worker-1: the object store did not answer)",
        ("worker-0", "waiting", None, "", 1),
        ("worker-1", "waiting", None, "", 1),
    ]
    assert counts(job_tracker) == ({}, 0)
    # The next failure is one of the program.
    list(job_tracker.update_pod(failed(0, 137, "new", 1)))
    assert job_tracker.end == (False, "Restart limit reached (restart_limit=0).")
    assert not job_tracker.can_restart


def test_a_peer_that_its_operator_restarts_is_not_counted(job_tracker):
    list(job_tracker.update_pod(failed(1, STORE_AWAY)))
    list(job_tracker.update_pod(failed(0, PEER_LOST)))
    assert summarize(job_tracker.update_pod(pod_of(0, "second", 1, **RUNNING))) == [
        ("worker-0", "running", None, "", 1)
    ]
    assert job_tracker.end is None
    assert counts(job_tracker) == ({}, 0)


def test_a_failure_of_a_replica_that_started_after_the_outage_counts(job_tracker):
    list(job_tracker.update_pod(failed(1, STORE_AWAY)))
    list(job_tracker.update_pod(failed(0, PEER_LOST)))
    list(job_tracker.update_pod(pod_of(0, "second", 1, **RUNNING)))
    list(job_tracker.update_pod(failed(0, 137, "second", 1)))
    assert job_tracker.end == (False, "Restart limit reached (restart_limit=0).")


def test_a_request_that_the_object_store_refuses_counts(job_tracker):
    list(job_tracker.update_pod(failed(1, STORE_FAILED)))
    assert job_tracker.end == (False, "Restart limit reached (restart_limit=0).")


def test_a_preemption_during_an_outage_counts(job_tracker):
    list(job_tracker.update_pod(failed(1, STORE_AWAY)))
    list(job_tracker.update_pod(preempted(0, deleted_at=None, phase="Failed", main=terminated(143))))
    assert job_tracker.end == (False, "Preemption limit reached (preemption_limit=0).")


def see_sample(job_tracker, index=0, sample="sample memory=512MiB store=3s", seconds_ago=3600):
    job_tracker.policy.see_line(LogLine(clock(), f"worker-{index}", sample, happened=clock() - seconds_ago))


def test_a_replica_that_never_reached_the_object_store_counts(job_tracker):
    see_sample(job_tracker, sample="sample memory=512MiB")
    list(job_tracker.update_pod(failed(1, STORE_UNREACHED)))
    assert job_tracker.end == (False, "Restart limit reached (restart_limit=0).")
    assert not job_tracker.can_restart


@pytest.mark.parametrize("source", ["a sample", "exit code 140"])
def test_a_replica_that_gets_no_answer_of_a_store_that_has_answered_before_counts_for_no_limit(job_tracker, source):
    codes = [STORE_UNREACHED] * 3
    if source == "a sample":
        see_sample(job_tracker)
    else:
        codes.insert(0, STORE_AWAY)
    uid, texts = "", []
    for number, code in enumerate(codes):
        list(job_tracker.update_pod(failed(1, code, uid, number)))
        uid = f"next-{number}"
        texts += summarize(job_tracker.update_pod(pod_of(1, uid, number + 1, **RUNNING)))
    assert texts[0] == texts[-2] == "restart: worker-1 (worker-1: the object store did not answer)"
    assert job_tracker.end is None
    assert counts(job_tracker) == ({}, 0)


def test_the_peers_of_a_replica_that_gets_no_answer_follow_from_the_outage(job_tracker):
    see_sample(job_tracker)
    list(job_tracker.update_pod(failed(0, 1)))
    list(job_tracker.update_pod(failed(1, STORE_UNREACHED)))
    list(job_tracker.update_job(job_of(condition("Failed"), at=20)))
    assert job_tracker.can_restart
    assert summarize([job_tracker.restart_event()]) == [
        "restart: the whole job (worker-1: the object store did not answer)"
    ]


def test_a_job_is_created_again_if_its_controller_has_failed_it_in_an_outage():
    """Without a deadline, the policy of a Job counts code 147 for backoffLimit."""
    job_tracker = JobTracker(make_job(["unused"], {"restart_limit": 1}), "Job")
    list(job_tracker.update_pods([pod_of(0, **RUNNING)]))
    see_sample(job_tracker)
    list(job_tracker.update_pod(failed(0, STORE_UNREACHED)))
    list(job_tracker.update_pod(pod_of(0, "second", 1, **RUNNING)))
    list(job_tracker.update_pod(failed(0, STORE_UNREACHED, "second", 1)))
    list(job_tracker.update_job(job_of(condition("Failed", "BackoffLimitExceeded"), at=20)))
    assert job_tracker.can_restart
    assert summarize([job_tracker.restart_event(), *job_tracker.restart()]) == [
        "restart: the whole job (worker-0: the object store did not answer)",
        ("worker-0", "waiting", None, "", 2),
    ]
    assert counts(job_tracker) == ({}, 0)


def test_an_answer_that_is_read_after_a_failure_counts_too(job_tracker):
    """A step that adopts a job may read the failure of a replica before the log of another one."""
    list(job_tracker.update_pod(failed(1, STORE_UNREACHED)))
    assert not job_tracker.can_restart
    see_sample(job_tracker)
    assert job_tracker.can_restart


@pytest.mark.parametrize(
    ("seconds_ago", "counts_for_limit"),
    [
        # Before the replica began its attempts, which take ten minutes.
        ([3600, 620], False),
        ([3600, 620, 300], True),
        # The store is back.
        ([3600, 620, 5], False),
    ],
)
def test_a_replica_that_alone_gets_no_answer_counts(job_tracker, seconds_ago, counts_for_limit):
    """The network of its node is at fault, or a network policy for its role. It would restart for ever."""
    for seconds in seconds_ago:
        see_sample(job_tracker, sample="sample memory=512MiB store=0s", seconds_ago=seconds)
    list(job_tracker.update_pod(failed(1, STORE_UNREACHED)))
    assert job_tracker.end == ((False, "Restart limit reached (restart_limit=0).") if counts_for_limit else None)
