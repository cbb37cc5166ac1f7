"""A Job of one pod: batch/v1. Pure."""

from kfp_distributed.components.train.manifests.pod import pod_template
from kfp_distributed.components.train.manifests.run_policy import lifetime
from kfp_distributed.components.train.manifests.setting import Object, Setting
from kfp_distributed.components.train.runners.protocol import TrainingJob

# As under the operators' restart policy ExitCode, these are for good.
_FOR_GOOD = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": list(range(1, 128))}}


def job_spec(job: TrainingJob, setting: Setting) -> Object:
    """The spec of a Job."""
    template = pod_template(job, setting, "training", job.topology.replicas[0].resources)
    template["spec"]["restartPolicy"] = "Never"
    return {
        "backoffLimit": job.specification.restart_limit,
        "podFailurePolicy": {"rules": [_FOR_GOOD]},
        "template": template,
        **lifetime(job),
    }
