"""What can be asked of an API server before anything is created."""

from collections.abc import Sequence

from kfp_distributed.components.train.manifests import JobKind
from kfp_distributed.components.train.manifests.cluster_settings import MpiVersion, Object
from kfp_distributed.components.train.runners.kubernetes.cluster_api import ClusterApi, install_advice
from kfp_distributed.components.train.runners.protocol import ClusterError


def needed_permissions(kind: JobKind, *, secret: bool = False, claims: bool = False) -> list[tuple[str, str, str]]:
    """The permissions that a training of this kind needs in its namespace, as (verb, API group, resource).

    Args:
        kind: The kind.
        secret: Whether it makes a Secret too.
        claims: Whether it makes PersistentVolumeClaims too.
    """
    return [
        *((verb, kind.group, kind.plural) for verb in ("create", "get", "list", "watch", "patch", "delete")),
        *((verb, "", "configmaps") for verb in ("create", "get")),
        *((verb, "", "pods") for verb in ("get", "list", "watch")),
        ("get", "", "pods/log"),
        *((verb, "", "events") for verb in ("list", "watch")),
        *((verb, "", "secrets") for verb in ("create", "delete") if secret),
        *((verb, "", "persistentvolumeclaims") for verb in ("create", "get") if claims),
    ]


def served_kinds(api: ClusterApi, group: str, version: str) -> set[str]:
    """The plurals that an API server has in a group and version; none where it has no such group."""
    try:
        return {each["name"] for each in api.call("GET", f"/apis/{group}/{version}")["resources"]}
    except ClusterError as error:
        if error.status == 404:
            return set()
        raise


def served_mpi_version(api: ClusterApi) -> MpiVersion:
    """The version of MPIJob that the API server has.

    Raises:
        ValueError: It has none.
        ClusterError: It does not answer.
    """
    versions: tuple[MpiVersion, MpiVersion] = ("v2beta1", "v1")
    for version in versions:
        if "mpijobs" in served_kinds(api, "kubeflow.org", version):
            return version
    raise ValueError(_not_served("MPIJob"))


def missing_permissions(api: ClusterApi, needed: Sequence[tuple[str, str, str]]) -> list[str]:
    """The needed permissions that we lack, in words."""
    missing = []
    for verb, group, resource in needed:
        name, _, part = resource.partition("/")
        attributes = {
            "namespace": api.namespace,
            "verb": verb,
            "group": group,
            "resource": name,
            "subresource": part,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = api.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        if not answer["status"]["allowed"]:
            missing.append(f"{verb} {resource}" + (f".{group}" if group else ""))
    return missing


def check_cluster(api: ClusterApi, kind: JobKind, objects: Sequence[Object], *, is_there: bool) -> None:
    """Looks whether the API server would take the objects of a job.

    Those of one that `is_there` already it has taken; a quota that they use up would refuse them once more.

    Raises:
        ValueError: It has no such kind, we lack a permission, or it refuses an object.
        ClusterError: It does not answer.
    """
    if kind.plural not in served_kinds(api, kind.group, kind.version):
        raise ValueError(_not_served(kind.kind))
    kinds = {each["kind"] for each in objects}
    needed = needed_permissions(kind, secret="Secret" in kinds, claims="PersistentVolumeClaim" in kinds)
    if missing := missing_permissions(api, needed):
        raise ValueError(
            f"the account of this step may not, in namespace {api.namespace}: {', '.join(missing)}; "
            f"{install_advice(api.namespace)}"
            + (", and apply deploy/remote-object-store.yaml for Secrets" if "Secret" in kinds else "")
        )
    for each in () if is_there else objects:
        version, plural = each["apiVersion"], f"{each['kind'].lower()}s"
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        try:
            api.call(
                "POST",
                f"{root}/namespaces/{api.namespace}/{plural}",
                each,
                {"dryRun": "All", "fieldValidation": "Strict"},
            )
        except ClusterError as error:
            # One that is there already is looked at when the job starts.
            if error.status != 409:
                raise ValueError(f"the API server would refuse the {each['kind']} of this job: {error}") from None


def _not_served(kind: str) -> str:
    other = " or the MPI operator" if kind == "MPIJob" else ""
    return (
        f"the cluster has no {kind}: install the Kubeflow training operator{other}, or choose another "
        "distribution_type (Job needs no operator)"
    )
