"""Outages of the object store, as the object_facts reports them: no failures of the program, and without a limit."""

import pytest
from train.programs.jobs import make_job, workers
from train.test_object_facts import RUNNING, job_of, pod_of, summarize
from train.test_object_facts_preemption import preempted
from train.test_pods import condition, terminated

from kfp_distributed.components.train.run.facts import LogLine, clock
from kfp_distributed.components.train.run.runners.kubernetes.judge.object_facts import ObjectFacts
from kfp_distributed.trainers.runtime.job_description import PEER_LOST, STORE_AWAY, STORE_FAILED, STORE_UNREACHED

AWAY = {"phase": "Failed", "main": terminated(STORE_AWAY)}


@pytest.fixture
def object_facts():
    """A object_facts of two running workers. No limit permits a restart."""
    object_facts = ObjectFacts(make_job(["unused"], workers(2, restart_limit=0, preemption_limit=0)), "TFJob")
    list(object_facts.update_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    return object_facts


def failed(index, code, uid="", created=0):
    return pod_of(index, uid, created, phase="Failed", main=terminated(code))


def counts(object_facts):
    return object_facts.judge.restarts.restarts, object_facts.judge.restarts.preemptions


def test_an_outage_counts_for_no_limit(object_facts):
    texts = []
    list(object_facts.update_pod(failed(1, STORE_AWAY)))
    for number in range(1, 5):
        texts += summarize(object_facts.update_pod(pod_of(1, f"next-{number}", number, **RUNNING)))
        list(object_facts.update_pod(failed(1, STORE_AWAY, f"next-{number}", number)))
    assert texts[:2] == [
        "restart: worker-1 (worker-1: the object store did not answer)",
        ("worker-1", "running", None, "", 1),
    ]
    assert object_facts.end is None
    assert counts(object_facts) == ({}, 0)


@pytest.mark.parametrize("code", [1, PEER_LOST, 134, 137, 143, 205])
@pytest.mark.parametrize("peer_is_first", [False, True])
def test_the_ends_of_its_peers_follow_from_an_outage(object_facts, code, peer_is_first):
    pods = [failed(1, STORE_AWAY), failed(0, code)]
    for pod in reversed(pods) if peer_is_first else pods:
        list(object_facts.update_pod(pod))
    list(object_facts.update_job(job_of(condition("Failed"), at=20)))
    assert object_facts.can_restart
    assert summarize([object_facts.restart_event(), *object_facts.restart()]) == [
        "restart: the whole job (worker-1: the object store did not answer)",
        ("worker-0", "waiting", None, "", 1),
        ("worker-1", "waiting", None, "", 1),
    ]
    assert counts(object_facts) == ({}, 0)
    # The next failure is one of the program.
    list(object_facts.update_pod(failed(0, 137, "new", 1)))
    assert object_facts.end == (False, "Restart limit reached (restart_limit=0).")
    assert not object_facts.can_restart


def test_a_peer_that_its_operator_restarts_is_not_counted(object_facts):
    list(object_facts.update_pod(failed(1, STORE_AWAY)))
    list(object_facts.update_pod(failed(0, PEER_LOST)))
    assert summarize(object_facts.update_pod(pod_of(0, "second", 1, **RUNNING))) == [
        ("worker-0", "running", None, "", 1)
    ]
    assert object_facts.end is None
    assert counts(object_facts) == ({}, 0)


def test_a_failure_of_a_replica_that_started_after_the_outage_counts(object_facts):
    list(object_facts.update_pod(failed(1, STORE_AWAY)))
    list(object_facts.update_pod(failed(0, PEER_LOST)))
    list(object_facts.update_pod(pod_of(0, "second", 1, **RUNNING)))
    list(object_facts.update_pod(failed(0, 137, "second", 1)))
    assert object_facts.end == (False, "Restart limit reached (restart_limit=0).")


def test_a_request_that_the_object_store_refuses_counts(object_facts):
    list(object_facts.update_pod(failed(1, STORE_FAILED)))
    assert object_facts.end == (False, "Restart limit reached (restart_limit=0).")


def test_a_preemption_during_an_outage_counts(object_facts):
    list(object_facts.update_pod(failed(1, STORE_AWAY)))
    list(object_facts.update_pod(preempted(0, deleted_at=None, phase="Failed", main=terminated(143))))
    assert object_facts.end == (False, "Preemption limit reached (preemption_limit=0).")


def see_sample(object_facts, index=0, sample="sample memory=512MiB store=3s", seconds_ago=3600):
    object_facts.judge.see_line(LogLine(clock(), f"worker-{index}", sample, happened=clock() - seconds_ago))


def test_a_replica_that_never_reached_the_object_store_counts(object_facts):
    see_sample(object_facts, sample="sample memory=512MiB")
    list(object_facts.update_pod(failed(1, STORE_UNREACHED)))
    assert object_facts.end == (False, "Restart limit reached (restart_limit=0).")
    assert not object_facts.can_restart


@pytest.mark.parametrize("source", ["a sample", "exit code 140"])
def test_a_replica_that_gets_no_answer_of_a_store_that_has_answered_before_counts_for_no_limit(object_facts, source):
    codes = [STORE_UNREACHED] * 3
    if source == "a sample":
        see_sample(object_facts)
    else:
        codes.insert(0, STORE_AWAY)
    uid, texts = "", []
    for number, code in enumerate(codes):
        list(object_facts.update_pod(failed(1, code, uid, number)))
        uid = f"next-{number}"
        texts += summarize(object_facts.update_pod(pod_of(1, uid, number + 1, **RUNNING)))
    assert texts[0] == texts[-2] == "restart: worker-1 (worker-1: the object store did not answer)"
    assert object_facts.end is None
    assert counts(object_facts) == ({}, 0)


def test_the_peers_of_a_replica_that_gets_no_answer_follow_from_the_outage(object_facts):
    see_sample(object_facts)
    list(object_facts.update_pod(failed(0, 1)))
    list(object_facts.update_pod(failed(1, STORE_UNREACHED)))
    list(object_facts.update_job(job_of(condition("Failed"), at=20)))
    assert object_facts.can_restart
    assert summarize([object_facts.restart_event()]) == [
        "restart: the whole job (worker-1: the object store did not answer)"
    ]


def test_a_job_is_created_again_if_its_controller_has_failed_it_in_an_outage():
    """Without a deadline, the policy of a Job counts code 147 for backoffLimit."""
    object_facts = ObjectFacts(make_job(["unused"], {"restart_limit": 1}), "Job")
    list(object_facts.update_pods([pod_of(0, **RUNNING)]))
    see_sample(object_facts)
    list(object_facts.update_pod(failed(0, STORE_UNREACHED)))
    list(object_facts.update_pod(pod_of(0, "second", 1, **RUNNING)))
    list(object_facts.update_pod(failed(0, STORE_UNREACHED, "second", 1)))
    list(object_facts.update_job(job_of(condition("Failed", "BackoffLimitExceeded"), at=20)))
    assert object_facts.can_restart
    assert summarize([object_facts.restart_event(), *object_facts.restart()]) == [
        "restart: the whole job (worker-0: the object store did not answer)",
        ("worker-0", "waiting", None, "", 2),
    ]
    assert counts(object_facts) == ({}, 0)


def test_an_answer_that_is_read_after_a_failure_counts_too(object_facts):
    """A step that adopts a job may read the failure of a replica before the log of another one."""
    list(object_facts.update_pod(failed(1, STORE_UNREACHED)))
    assert not object_facts.can_restart
    see_sample(object_facts)
    assert object_facts.can_restart


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
def test_a_replica_that_alone_gets_no_answer_counts(object_facts, seconds_ago, counts_for_limit):
    """The network of its node is at fault, or a network policy for its role. It would restart for ever."""
    for seconds in seconds_ago:
        see_sample(object_facts, sample="sample memory=512MiB store=0s", seconds_ago=seconds)
    list(object_facts.update_pod(failed(1, STORE_UNREACHED)))
    assert object_facts.end == ((False, "Restart limit reached (restart_limit=0).") if counts_for_limit else None)
