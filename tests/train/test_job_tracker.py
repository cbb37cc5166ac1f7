"""Facts that the job_tracker yields for changes of a job, its pods and events."""

import pytest
from train.programs.jobs import make_job, workers
from train.test_pods import INSTALLED, NO_IMAGE, UNSCHEDULABLE, condition, pod, terminated

from kfp_distributed.components.train.run.facts import JobEvent, ReplicaChanged, clock
from kfp_distributed.components.train.run.runners.kubernetes.judge.job_tracker import JobTracker


@pytest.fixture
def job_tracker():
    return JobTracker(make_job(["unused"], workers(2, restart_limit=1)), "TFJob")


def pod_of(index, uid="", created=0, deleted_at=None, **state):
    """Return the pod of a worker. `deleted_at` is the second of its deletion with a grace period of ten seconds."""
    labels = {"training.kubeflow.org/replica-type": "worker", "training.kubeflow.org/replica-index": str(index)}
    metadata = {
        "name": f"a-job-worker-{index}",
        "uid": uid or f"pod-{index}",
        "creationTimestamp": f"2026-01-01T0{created}",
    }
    if deleted_at is not None:
        metadata |= {"deletionTimestamp": second(deleted_at + 10), "deletionGracePeriodSeconds": 10}
    return {**pod(**state), "metadata": {**metadata, "labels": labels}}


def job_of(*conditions, at=10):
    """Return a job with these conditions, which became true in the given second."""
    return {
        "metadata": {"uid": "job-1"},
        "spec": {},
        "status": {"conditions": [{**condition, "lastTransitionTime": second(at)} for condition in conditions]},
    }


def second(number):
    return f"2026-01-01T09:00:{number:02d}Z"


def summarize(facts):
    """Return facts without their times: (replica, state, exit code, reason, restart), or the text of an event."""
    return [
        fact.text
        if isinstance(fact, JobEvent)
        else (fact.replica, fact.state, fact.exit_code, fact.reason, fact.restart)
        for fact in facts
        if isinstance(fact, (JobEvent, ReplicaChanged))
    ]


RUNNING = {"phase": "Running", "main": {"running": {}}}


def test_a_job_succeeds_when_its_leader_does(job_tracker):
    job = job_of(condition("Created"))
    assert summarize(job_tracker.update_job(job)) == []
    assert summarize(job_tracker.update_pods([pod_of(0, node=None), pod_of(1)])) == [
        ("worker-1", "pulling", None, "", 0)
    ]
    assert summarize(job_tracker.update_pod(pod_of(0, **RUNNING))) == [("worker-0", "running", None, "", 0)]
    assert summarize(job_tracker.update_pod(pod_of(0, **RUNNING))) == []
    assert not job_tracker.leader_is_over
    ended = pod_of(0, phase="Succeeded", main=terminated(0))
    assert summarize(job_tracker.update_pod(ended)) == [("worker-0", "succeeded", 0, "", 0)]
    assert job_tracker.leader_is_over
    assert job_tracker.end is None
    job["status"]["conditions"].append(condition("Succeeded"))
    assert summarize(job_tracker.update_job(job)) == []
    assert job_tracker.end == (True, "")
    # The operator deletes running pods.
    assert summarize(job_tracker.update_pod(pod_of(1), deleted=True)) == [("worker-1", "stopped", None, "job ended", 0)]


def test_the_end_of_an_installation_is_one_event_with_its_duration(job_tracker):
    initializing = {"waiting": {"reason": "PodInitializing"}}
    facts = [
        fact
        for state in (
            {"init": {"running": {}}, "main": initializing},
            {"init": INSTALLED, "main": initializing},
            {"init": INSTALLED, **RUNNING},
            {"init": INSTALLED, "phase": "Succeeded", "main": terminated(0)},
        )
        for fact in job_tracker.update_pod(pod_of(0, **state))
    ]
    assert summarize(facts) == [
        ("worker-0", "installing", None, "installing packages with pip", 0),
        "worker-0: packages installed in 4 min 5 s",
        ("worker-0", "pulling", None, "", 0),
        ("worker-0", "running", None, "", 0),
        ("worker-0", "succeeded", 0, "", 0),
    ]
    changes = [fact for fact in facts if isinstance(fact, ReplicaChanged)]
    assert [fact.install_seconds for fact in changes] == [0, 245, 245, 245]


def test_the_end_of_a_replica_has_its_peak_memory(job_tracker):
    list(job_tracker.update_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    (fact,) = job_tracker.update_pod(pod_of(0, phase="Succeeded", main=terminated(0, message="2048")))
    assert fact.peak_memory == 2048
    list(job_tracker.update_job(job_of(condition("Succeeded"), at=20)))
    # The operator deletes running pods.
    (fact,) = job_tracker.update_pod(
        pod_of(1, deleted_at=21, phase="Failed", main=terminated(143, message="4096")), deleted=True
    )
    assert (fact.state, fact.exit_code, fact.reason, fact.peak_memory) == ("stopped", None, "job ended", 4096)


def test_missing_pods_have_a_reason(job_tracker):
    without_status = {**job_of(), "status": {}}
    assert summarize(job_tracker.update_job(without_status)) == []
    assert summarize(job_tracker.advance_time(clock() + 9)) == []
    reason = "no operator has set a status of the TFJob"
    expected = [(f"worker-{index}", "waiting", None, reason, 0) for index in range(2)]
    assert summarize(job_tracker.advance_time(clock() + 11)) == expected
    assert summarize(job_tracker.advance_time(clock() + 12)) == []
    event = {
        "involvedObject": {"name": "a-job"},
        "reason": "FailedCreatePod",
        "message": 'pods "a-job-worker-0" is forbidden: exceeded quota',
    }
    text = 'FailedCreatePod: pods "a-job-worker-0" is forbidden: exceeded quota'
    assert summarize(job_tracker.add_event(event)) == [
        f"a-job: {text}",
        *((f"worker-{index}", "waiting", None, text, 0) for index in range(2)),
    ]
    # A later status does not hide the reason.
    assert summarize(job_tracker.update_job(job_of(condition("Created")))) == []
    assert summarize(job_tracker.add_event(event)) == []


def test_an_operator_that_creates_a_pod_twice_is_no_warning(job_tracker):
    """Its cache did not have the pod yet."""
    text = 'launcher pod created failed: pods "a-job-launcher" already exists'
    event = {"involvedObject": {"name": "a-job"}, "reason": "MPIJobFailed", "message": text}
    assert summarize(job_tracker.add_event(event)) == []
    assert summarize(job_tracker.add_event({**event, "message": 'configmaps "other" already exists'})) != []


def test_events_of_other_jobs_are_ignored(job_tracker):
    assert (
        summarize(job_tracker.add_event({"involvedObject": {"name": "a-job2"}, "reason": "Failed", "message": ""}))
        == []
    )


def test_replicas_are_queued_until_the_queue_admits_the_job(job_tracker):
    queued = {**job_of(condition("Suspended")), "spec": {"runPolicy": {"suspend": True}}}
    assert summarize(job_tracker.update_job(queued)) == [
        (f"worker-{index}", "queued", None, "not admitted by the queue", 0) for index in range(2)
    ]
    assert summarize(job_tracker.update_job({**job_of(), "spec": {"runPolicy": {"suspend": False}}})) == [
        (f"worker-{index}", "waiting", None, "", 0) for index in range(2)
    ]


def test_pods_that_are_reported_before_the_admission_of_their_job_are_kept(job_tracker):
    queued = {**job_of(), "spec": {"runPolicy": {"suspend": True}}}
    list(job_tracker.update_job(queued))
    assert summarize(job_tracker.update_pod(pod_of(0, **RUNNING))) == []
    assert summarize(job_tracker.update_pods([pod_of(1, **RUNNING)])) == []
    assert summarize(job_tracker.update_job(job_of())) == [
        ("worker-0", "waiting", None, "", 0),
        ("worker-1", "waiting", None, "", 0),
        ("worker-1", "running", None, "", 0),
    ]


def test_waiting_replicas_have_a_reason(job_tracker):
    facts = summarize(
        job_tracker.update_pods([pod_of(0, node=None, conditions=[UNSCHEDULABLE]), pod_of(1, main=NO_IMAGE)])
    )
    assert facts == [
        ("worker-0", "waiting", None, "Unschedulable: 0/1 nodes are available: 1 Insufficient cpu.", 0),
        ("worker-1", "pulling", None, 'ImagePullBackOff: Back-off pulling image "nowhere:1"', 0),
    ]


def test_an_invalid_image_name_ends_the_job(job_tracker):
    list(job_tracker.update_pod(pod_of(0, main={"waiting": {"reason": "InvalidImageName", "message": "no such form"}})))
    assert job_tracker.end == (False, "worker-0 cannot start: InvalidImageName: no such form.")


def test_alternating_reasons_are_reported_once(job_tracker):
    facts = []
    for _ in range(3):
        for reason in ("ErrImagePull", "ImagePullBackOff"):
            facts += summarize(job_tracker.update_pod(pod_of(0, main={"waiting": {"reason": reason}})))
    assert [reason for _, _, _, reason, _ in facts] == ["ErrImagePull", "ImagePullBackOff", "ErrImagePull"]


def test_an_added_worker_belongs_to_the_job_and_is_not_tracked(job_tracker):
    added = pod_of(2, **RUNNING)
    added["metadata"]["ownerReferences"] = [{"kind": "TFJob", "uid": "job-1"}]
    job_tracker.uid = "job-1"
    assert job_tracker.is_ours(added)
    assert summarize(job_tracker.update_pod(added)) == []
    job_tracker.uid = "job-2"
    assert not job_tracker.is_ours(added)


def test_the_same_reason_is_reported_again_after_a_restart(job_tracker):
    waiting = {"node": None, "conditions": [UNSCHEDULABLE]}
    list(job_tracker.update_pod(pod_of(1, node=None)))
    ((*_, reason, restart),) = summarize(job_tracker.update_pod(pod_of(1, **waiting)))
    assert reason.startswith("Unschedulable")
    assert restart == 0
    list(job_tracker.update_pod(pod_of(1, **RUNNING)))
    list(job_tracker.update_pod(pod_of(1, phase="Failed", main=terminated(137))))
    list(job_tracker.update_pod(pod_of(1, "second", 1, node=None)))
    assert summarize(job_tracker.update_pod(pod_of(1, "second", 1, **waiting))) == [
        ("worker-1", "waiting", None, reason, 1)
    ]


def test_events_of_an_earlier_job_of_the_same_name_are_ignored(job_tracker):
    job_tracker.created = "2026-01-01T01:00:00Z"  # Events may be listed before the job.
    refused = {"involvedObject": {"name": "a-job"}, "reason": "FailedCreatePod", "message": "exceeded quota"}
    assert (
        summarize(job_tracker.add_event({**refused, "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}})) == []
    )
    assert (
        summarize(job_tracker.add_event({**refused, "metadata": {"creationTimestamp": "2026-01-01T01:00:00Z"}})) != []
    )


def test_a_failed_installation_of_packages_ends_the_job(job_tracker):
    list(job_tracker.update_pod(pod_of(1, init={"running": {}}, main={"waiting": {"reason": "PodInitializing"}})))
    list(job_tracker.update_pod(pod_of(1, init=terminated(1), main={"waiting": {"reason": "PodInitializing"}})))
    assert job_tracker.end == (False, "worker-1 cannot start: package installation failed.")


def test_a_revoked_admission_is_not_a_failure(job_tracker):
    list(job_tracker.update_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    suspended = {**job_of(condition("Suspended"), at=20), "spec": {"runPolicy": {"suspend": True}}}
    assert [fact[1] for fact in summarize(job_tracker.update_job(suspended))] == ["queued", "queued"]
    assert summarize(job_tracker.update_pod(pod_of(0, deleted_at=21, **RUNNING), deleted=True)) == []
    assert [fact[1] for fact in summarize(job_tracker.update_job(job_of(at=22)))] == ["waiting", "waiting"]
    # The job may be admitted again while its pods are still ending.
    deletion = job_tracker.update_pod(pod_of(1, deleted_at=23, **RUNNING), deleted=True)
    assert summarize([*deletion, *job_tracker.advance_time(clock() + 4)]) == []
    assert summarize(job_tracker.update_pod(pod_of(0, "second", 2, **RUNNING))) == [
        ("worker-0", "running", None, "", 0)
    ]


def test_a_container_that_restarts_in_its_pod_is_a_restart(job_tracker):
    def restarted(count, phase="Running", **state):
        restarted_pod = pod_of(0, phase=phase, **state)
        restarted_pod["status"]["containerStatuses"][0]["restartCount"] = count
        return restarted_pod

    job_tracker = JobTracker(make_job(["unused"], workers(2, restart_limit=2)), "TFJob")
    facts = summarize(job_tracker.update_pod(restarted(0, main={"running": {}})))
    facts += summarize(job_tracker.update_pod(restarted(0, main=terminated(137))))
    facts += summarize(job_tracker.update_pod(restarted(1, main={"waiting": {"reason": "CrashLoopBackOff"}})))
    facts += summarize(job_tracker.update_pod(restarted(1, main={"running": {}})))
    facts += summarize(job_tracker.update_pod(restarted(1, "Succeeded", main=terminated(0))))
    assert [(state, restart) for _, state, _, _, restart in facts] == [
        ("running", 0),
        ("failed", 0),
        ("starting", 1),
        ("running", 1),
        ("succeeded", 1),
    ]


def test_a_retried_init_container_of_the_operator_is_not_a_failure():
    """The init container is kubectl-delivery of the launcher of MPIJob v1."""
    job_tracker = JobTracker(make_job(["unused"], {"distribution_type": "MPI", "restart_limit": 0}), "MPIJob")

    def launcher(init, **state):
        launcher_pod = pod_of(0, **state)
        launcher_pod["metadata"]["labels"]["training.kubeflow.org/replica-type"] = "launcher"
        status = {"name": "kubectl-delivery", "state": init, "restartCount": 1, "lastState": terminated(1)}
        launcher_pod["status"]["initContainerStatuses"] = [status]
        return launcher_pod

    initializing = {"waiting": {"reason": "PodInitializing"}}
    first = launcher({"running": {}}, main=initializing)
    del first["status"]["initContainerStatuses"][0]["lastState"]
    facts = summarize(job_tracker.update_pod(first))
    facts += summarize(job_tracker.update_pod(launcher(terminated(1), main=initializing)))
    facts += summarize(job_tracker.update_pod(launcher({"waiting": {"reason": "CrashLoopBackOff"}}, main=initializing)))
    facts += summarize(job_tracker.update_pod(launcher({"running": {}}, main=initializing)))
    facts += summarize(job_tracker.update_pod(launcher(terminated(0), **RUNNING)))
    facts += summarize(job_tracker.update_pod(launcher(terminated(0), phase="Failed", main=terminated(3))))
    assert [(state, code, restart, reason) for _, state, code, reason, restart in facts] == [
        ("starting", None, 0, "waiting for the init container kubectl-delivery"),
        ("starting", None, 0, "waiting for the init container kubectl-delivery, which failed with exit code 1"),
        ("running", None, 0, ""),
        ("failed", 3, 0, ""),
    ]


def test_events_without_a_name_and_events_before_the_job_are_ignored(job_tracker):
    job = job_of(condition("Created"))
    job["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
    list(job_tracker.update_job(job))
    old = {"creationTimestamp": "2026-01-01T00:00:00Z"}
    assert summarize(job_tracker.add_event({"involvedObject": {}, "reason": "Odd"})) == []
    assert (
        summarize(job_tracker.add_event({"metadata": old, "involvedObject": {"name": "a-job"}, "reason": "Odd"})) == []
    )


def test_the_restart_count_of_an_evicted_pod_is_ignored(job_tracker):
    list(job_tracker.update_pods([pod_of(0, **RUNNING), pod_of(1, **RUNNING)]))
    evicted = pod_of(0, phase="Failed", main={"waiting": {}})
    evicted["status"] |= {"reason": "Evicted", "message": "no disk"}
    evicted["status"]["containerStatuses"][0]["restartCount"] = 1
    assert summarize(job_tracker.update_pod(evicted)) == [("worker-0", "failed", None, "Evicted: no disk", 0)]
    assert job_tracker.end is None
    assert summarize(job_tracker.update_pod(pod_of(0, uid="new", created=1, **RUNNING))) == [
        ("worker-0", "running", None, "", 1)
    ]
    assert job_tracker.end is None


def mount_event(text, uid="pod-1", kind="FailedMount"):
    involved_object = {"name": "a-job-worker-1", "uid": uid}
    message = f'MountVolume.SetUp failed for volume "code" : {text}'
    return {"involvedObject": involved_object, "reason": kind, "message": message}


NOT_SYNCED = "failed to sync configmap cache: timed out waiting for the condition"
NOT_FOUND = 'configmap "a-job-code" not found'


@pytest.mark.parametrize("text", [NOT_SYNCED, NOT_FOUND])
def test_a_transient_mount_error_is_not_reported(job_tracker, text):
    list(job_tracker.update_pod(pod_of(1)))
    assert summarize(job_tracker.add_event(mount_event(text))) == []
    list(job_tracker.update_pod(pod_of(1, **RUNNING)))
    assert summarize(job_tracker.advance_time(clock() + 31)) == []


@pytest.mark.parametrize("text", [NOT_SYNCED, NOT_FOUND])
def test_a_lasting_mount_error_becomes_the_reason_of_its_pod(job_tracker, text):
    list(job_tracker.update_pod(pod_of(1)))
    reason = f'FailedMount: MountVolume.SetUp failed for volume "code" : {text}'
    assert summarize(job_tracker.add_event(mount_event(text))) == []
    assert summarize(job_tracker.advance_time(clock() + 29)) == []
    # The kubelet repeats the event. An event of another pod with the same name is ignored.
    assert summarize(job_tracker.add_event(mount_event(text))) == []
    assert summarize(job_tracker.add_event(mount_event(text, uid="before"))) == []
    assert summarize(job_tracker.advance_time(clock() + 31)) == [
        f"a-job-worker-1: {reason}",
        ("worker-1", "pulling", None, reason, 0),
    ]
    assert summarize(job_tracker.add_event(mount_event(text))) == []
    assert summarize(job_tracker.advance_time(clock() + 62)) == []


def test_a_permanent_mount_error_is_reported_immediately(job_tracker):
    text = "references non-existent config key: job.json"
    list(job_tracker.update_pod(pod_of(1)))
    (event,) = summarize(job_tracker.add_event(mount_event(text)))
    assert event.endswith(text)
