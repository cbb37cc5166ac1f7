"""TrainJobs, as JobTracker reports them: sequences of objects that were recorded with Trainer 2.3 and JobSet 0.12."""

import pytest
from train.programs.jobs import make_job, workers
from train.test_job_tracker import RUNNING, job_of, pod, second, summarize
from train.test_pods import condition, terminated

from kfp_distributed.components.train.run.conclusions.failures import FOR_GOOD, root_failure
from kfp_distributed.components.train.run.facts import clock
from kfp_distributed.components.train.run.runners.kubernetes.cluster_records.warning_events import read_event
from kfp_distributed.components.train.run.runners.kubernetes.judge import failure_policy, job_tracker
from kfp_distributed.components.train.run.runners.kubernetes.judge.job_tracker import JobTracker

SERVERS = {"distribution_type": "TF", "number_of_workers": 2, "number_of_parameter_servers": 1}
MPI = {"distribution_type": "MPI", "number_of_workers": 1}
FAILED = {"phase": "Failed", "main": terminated(201)}
PERMANENT = {"phase": "Failed", "main": terminated(3)}
STOPPED = {"phase": "Failed", "main": terminated(143)}


def facts_of(distribution):
    """Return the facts of a TrainJob whose pods run."""
    planned = make_job(["unused"], distribution)
    facts = JobTracker(planned, "TrainJob")
    list(facts.update_pods([node(replica.name, **RUNNING) for replica in planned.topology.replicas]))
    return facts


def node(replica, attempt=0, uid="", jobset="jobset-1", deleted_at=None, conditions=(), **state):
    """Return the pod of a replica in an attempt. `deleted_at` is the second of its deletion."""
    role, _, index = replica.rpartition("-")
    labels = {
        "kfp-distributed/first-replica": f"{role}-0",
        "batch.kubernetes.io/job-completion-index": index,
        "jobset.sigs.k8s.io/jobset-uid": jobset,
        "jobset.sigs.k8s.io/restart-attempt": str(attempt),
    }
    metadata = {
        "name": f"a-job-{role}-0-{index}-{uid or 'xxxxx'}",
        "uid": f"{replica}/{jobset}/{attempt}{uid}",
        "creationTimestamp": f"2026-01-01T0{attempt}{uid}",
        "labels": labels,
        "ownerReferences": [{"kind": "Job", "uid": "any"}],
    }
    if deleted_at is not None:
        metadata |= {"deletionTimestamp": second(deleted_at + 10), "deletionGracePeriodSeconds": 10}
    made = {**pod(**state), "metadata": metadata}
    made["status"]["conditions"] = [*made["status"].get("conditions", ()), *conditions]
    for container in made["status"].get("containerStatuses", ()):
        container["name"] = "node"
    return made


def fail(facts, replica, attempt, **state):
    """Report that a replica fails, and that JobSet stops the other workers and deletes all pods."""
    seen = summarize(facts.update_pod(node(replica, attempt, **(state or FAILED))))
    for other in facts.job.topology.replicas:
        if other.name != replica:
            seen += summarize(facts.update_pod(node(other.name, attempt, deleted_at=11, **RUNNING)))
            seen += summarize(facts.update_pod(node(other.name, attempt, deleted_at=11, **STOPPED), deleted=True))
    return seen + summarize(facts.update_pod(node(replica, attempt, deleted_at=12, **(state or FAILED)), deleted=True))


def test_jobset_restarts_all_replicas():
    facts = facts_of(workers(2, restart_limit=1))
    assert fail(facts, "worker-1", 0) == [("worker-1", "failed", 201, "", 0)]
    assert summarize(facts.advance_time(clock() + 4)) == [("worker-0", "stopped", None, "stopped by JobSet", 0)]
    assert summarize(facts.update_pod(node("worker-0", 1, node=None))) == [
        "restart 1 of 1: the whole job (worker-1 failed)",
        ("worker-0", "waiting", None, "", 1),
        ("worker-1", "waiting", None, "", 1),
    ]
    assert summarize(facts.update_pod(node("worker-1", 1, **RUNNING))) == [("worker-1", "running", None, "", 1)]
    # Late news of the first attempt.
    assert summarize(facts.update_pod(node("worker-1", 0, deleted_at=12, **FAILED), deleted=True)) == []
    assert facts.end is None
    assert not facts.can_restart


def test_the_limit_of_restarts_is_exact_although_that_of_jobset_is_larger():
    facts = facts_of(workers(2, restart_limit=1))
    fail(facts, "worker-1", 0)
    list(facts.update_pods([node("worker-0", 1, **RUNNING), node("worker-1", 1, **RUNNING)]))
    # The limit is that of each replica, and all were restarted.
    assert fail(facts, "worker-0", 1)[0] == ("worker-0", "failed", 201, "", 1)
    assert facts.end == (False, "Restart limit reached (restart_limit=1).")
    assert not facts.can_restart
    # JobSet restarts the replicas before the step can delete the job.
    assert summarize(facts.update_pod(node("worker-0", 2, **RUNNING))) == []
    assert facts.end == (False, "Restart limit reached (restart_limit=1).")


def test_restarts_that_were_not_seen_count():
    """The API server does not answer while JobSet restarts the replicas."""
    facts = facts_of(workers(2, restart_limit=1))
    restarted = facts.update_pods([node("worker-0", 1, **RUNNING), node("worker-1", 1, **RUNNING)])
    assert summarize(restarted)[0] == "restart 1 of 1: the whole job (a replica was deleted)"
    list(facts.update_pods([node("worker-0", 2, **RUNNING), node("worker-1", 2, **RUNNING)]))
    assert facts.end == (False, "Restart limit reached (restart_limit=1).")


def test_a_restart_that_was_not_seen_is_a_disruption_if_jobset_may_restart_nothing_else():
    """With restart_limit 0, only a preemption or an outage of the object store makes JobSet restart the replicas."""
    facts = facts_of(workers(2, restart_limit=0))
    restarted = facts.update_pods([node("worker-0", 1, **RUNNING), node("worker-1", 1, **RUNNING)])
    text = "restart: the whole job (a preemption or an outage of the object store, which was not observed)"
    assert summarize(restarted)[0] == text
    assert facts.end is None
    # A JobSet that somebody has deleted is a failure.
    list(facts.update_pods([node(f"worker-{index}", 2, jobset="jobset-2", **RUNNING) for index in range(2)]))
    assert facts.end == (False, "Restart limit reached (restart_limit=0).")


def test_a_newer_checkpoint_resets_the_count():
    facts = facts_of(workers(2, restart_limit=1))
    for attempt in range(4):
        facts.policy.checkpoint = f"{attempt:08}"
        fail(facts, "worker-1", attempt)
        pods = [node("worker-0", attempt + 1, **RUNNING), node("worker-1", attempt + 1, **RUNNING)]
        assert "restart 1 of 1: the whole job (worker-1 failed)" in summarize(facts.update_pods(pods))
    assert facts.end is None


def test_another_jobset_is_another_attempt():
    """Kubeflow Trainer creates a JobSet anew that somebody has deleted."""
    facts = facts_of(workers(2, restart_limit=1))
    facts_of_deletion = [node(f"worker-{index}", 0, deleted_at=11, **STOPPED) for index in range(2)]
    for deleted in facts_of_deletion:
        list(facts.update_pod(deleted, deleted=True))
    list(facts.advance_time(clock() + 4))
    restarted = facts.update_pod(node("worker-0", 0, uid="a", jobset="jobset-2", **RUNNING))
    assert summarize(restarted)[0] == "restart 1 of 1: the whole job (worker-0 failed)"


def test_late_news_of_the_jobset_of_a_recreated_job_are_no_attempt():
    """The step recreated the job while JobSet started its replicas again, and has not seen those pods yet."""
    facts = facts_of(workers(2, restart_limit=1))
    list(facts.restart())
    for change in ({"deleted": False}, {"deleted": True}):
        assert summarize(facts.update_pod(node("worker-0", 1, **RUNNING), **change)) == []
    restarted = facts.update_pods([node(f"worker-{index}", 2, jobset="jobset-2", **RUNNING) for index in range(2)])
    assert summarize(restarted) == [("worker-0", "running", None, "", 1), ("worker-1", "running", None, "", 1)]
    assert facts.end is None


def test_late_news_of_a_deleted_jobset_are_no_attempt():
    facts = facts_of({**SERVERS, "restart_limit": 2})
    list(facts.update_pod(node("worker-0", 1, jobset="jobset-2", **RUNNING)))
    assert summarize(facts.update_pod(node("worker-1", 1, uid="a", **RUNNING))) == []
    assert summarize(facts.update_pod(node("worker-1", 1, uid="b", jobset="jobset-2", **RUNNING))) == [
        ("worker-1", "running", None, "", 1)
    ]


def test_a_preempted_replica_does_not_count(monkeypatch):
    facts = facts_of(workers(2, restart_limit=0, preemption_limit=1))
    disruption = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    preempted = {"deleted_at": 10, "conditions": [disruption]}
    list(facts.update_pod(node("worker-1", 0, **preempted, **RUNNING)))
    list(facts.update_pod(node("worker-1", 0, **preempted, **STOPPED), deleted=True))
    list(facts.advance_time(clock() + 4))
    # The other replica saves its checkpoint for an hour.
    list(facts.update_pod(node("worker-0", 0, deleted_at=11, **RUNNING)))
    now = clock()
    monkeypatch.setattr(failure_policy, "clock", lambda: now + 3600)
    list(facts.update_pod(node("worker-0", 0, deleted_at=11, **STOPPED), deleted=True))
    assert summarize(facts.update_pod(node("worker-1", 1, **RUNNING)))[-4:] == [
        "preemption 1 of 1: the whole job (worker-1 was preempted)",
        ("worker-0", "waiting", None, "", 1),
        ("worker-1", "waiting", None, "", 1),
        ("worker-1", "running", None, "", 1),
    ]
    assert (facts.end, facts.policy.restarts.preemptions, facts.policy.restarts.restarts) == (None, 1, {})


def test_pods_that_a_queue_deletes_are_no_cause_of_a_later_restart(monkeypatch):
    """The queue's suspension is reported after the pods, which count as deleted by somebody until then."""
    facts = facts_of(workers(2, restart_limit=1))
    for index in range(2):
        list(facts.update_pod(node(f"worker-{index}", deleted_at=11, **STOPPED), deleted=True))
    list(facts.advance_time(clock() + 4))
    for suspended in (True, False):
        list(facts.update_job({**job_of(), "spec": {"suspend": suspended}}))
    for index in range(2):
        list(facts.update_pod(node(f"worker-{index}", uid="a", **RUNNING)))
    now = clock()
    monkeypatch.setattr(failure_policy, "clock", lambda: now + 3600)
    disruption = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    monkeypatch.setattr(job_tracker, "clock", lambda: now + 3600)
    preempted = node("worker-1", uid="a", deleted_at=20, conditions=[disruption], **STOPPED)
    list(facts.update_pod(preempted, deleted=True))
    assert "preemption 1: the whole job (worker-1 was preempted)" in summarize(
        facts.update_pod(node("worker-0", 1, **RUNNING))
    )
    assert facts.policy.restarts.restarts == {}


def test_pods_that_are_gone_when_jobset_starts_others_are_judged_before():
    """All within the seconds that the end of a deleted pod is not judged."""
    facts = facts_of(workers(2, restart_limit=0))
    disruption = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    list(facts.update_pod(node("worker-1", deleted_at=10, conditions=[disruption], **STOPPED), deleted=True))
    list(facts.update_pod(node("worker-0", deleted_at=11, **STOPPED), deleted=True))
    assert summarize(facts.update_pod(node("worker-1", 1, **RUNNING)))[:3] == [
        ("worker-0", "stopped", None, "stopped by JobSet", 0),
        ("worker-1", "failed", 143, "preempted: EvictionByEvictionAPI", 0),
        "preemption 1: the whole job (worker-1 was preempted)",
    ]
    assert facts.end is None


def test_a_permanent_failure_ends_the_job_before_its_other_pods_have_ended():
    """The TrainJob fails when all pods have ended, which may take their grace period."""
    facts = facts_of(workers(2))
    assert summarize(facts.update_pod(node("worker-1", **PERMANENT))) == [("worker-1", "failed", 3, "", 0)]
    assert facts.end is None
    list(facts.update_pod(node("worker-0", deleted_at=11, **RUNNING)))
    assert facts.end == (False, FOR_GOOD)
    assert not facts.can_restart


def test_a_job_that_is_kept_fails_by_itself():
    facts = facts_of(workers(2, keep_job=True))
    fail(facts, "worker-1", 0, **PERMANENT)
    assert facts.end is None
    failed = condition("Failed", message="applying FailJobSet failure policy action")
    list(facts.update_job(job_of(failed)))
    assert facts.end == (False, "TrainJob failed: applying FailJobSet failure policy action.")
    assert facts.ended_by_itself
    assert not facts.can_restart


def test_a_failed_train_job_that_starts_over_has_ended():
    """Kubeflow Trainer forgets the failure when somebody deletes the JobSet."""
    facts = facts_of(workers(2, keep_job=True))
    fail(facts, "worker-1", 0, **PERMANENT)
    list(facts.update_job(job_of(condition("Failed", message="text"))))
    assert summarize(facts.update_pod(node("worker-1", 0, uid="a", jobset="jobset-2", **RUNNING))) == []
    list(facts.update_job(job_of()))
    assert facts.end == (False, "TrainJob failed: text.")


def test_pods_that_stop_because_the_leader_has_succeeded_have_not_failed():
    """JobSet deletes them before the TrainJob is complete, and they may take their grace period to end."""
    facts = facts_of(workers(2, restart_limit=0))
    list(facts.update_pod(node("worker-0", phase="Succeeded", main=terminated(0))))
    list(facts.update_pod(node("worker-1", deleted_at=11, **RUNNING)))
    list(facts.update_pod(node("worker-1", deleted_at=11, **STOPPED), deleted=True))
    assert summarize(facts.advance_time(clock() + 4)) == [("worker-1", "stopped", None, "stopped by JobSet", 0)]
    assert facts.end is None
    list(facts.update_job(job_of(condition("Complete"))))
    assert facts.end == (True, "")


def test_workers_of_parameter_servers_are_restarted_alone():
    facts = facts_of({**SERVERS, "restart_limit": 1})
    list(facts.update_pod(node("worker-1", **FAILED)))
    assert summarize(facts.update_pod(node("worker-1", uid="b", **RUNNING))) == [("worker-1", "running", None, "", 1)]
    # Somebody deletes another one, which is a failure of its own.
    list(facts.update_pod(node("worker-0", deleted_at=11, **STOPPED), deleted=True))
    assert summarize(facts.advance_time(clock() + 4)) == [("worker-0", "failed", 143, "pod deleted", 0)]
    assert facts.end is None
    list(facts.update_pod(node("worker-1", uid="b", **FAILED)))
    assert facts.end == (False, "Restart limit reached (restart_limit=1).")


@pytest.mark.parametrize("code", [1, 201])
def test_the_launcher_of_an_mpi_job_restarts_all_replicas_whatever_its_exit_code(code):
    """mpirun ends with 1 also if it has lost a worker."""
    facts = facts_of({**MPI, "restart_limit": 1})
    ended = {"phase": "Failed", "main": terminated(code)}
    fail(facts, "launcher-0", 0, **ended)
    assert facts.end is None
    list(facts.update_pods([node("worker-0", 1, **RUNNING), node("launcher-0", 1, **RUNNING)]))
    assert facts.end is None
    fail(facts, "launcher-0", 1, **ended)
    assert facts.end == (False, "Restart limit reached (restart_limit=1).")


@pytest.mark.parametrize("ended", [False, True])
def test_a_deleted_worker_is_the_cause_although_the_launcher_ends_first(ended):
    """The worker may take its grace period, and mpirun loses its connection to it at once."""
    facts = facts_of({**MPI, "restart_limit": 0})
    list(facts.update_pod(node("worker-0", deleted_at=10, **RUNNING)))
    if ended:
        list(facts.update_pod(node("worker-0", deleted_at=10, phase="Succeeded", main=terminated(0))))
    assert summarize(facts.update_pod(node("launcher-0", phase="Failed", main=terminated(205)))) == [
        ("worker-0", "failed", None, "pod deleted", 0),
        ("launcher-0", "failed", 205, "", 0),
    ]
    assert facts.end == (False, "Restart limit reached (restart_limit=0).")
    assert summarize(facts.update_pod(node("worker-0", deleted_at=10, **STOPPED), deleted=True)) == []


def test_a_worker_that_jobset_deletes_is_not_the_cause():
    facts = facts_of({**MPI, "restart_limit": 1})
    list(facts.update_pod(node("launcher-0", phase="Failed", main=terminated(205))))
    list(facts.update_pod(node("worker-0", deleted_at=10, **RUNNING)))
    list(facts.update_pods([node("worker-0", 1, **RUNNING), node("launcher-0", 1, **RUNNING)]))
    assert facts.policy.restarts.restarts == {"launcher-0": 1, "worker-0": 1}
    assert facts.end is None


@pytest.mark.parametrize(
    "reason",
    [
        "DefaultFailurePolicy",
        "FailurePolicy_preemption_or_outage",
        "RestartJobSetFailurePolicyAction",
        "FailJobSetFailurePolicyAction",
        "ReachedMaxRestarts",
    ],
)
def test_events_of_what_jobset_does_after_a_failure_are_redundant(reason):
    event = {"involvedObject": {"name": "a-job", "kind": "JobSet"}, "reason": reason, "message": "applying an action"}
    assert read_event(event, "a-job", "") is None


def test_attempts_of_the_controller_to_create_a_pod_are_one_warning():
    """The name of the pod is another one with each attempt."""
    event = {"involvedObject": {"name": "a-job-worker-0", "kind": "Job"}, "reason": "FailedCreate"}
    messages = [f'Error creating: pods "a-job-worker-0-0-{end}" is forbidden: quota' for end in ("x7k2p", "qqqqq")]
    first, last = (read_event({**event, "message": message}, "a-job", "") for message in messages)
    assert first.text == 'FailedCreate: Error creating: pods "a-job-worker-0-0" is forbidden: quota'
    assert first.key == last.key


def test_a_deleted_worker_of_mpi_is_the_cause_of_the_failure_of_its_launcher():
    """mpirun ends with 255 within the seconds that the end of a deleted pod is not judged."""
    facts = facts_of({**MPI, "restart_limit": 0})
    list(facts.update_pod(node("worker-0", deleted_at=10, **RUNNING), deleted=True))
    lost = {"phase": "Failed", "main": terminated(255)}
    assert summarize(facts.update_pod(node("launcher-0", **lost))) == [
        ("worker-0", "failed", None, "pod deleted", 0),
        ("launcher-0", "failed", 255, "", 0),
    ]
    assert facts.end == (False, "Restart limit reached (restart_limit=0).")
    assert root_failure(facts.policy.recent()).replica == "worker-0"


def test_a_worker_that_was_deleted_after_the_failure_of_its_launcher_is_not_its_cause():
    """Both were not seen, and a list of pods has the older one first."""
    facts = facts_of({**MPI, "restart_limit": 0})
    ended = {"terminated": {**terminated(255)["terminated"], "finishedAt": second(10)}}
    pods = [node("worker-0", deleted_at=11, **STOPPED), node("launcher-0", phase="Failed", main=ended)]
    assert summarize(facts.update_pods(pods)) == [("launcher-0", "failed", 255, "", 0)]
