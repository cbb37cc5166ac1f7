"""Spec of a Job with one pod: batch/v1. Pure."""

from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.describe.manifests.pod import CONTAINERS, pod_template
from kfp_distributed.components.train.describe.manifests.run_policy import lifetime
from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.trainers.runtime.job_description import STORE_AWAY, STORE_UNREACHED

# Exit codes 1 to 127 are permanent failures, as with restartPolicy ExitCode of the training operator.
_PERMANENT = {"operator": "In", "values": list(range(1, 128))}

# A preempted pod does not count for backoffLimit. The first rule that matches decides, so this one comes first.
_PREEMPTED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


def job_spec(job: TrainingJob, settings: ClusterSettings) -> Object:
    """Return the spec of a Job."""
    template = pod_template(job, settings, CONTAINERS["Job"], job.topology.replicas[0].resources)
    # A rule without a name would also apply to containers that the cluster adds to the pod.
    containers = [*template["spec"].get("initContainers", ()), *template["spec"]["containers"]]
    rules = [
        {"action": "FailJob", "onExitCodes": {"containerName": container["name"], **_PERMANENT}}
        for container in containers
    ]
    template["spec"]["restartPolicy"] = "Never"
    limits = lifetime(job)
    # An outage of the object store does not count either. A pod that got no answer at all may never reach the store.
    # Without a deadline it counts, so that a Job without its step ends. If the step knows that the store has answered
    # before, it creates a Job again that failed so.
    ignored = [STORE_AWAY, STORE_UNREACHED] if "activeDeadlineSeconds" in limits else [STORE_AWAY]
    outage = {"containerName": CONTAINERS["Job"], "operator": "In", "values": ignored}
    return {
        "backoffLimit": job.specification.restart_limit,
        "podFailurePolicy": {"rules": [_PREEMPTED, {"action": "Ignore", "onExitCodes": outage}, *rules]},
        "template": template,
        **limits,
    }
