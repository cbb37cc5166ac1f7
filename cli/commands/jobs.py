"""`kfp-distributed jobs`."""

from datetime import datetime, timezone

import click

from kfp_distributed.cli.job_objects import format_table, job_rows
from kfp_distributed.cli.job_search import list_jobs, list_pods
from kfp_distributed.cli.options import connected, namespace_option, refused
from kfp_distributed.components.train.runners.protocol import ClusterError


@click.command()
@namespace_option("Namespace of the jobs.")
def command(namespace: str) -> None:
    """List the trainings of a namespace, newest first.

    REPLICAS counts those that run or have succeeded. TASK is the task in its pipeline: tune/train[1] is the task train
    of the sub-pipeline tune, in iteration 1 of a ParallelFor. RUN is the ID of the pipeline run.
    """
    api = connected(namespace)
    try:
        jobs, refusals = list_jobs(api)
        pods = None
        try:
            pods = list_pods(api) if jobs else []
        except ClusterError as error:
            if error.status != 403:
                raise
            refusals.append(str(error))
    except ClusterError as error:
        raise refused(error) from None
    for refusal in refusals:
        click.echo(f"Warning: {refusal}", err=True)
    if not jobs:
        click.echo(f"No trainings in namespace {api.namespace}.")
        return
    now = datetime.now(timezone.utc)
    for line in format_table(job_rows(jobs, pods, now)):
        click.echo(line)
