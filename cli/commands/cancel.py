"""`kfp-distributed cancel`."""

import time
from collections.abc import Iterable

import click

from kfp_distributed.cli.jobs.cluster_jobs import ClusterJob, grace_seconds
from kfp_distributed.cli.jobs.job_search import check_permissions, find_job, jobs_path
from kfp_distributed.cli.options import connected, namespace_option, refused
from kfp_distributed.cluster_api.client import ClusterApi, ClusterError
from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.train.describe.manifests import JOB_LABEL
from kfp_distributed.components.train.run.runners.kubernetes.create.gone_objects import await_gone, until_gone
from kfp_distributed.components.train.run.runners.kubernetes.create.object_requests import delete
from kfp_distributed.components.train.run.runners.kubernetes.create.previous_attempt import pods_gone_seconds


@click.command()
@click.argument("job")
@namespace_option("Namespace of the job.")
def command(job: str, namespace: str) -> None:
    """Delete the training JOB, and wait until its pods have ended.

    Checkpoints stay in the object store, and PersistentVolumeClaims stay as well. The train step that follows the job
    then fails.
    """
    api = connected(namespace)
    try:
        training = find_job(api, job)
        needed = [(verb, training.kind.group, training.kind.plural) for verb in ("delete", "watch")]
        check_permissions(api, [*needed, *((verb, "", "pods") for verb in ("list", "watch"))])
        _cancel(api, training)
    except ClusterError as error:
        raise refused(error) from None


def _cancel(api: ClusterApi, job: ClusterJob) -> None:
    path = f"{jobs_path(api, job.kind)}/{job.name}"
    pods_path, query = f"/api/v1/namespaces/{api.namespace}/pods", {"labelSelector": f"{JOB_LABEL}={job.name}"}
    pods = _names(api.list_objects(pods_path, query).items)
    if delete(api, path):
        click.echo(f"deleted {job.title}")
    else:
        click.echo(f"{job.title} was deleted by somebody else")
    limit = pods_gone_seconds(grace_seconds(job))
    until = time.monotonic() + limit
    for objects in until_gone(api, pods_path, query, limit):
        left = _names(objects.values())
        for pod in sorted(pods - left):
            click.echo(f"deleted Pod {job.namespace}/{pod}")
        pods = left
    if pods:
        names = " ".join(sorted(pods))
        text = f"after {limit:g} s these pods still exist: {names}. If their node is lost: "
        raise ClusterError(409, f"{text}kubectl delete pods {names} --force -n {job.namespace}")
    if not await_gone(api, path, job.manifest["metadata"]["uid"], until - time.monotonic()):
        raise ClusterError(409, f"after {limit:g} s {job.title} still exists; see its finalizers")


def _names(objects: Iterable[Object]) -> set[str]:
    return {item["metadata"]["name"] for item in objects}
