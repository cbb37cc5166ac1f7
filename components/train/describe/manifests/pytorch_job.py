"""Spec of a PyTorchJob of the training operator: kubeflow.org/v1. Pure."""

from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.describe.manifests.pod import CONTAINERS
from kfp_distributed.components.train.describe.manifests.run_policy import replica_specs, training_policy
from kfp_distributed.components.train.describe.topology import LAST_CALL_SECONDS
from kfp_distributed.components.train.describe.training_job import TrainingJob


def job_spec(job: TrainingJob, settings: ClusterSettings) -> Object:
    """Return the spec of a PyTorchJob. Its operator sets MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE."""
    spec, roles = job.specification, {"master": "Master", "worker": "Worker"}
    manifest_spec: Object = {
        "runPolicy": training_policy(job),
        "nprocPerNode": str(spec.slots_per_worker),
        "pytorchReplicaSpecs": replica_specs(job, settings, CONTAINERS["PyTorchJob"], roles),
    }
    if spec.min_workers and spec.max_workers:
        manifest_spec["elasticPolicy"] = {
            # torchrun counts the master, too. The workers wait for its address, so the rendezvous is there.
            "minReplicas": spec.min_workers + 1,
            "maxReplicas": spec.max_workers + 1,
            "rdzvBackend": "c10d",
            "rdzvHost": f"{job.name}-master-0",
            "rdzvConf": [{"key": "last_call_timeout", "value": str(LAST_CALL_SECONDS)}],
            "maxRestarts": spec.restart_limit,
        }
    return manifest_spec
