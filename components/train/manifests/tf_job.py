"""TFJob of the training operator: kubeflow.org/v1. Pure."""

from kfp_distributed.components.train.manifests.run_policy import replica_specs, training_policy
from kfp_distributed.components.train.manifests.setting import Object, Setting
from kfp_distributed.components.train.runners.protocol import TrainingJob

_ROLES = {"chief": "Chief", "ps": "PS", "worker": "Worker", "evaluator": "Evaluator"}


def job_spec(job: TrainingJob, setting: Setting) -> Object:
    """The spec of a TFJob; its operator sets TF_CONFIG."""
    return {"runPolicy": training_policy(job), "tfReplicaSpecs": replica_specs(job, setting, "tensorflow", _ROLES)}
