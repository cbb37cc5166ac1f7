"""TrainingRuntime of a TensorFlow job for Kubeflow Trainer 2.3, which has no policy for TensorFlow. Pure.

Each role has a replicatedJob. TF_CONFIG has the DNS names that JobSet gives to the pods.
"""

import json

from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.describe.manifests.replicated_job import (
    INDEX_VARIABLE,
    jobset_spec,
    replica_variable,
    replicated_job,
)
from kfp_distributed.components.train.describe.manifests.train_job_names import train_job_names
from kfp_distributed.components.train.describe.topology import Replica, replica_environment
from kfp_distributed.components.train.describe.training_job import TrainingJob

_PORT = 2222
"""Port of each replica, the one that the training operator sets."""


def runtime_spec(job: TrainingJob, settings: ClusterSettings) -> Object:
    """Return the spec of the TrainingRuntime, without the metadata of its JobSet.

    The chief decides about the success of the job. Without a chief, worker 0 does: the Job of the workers succeeds when
    its pod with index 0 does.
    """
    roles: dict[str, list[Replica]] = {}
    for replica in job.topology.replicas:
        roles.setdefault(replica.role, []).append(replica)
    jobs = [
        replicated_job(
            job,
            settings,
            role,
            replicas,
            [*replica_variable(role), *_tf_config(job, replicas[0])],
            trains=role in ("worker", "evaluator"),
        )
        for role, replicas in roles.items()
    ]
    return {"template": {"spec": jobset_spec(job, jobs, job.topology.replicas[0].role)}}


def trainer(job: TrainingJob) -> Object:
    """Return spec.trainer of the TrainJob: {} for none, because the runtime has no policy."""
    return {}


def _tf_config(job: TrainingJob, replica: Replica) -> list[Object]:
    """Return TF_CONFIG for all replicas of a role. Kubernetes replaces the reference to the index in each pod.

    Returns:
        [] for a job with one replica.
    """
    names = train_job_names(job).replicas
    addresses = {name: f"{names[name].address}:{_PORT}" for name in names}
    values = replica_environment(job.topology, replica.name, addresses, job.specification)
    if "TF_CONFIG" not in values:
        return []
    config = json.loads(values["TF_CONFIG"])
    config["task"]["index"] = "INDEX"
    value = json.dumps(config).replace('"INDEX"', f"$({INDEX_VARIABLE})")
    return [{"name": "TF_CONFIG", "value": value}]
