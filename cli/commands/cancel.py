"""`kfp-distributed cancel`."""

import time

import click

from kfp_distributed.cli.job_objects import ClusterJob, grace_seconds
from kfp_distributed.cli.job_search import check_permissions, find_job, jobs_path
from kfp_distributed.cli.options import connected, namespace_option, refused
from kfp_distributed.components.train.manifests import JOB_LABEL
from kfp_distributed.components.train.runners.kubernetes.cluster_api import ClusterApi
from kfp_distributed.components.train.runners.kubernetes.objects import delete
from kfp_distributed.components.train.runners.kubernetes.previous_attempt import pods_gone_seconds
from kfp_distributed.components.train.runners.protocol import ClusterError


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
        check_permissions(api, [("delete", training.kind.group, training.kind.plural), ("list", "", "pods")])
        _cancel(api, training)
    except ClusterError as error:
        raise refused(error) from None


def _cancel(api: ClusterApi, job: ClusterJob) -> None:
    path = f"{jobs_path(api, job.kind)}/{job.name}"
    pods = _pods(api, job.name)
    if delete(api, path):
        click.echo(f"deleted {job.title}")
    else:
        click.echo(f"{job.title} was deleted by somebody else")
    limit = pods_gone_seconds(grace_seconds(job))
    until = time.monotonic() + limit
    while True:
        left = _pods(api, job.name)
        for pod in sorted(pods - left):
            click.echo(f"deleted Pod {job.namespace}/{pod}")
        pods = left
        if not pods and api.read(path) is None:
            return
        if time.monotonic() > until:
            names = " ".join(sorted(pods))
            raise ClusterError(
                409,
                f"after {limit:g} s these pods still exist: {names}. If their node is lost: "
                f"kubectl delete pods {names} --force -n {job.namespace}"
                if pods
                else f"after {limit:g} s {job.title} still exists; see its finalizers",
            )
        time.sleep(0.5)


def _pods(api: ClusterApi, job_name: str) -> set[str]:
    query = {"labelSelector": f"{JOB_LABEL}={job_name}"}
    pods = api.list_objects(f"/api/v1/namespaces/{api.namespace}/pods", query).items
    return {pod["metadata"]["name"] for pod in pods}
