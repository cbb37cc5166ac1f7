"""Spec of a TFJob of the training operator: kubeflow.org/v1. Pure."""

from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.describe.manifests.pod import CONTAINERS
from kfp_distributed.components.train.describe.manifests.run_policy import replica_specs, training_policy
from kfp_distributed.components.train.describe.training_job import TrainingJob

_ROLES = {"chief": "Chief", "ps": "PS", "worker": "Worker", "evaluator": "Evaluator"}


def job_spec(job: TrainingJob, settings: ClusterSettings) -> Object:
    """Return the spec of a TFJob. Its operator sets TF_CONFIG."""
    replicas = replica_specs(job, settings, CONTAINERS["TFJob"], _ROLES)
    return {"runPolicy": training_policy(job), "tfReplicaSpecs": replicas}
