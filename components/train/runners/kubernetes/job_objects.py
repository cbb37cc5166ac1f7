"""A training job -> its objects in one namespace, and their paths in the API. Pure."""

from dataclasses import dataclass

from kfp_distributed.components.train.job import TrainingJob
from kfp_distributed.components.train.manifests import (
    HASH_ANNOTATION,
    JobKind,
    code_config_map,
    job_kind,
    job_manifest,
    object_store_secret,
    volume_claims,
)
from kfp_distributed.components.train.manifests.cluster_settings import ClusterSettings, Object


@dataclass(frozen=True)
class JobObjects:
    """The objects of one job.

    Attributes:
        job: The job.
        kind: The kind of its own object.
        namespace: The namespace of all its objects.
        manifest: Its own object, which one of the operators runs.
        parts: The ConfigMap and the Secret that the job owns.
        claims: The PersistentVolumeClaims of its volumes that have a size. Nobody owns them.
    """

    job: TrainingJob
    kind: JobKind
    namespace: str
    manifest: Object
    parts: tuple[Object, ...]
    claims: tuple[Object, ...]

    @property
    def core_path(self) -> str:
        """Path of the namespace's core objects, such as pods."""
        return f"/api/v1/namespaces/{self.namespace}"

    @property
    def jobs_path(self) -> str:
        """Path of the namespace's jobs of this kind."""
        return f"/apis/{self.kind.group}/{self.kind.version}/namespaces/{self.namespace}/{self.kind.plural}"

    @property
    def path(self) -> str:
        """Path of the job's own object."""
        return f"{self.jobs_path}/{self.job.name}"

    @property
    def title(self) -> str:
        """Kind, namespace and name of the job, for log lines."""
        return f"{self.kind.kind} {self.namespace}/{self.job.name}"

    def is_same_job(self, existing: Object) -> bool:
        """Whether a job of this name has the same specification and code."""
        annotations = existing["metadata"].get("annotations", {})
        return bool(annotations.get(HASH_ANNOTATION) == self.manifest["metadata"]["annotations"][HASH_ANNOTATION])


def plan_objects(job: TrainingJob, settings: ClusterSettings) -> JobObjects:
    """Returns the objects of a job.

    Args:
        job: The job.
        settings: The cluster's side of the job, with the image and the packages of its replicas.

    Raises:
        ValueError: The job does not fit into its objects.
    """
    parts = (object_store_secret(job, settings), code_config_map(job, settings))
    return JobObjects(
        job,
        job_kind(job.topology.distribution_type, settings.mpi_version),
        settings.namespace,
        job_manifest(job, settings),
        tuple(part for part in parts if part),
        tuple(volume_claims(job, settings)),
    )
