"""Spec of a Job with one pod, or with an indexed pod for each replica: batch/v1. Pure."""

from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.describe.manifests.pod import (
    ADDRESS_VARIABLE,
    CONTAINERS,
    ENTRY,
    FIRST_REPLICA_LABEL,
    pod_template,
)
from kfp_distributed.components.train.describe.manifests.run_policy import lifetime
from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.trainers.runtime.job_description import STORE_AWAY, STORE_UNREACHED

# Exit codes 1 to 127 are permanent failures, as with restartPolicy ExitCode of the training operator.
_PERMANENT = {"operator": "In", "values": list(range(1, 128))}

# A preempted pod does not count for backoffLimit. The first rule that matches decides, so this one comes first.
_PREEMPTED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


def job_spec(job: TrainingJob, settings: ClusterSettings) -> Object:
    """Return the spec of a Job."""
    replicas = len(job.topology.replicas)
    command = ("python3", "-m", job.module) if job.module else ENTRY
    template = pod_template(job, settings, CONTAINERS["Job"], job.topology.replicas[0].resources, command=command)
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
    indexed: Object = {}
    if replicas > 1:
        # The step ends the Job with its leader. Kubernetes before 1.30 does not know a successPolicy, which does so.
        indexed = {"completionMode": "Indexed", "completions": replicas, "parallelism": replicas}
        template["metadata"]["labels"][FIRST_REPLICA_LABEL] = job.topology.leader
        address = {"name": ADDRESS_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        template["spec"]["containers"][0]["env"].append(address)
    return {
        **indexed,
        # The limit is for all pods together. The step counts the restarts of each replica.
        "backoffLimit": job.specification.restart_limit * replicas,
        "podFailurePolicy": {"rules": [_PREEMPTED, {"action": "Ignore", "onExitCodes": outage}, *rules]},
        "template": template,
        **limits,
    }
