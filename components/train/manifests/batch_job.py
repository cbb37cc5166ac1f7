"""A Job of one pod: batch/v1. Pure."""

from kfp_distributed.components.train.job import TrainingJob
from kfp_distributed.components.train.manifests.cluster_settings import ClusterSettings, Object
from kfp_distributed.components.train.manifests.pod import pod_template
from kfp_distributed.components.train.manifests.run_policy import lifetime

# As under the operators' restart policy ExitCode, these are for good.
_FOR_GOOD = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": list(range(1, 128))}}


def job_spec(job: TrainingJob, settings: ClusterSettings) -> Object:
    """The spec of a Job."""
    template = pod_template(job, settings, "training", job.topology.replicas[0].resources)
    template["spec"]["restartPolicy"] = "Never"
    return {
        "backoffLimit": job.specification.restart_limit,
        "podFailurePolicy": {"rules": [_FOR_GOOD]},
        "template": template,
        **lifetime(job),
    }
