"""Run policy of a job: limits that end and delete it when its step is lost. Pure.

The step itself enforces stricter limits while it follows the job.
"""

from collections.abc import Mapping

from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.describe.manifests.pod import pod_template
from kfp_distributed.components.train.describe.training_job import TrainingJob

_TTL_SECONDS = 3600
"""Seconds until Kubernetes deletes a finished job that its step has not deleted."""

_DEADLINE_MARGIN_SECONDS = 600.0
"""Seconds from total_timeout, which the step enforces, to the operator's deadline, if there is no
launcher_lost_timeout."""


def lifetime(job: TrainingJob) -> Object:
    """Return the deadline of the job, which is later than the step's, and its lifetime after it has finished."""
    spec, limits = job.specification, {}
    if spec.total_timeout is not None:
        margin = spec.launcher_lost_timeout or _DEADLINE_MARGIN_SECONDS
        limits["activeDeadlineSeconds"] = int(spec.total_timeout + margin)
    if not spec.keep_job:
        limits["ttlSecondsAfterFinished"] = _TTL_SECONDS
    return limits


def run_policy(job: TrainingJob, backoff_limit: int, late: int = 0) -> Object:
    """Return the runPolicy of an operator's kind.

    Args:
        job: The job.
        backoff_limit: Number of restarts after which the operator fails the job.
        late: Number of replicas that are created after the others run. Default: 0.
    """
    spec = job.specification
    policy = {"cleanPodPolicy": "Running", "backoffLimit": backoff_limit, **lifetime(job)}
    # The priority of the pod group, which a gang scheduler uses. The pods have a priority class of their own.
    group: Object = {"priorityClass": spec.priority_class} if spec.priority_class else {}
    if spec.gang_scheduling:
        # An elastic PyTorch job can start with min_workers; an elastic MPI job starts with all workers.
        required = spec.min_workers if spec.distribution_type == "PyTorch" else None
        optional = spec.number_of_workers - (required or spec.number_of_workers)
        group["minAvailable"] = len(job.topology.replicas) - optional - late
        if spec.queue_name:
            group["queue"] = spec.queue_name
    return {**policy, "schedulingPolicy": group} if group else policy


def training_policy(job: TrainingJob) -> Object:
    """Return the runPolicy of a kind of the training operator, which adds up the restarts of all pods."""
    return run_policy(job, (job.specification.restart_limit + 1) * len(job.topology.replicas))


def replica_specs(
    job: TrainingJob, settings: ClusterSettings, container: str, roles: Mapping[str, str]
) -> dict[str, Object]:
    """Return the replica specs of a TFJob or PyTorchJob.

    Args:
        job: The job.
        settings: Settings of the cluster.
        container: Name of the container.
        roles: The operator's name of each role.
    """
    # The last replica of each role. Its index is the number of replicas minus 1.
    last_replicas = {replica.role: replica for replica in job.topology.replicas}
    return {
        roles[role]: {
            "replicas": replica.index + 1,
            # Exit codes from 128, as of a killed process, restart the replica. Smaller ones are permanent failures.
            "restartPolicy": "ExitCode" if job.specification.restart_limit else "Never",
            "template": pod_template(
                job, settings, container, replica.resources, trains=role in ("worker", "master", "evaluator")
            ),
        }
        for role, replica in last_replicas.items()
    }
