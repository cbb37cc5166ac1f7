"""Check the API server before anything is created: served kinds, permissions, and a dry run of all objects."""

from collections.abc import Sequence

from kfp_distributed.cluster_api.access import is_allowed
from kfp_distributed.cluster_api.client import ClusterApi, ClusterError
from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.train.describe.manifests import JobKind
from kfp_distributed.components.train.describe.manifests.cluster_settings import MpiVersion
from kfp_distributed.components.train.describe.manifests.train_job import TRAIN_JOB, TRAINING_RUNTIME
from kfp_distributed.components.train.run.runners.kubernetes.create.train_job_requests import RUNTIME_IS_MISSING


def needed_permissions(kind: JobKind, *, secret: bool = False, claims: bool = False) -> list[tuple[str, str, str]]:
    """Return the permissions that a training needs in its namespace, as (verb, API group, resource).

    Args:
        kind: Kind of the job.
        secret: Whether the training creates a Secret. Default: False.
        claims: Whether the training creates PersistentVolumeClaims. Default: False.
    """
    of_train_job = [
        *((verb, kind.group, TRAINING_RUNTIME.plural) for verb in ("create", "patch", "delete")),
        # To wait until those of an earlier TrainJob are deleted.
        ("get", "jobset.x-k8s.io", "jobsets"),
        ("get", "batch", "jobs"),
    ]
    return [
        *((verb, kind.group, kind.plural) for verb in ("create", "get", "list", "watch", "patch", "delete")),
        *(of_train_job if kind == TRAIN_JOB else ()),
        *((verb, "", "configmaps") for verb in ("create", "get")),
        *((verb, "", "pods") for verb in ("get", "list", "watch")),
        ("get", "", "pods/log"),
        *((verb, "", "events") for verb in ("list", "watch")),
        *((verb, "", "secrets") for verb in ("create", "delete") if secret),
        *((verb, "", "persistentvolumeclaims") for verb in ("create", "get") if claims),
    ]


def served_kinds(api: ClusterApi, group: str, version: str) -> set[str]:
    """Return the plurals that the API server serves in a group and version; empty if it does not serve the group."""
    try:
        return {resource["name"] for resource in api.call("GET", f"/apis/{group}/{version}")["resources"]}
    except ClusterError as error:
        if error.status == 404:
            return set()
        raise


def find_mpi_version(api: ClusterApi) -> MpiVersion | None:
    """Return the version of MPIJob that the API server serves; None if it serves none."""
    versions: tuple[MpiVersion, MpiVersion] = ("v2beta1", "v1")
    return next((version for version in versions if "mpijobs" in served_kinds(api, "kubeflow.org", version)), None)


def missing_permissions(api: ClusterApi, needed: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return the permissions that the account lacks, in the form "create tfjobs.kubeflow.org"."""
    return [
        f"{verb} {resource}" + (f".{group}" if group else "")
        for verb, group, resource in needed
        if not is_allowed(api, verb, group, resource)
    ]


def check_cluster(api: ClusterApi, kind: JobKind, objects: Sequence[Object], *, job_exists: bool) -> None:
    """Check that the API server accepts the objects of a job.

    Args:
        api: The cluster.
        kind: Kind of the job.
        objects: Objects to create.
        job_exists: Whether the job exists. If so, there is no dry run: a quota that the job has used up would refuse
            its objects.

    Raises:
        ValueError: The cluster does not serve the kind, the account lacks a permission, or an object is refused.
        ClusterError: The API server does not respond.
    """
    if kind.plural not in served_kinds(api, kind.group, kind.version):
        raise ValueError(not_served(kind))
    kinds = {manifest["kind"] for manifest in objects}
    needed = needed_permissions(kind, secret="Secret" in kinds, claims="PersistentVolumeClaim" in kinds)
    if missing := missing_permissions(api, needed):
        raise ValueError(
            f"the account of this step lacks permissions in namespace {api.namespace}: {', '.join(missing)}; "
            f"{install_advice(api.namespace, trainer=kind == TRAIN_JOB)}"
            + (", and apply deploy/remote-object-store.yaml for Secrets" if "Secret" in kinds else "")
        )
    for manifest in () if job_exists else objects:
        version, plural = manifest["apiVersion"], f"{manifest['kind'].lower()}s"
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        try:
            api.call(
                "POST",
                f"{root}/namespaces/{api.namespace}/{plural}",
                manifest,
                {"dryRun": "All", "fieldValidation": "Strict"},
            )
        except ClusterError as error:
            # An object that exists already is checked when the job starts. A TrainJob is denied until its runtime
            # exists, but not before the API server has checked its fields.
            if error.status != 409 and RUNTIME_IS_MISSING not in str(error):
                raise ValueError(f"the API server would refuse the {manifest['kind']} of this job: {error}") from None


def install_advice(namespace: str, *, trainer: bool = False) -> str:
    """Return what to do about a permission that a step lacks.

    Args:
        namespace: Namespace of the job.
        trainer: Whether the permission is one for Kubeflow Trainer. Default: False.
    """
    option = " --trainer" if trainer else ""
    return (
        f"run kfp-distributed install --namespace {namespace}{option} (and --service-account, if it is not "
        "pipeline-runner)"
    )


def not_served(kind: JobKind) -> str:
    """Return the error about a kind that the cluster does not serve, and what to do."""
    operator = "the Kubeflow training operator" + (" or the MPI operator" if kind.kind == "MPIJob" else "")
    if kind == TRAIN_JOB:
        operator = "Kubeflow Trainer 2.3"
    return (
        f"the cluster does not serve {kind.kind}: install {operator}, or choose another distribution_type (Job needs "
        "no operator)"
    )
