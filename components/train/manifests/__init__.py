"""Topology -> the Kubernetes objects of a job. Pure; one file a kind."""

import hashlib
import json
from base64 import b64encode
from typing import NamedTuple

from kfp_distributed.components.train.job import TrainingJob
from kfp_distributed.components.train.manifests import batch_job, mpi_job, pytorch_job, tf_job
from kfp_distributed.components.train.manifests.cluster_settings import ClusterSettings, MpiVersion, Object
from kfp_distributed.components.train.manifests.pod import (
    JOB_KEY,
    JOB_LABEL,
    MANAGED,
    STORE_SUFFIX,
    labels_of,
)
from kfp_distributed.components.train.specification import DistributionType
from kfp_distributed.library.archive import ARCHIVE_KEY, make_archive
from kfp_distributed.library.content import content_hash

__all__ = [
    "HASH_ANNOTATION",
    "JOB_LABEL",
    "JobKind",
    "code_config_map",
    "job_kind",
    "job_manifest",
    "object_store_secret",
    "volume_claims",
]

HASH_ANNOTATION = "kfp-distributed/spec-hash"

_LARGEST_CONFIG_MAP = 1024 * 1024
"""Bytes of data that the API server takes in a ConfigMap."""


class JobKind(NamedTuple):
    """A kind of job as the API server has it."""

    kind: str
    group: str
    version: str
    plural: str


def job_kind(distribution_type: DistributionType, mpi_version: MpiVersion | None = None) -> JobKind:
    """The kind of a type of job; of MPI the version that the API server has, v1 where it has not been asked."""
    if distribution_type == "Job":
        return JobKind("Job", "batch", "v1", "jobs")
    if distribution_type == "MPI":
        return JobKind("MPIJob", "kubeflow.org", mpi_version or "v1", "mpijobs")
    kind = f"{distribution_type}Job"
    return JobKind(kind, "kubeflow.org", "v1", f"{kind.lower()}s")


def job_manifest(job: TrainingJob, settings: ClusterSettings) -> Object:
    """The job itself, with a hash of all that makes it what it is: its spec and its code, not who owns it."""
    kind = job_kind(job.topology.distribution_type, settings.mpi_version)
    module = {"Job": batch_job, "TFJob": tf_job, "PyTorchJob": pytorch_job, "MPIJob": mpi_job}[kind.kind]
    spec = module.job_spec(job, settings)
    code_config_map(job, settings)  # It refuses what is too large.
    content = json.dumps([spec, job.description.to_json(), content_hash(settings.library)], sort_keys=True)
    about = _metadata(job, settings, job.name)
    if job.specification.queue_name:
        about["labels"]["kueue.x-k8s.io/queue-name"] = job.specification.queue_name
    about["annotations"] = {HASH_ANNOTATION: hashlib.sha256(content.encode()).hexdigest()[:32]}
    return {"apiVersion": f"{kind.group}/{kind.version}", "kind": kind.kind, "metadata": about, "spec": spec}


def code_config_map(job: TrainingJob, settings: ClusterSettings) -> Object:
    """Return the ConfigMap with what the replicas run: the job's description, and the library as one archive.

    Raises:
        ValueError: It is larger than a ConfigMap may be.
    """
    description, archive = job.description.to_json(), make_archive(settings.library)
    if (size := len(description.encode()) + len(archive)) > _LARGEST_CONFIG_MAP:
        raise ValueError(
            f"train_specification and train_parameters: with the library they are {size} bytes, and a ConfigMap may "
            f'have {_LARGEST_CONFIG_MAP}. Build an image that holds the program, and set "image" and "command" in '
            "train_specification"
        )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(job, settings, f"{job.name}-code"),
        "data": {JOB_KEY: description},
        "binaryData": {ARCHIVE_KEY: b64encode(archive).decode("ascii")},
    }


def object_store_secret(job: TrainingJob, settings: ClusterSettings) -> Object | None:
    """The object store's keys for this job alone; None where the namespace has them already."""
    if not settings.object_store:
        return None
    about = _metadata(job, settings, job.name + STORE_SUFFIX)
    return {"apiVersion": "v1", "kind": "Secret", "metadata": about, "stringData": dict(settings.object_store)}


def volume_claims(job: TrainingJob, settings: ClusterSettings) -> list[Object]:
    """The claims to make where they are not there yet. Nobody owns them: what replicas leave in one is to stay."""
    access_mode = "ReadWriteMany" if len(job.topology.replicas) > 1 else "ReadWriteOnce"
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": each["name"], "namespace": settings.namespace, "labels": MANAGED},
            "spec": {
                "accessModes": [each.get("access_mode", access_mode)],
                "resources": {"requests": {"storage": each["size"]}},
                "storageClassName": each.get("storage_class"),
            },
        }
        for each in map(dict, job.specification.volumes)
        if "size" in each
    ]


def _metadata(job: TrainingJob, settings: ClusterSettings, name: str) -> Object:
    owner = {"ownerReferences": [settings.owner]} if settings.owner else {}
    return {"name": name, "namespace": settings.namespace, "labels": labels_of(job), **owner}
