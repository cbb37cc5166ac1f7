"""Kubernetes objects of a training job in one namespace, and their API paths. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.train.describe.manifests import (
    HASH_ANNOTATION,
    JobKind,
    code_config_map,
    job_kind,
    job_manifest,
    object_store_secret,
    volume_claims,
)
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings, MpiVersion, Operator
from kfp_distributed.components.train.describe.manifests.train_job import (
    TRAIN_JOB,
    TRAINING_RUNTIME,
    train_job_manifest,
    training_runtime_manifest,
)
from kfp_distributed.components.train.describe.manifests.train_job_names import train_job_names
from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.trainers.programs.requirements import STOCK_IMAGE, image_of, requirements_of

SHORTEST_LOST_SECONDS = 60.0
"""Minimum of launcher_lost_timeout in seconds. The timeout covers eight heartbeats; a step on a busy node may miss
several."""


@dataclass(frozen=True)
class JobObjects:
    """The objects of one job.

    Attributes:
        job: The job.
        kind: Kind of the job's own object.
        namespace: Namespace of all objects.
        manifest: The job's own object, such as a TFJob.
        parts: ConfigMap and Secret that the job owns.
        claims: PersistentVolumeClaims of the volumes with a size. They have no owner.
        runtime: TrainingRuntime of a TrainJob, which must exist before it; None for other kinds.
    """

    job: TrainingJob
    kind: JobKind
    namespace: str
    manifest: Object
    parts: tuple[Object, ...]
    claims: tuple[Object, ...]
    runtime: Object | None = None

    @property
    def core_path(self) -> str:
        """Path of the core objects in the namespace, such as pods."""
        return f"/api/v1/namespaces/{self.namespace}"

    @property
    def jobs_path(self) -> str:
        """Path of the jobs of this kind in the namespace."""
        return f"/apis/{self.kind.group}/{self.kind.version}/namespaces/{self.namespace}/{self.kind.plural}"

    @property
    def path(self) -> str:
        """Path of the job's own object."""
        return f"{self.jobs_path}/{self.job.name}"

    @property
    def runtimes_path(self) -> str:
        """Path of the TrainingRuntimes in the namespace."""
        kind = TRAINING_RUNTIME
        return f"/apis/{kind.group}/{kind.version}/namespaces/{self.namespace}/{kind.plural}"

    @property
    def runtime_path(self) -> str:
        """Path of the job's own TrainingRuntime."""
        return f"{self.runtimes_path}/{self.job.name}"

    @property
    def awaited_deletion(self) -> Literal["Foreground", "Background"]:
        """How the job is deleted if its pods must be gone before it is created again.

        A deletion in the foreground waits for the pods, but a failed TrainJob that waits for its JobSet starts over:
        Kubeflow Trainer creates the JobSet again.
        """
        return "Background" if self.kind == TRAIN_JOB else "Foreground"

    @property
    def title(self) -> str:
        """Kind, namespace and name of the job, for log lines."""
        return f"{self.kind.kind} {self.namespace}/{self.job.name}"

    @property
    def event_names(self) -> tuple[str, ...]:
        """Names of the objects whose events are about the job, but for its pods.

        An operator reports pods that it cannot create as events of its job. A gang scheduler reports as events of the
        PodGroup, which has the name of the job. The launcher of an MPIJob v2beta1 is created through a Job of its own,
        and so are all replicas of a TrainJob, whose JobSet has the name of the job.
        """
        if self.kind == TRAIN_JOB:
            return (self.job.name, *train_job_names(self.job).jobs)
        launcher = (f"{self.job.name}-launcher",) if self.kind.kind == "MPIJob" else ()
        return (self.job.name, *launcher)

    def is_same_job(self, existing: Object) -> bool:
        """Return whether an existing job of this name has the same specification and code."""
        annotations = existing["metadata"].get("annotations", {})
        return bool(annotations.get(HASH_ANNOTATION) == self.manifest["metadata"]["annotations"][HASH_ANNOTATION])


def settings_for(
    job: TrainingJob,
    settings: ClusterSettings,
    mpi_version: MpiVersion | None,
    variables: Mapping[str, str],
    operator: Operator = "training-operator",
) -> ClusterSettings:
    """Return the settings of a cluster with the image and the packages of a job's replicas.

    Args:
        job: The job.
        settings: Settings of the cluster.
        mpi_version: Version of MPIJob that the API server serves. It matters for MPI alone.
        variables: Environment variables, which may name the images of replicas.
        operator: What runs the job. Default: "training-operator".

    Raises:
        ValueError: The job cannot run on Kubernetes.
    """
    lost_timeout = job.specification.launcher_lost_timeout
    if lost_timeout is not None and lost_timeout < SHORTEST_LOST_SECONDS:
        raise ValueError(
            f"launcher_lost_timeout = {lost_timeout:g} is too short on Kubernetes; set it to at least "
            f"{SHORTEST_LOST_SECONDS:g} seconds"
        )
    distribution_type, program = job.topology.distribution_type, job.description.program
    image = image_of(program, distribution_type, variables)
    requirements = requirements_of({**program, "image": "" if image == STOCK_IMAGE else image})
    return replace(
        settings,
        image=image,
        packages=requirements.packages,
        packages_alone=requirements.alone,
        mpi_version=mpi_version if distribution_type == "MPI" and operator == "training-operator" else None,
        operator=operator,
    )


def plan_objects(job: TrainingJob, settings: ClusterSettings) -> JobObjects:
    """Return the objects of a job.

    Args:
        job: The job.
        settings: Settings of the cluster, with the image and the packages of the replicas.

    Raises:
        ValueError: The code of the job is too large for a ConfigMap, or the cluster does not support the job.
    """
    possible_parts = (object_store_secret(job, settings), code_config_map(job, settings))
    parts, claims = tuple(part for part in possible_parts if part), tuple(volume_claims(job, settings))
    if settings.operator == "trainer" and job.topology.distribution_type != "Job":
        manifest, runtime = train_job_manifest(job, settings), training_runtime_manifest(job, settings)
        return JobObjects(job, TRAIN_JOB, settings.namespace, manifest, parts, claims, runtime)
    kind, manifest = job_kind(job.topology.distribution_type, settings.mpi_version), job_manifest(job, settings)
    return JobObjects(job, kind, settings.namespace, manifest, parts, claims)
