"""Choose what runs a job: the training operator (for MPI also the MPI operator), or Kubeflow Trainer v2."""

from collections.abc import Sequence
from typing import NamedTuple

from kfp_distributed.cluster_api.client import ClusterApi, ClusterError
from kfp_distributed.components.train.describe.manifests import JobKind, job_kind
from kfp_distributed.components.train.describe.manifests.cluster_settings import MpiVersion, Operator
from kfp_distributed.components.train.describe.manifests.train_job import TRAIN_JOB, TRAINING_RUNTIME
from kfp_distributed.components.train.describe.specification import DistributionType, OperatorKey
from kfp_distributed.components.train.run.runners.kubernetes.create.preflight import (
    find_mpi_version,
    install_advice,
    missing_permissions,
    needed_permissions,
    not_served,
    served_kinds,
)

_OUTDATED = (
    "the cluster serves TrainJob of a Kubeflow Trainer before 2.2, which has no spec.runtimePatches; install Kubeflow "
    "Trainer 2.3"
)
"""Why a TrainJob that is served cannot be used."""


class Offer(NamedTuple):
    """What a cluster offers of one operator for a type of job.

    Attributes:
        kind: Kind of the job's object.
        is_served: Whether the API server serves the kind.
        is_outdated: Whether it is served in a version that cannot be used.
        missing: Permissions for this kind that the account lacks, such as "create tfjobs.kubeflow.org".
    """

    kind: JobKind
    is_served: bool
    is_outdated: bool = False
    missing: Sequence[str] = ()

    @property
    def is_usable(self) -> bool:
        """Whether the account can use the kind."""
        return self.is_served and not self.is_outdated and not self.missing


class OperatorChoice(NamedTuple):
    """The operator of a job.

    Attributes:
        operator: The operator. It does not matter for a Job.
        mpi_version: Version of MPIJob that the API server serves; None for other kinds.
        reason: Reason in one sentence; "" for a Job.
        is_logged: Whether the user may expect another operator, so that the log tells of the choice.
    """

    operator: Operator
    mpi_version: MpiVersion | None
    reason: str
    is_logged: bool = False

    @property
    def line(self) -> str:
        """The choice and its reason, for the log."""
        return f"operator auto takes {self.operator}: {self.reason}"


def choose_operator(api: ClusterApi, distribution_type: DistributionType, key: OperatorKey) -> OperatorChoice:
    """Ask a cluster what it serves and what the account may do, and choose the operator of a job.

    It asks for permissions only if the choice depends on them. `check_cluster` checks those of the chosen kind.

    Args:
        api: The cluster with the namespace of the job.
        distribution_type: Type of the job.
        key: Value of the key `operator`.

    Raises:
        ValueError: The cluster has no operator for the job that the account can use, or not the one that the key names.
        ClusterError: The API server does not respond.
    """
    if distribution_type == "Job":
        return OperatorChoice("training-operator", None, "")
    if key != "auto":
        offer = trainer_offer(api) if key == "trainer" else older_offer(api, distribution_type)
        if not offer.is_usable:
            fault = _OUTDATED if offer.is_outdated else not_served(offer.kind)
            raise ValueError(f'operator = "{key}": {fault}, or set operator to "auto"')
        return OperatorChoice(key, _mpi_version(offer.kind), as_set(key))
    trainer, older, common = trainer_offer(api), older_offer(api, distribution_type), list[str]()
    if older.is_served and trainer.is_usable:
        older = older._replace(missing=missing_permissions(api, own_permissions(older.kind)))
        if not older.is_usable:
            trainer = trainer._replace(missing=missing_permissions(api, own_permissions(TRAIN_JOB)))
        if not older.is_usable and not trainer.is_usable:
            own = own_permissions(TRAIN_JOB)
            common = missing_permissions(api, [entry for entry in needed_permissions(TRAIN_JOB) if entry not in own])
    return choose(distribution_type, older, trainer, api.namespace, common)


def choose(
    distribution_type: DistributionType, older: Offer, trainer: Offer, namespace: str, common: Sequence[str] = ()
) -> OperatorChoice:
    """Return what `operator` "auto" takes. Pure.

    Args:
        distribution_type: TF, PyTorch or MPI.
        older: What the cluster offers of the training operator, or of the MPI operator.
        trainer: What it offers of Kubeflow Trainer.
        namespace: Namespace of the job.
        common: Missing permissions that both need, for the error. Default: none.

    Raises:
        ValueError: Neither can be used.
    """
    older_kind = older.kind.kind
    if older.is_usable:
        if not trainer.is_served:
            reason = f"the cluster serves {older_kind} and not TrainJob"
        elif trainer.is_outdated:
            reason = f"the cluster serves {older_kind}, and TrainJob only of a Kubeflow Trainer before 2.2"
        else:
            reason = f"the cluster serves {older_kind} and TrainJob, and auto prefers {older_kind}"
        is_logged = trainer.is_served and not trainer.is_outdated
        return OperatorChoice("training-operator", _mpi_version(older.kind), reason, is_logged)
    if trainer.is_usable:
        reason = f"the cluster serves TrainJob and not {older_kind}"
        if older.is_served:
            reason = f"the cluster serves {older_kind} and TrainJob, and the account lacks {', '.join(older.missing)}"
        return OperatorChoice("trainer", None, reason, is_logged=True)
    faults = [_fault(older), _fault(trainer), *([f"for both it lacks {', '.join(common)}"] if common else ())]
    raise ValueError(
        f"no operator of the cluster can be used for distribution_type {distribution_type}: {'; '.join(faults)}. To "
        f"solve this, {_advice(older, trainer, namespace)}, or choose another distribution_type (Job needs no operator)"
    )


def own_permissions(kind: JobKind) -> list[tuple[str, str, str]]:
    """Return the permissions that a training needs for its operator's objects, as (verb, API group, resource).

    These are the ones that a Job does not need.
    """
    common = needed_permissions(job_kind("Job"))
    return [entry for entry in needed_permissions(kind) if entry not in common]


def older_offer(api: ClusterApi, distribution_type: DistributionType) -> Offer:
    """Return what a cluster serves of the training operator or the MPI operator for a type of job."""
    if distribution_type == "MPI":
        mpi_version = find_mpi_version(api)
        return Offer(job_kind("MPI", mpi_version), mpi_version is not None)
    kind = job_kind(distribution_type)
    return Offer(kind, kind.plural in served_kinds(api, kind.group, kind.version))


def trainer_offer(api: ClusterApi) -> Offer:
    """Return what a cluster serves of Kubeflow Trainer v2."""
    served = served_kinds(api, TRAIN_JOB.group, TRAIN_JOB.version)
    is_served = {TRAIN_JOB.plural, TRAINING_RUNTIME.plural} <= served
    return Offer(TRAIN_JOB, is_served, is_served and not _has_runtime_patches(api))


def as_set(key: OperatorKey) -> str:
    """Return the reason for an operator that the key `operator` names."""
    return f"distribution_specification has operator = {key}"


def _has_runtime_patches(api: ClusterApi) -> bool:
    """Return whether the schema of TrainJob has spec.runtimePatches, as since Kubeflow Trainer 2.2.

    A schema that the account cannot read counts as a current one: the dry run refuses what the cluster does not know.
    """
    try:
        schemas = api.call("GET", f"/openapi/v3/apis/{TRAIN_JOB.group}/{TRAIN_JOB.version}")["components"]["schemas"]
    except ClusterError as error:
        if error.status in (403, 404):
            return True
        raise
    specs = [
        schema["properties"]["spec"]["properties"]
        for name, schema in schemas.items()
        if name.rpartition(".")[2] == TRAIN_JOB.kind
    ]
    return not specs or any("runtimePatches" in properties for properties in specs)


def _mpi_version(kind: JobKind) -> MpiVersion | None:
    if kind.kind != "MPIJob":
        return None
    return "v2beta1" if kind.version == "v2beta1" else "v1"


def _fault(offer: Offer) -> str:
    name = offer.kind.kind
    if not offer.is_served:
        return f"{name} is not served"
    if offer.is_outdated:
        return f"{name} is served by a Kubeflow Trainer before 2.2, which has no spec.runtimePatches"
    return f"for {name} the account lacks {', '.join(offer.missing)}"


def _advice(older: Offer, trainer: Offer, namespace: str) -> str:
    if older.missing or trainer.missing:
        return install_advice(namespace, trainer=not older.missing)
    other = " or the MPI operator" if older.kind.kind == "MPIJob" else ""
    return f"install the Kubeflow training operator{other}, or Kubeflow Trainer 2.3"
