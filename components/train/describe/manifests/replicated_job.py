"""Parts of a TrainingRuntime of Kubeflow Trainer 2.3 that all types of job share: replicatedJobs and policies. Pure.

A replicatedJob is one indexed batch/v1 Job of JobSet. Its pods have restartPolicy Never, for two reasons. A Job that
fails deletes its pods if their policy is OnFailure, and their logs with them. And only Never allows a podFailurePolicy,
which tells permanent failures from others by their exit codes.

If a replica fails, its Job fails, and JobSet restarts all replicas. Jobs of replicas that are restarted individually
create the failed pod again instead.
"""

from collections.abc import Sequence

from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.describe.manifests.pod import (
    ENTRY,
    FIRST_REPLICA_LABEL,
    NODE_CONTAINER,
    labels_of,
    pod_template,
)
from kfp_distributed.components.train.describe.manifests.run_policy import lifetime
from kfp_distributed.components.train.describe.topology import Replica
from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.trainers.runtime.job_description import REPLICA_VARIABLE, STORE_AWAY, STORE_UNREACHED

INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
"""Environment variable with the index of a pod in its Job. Kubernetes appends it to the variables of a container, where
no other variable can refer to it. So the manifests define it themselves, before the variables that refer to it."""

INDEX: Object = {
    "name": INDEX_VARIABLE,
    "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}},
}

_TRAINER = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
"""Label of the replicatedJob to which Trainer applies mlPolicy.numNodes, and by which its users find the leader."""

_PERMANENT_CODES = list(range(1, 128))
_PREEMPTED: Object = {"onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


def replicated_job(
    job: TrainingJob,
    settings: ClusterSettings,
    name: str,
    replicas: Sequence[Replica],
    variables: Sequence[Object],
    *,
    command: Sequence[str] = ENTRY,
    trains: bool = True,
) -> Object:
    """Return one replicatedJob with a pod for each of its replicas.

    Args:
        job: The job.
        settings: Settings of the cluster.
        name: Name of the replicatedJob, a part of the names of its pods.
        replicas: Replicas with the same resources, by the index of their pod.
        variables: Environment variables of the container after those of all types of job. They replace variables of
            the same name.
        command: Command of the container.
        trains: Whether resources of the task apply where `distribution_specification` sets none.
    """
    template = pod_template(job, settings, NODE_CONTAINER, replicas[0].resources, command=command, trains=trains)
    container = template["spec"]["containers"][0]
    names = {variable["name"] for variable in variables}
    container["env"] = [*(entry for entry in container["env"] if entry["name"] not in names), *variables]
    template["metadata"]["labels"][FIRST_REPLICA_LABEL] = replicas[0].name
    template["spec"]["restartPolicy"] = "Never"
    alone = all(replica.name in job.topology.restart_alone for replica in replicas)
    spec: Object = {
        "completionMode": "Indexed",
        "completions": len(replicas),
        "parallelism": len(replicas),
        "backoffLimit": _restarts(job, len(replicas)) if alone else 0,
        "podFailurePolicy": {"rules": _failure_rules(job, template, alone)},
        "template": template,
    }
    leads = job.topology.leader == replicas[0].name
    if leads and len(replicas) > 1:
        # The job ends when its leader ends. The other pods of its Job are then deleted.
        spec["successPolicy"] = {"rules": [{"succeededIndexes": "0"}]}
    return {
        "name": name,
        "replicas": 1,
        "template": {"metadata": {"labels": {**labels_of(job), **(_TRAINER if leads else {})}}, "spec": spec},
    }


def jobset_spec(job: TrainingJob, replicated_jobs: Sequence[Object], leader: str) -> Object:
    """Return the spec of the JobSet. It has no ttlSecondsAfterFinished: a failed TrainJob starts over without a JobSet.

    Args:
        job: The job.
        replicated_jobs: Jobs of the set.
        leader: Name of the replicatedJob whose success is the success of the job.
    """
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [leader]},
        "failurePolicy": {"maxRestarts": _restarts(job, len(job.topology.replicas)), "rules": _restart_rules(job)},
        "replicatedJobs": list(replicated_jobs),
    }


def replica_variable(role: str) -> list[Object]:
    """Return the variables by which the replicas of a role know their names: ROLE-0, ROLE-1, ..."""
    return [INDEX, {"name": REPLICA_VARIABLE, "value": f"{role}-$({INDEX_VARIABLE})"}]


def _restarts(job: TrainingJob, replicas: int) -> int:
    """Return the restart limit of the cluster, which matters when the train step is lost.

    As with the training operator it allows restart_limit failures of each replica, because a peer of a preempted
    replica may fail first. The step itself enforces restart_limit.
    """
    limit = job.specification.restart_limit
    return (limit + 1) * replicas if limit else 0


def _ignored_codes(job: TrainingJob) -> list[int]:
    """Return the exit codes of outages of the object store, which do not count for restart_limit.

    A pod that got no answer at all may never reach the store. Without a deadline such a failure counts, so that a job
    without its step ends.
    """
    return [STORE_AWAY, STORE_UNREACHED] if "activeDeadlineSeconds" in lifetime(job) else [STORE_AWAY]


def _failure_rules(job: TrainingJob, template: Object, alone: bool) -> list[Object]:
    """Return the rules of a podFailurePolicy. The first rule that matches decides.

    A preempted pod and an outage of the object store do not count for the limits. A replica that is restarted alone is
    created again. For all others, the Job fails, and the message of its failure has the condition or the exit code of
    the pod. `_restart_rules` reads it.
    """
    action = "Ignore" if alone else "FailJob"
    outage = {"containerName": NODE_CONTAINER, "operator": "In", "values": _ignored_codes(job)}
    rules = [{"action": action, **_PREEMPTED}, {"action": action, "onExitCodes": outage}]
    if job.topology.distribution_type == "MPI":
        return rules  # mpirun ends with 1 when it has lost a worker, too.
    # A rule without a name would also apply to containers that the cluster adds to the pod.
    containers = [*template["spec"].get("initContainers", ()), *template["spec"]["containers"]]
    permanent = {"operator": "In", "values": _PERMANENT_CODES}
    return rules + [
        {"action": "FailJob", "onExitCodes": {"containerName": container["name"], **permanent}}
        for container in containers
    ]


def _restart_rules(job: TrainingJob) -> list[Object]:
    """Return the rules of the failurePolicy. If none matches, JobSet restarts all replicas up to maxRestarts."""
    codes = "|".join(map(str, _ignored_codes(job)))
    rules = [
        {
            "name": "preemption_or_outage",
            "action": "RestartJobSetAndIgnoreMaxRestarts",
            "onJobFailureReasons": ["PodFailurePolicy"],
            "onJobFailureMessagePatterns": ["has condition DisruptionTarget", f"failed with exit code ({codes}) "],
        },
        {"name": "permanent", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]},
    ]
    roles = {replica.role for replica in job.topology.replicas if replica.name in job.topology.restart_alone}
    if roles:
        # Their Jobs have used up their restarts already.
        exhausted = {"action": "FailJobSet", "onJobFailureReasons": ["BackoffLimitExceeded"]}
        rules.append({"name": "exhausted", **exhausted, "targetReplicatedJobs": sorted(roles)})
    return rules
