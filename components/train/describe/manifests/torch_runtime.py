"""TrainingRuntime of a PyTorch job for Kubeflow Trainer 2.3. Pure.

The policy torch has one pod template, in the replicatedJob "node". So it runs jobs whose master has the resources of a
worker: the master is node 0, and there are number_of_workers + 1 nodes. Trainer sets PET_NNODES, PET_NPROC_PER_NODE,
PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT, by which torchrun starts several ranks in each node.

A master with other launcher_cpus or launcher_memory needs a template of its own, and the policy torch has no elastic
training: it sets PET_NNODES to one number. These jobs have no policy but two replicatedJobs, "master" and "worker",
with the variables that the training operator sets. An elastic job can lose workers and get them back, but it cannot get
more than it has been created with, because numNodes of a TrainJob is immutable.
"""

from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.describe.manifests.pod import ENTRY
from kfp_distributed.components.train.describe.manifests.replicated_job import (
    INDEX,
    INDEX_VARIABLE,
    jobset_spec,
    replica_variable,
    replicated_job,
)
from kfp_distributed.components.train.describe.manifests.train_job_names import NODE, has_one_template, train_job_names
from kfp_distributed.components.train.describe.topology import replica_environment
from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.trainers.runtime.job_description import REPLICA_VARIABLE

_PORT = 29500
"""Port of the master, the one that Trainer sets."""

# The master is rank 0, so a worker's rank is its index plus 1. Kubernetes cannot add in the value of a variable.
_SET_RANK = f'RANK=$(({INDEX_VARIABLE} + 1)) && export RANK PET_NODE_RANK=$RANK && exec "$@"'
_RANKS = ("RANK", "PET_NODE_RANK")


def runtime_spec(job: TrainingJob, settings: ClusterSettings) -> Object:
    """Return the spec of the TrainingRuntime, without the metadata of its JobSet."""
    return _node_runtime(job, settings) if has_one_template(job.topology) else _role_runtime(job, settings)


def trainer(job: TrainingJob) -> Object:
    """Return spec.trainer of the TrainJob; {} for none. Without it, Trainer sets no variable."""
    return {"numProcPerNode": job.specification.slots_per_worker} if has_one_template(job.topology) else {}


def _node_runtime(job: TrainingJob, settings: ClusterSettings) -> Object:
    """Return the spec for a master and workers with one template."""
    replicas = job.topology.replicas
    environment = _environment(job)
    # Trainer sets PET_*, and denies others. RANK is the index of the node for torchrun, too.
    values = [entry for entry in environment if not entry["name"].startswith("PET_")]
    nodes = replicated_job(job, settings, NODE, replicas, [*values, INDEX, {**INDEX, "name": "RANK"}])
    return {
        "mlPolicy": {"numNodes": len(replicas), "torch": {}},
        "template": {"spec": jobset_spec(job, [nodes], NODE)},
    }


def _role_runtime(job: TrainingJob, settings: ClusterSettings) -> Object:
    """Return the spec for a master and workers with a template each."""
    master, *workers = job.topology.replicas
    environment = _environment(job)
    rank_zero = [{"name": name, "value": "0"} for name in _RANKS]
    jobs = [
        replicated_job(job, settings, "master", [master], [*environment, *replica_variable("master"), *rank_zero]),
        replicated_job(
            job,
            settings,
            "worker",
            workers,
            [*_of_worker(environment), *replica_variable("worker")],
            command=("sh", "-c", _SET_RANK, "sh", *ENTRY),
        ),
    ]
    return {"template": {"spec": jobset_spec(job, jobs, "master")}}


def _environment(job: TrainingJob) -> list[Object]:
    """Return the variables of the master but for its name and its rank."""
    leader = job.topology.leader
    address = f"{train_job_names(job).replicas[leader].address}:{_PORT}"
    values = replica_environment(job.topology, leader, {leader: address}, job.specification)
    dropped = (*_RANKS, REPLICA_VARIABLE)
    return [{"name": name, "value": value} for name, value in values.items() if name not in dropped]


def _of_worker(environment: list[Object]) -> list[Object]:
    """Return the master's variables for a worker, which does not host the rendezvous of an elastic job."""
    return [{**entry, "value": entry["value"].replace("is_host=1", "is_host=0")} for entry in environment]
