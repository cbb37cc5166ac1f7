"""Finds trainings in a namespace of a cluster."""

from typing import NamedTuple

from kfp_distributed.cli.jobs.cluster_jobs import ClusterJob
from kfp_distributed.cluster_api.client import ClusterApi, ClusterError
from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.train.describe.manifests import JOB_LABEL, JobKind, job_kind
from kfp_distributed.components.train.describe.manifests.pod import MANAGED
from kfp_distributed.components.train.describe.manifests.train_job import TRAIN_JOB
from kfp_distributed.components.train.run.runners.kubernetes.create.preflight import missing_permissions

_KINDS = (
    job_kind("Job"),
    job_kind("TF"),
    job_kind("PyTorch"),
    job_kind("MPI", "v1"),
    job_kind("MPI", "v2beta1"),
    TRAIN_JOB,
)
_SELECTOR = {"labelSelector": ",".join(f"{key}={value}" for key, value in MANAGED.items())}
_AWAY_SECONDS = 5.0
"""Seconds to wait for an API server that does not answer. Somebody is waiting for the command."""


class Jobs(NamedTuple):
    """The trainings of a namespace.

    Attributes:
        jobs: The jobs, newest first.
        refusals: Messages of the API server for kinds that the account may not list.
    """

    jobs: list[ClusterJob]
    refusals: list[str]


def list_jobs(api: ClusterApi) -> Jobs:
    """Return the trainings of the namespace, of all kinds that the cluster serves.

    Raises:
        ClusterError: The API server does not answer, the account may list no kind, or there is no such namespace.
    """
    jobs: list[ClusterJob] = []
    refusals: list[str] = []
    for kind in _KINDS:
        try:
            items = _list(api, jobs_path(api, kind))
        except ClusterError as error:
            if error.status == 404:  # The cluster does not serve this kind.
                continue
            if error.status != 403:
                raise
            refusals.append(str(error))
            continue
        # An operator may copy labels of a job to other objects.
        jobs += [
            ClusterJob(kind, item)
            for item in items
            if item["metadata"].get("labels", {}).get(JOB_LABEL) == item["metadata"]["name"]
        ]
    if len(refusals) == len(_KINDS):
        raise ClusterError(403, "\n".join(refusals))
    if not jobs:
        _check_namespace(api)
    return Jobs(
        sorted(jobs, key=lambda job: str(job.manifest["metadata"]["creationTimestamp"]), reverse=True), refusals
    )


def _check_namespace(api: ClusterApi) -> None:
    """Check that the namespace exists, because the API server lists nothing in one that does not."""
    try:
        if api.read(f"/api/v1/namespaces/{api.namespace}", _AWAY_SECONDS):
            return
    except ClusterError as error:
        if error.status != 403:
            raise
        return
    raise ClusterError(404, f"there is no namespace {api.namespace!r}; kubectl get namespaces lists the namespaces")


def list_pods(api: ClusterApi) -> list[Object]:
    """Return the pods of all trainings of the namespace.

    Raises:
        ClusterError: The account may not list pods, or the API server does not answer.
    """
    return _list(api, f"/api/v1/namespaces/{api.namespace}/pods")


def existing_job(api: ClusterApi, name: str) -> ClusterJob | None:
    """Return a training by its name; None if the cluster has none.

    Raises:
        ClusterError: The API server does not answer. The account may not list a kind, and no other has this name.
    """
    jobs, refusals = list_jobs(api)
    job = next((job for job in jobs if job.name == name), None)
    if job is None and refusals:
        raise _missing(api, name, jobs, refusals)
    return job


def find_job(api: ClusterApi, name: str) -> ClusterJob:
    """Return a training by its name.

    Raises:
        ClusterError: There is none. The text names those that exist.
    """
    jobs, refusals = list_jobs(api)
    for job in jobs:
        if job.name == name:
            return job
    raise _missing(api, name, jobs, refusals)


def missing_job(api: ClusterApi, name: str) -> ClusterError:
    """Return the error about a training that does not exist. It names those that exist."""
    return _missing(api, name, *list_jobs(api))


def _missing(api: ClusterApi, name: str, jobs: list[ClusterJob], refusals: list[str]) -> ClusterError:
    names = ", ".join(job.name for job in jobs) or "none"
    text = f"there is no training {name!r} in namespace {api.namespace}; existing trainings: {names}"
    return ClusterError(404, "\n".join([text, *refusals]))


def check_permissions(api: ClusterApi, needed: list[tuple[str, str, str]]) -> None:
    """Check that the account has permissions.

    Args:
        api: The cluster.
        needed: Verb, API group and resource of each permission.

    Raises:
        ClusterError: It lacks some. The text names them.
    """
    if missing := missing_permissions(api, needed):
        raise ClusterError(
            403,
            f"this account may not, in namespace {api.namespace}: {', '.join(missing)}. Ask an administrator of the "
            "namespace for these permissions",
        )


def jobs_path(api: ClusterApi, kind: JobKind) -> str:
    """Return the path of the namespace's jobs of a kind."""
    return f"/apis/{kind.group}/{kind.version}/namespaces/{api.namespace}/{kind.plural}"


def _list(api: ClusterApi, path: str) -> list[Object]:
    return list(api.list_objects(path, _SELECTOR, _AWAY_SECONDS).items)
