"""Spec of a TFJob of the training operator: kubeflow.org/v1. Pure."""

from kfp_distributed.components.train.job import TrainingJob
from kfp_distributed.components.train.manifests.cluster_settings import ClusterSettings, Object
from kfp_distributed.components.train.manifests.pod import CONTAINERS
from kfp_distributed.components.train.manifests.run_policy import replica_specs, training_policy

_ROLES = {"chief": "Chief", "ps": "PS", "worker": "Worker", "evaluator": "Evaluator"}


def job_spec(job: TrainingJob, settings: ClusterSettings) -> Object:
    """Return the spec of a TFJob. Its operator sets TF_CONFIG."""
    replicas = replica_specs(job, settings, CONTAINERS["TFJob"], _ROLES)
    return {"runPolicy": training_policy(job), "tfReplicaSpecs": replicas}
