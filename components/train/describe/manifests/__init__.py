"""Create the Kubernetes objects of a job from its topology. Pure; one module per kind."""

import hashlib
import json
import zipfile
from base64 import b64encode
from typing import NamedTuple

from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.train.describe.manifests import batch_job, mpi_job, pytorch_job, tf_job
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings, MpiVersion
from kfp_distributed.components.train.describe.manifests.code import CODE_SUFFIX, JOB_KEY, differing_keys
from kfp_distributed.components.train.describe.manifests.pod import JOB_LABEL, MANAGED, STORE_SUFFIX, labels_of
from kfp_distributed.components.train.describe.specification import DistributionType
from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.library.archive import ARCHIVE_KEY, make_archive, make_small_archive
from kfp_distributed.library.content import content_hash

__all__ = [
    "HASH_ANNOTATION",
    "JOB_LABEL",
    "QUEUE_LABEL",
    "JobKind",
    "code_config_map",
    "differing_keys",
    "job_kind",
    "job_manifest",
    "metadata_of",
    "object_store_secret",
    "spec_hash",
    "volume_claims",
]

HASH_ANNOTATION = "kfp-distributed/spec-hash"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Label by which Kueue knows the queue of a job."""

_LARGEST_CONFIG_MAP = 1024 * 1024
"""Maximum size of the data of a ConfigMap in bytes; the API server refuses more."""


class JobKind(NamedTuple):
    """A kind of job in the API.

    Attributes:
        kind: Kind, such as "TFJob".
        group: API group.
        version: API version.
        plural: Plural name of the resource, as in paths.
    """

    kind: str
    group: str
    version: str
    plural: str


def job_kind(distribution_type: DistributionType, mpi_version: MpiVersion | None = None) -> JobKind:
    """Return the kind of a distribution type.

    Args:
        distribution_type: Type of the job.
        mpi_version: Version of MPIJob that the API server serves. Default: v1.
    """
    if distribution_type == "Job":
        return JobKind("Job", "batch", "v1", "jobs")
    if distribution_type == "MPI":
        return JobKind("MPIJob", "kubeflow.org", mpi_version or "v1", "mpijobs")
    kind = f"{distribution_type}Job"
    return JobKind(kind, "kubeflow.org", "v1", f"{kind.lower()}s")


def job_manifest(job: TrainingJob, settings: ClusterSettings) -> Object:
    """Return the job's own object. An annotation has the hash of its spec and code; the owner is not hashed.

    Raises:
        ValueError: The code is too large, or the cluster's version of MPIJob does not support elastic training.
    """
    kind = job_kind(job.topology.distribution_type, settings.mpi_version)
    module = {"Job": batch_job, "TFJob": tf_job, "PyTorchJob": pytorch_job, "MPIJob": mpi_job}[kind.kind]
    spec = module.job_spec(job, settings)
    code_config_map(job, settings)  # Raises if the code is too large.
    metadata = metadata_of(job, settings, job.name)
    if job.specification.queue_name:
        metadata["labels"][QUEUE_LABEL] = job.specification.queue_name
    metadata["annotations"] = {HASH_ANNOTATION: spec_hash(spec, job, settings)}
    return {"apiVersion": f"{kind.group}/{kind.version}", "kind": kind.kind, "metadata": metadata, "spec": spec}


def spec_hash(spec: object, job: TrainingJob, settings: ClusterSettings) -> str:
    """Return the hash of what a job runs: its spec, as JSON values, its description and the code of the library."""
    content = json.dumps([spec, job.description.to_json(), content_hash(settings.library)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def code_config_map(job: TrainingJob, settings: ClusterSettings) -> Object:
    """Return the ConfigMap with the job's description and the archive of the library. It is immutable.

    If the files have no room with each one compressed by itself, they are compressed together. If they still have none,
    bzip2 compresses them, which not every build of Python can read.

    Raises:
        ValueError: Both together exceed the size limit of a ConfigMap.
    """
    description, archive = job.description.to_json(), make_archive(settings.library)
    for compression in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2):
        if len(description.encode()) + len(archive) > _LARGEST_CONFIG_MAP:
            archive = min(archive, make_small_archive(settings.library, compression), key=len)
    if (size := len(description.encode()) + len(archive)) > _LARGEST_CONFIG_MAP:
        raise ValueError(
            f"train_specification and train_parameters have {size} bytes together with the library; the limit of a "
            f'ConfigMap is {_LARGEST_CONFIG_MAP}. Build an image with the program, and set "image" and "command" in '
            "train_specification"
        )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata_of(job, settings, job.name + CODE_SUFFIX),
        "immutable": True,
        "data": {JOB_KEY: description},
        "binaryData": {ARCHIVE_KEY: b64encode(archive).decode("ascii")},
    }


def object_store_secret(job: TrainingJob, settings: ClusterSettings) -> Object | None:
    """Return the job's own Secret with the keys of the object store; None if it refers to an existing Secret."""
    if not settings.object_store:
        return None
    metadata = metadata_of(job, settings, job.name + STORE_SUFFIX)
    content = {"immutable": True, "stringData": dict(settings.object_store)}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, **content}


def volume_claims(job: TrainingJob, settings: ClusterSettings) -> list[Object]:
    """Return the PersistentVolumeClaims to create if they are missing: those of volumes with a size.

    They have no owner, so that Kubernetes does not delete them, and their data, with the job.
    """
    access_mode = "ReadWriteMany" if len(job.topology.replicas) > 1 else "ReadWriteOnce"
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": volume["name"], "namespace": settings.namespace, "labels": MANAGED},
            "spec": {
                "accessModes": [volume.get("access_mode", access_mode)],
                "resources": {"requests": {"storage": volume["size"]}},
                "storageClassName": volume.get("storage_class"),
            },
        }
        for volume in map(dict, job.specification.volumes)
        if "size" in volume
    ]


def metadata_of(job: TrainingJob, settings: ClusterSettings, name: str) -> Object:
    """Return the metadata of an object of a job: name, namespace, labels and the owner, if there is one."""
    owner = {"ownerReferences": [settings.owner]} if settings.owner else {}
    return {"name": name, "namespace": settings.namespace, "labels": labels_of(job), **owner}
