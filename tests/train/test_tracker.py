"""What an API server tells, object by object -> facts."""

import time
from dataclasses import replace

import pytest
from train.programs.jobs import make_job, workers
from train.test_pods import INSTALLED, NO_IMAGE, UNSCHEDULABLE, condition, pod, terminated

from kfp_distributed.components.train.job import JobEvent, ReplicaChanged, clock
from kfp_distributed.components.train.runners.kubernetes.tracker import Tracker


@pytest.fixture
def tracker():
    return Tracker(make_job(["unused"], workers(2, restart_limit=1)), "TFJob")


def pod_of(index, uid="", created=0, deleted_at=None, **state):
    """A pod of a worker; one that somebody deletes in a second has ten seconds from then."""
    labels = {"training.kubeflow.org/replica-type": "worker", "training.kubeflow.org/replica-index": str(index)}
    about = {
        "name": f"a-job-worker-{index}",
        "uid": uid or f"pod-{index}",
        "creationTimestamp": f"2026-01-01T0{created}",
    }
    if deleted_at is not None:
        about |= {"deletionTimestamp": second(deleted_at + 10), "deletionGracePeriodSeconds": 10}
    return {**pod(**state), "metadata": {**about, "labels": labels}}


def job_of(*conditions, at=10):
    """A job whose conditions are of a second."""
    return {
        "metadata": {"uid": "job-1"},
        "spec": {},
        "status": {"conditions": [{**each, "lastTransitionTime": second(at)} for each in conditions]},
    }


def second(number):
    return f"2026-01-01T09:00:{number:02d}Z"


def shown(facts):
    """Facts without their times: (replica, state, exit code, reason, restart), or the text of an event."""
    return [
        fact.text
        if isinstance(fact, JobEvent)
        else (fact.replica, fact.state, fact.exit_code, fact.reason, fact.restart)
        for fact in facts
        if isinstance(fact, (JobEvent, ReplicaChanged))
    ]


RUNNING = {"phase": "Running", "main": {"running": {}}}


def test_a_job_that_goes_well(tracker):
    job = job_of(condition("Created"))
    assert shown(tracker.tell_job(job)) == []
    assert shown(tracker.tell_pods([pod_of(0, node=None), pod_of(1)])) == [("worker-1", "pulling", None, "", 0)]
    assert shown(tracker.tell_pod(pod_of(0, **RUNNING))) == [("worker-0", "running", None, "", 0)]
    assert shown(tracker.tell_pod(pod_of(0, **RUNNING))) == []
    assert not tracker.leader_is_over
    ended = pod_of(0, phase="Succeeded", main=terminated(0))
    assert shown(tracker.tell_pod(ended)) == [("worker-0", "succeeded", 0, "", 0)]
    assert tracker.leader_is_over
    assert tracker.end is None
    job["status"]["conditions"].append(condition("Succeeded"))
    assert shown(tracker.tell_job(job)) == []
    assert tracker.end == (True, "")
    # The operator ends what still runs.
    assert shown(tracker.tell_pod(pod_of(1), deleted=True)) == [("worker-1", "stopped", None, "job is done", 0)]


def test_the_end_of_an_installation_is_one_event_with_its_seconds(tracker):
    initializing = {"waiting": {"reason": "PodInitializing"}}
    facts = [
        fact
        for state in (
            {"init": {"running": {}}, "main": initializing},
            {"init": INSTALLED, "main": initializing},
            {"init": INSTALLED, **RUNNING},
            {"init": INSTALLED, "phase": "Succeeded", "main": terminated(0)},
        )
        for fact in tracker.tell_pod(pod_of(0, **state))
    ]
    assert shown(facts) == [
        ("worker-0", "installing", None, "pip installs its packages", 0),
        "worker-0: packages installed in 4 min 5 s",
        ("worker-0", "pulling", None, "", 0),
        ("worker-0", "running", None, "", 0),
        ("worker-0", "succeeded", 0, "", 0),
    ]
    changes = [fact for fact in facts if isinstance(fact, ReplicaChanged)]
    assert [fact.install_seconds for fact in changes] == [0, 245, 245, 245]


def test_how_large_a_replica_was_comes_with_its_end(tracker):
    list(tracker.tell_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    (fact,) = tracker.tell_pod(pod_of(0, phase="Succeeded", main=terminated(0, message="2048")))
    assert fact.peak_memory == 2048
    list(tracker.tell_job(job_of(condition("Succeeded"), at=20)))
    # The operator ends what still runs.
    (fact,) = tracker.tell_pod(
        pod_of(1, deleted_at=21, phase="Failed", main=terminated(143, message="4096")), deleted=True
    )
    assert (fact.state, fact.exit_code, fact.reason, fact.peak_memory) == ("stopped", None, "job is done", 4096)


def test_why_there_are_no_pods(tracker):
    unclaimed = {**job_of(), "status": {}}
    assert shown(tracker.tell_job(unclaimed)) == []
    assert shown(tracker.tell_time(clock() + 9)) == []
    nobody = "no operator has taken up the TFJob"
    said = [(f"worker-{index}", "waiting", None, nobody, 0) for index in range(2)]
    assert shown(tracker.tell_time(clock() + 11)) == said
    assert shown(tracker.tell_time(clock() + 12)) == []
    event = {
        "involvedObject": {"name": "a-job"},
        "reason": "FailedCreatePod",
        "message": 'pods "a-job-worker-0" is forbidden: exceeded quota',
    }
    text = 'FailedCreatePod: pods "a-job-worker-0" is forbidden: exceeded quota'
    assert shown(tracker.tell_event(event)) == [
        f"a-job: {text}",
        *((f"worker-{index}", "waiting", None, text, 0) for index in range(2)),
    ]
    # The status that comes after it knows less.
    assert shown(tracker.tell_job(job_of(condition("Created")))) == []
    assert shown(tracker.tell_event(event)) == []


def test_events_of_others_are_none_of_ours(tracker):
    assert shown(tracker.tell_event({"involvedObject": {"name": "a-job2"}, "reason": "Failed", "message": ""})) == []


def test_a_queue_that_admits_the_job_later(tracker):
    queued = {**job_of(condition("Suspended")), "spec": {"runPolicy": {"suspend": True}}}
    assert shown(tracker.tell_job(queued)) == [
        (f"worker-{index}", "queued", None, "the queue has not admitted the job", 0) for index in range(2)
    ]
    assert shown(tracker.tell_job({**job_of(), "spec": {"runPolicy": {"suspend": False}}})) == [
        (f"worker-{index}", "waiting", None, "", 0) for index in range(2)
    ]


def test_a_queue_whose_admission_is_heard_of_after_the_pods(tracker):
    queued = {**job_of(), "spec": {"runPolicy": {"suspend": True}}}
    list(tracker.tell_job(queued))
    assert shown(tracker.tell_pod(pod_of(0, **RUNNING))) == []
    assert shown(tracker.tell_pods([pod_of(1, **RUNNING)])) == []
    assert shown(tracker.tell_job(job_of())) == [
        ("worker-0", "waiting", None, "", 0),
        ("worker-1", "waiting", None, "", 0),
        ("worker-1", "running", None, "", 0),
    ]


def test_reasons_while_it_waits(tracker):
    facts = shown(tracker.tell_pods([pod_of(0, node=None, conditions=[UNSCHEDULABLE]), pod_of(1, main=NO_IMAGE)]))
    assert facts == [
        ("worker-0", "waiting", None, "Unschedulable: 0/1 nodes are available: 1 Insufficient cpu.", 0),
        ("worker-1", "pulling", None, 'ImagePullBackOff: Back-off pulling image "nowhere:1"', 0),
    ]


def test_an_image_that_can_never_be_pulled_ends_the_job(tracker):
    list(tracker.tell_pod(pod_of(0, main={"waiting": {"reason": "InvalidImageName", "message": "no such form"}})))
    assert tracker.end == (False, "worker-0 cannot start: InvalidImageName: no such form.")


def test_reasons_that_come_by_turns_are_told_once(tracker):
    told = []
    for _ in range(3):
        for reason in ("ErrImagePull", "ImagePullBackOff"):
            told += shown(tracker.tell_pod(pod_of(0, main={"waiting": {"reason": reason}})))
    assert [reason for _, _, _, reason, _ in told] == ["ErrImagePull", "ImagePullBackOff", "ErrImagePull"]


def test_restarts_up_to_the_limit(tracker):
    killed = {"phase": "Failed", "main": terminated(137)}
    assert shown(tracker.tell_pod(pod_of(1, "first", 1, **RUNNING))) == [("worker-1", "running", None, "", 0)]
    assert shown(tracker.tell_pod(pod_of(1, "first", 1, **killed))) == [("worker-1", "failed", 137, "", 0)]
    assert shown(tracker.tell_pod(pod_of(1, "first", 1, **killed), deleted=True)) == []
    assert shown(tracker.tell_pod(pod_of(1, "second", 2, **RUNNING))) == [("worker-1", "running", None, "", 1)]
    # News of the pod before it comes late.
    assert shown(tracker.tell_pod(pod_of(1, "first", 1, **RUNNING))) == []
    assert tracker.end is None
    assert shown(tracker.tell_pod(pod_of(1, "second", 2, **killed))) == [("worker-1", "failed", 137, "", 1)]
    assert tracker.end == (False, "The restarts that restart_limit allows (1) are used up.")


def test_an_exit_code_that_is_for_good_is_left_to_the_operator(tracker):
    for created, uid in enumerate(("first", "second", "third")):
        list(tracker.tell_pod(pod_of(1, uid, created, phase="Failed", main=terminated(1))))
    assert tracker.end is None
    list(tracker.tell_job(job_of(condition("Failed", "1 worker failed"))))
    assert tracker.end == (False, "TFJob failed: 1 worker failed.")


def test_a_pod_that_somebody_deletes_has_failed(tracker):
    list(tracker.tell_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    assert shown(tracker.tell_pods([pod_of(0, **RUNNING)])) == []
    assert shown(tracker.tell_time(clock() + 1)) == []
    assert shown(tracker.tell_time(clock() + 4)) == [("worker-1", "failed", None, "pod deleted", 0)]
    assert shown(tracker.tell_time(clock() + 5)) == []


def test_a_pod_that_ends_because_it_is_deleted(tracker):
    killed = pod_of(1, deleted_at=9, phase="Failed", main=terminated(143))
    assert shown(tracker.tell_pod(killed)) == []
    # Its successor is there: it was no end of the job.
    assert shown(tracker.tell_pod(pod_of(1, "second", 1, **RUNNING))) == [
        ("worker-1", "failed", 143, "pod deleted", 0),
        ("worker-1", "running", None, "", 1),
    ]


def test_a_deleted_pod_has_failed_when_it_went(tracker):
    list(tracker.tell_pod(pod_of(1, **RUNNING)))
    before = clock()
    assert list(tracker.tell_pod(pod_of(1, deleted_at=11, **RUNNING), deleted=True)) == []
    after = clock()
    time.sleep(0.01)
    (fact,) = tracker.tell_time(after + 4)
    assert before <= fact.time <= after


def test_a_pod_that_went_while_nobody_watched_is_not_what_another_failed_for(tracker):
    """Its watch had expired; the operator has cleaned up, of which the job's own news come later."""
    list(tracker.tell_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    assert shown(tracker.tell_pods([pod_of(0, phase="Failed", main=terminated(1))])) == [
        ("worker-0", "failed", 1, "", 0)
    ]
    told = tracker.tell_job(job_of(condition("Failed", "1 worker failed"), at=20))
    assert shown(told) == [("worker-1", "stopped", None, "job is done", 0)]
    assert not tracker.may_start_again


def test_a_pod_that_ends_because_the_job_is_done(tracker):
    list(tracker.tell_pod(pod_of(1, **RUNNING)))
    list(tracker.tell_job(job_of(condition("Succeeded"))))
    killed = pod_of(1, deleted_at=9, phase="Failed", main=terminated(143))
    assert shown(tracker.tell_pod(killed)) == [("worker-1", "stopped", None, "job is done", 0)]


@pytest.mark.parametrize(("deleted_at", "state"), [(15, ("failed", "pod deleted")), (25, ("stopped", "job is done"))])
def test_whether_a_pod_or_its_job_ended_first_when_the_pod_is_told_last(tracker, deleted_at, state):
    list(tracker.tell_pod(pod_of(1, **RUNNING)))
    list(tracker.tell_job(job_of(condition("Failed"), at=20)))
    (fact,) = tracker.tell_pod(pod_of(1, deleted_at=deleted_at, **RUNNING), deleted=True)
    assert (fact.state, fact.reason) == state


@pytest.mark.parametrize("job_first", [False, True])
@pytest.mark.parametrize(
    ("condition_", "failed_before", "state"),
    [
        ("Succeeded", False, ("stopped", "job is done")),
        ("Failed", True, ("stopped", "job is done")),
        ("Failed", False, ("failed", "pod deleted")),
    ],
)
@pytest.mark.parametrize("deleted_at", [19, 20, 21])
def test_a_pod_that_is_deleted_in_the_second_of_its_jobs_end(
    tracker, deleted_at, condition_, failed_before, state, job_first
):
    """Whoever deleted it: what else is known tells it, in whatever order the two are told."""
    list(tracker.tell_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    if failed_before:
        list(tracker.tell_pod(pod_of(0, phase="Failed", main=terminated(1))))
    news = [
        lambda: tracker.tell_job(job_of(condition(condition_), at=20)),
        lambda: tracker.tell_pod(pod_of(1, deleted_at=deleted_at, **RUNNING), deleted=True),
    ]
    (fact,) = [fact for tell in (news if job_first else reversed(news)) for fact in tell()]
    assert (fact.replica, fact.state, fact.reason) == ("worker-1", *state)


def test_a_deleted_pod_that_takes_long_to_end_is_what_its_job_failed_for(tracker):
    list(tracker.tell_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    list(tracker.tell_pod(pod_of(1, deleted_at=20, **RUNNING)))
    told = [*tracker.tell_job(job_of(condition("Failed"), at=20))]
    # The operator then deletes the other one, which ends first.
    told += tracker.tell_pod(pod_of(0, deleted_at=20, phase="Failed", main=terminated(143)))
    assert shown(told) == [
        ("worker-1", "failed", None, "pod deleted", 0),
        ("worker-0", "stopped", None, "job is done", 0),
    ]
    assert tracker.may_start_again


def test_a_peer_that_fails_after_a_pod_was_deleted_is_not_what_the_job_failed_for(tracker):
    list(tracker.tell_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    list(tracker.tell_pod(pod_of(1, deleted_at=20, **RUNNING), deleted=True))
    list(tracker.tell_pod(pod_of(0, phase="Failed", main=terminated(1))))
    told = tracker.tell_job(job_of(condition("Failed"), at=20))
    assert shown(told) == [("worker-1", "failed", None, "pod deleted", 0)]


def test_without_restarts_the_first_failure_is_the_last(tracker):
    tracker.job = make_job(["unused"], workers(2, restart_limit=0))
    list(tracker.tell_pod(pod_of(1, phase="Failed", main=terminated(137))))
    assert tracker.end == (False, "The restarts that restart_limit allows (0) are used up.")
    # The operator starts it again all the same. What counts is how it ended, not what its peers then do.
    assert shown(tracker.tell_pod(pod_of(1, "second", 1, **RUNNING))) == []


@pytest.mark.parametrize("code", [134, 137, 138])
def test_what_a_peer_of_a_leader_that_is_done_ends_with_is_no_end(tracker, code):
    tracker.job = make_job(["unused"], workers(2, restart_limit=0))
    list(tracker.tell_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    list(tracker.tell_pod(pod_of(0, phase="Succeeded", main=terminated(0))))
    ended = pod_of(1, phase="Failed", main=terminated(code))
    assert shown(tracker.tell_pod(ended)) == [("worker-1", "failed", code, "", 0)]
    assert tracker.end is None
    list(tracker.tell_job(job_of(condition("Succeeded"))))
    assert tracker.end == (True, "")


def test_an_elastic_mpi_job_goes_on_without_a_worker():
    distribution = {"distribution_type": "MPI", "min_workers": 1, "restart_limit": 0}
    tracker = Tracker(make_job(["unused"], distribution), "MPIJob")
    list(tracker.tell_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    assert shown(tracker.tell_pod(pod_of(1, deleted_at=11, **RUNNING), deleted=True)) == []
    assert shown(tracker.tell_time(clock() + 4)) == [("worker-1", "failed", None, "pod deleted", 0)]
    assert tracker.end is None
    launcher = pod_of(0, "launcher", phase="Failed", main=terminated(137))
    launcher["metadata"]["labels"]["training.kubeflow.org/replica-type"] = "launcher"
    assert shown(tracker.tell_pod(launcher)) == [("launcher-0", "failed", 137, "", 0)]
    assert tracker.end == (False, "The restarts that restart_limit allows (0) are used up.")


def test_workers_may_leave_an_elastic_pytorch_job_as_often_as_somebody_likes():
    distribution = {"distribution_type": "PyTorch", "number_of_workers": 2, "min_workers": 1, "restart_limit": 1}
    tracker = Tracker(make_job(["unused"], distribution), "PyTorchJob")
    for time_ in range(3):
        worker = pod_of(1, f"pod-{time_}", time_, **RUNNING)
        assert shown(tracker.tell_pod(worker)) == [("worker-1", "running", None, "", 0)]
        assert shown(tracker.tell_pod(worker, deleted=True)) == []
        assert shown(tracker.tell_time(clock() + 4)) == [("worker-1", "stopped", None, "pod deleted", 0)]
    # One that is killed has failed, and so has one that its node refuses.
    list(tracker.tell_pod(pod_of(1, "killed", 4, phase="Failed", main=terminated(137))))
    assert tracker.end is None
    refused = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": ""}
    found = pod_of(1, "refused", 5)
    list(tracker.tell_pod({**found, "status": refused}))
    assert tracker.end == (False, "The restarts that restart_limit allows (1) are used up.")


def test_an_elastic_pytorch_job_that_ends_for_a_worker_that_went_starts_again():
    distribution = {"distribution_type": "PyTorch", "number_of_workers": 2, "min_workers": 1}
    tracker = Tracker(make_job(["unused"], distribution), "PyTorchJob")
    list(tracker.tell_pod(pod_of(1, **RUNNING)))
    assert shown(tracker.tell_pod(pod_of(1, deleted_at=11, **RUNNING), deleted=True)) == []
    assert shown(tracker.tell_job(job_of(condition("Failed"), at=12))) == [
        ("worker-1", "failed", None, "pod deleted", 0)
    ]
    assert tracker.may_start_again


def test_a_worker_that_somebody_adds_is_ours_and_nothing_waits_for_it(tracker):
    added = pod_of(2, **RUNNING)
    added["metadata"]["ownerReferences"] = [{"kind": "TFJob", "uid": "job-1"}]
    tracker.uid = "job-1"
    assert tracker.is_ours(added)
    assert shown(tracker.tell_pod(added)) == []
    tracker.uid = "job-2"
    assert not tracker.is_ours(added)


def test_a_deleted_pod_that_was_the_end_is_not_seen_to_start_again(tracker):
    tracker.job = make_job(["unused"], workers(2, restart_limit=0))
    list(tracker.tell_pod(pod_of(1, **RUNNING)))
    assert shown(tracker.tell_pod(pod_of(1, deleted_at=11, **RUNNING), deleted=True)) == []
    again = pod_of(1, "second", 1, **RUNNING)
    assert shown(tracker.tell_pod(again)) == [("worker-1", "failed", None, "pod deleted", 0)]


def test_a_job_that_somebody_deletes_has_failed(tracker):
    list(tracker.tell_job(None))
    assert tracker.end == (False, "Somebody deleted the TFJob.")


def test_a_job_that_the_operator_gives_up_for_a_deleted_pod_starts_again(tracker):
    list(tracker.tell_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    list(tracker.tell_pod(pod_of(1, deleted_at=15, **RUNNING), deleted=True))
    assert not tracker.may_start_again
    list(tracker.tell_job(job_of(condition("Failed"), at=20)))
    assert tracker.may_start_again
    assert shown([tracker.restart_event(), *tracker.start_again()]) == [
        "restart 1 of 1: the whole job (worker-1 failed)",
        *((f"worker-{index}", "waiting", None, "", 1) for index in range(2)),
    ]
    assert tracker.end is None
    tracker.uid = "job-2"
    # News of the job and the pods that are gone come late.
    assert shown(tracker.tell_job(job_of(condition("Failed"), at=25), deleted=True)) == []
    late, new = pod_of(0, **RUNNING), pod_of(0, "new", 1, **RUNNING)
    late["metadata"]["ownerReferences"] = [{"kind": "TFJob", "uid": "job-1"}]
    new["metadata"]["ownerReferences"] = [{"kind": "TFJob", "uid": "job-2"}]
    assert shown(tracker.tell_pod(late, deleted=True)) == []
    assert shown(tracker.tell_pod(new)) == [("worker-0", "running", None, "", 1)]
    # That was the only restart allowed.
    list(tracker.tell_pod(new, deleted=True))
    list(tracker.tell_time(clock() + 4))
    assert tracker.end == (False, "The restarts that restart_limit allows (1) are used up.")
    assert not tracker.may_start_again


def test_each_replica_has_restarts_of_its_own(tracker):
    tracker.job = make_job(["unused"], workers(2, restart_limit=2))
    list(tracker.tell_pods([pod_of(0, **RUNNING), pod_of(1, "first", 1, phase="Failed", main=terminated(137))]))
    list(tracker.tell_pod(pod_of(1, "second", 2, **RUNNING)))
    list(tracker.tell_pod(pod_of(0, phase="Failed", main=terminated(137))))
    assert tracker.end is None
    list(tracker.tell_job(job_of(condition("Failed"), at=20)))
    assert shown([tracker.restart_event(), *tracker.start_again()]) == [
        "restart 2 of 2: the whole job (worker-1 failed)",
        ("worker-0", "waiting", None, "", 1),
        ("worker-1", "waiting", None, "", 2),
    ]
    assert not tracker.may_start_again


def test_a_pod_of_the_job_before_is_known_by_its_time_where_it_has_no_owner_of_the_jobs_kind(tracker):
    """The launcher of an MPIJob v2beta1 belongs to a Job of its operator's."""
    tracker.job = make_job(["unused"], workers(2, restart_limit=2))
    killed = {"phase": "Failed", "main": terminated(137)}
    list(tracker.tell_pods([pod_of(0, **RUNNING), pod_of(1, **killed)]))
    list(tracker.tell_job(job_of(condition("Failed"), at=20)))
    list(tracker.start_again())
    assert shown(tracker.tell_pod(pod_of(0, deleted_at=21, **RUNNING), deleted=True)) == []
    assert shown(tracker.tell_time(clock() + 4)) == []
    assert shown(tracker.tell_pod(pod_of(0, "new", 1, **RUNNING))) == [("worker-0", "running", None, "", 1)]
    assert tracker.end is None


def test_a_replica_that_waits_again_for_the_same_reason_says_so_again(tracker):
    waits = {"node": None, "conditions": [UNSCHEDULABLE]}
    list(tracker.tell_pod(pod_of(1, node=None)))
    ((*_, reason, restart),) = shown(tracker.tell_pod(pod_of(1, **waits)))
    assert reason.startswith("Unschedulable")
    assert restart == 0
    list(tracker.tell_pod(pod_of(1, **RUNNING)))
    list(tracker.tell_pod(pod_of(1, phase="Failed", main=terminated(137))))
    list(tracker.tell_pod(pod_of(1, "second", 1, node=None)))
    assert shown(tracker.tell_pod(pod_of(1, "second", 1, **waits))) == [("worker-1", "waiting", None, reason, 1)]


@pytest.mark.parametrize(("index", "told"), [(0, ("succeeded", 0, "")), (1, ("failed", None, "pod deleted"))])
def test_a_worker_that_is_told_to_go_has_not_succeeded(tracker, index, told):
    list(tracker.tell_pod(pod_of(index, **RUNNING)))
    gone = pod_of(index, deleted_at=12, phase="Succeeded", main=terminated(0))
    facts = shown([*tracker.tell_pod(gone), *tracker.tell_pod(gone, deleted=True), *tracker.tell_time(clock() + 4)])
    assert [fact[1:4] for fact in facts] == [told]


def test_what_an_earlier_job_of_the_name_was_refused_for_is_not_told(tracker):
    tracker.created = "2026-01-01T01:00:00Z"  # Events may be listed before the job is.
    refused = {"involvedObject": {"name": "a-job"}, "reason": "FailedCreatePod", "message": "exceeded quota"}
    assert shown(tracker.tell_event({**refused, "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}})) == []
    assert shown(tracker.tell_event({**refused, "metadata": {"creationTimestamp": "2026-01-01T01:00:00Z"}})) != []


def test_packages_that_cannot_be_installed_end_the_job(tracker):
    list(tracker.tell_pod(pod_of(1, init={"running": {}}, main={"waiting": {"reason": "PodInitializing"}})))
    list(tracker.tell_pod(pod_of(1, init=terminated(1), main={"waiting": {"reason": "PodInitializing"}})))
    assert tracker.end == (False, "worker-1 cannot start: its packages cannot be installed.")


def test_a_replica_whose_last_failure_is_for_good_is_not_started_again_for_one_before(tracker):
    tracker.job = make_job(["unused"], workers(2, restart_limit=3))
    list(tracker.tell_pods([pod_of(0, **RUNNING), pod_of(1, phase="Failed", main=terminated(137))]))
    list(tracker.tell_pod(pod_of(1, "second", 1, **RUNNING)))
    list(tracker.tell_pod(pod_of(1, "second", 1, phase="Failed", main=terminated(1))))
    list(tracker.tell_job(job_of(condition("Failed"), at=20)))
    assert not tracker.may_start_again


def test_a_job_whose_first_failure_is_for_good_does_not_start_again(tracker):
    list(tracker.tell_pod(pod_of(1, phase="Failed", main=terminated(1))))
    list(tracker.tell_job(job_of(condition("Failed"), at=20)))
    assert not tracker.may_start_again


def test_a_job_that_went_well_is_not_run_again_whatever_is_told_first(tracker):
    """A worker was killed and started again; in the end its operator deletes the pods, and that is told first."""
    killed = {"phase": "Failed", "main": terminated(137)}
    list(tracker.tell_pods([pod_of(0, **RUNNING), pod_of(1, "first", 1, **killed)]))
    list(tracker.tell_pod(pod_of(1, "second", 2, **RUNNING)))
    list(tracker.tell_pod(pod_of(0, phase="Succeeded", main=terminated(0))))
    assert shown(tracker.tell_pod(pod_of(1, "second", 2, deleted_at=30, **RUNNING), deleted=True)) == []
    done = shown(tracker.tell_job(job_of(condition("Succeeded"), at=25)))
    assert done == [("worker-1", "stopped", None, "job is done", 1)]
    assert tracker.end == (True, "")
    assert not tracker.may_start_again


def test_a_failure_of_long_ago_is_not_what_a_job_failed_for(tracker):
    tracker.job = make_job(["unused"], workers(2, restart_limit=3))
    list(tracker.tell_pod(pod_of(1, "first", 1, phase="Failed", main=terminated(137))))
    tracker._failures["worker-1"] = replace(tracker._failures["worker-1"], time=clock() - 3600)
    list(tracker.tell_pod(pod_of(1, "second", 2, **RUNNING)))
    list(tracker.tell_pod(pod_of(0, phase="Failed", main=terminated(1))))
    list(tracker.tell_job(job_of(condition("Failed"), at=20)))
    assert not tracker.may_start_again


def test_a_queue_that_takes_its_admission_back_is_no_failure(tracker):
    list(tracker.tell_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    suspended = {**job_of(condition("Suspended"), at=20), "spec": {"runPolicy": {"suspend": True}}}
    assert [fact[1] for fact in shown(tracker.tell_job(suspended))] == ["queued", "queued"]
    assert shown(tracker.tell_pod(pod_of(0, deleted_at=21, **RUNNING), deleted=True)) == []
    assert [fact[1] for fact in shown(tracker.tell_job(job_of(at=22)))] == ["waiting", "waiting"]
    # The job may be admitted again while its pods still end.
    assert (
        shown([*tracker.tell_pod(pod_of(1, deleted_at=23, **RUNNING), deleted=True), *tracker.tell_time(clock() + 4)])
        == []
    )
    assert shown(tracker.tell_pod(pod_of(0, "second", 2, **RUNNING))) == [("worker-0", "running", None, "", 0)]


def test_a_container_that_is_started_again_in_its_pod(tracker):
    def started(count, phase="Running", **state):
        found = pod_of(0, phase=phase, **state)
        found["status"]["containerStatuses"][0]["restartCount"] = count
        return found

    tracker.job = make_job(["unused"], workers(2, restart_limit=2))
    told = shown(tracker.tell_pod(started(0, main={"running": {}})))
    told += shown(tracker.tell_pod(started(0, main=terminated(137))))
    told += shown(tracker.tell_pod(started(1, main={"waiting": {"reason": "CrashLoopBackOff"}})))
    told += shown(tracker.tell_pod(started(1, main={"running": {}})))
    told += shown(tracker.tell_pod(started(1, "Succeeded", main=terminated(0))))
    assert [(state, restart) for _, state, _, _, restart in told] == [
        ("running", 0),
        ("failed", 0),
        ("starting", 1),
        ("running", 1),
        ("succeeded", 1),
    ]


def test_a_container_of_the_operators_that_is_tried_again_is_no_failure():
    """kubectl-delivery, before the launcher of MPIJob v1."""
    tracker = Tracker(make_job(["unused"], {"distribution_type": "MPI", "restart_limit": 0}), "MPIJob")

    def launcher(init, **state):
        found = pod_of(0, **state)
        found["metadata"]["labels"]["training.kubeflow.org/replica-type"] = "launcher"
        found["status"]["initContainerStatuses"] = [{"name": "kubectl-delivery", "state": init, "restartCount": 1}]
        return found

    initializing = {"waiting": {"reason": "PodInitializing"}}
    told = shown(tracker.tell_pod(launcher({"running": {}}, main=initializing)))
    told += shown(tracker.tell_pod(launcher(terminated(1), main=initializing)))
    told += shown(tracker.tell_pod(launcher({"waiting": {"reason": "CrashLoopBackOff"}}, main=initializing)))
    told += shown(tracker.tell_pod(launcher({"running": {}}, main=initializing)))
    told += shown(tracker.tell_pod(launcher(terminated(0), **RUNNING)))
    told += shown(tracker.tell_pod(launcher(terminated(0), phase="Failed", main=terminated(3))))
    assert [(state, code, restart) for _, state, code, _, restart in told] == [
        ("starting", None, 0),
        ("pulling", None, 0),
        ("pulling", None, 0),
        ("starting", None, 0),
        ("running", None, 0),
        ("failed", 3, 0),
    ]


def test_events_without_a_name_and_of_an_earlier_job_are_passed_over(tracker):
    job = job_of(condition("Created"))
    job["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
    list(tracker.tell_job(job))
    old = {"creationTimestamp": "2026-01-01T00:00:00Z"}
    assert shown(tracker.tell_event({"involvedObject": {}, "reason": "Odd"})) == []
    assert shown(tracker.tell_event({"metadata": old, "involvedObject": {"name": "a-job"}, "reason": "Odd"})) == []


def test_what_the_kubelet_counts_of_an_evicted_pod_is_no_restart(tracker):
    list(tracker.tell_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    evicted = pod_of(0, phase="Failed", main={"waiting": {}})
    evicted["status"] |= {"reason": "Evicted", "message": "no disk"}
    evicted["status"]["containerStatuses"][0]["restartCount"] = 1
    assert shown(tracker.tell_pod(evicted)) == [("worker-0", "failed", None, "Evicted: no disk", 0)]
    assert tracker.end is None
    assert shown(tracker.tell_pod(pod_of(0, uid="new", created=1, **RUNNING))) == [("worker-0", "running", None, "", 1)]
    assert tracker.end is None


def mount_event(text, uid="pod-1", kind="FailedMount"):
    about = {"name": "a-job-worker-1", "uid": uid}
    return {"involvedObject": about, "reason": kind, "message": f'MountVolume.SetUp failed for volume "code" : {text}'}


NOT_SYNCED = "failed to sync configmap cache: timed out waiting for the condition"
NOT_THERE = 'configmap "a-job-code" not found'


@pytest.mark.parametrize("text", [NOT_SYNCED, NOT_THERE])
def test_a_mount_that_fails_at_first_is_not_told(tracker, text):
    list(tracker.tell_pod(pod_of(1)))
    assert shown(tracker.tell_event(mount_event(text))) == []
    list(tracker.tell_pod(pod_of(1, **RUNNING)))
    assert shown(tracker.tell_time(clock() + 31)) == []


@pytest.mark.parametrize("text", [NOT_SYNCED, NOT_THERE])
def test_a_mount_that_goes_on_failing_is_why_its_pod_waits(tracker, text):
    list(tracker.tell_pod(pod_of(1)))
    told = f'FailedMount: MountVolume.SetUp failed for volume "code" : {text}'
    assert shown(tracker.tell_event(mount_event(text))) == []
    assert shown(tracker.tell_time(clock() + 29)) == []
    # A kubelet repeats it, and another pod of the name has other troubles.
    assert shown(tracker.tell_event(mount_event(text))) == []
    assert shown(tracker.tell_event(mount_event(text, uid="before"))) == []
    assert shown(tracker.tell_time(clock() + 31)) == [
        f"a-job-worker-1: {told}",
        ("worker-1", "pulling", None, told, 0),
    ]
    assert shown(tracker.tell_event(mount_event(text))) == []
    assert shown(tracker.tell_time(clock() + 62)) == []


def test_a_mount_that_does_not_pass_is_told_at_once(tracker):
    text = "references non-existent config key: job.json"
    list(tracker.tell_pod(pod_of(1)))
    (told,) = shown(tracker.tell_event(mount_event(text)))
    assert told.endswith(text)
