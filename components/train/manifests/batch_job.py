"""Spec of a Job with one pod: batch/v1. Pure."""

from kfp_distributed.components.train.job import TrainingJob
from kfp_distributed.components.train.manifests.cluster_settings import ClusterSettings, Object
from kfp_distributed.components.train.manifests.pod import pod_template
from kfp_distributed.components.train.manifests.run_policy import lifetime

# Exit codes 1 to 127 are permanent failures, as with restartPolicy ExitCode of the training operator.
_FAIL_WITHOUT_RETRY = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": list(range(1, 128))}}


def job_spec(job: TrainingJob, settings: ClusterSettings) -> Object:
    """Return the spec of a Job."""
    template = pod_template(job, settings, "training", job.topology.replicas[0].resources)
    template["spec"]["restartPolicy"] = "Never"
    return {
        "backoffLimit": job.specification.restart_limit,
        "podFailurePolicy": {"rules": [_FAIL_WITHOUT_RETRY]},
        "template": template,
        **lifetime(job),
    }
