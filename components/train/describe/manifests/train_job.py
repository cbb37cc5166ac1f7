"""TrainJob of Kubeflow Trainer 2.3, and the TrainingRuntime that it refers to: trainer.kubeflow.org/v1alpha1. Pure.

The TrainingRuntime belongs to one job and has its name. It must exist before its TrainJob is created, and as long as
the TrainJob is updated, for example when a queue suspends it.
"""

import json
from types import ModuleType

from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.train.describe.distributions import types_of
from kfp_distributed.components.train.describe.manifests import (
    HASH_ANNOTATION,
    QUEUE_LABEL,
    JobKind,
    code_config_map,
    metadata_of,
    mpi_runtime,
    spec_hash,
    tf_runtime,
    torch_runtime,
)
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.describe.manifests.operator_limits import check_trainer_limits
from kfp_distributed.components.train.describe.manifests.pod import labels_of
from kfp_distributed.components.train.describe.manifests.run_policy import lifetime
from kfp_distributed.components.train.describe.manifests.train_job_names import train_job_names
from kfp_distributed.components.train.describe.training_job import TrainingJob

TRAIN_JOB = JobKind("TrainJob", "trainer.kubeflow.org", "v1alpha1", "trainjobs")
TRAINING_RUNTIME = JobKind("TrainingRuntime", "trainer.kubeflow.org", "v1alpha1", "trainingruntimes")

DISTRIBUTION_ANNOTATION = "kfp-distributed/distribution"
"""Annotation of a TrainJob with its `distribution_specification` in JSON, as far as it determines the replicas and when
they restart. The fields of a TrainJob do not tell."""

_ANNOTATED_KEYS = (
    *("number_of_workers", "number_of_parameter_servers", "evaluator", "slots_per_worker", "min_workers"),
    *("max_workers", "worker_cpus", "worker_memory", "worker_gpus", "launcher_cpus", "launcher_memory"),
    *("ps_cpus", "ps_memory"),
    *("restart_limit", "termination_grace_seconds"),
)

_MODULES: dict[str, ModuleType] = {"TF": tf_runtime, "PyTorch": torch_runtime, "MPI": mpi_runtime}
_API_VERSION = f"{TRAIN_JOB.group}/{TRAIN_JOB.version}"
_VOLCANO = "volcano"
_VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"


def training_runtime_manifest(job: TrainingJob, settings: ClusterSettings) -> Object:
    """Return the TrainingRuntime of a TF, PyTorch or MPI job.

    Its owner is the step, because the TrainJob does not exist yet. `owned_by_train_job` changes that.

    Raises:
        ValueError: Kubeflow Trainer cannot run the job. The message names the key.
    """
    metadata = metadata_of(job, settings, train_job_names(job).train_job)
    return {
        "apiVersion": _API_VERSION,
        "kind": TRAINING_RUNTIME.kind,
        "metadata": metadata,
        "spec": _runtime_spec(job, settings),
    }


def train_job_manifest(job: TrainingJob, settings: ClusterSettings) -> Object:
    """Return the TrainJob of a TF, PyTorch or MPI job. An annotation has the hash of both specs and the code.

    activeDeadlineSeconds is that of the other kinds. A TrainJob has no lifetime after it has finished: only its owner,
    the step's pod, ends it if the step does not.

    Raises:
        ValueError: Kubeflow Trainer cannot run the job, or its code is too large.
    """
    code_config_map(job, settings)  # Raises if the code is too large.
    trainer, limits = _MODULES[job.topology.distribution_type].trainer(job), lifetime(job)
    spec = {
        "runtimeRef": {"apiGroup": TRAINING_RUNTIME.group, "kind": TRAINING_RUNTIME.kind, "name": job.name},
        **({"trainer": trainer} if trainer else {}),
        **{name: limits[name] for name in ("activeDeadlineSeconds",) if name in limits},
    }
    metadata = metadata_of(job, settings, job.name)
    if job.specification.queue_name:
        metadata["labels"][QUEUE_LABEL] = job.specification.queue_name
    runtime = training_runtime_manifest(job, settings)["spec"]
    metadata["annotations"] = {
        HASH_ANNOTATION: spec_hash([runtime, spec], job, settings),
        DISTRIBUTION_ANNOTATION: json.dumps(_distribution(job)),
    }
    return {"apiVersion": _API_VERSION, "kind": TRAIN_JOB.kind, "metadata": metadata, "spec": spec}


def owned_by_train_job(uid: str, job: TrainingJob) -> Object:
    """Return the patch by which a TrainingRuntime is deleted with its TrainJob.

    Args:
        uid: UID of the TrainJob.
        job: The job.
    """
    owner = {"apiVersion": _API_VERSION, "kind": TRAIN_JOB.kind, "name": job.name, "uid": uid}
    return {"metadata": {"ownerReferences": [owner]}}


def _distribution(job: TrainingJob) -> Object:
    spec = job.specification
    values = {name: getattr(spec, name) for name in _ANNOTATED_KEYS if spec.distribution_type in types_of(name)}
    known = {name: value for name, value in values.items() if value is not None}
    return {"distribution_type": spec.distribution_type, **known}


def _runtime_spec(job: TrainingJob, settings: ClusterSettings) -> Object:
    check_trainer_limits(job.specification)
    spec = _MODULES[job.topology.distribution_type].runtime_spec(job, settings)
    metadata: Object = {"labels": labels_of(job)}
    policy = _pod_group_policy(job)
    if "volcano" in policy and job.specification.queue_name:
        metadata["annotations"] = {_VOLCANO_QUEUE: job.specification.queue_name}
    template = {"metadata": metadata, **spec["template"]}
    return {**spec, **({"podGroupPolicy": policy} if policy else {}), "template": template}


def _pod_group_policy(job: TrainingJob) -> Object:
    """Return the policy of a gang scheduler; {} without one.

    Trainer makes a PodGroup for Volcano or for the coscheduling plugin, and does not set the scheduler of the pods.
    """
    if not job.specification.gang_scheduling:
        return {}
    return {"volcano": {}} if job.specification.scheduler_name == _VOLCANO else {"coscheduling": {}}
