"""When a job ends that nobody follows any more: the step that follows it keeps stricter rules itself. Pure."""

from collections.abc import Mapping

from kfp_distributed.components.train.job import TrainingJob
from kfp_distributed.components.train.manifests.cluster_settings import ClusterSettings, Object
from kfp_distributed.components.train.manifests.pod import pod_template

_TTL_SECONDS = 3600
"""How long an ended job stays that nobody deletes."""

_BACKSTOP_SECONDS = 600.0
"""How much later than the step's own the operator's deadline is, where nothing says when the step counts as lost."""


def lifetime(job: TrainingJob) -> Object:
    """How long the job may take, somewhat longer than the step allows, and how long it stays after its end."""
    spec, found = job.specification, {}
    if spec.total_timeout is not None:
        later = spec.launcher_lost_timeout or _BACKSTOP_SECONDS
        found["activeDeadlineSeconds"] = int(spec.total_timeout + later)
    if not spec.keep_job:
        found["ttlSecondsAfterFinished"] = _TTL_SECONDS
    return found


def run_policy(job: TrainingJob, backoff_limit: int, late: int = 0) -> Object:
    """The runPolicy of the operators' kinds; `late` replicas are created when the others run."""
    spec = job.specification
    found = {"cleanPodPolicy": "Running", "backoffLimit": backoff_limit, **lifetime(job)}
    # Of the pod group, which a gang scheduler places; the pods have a priority of their own.
    group: Object = {"priorityClass": spec.priority_class} if spec.priority_class else {}
    if spec.gang_scheduling:
        # An elastic MPI job starts with all workers, one of PyTorch with the fewest.
        fewest = spec.min_workers if spec.distribution_type == "PyTorch" else None
        spare = spec.number_of_workers - (fewest or spec.number_of_workers)
        group["minAvailable"] = len(job.topology.replicas) - spare - late
        if spec.queue_name:
            group["queue"] = spec.queue_name
    return {**found, "schedulingPolicy": group} if group else found


def training_policy(job: TrainingJob) -> Object:
    """The runPolicy of TFJob and PyTorchJob, whose operator counts the restarts of all pods together."""
    return run_policy(job, (job.specification.restart_limit + 1) * len(job.topology.replicas))


def replica_specs(
    job: TrainingJob, settings: ClusterSettings, container: str, roles: Mapping[str, str]
) -> dict[str, Object]:
    """The replicas of TFJob and PyTorchJob.

    Args:
        job: The job.
        settings: The cluster's side of it.
        container: Name of the container.
        roles: What the operator calls each role.
    """
    # The last of each role: its index tells how many there are.
    last = {each.role: each for each in job.topology.replicas}
    return {
        roles[role]: {
            "replicas": each.index + 1,
            # From 128 on, as of a killed replica, an exit code starts it again; a smaller one is for good.
            "restartPolicy": "ExitCode" if job.specification.restart_limit else "Never",
            "template": pod_template(
                job, settings, container, each.resources, trains=role in ("worker", "master", "evaluator")
            ),
        }
        for role, each in last.items()
    }
