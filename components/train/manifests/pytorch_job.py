"""Spec of a PyTorchJob of the training operator: kubeflow.org/v1. Pure."""

from kfp_distributed.components.train.job import TrainingJob
from kfp_distributed.components.train.manifests.cluster_settings import ClusterSettings, Object
from kfp_distributed.components.train.manifests.pod import CONTAINERS
from kfp_distributed.components.train.manifests.run_policy import replica_specs, training_policy
from kfp_distributed.components.train.topology import LAST_CALL_SECONDS


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
