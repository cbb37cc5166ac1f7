"""`kfp-distributed jobs`."""

from datetime import UTC, datetime
from functools import partial

import click

from kfp_distributed.cli.jobs.cluster_jobs import JobRow, job_rows
from kfp_distributed.cli.jobs.ended_jobs import EndedRow, alive_seconds, ended_rows, read_summaries, with_known_end
from kfp_distributed.cli.jobs.job_search import list_jobs, list_pods
from kfp_distributed.cli.options import bucket_option, connected, namespace_option, refused
from kfp_distributed.cli.pipeline_store import StoreNotReached, bucket_words, pipeline_store
from kfp_distributed.cli.text_table import format_table
from kfp_distributed.cluster_api.client import ClusterApi, ClusterError
from kfp_distributed.components.train.tell.training_summary import TrainingSummary
from kfp_distributed.storage.errors import StorageError


@click.command()
@namespace_option("Namespace of the jobs.")
@click.option("--ended", is_flag=True, help="List the trainings whose jobs are gone, from the object store.")
@click.option("--limit", default=50, type=click.IntRange(1), help="Maximum number with --ended. Default: 50.")
@bucket_option
def command(namespace: str, ended: bool, limit: int, bucket: str) -> None:
    """List the trainings of a namespace, the last started first.

    REPLICAS counts those that run or have succeeded. TASK is the task in its pipeline: tune/train[1] is the task train
    of the sub-pipeline tune, in iteration 1 of a ParallelFor. RUN is the ID of the pipeline run.
    """
    api = connected(namespace)
    if ended:
        _list_ended(api, limit, bucket)
        return
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
    now = datetime.now(UTC)
    for line in format_table(JobRow._fields, job_rows(jobs, pods, now)):
        click.echo(line)


def _list_ended(api: ClusterApi, limit: int, bucket: str) -> None:
    command = f"kfp-distributed jobs --ended --namespace {api.namespace}{bucket_words(bucket)}"
    try:
        with pipeline_store(api, bucket, command) as (store, credentials):
            jobs, refusals = list_jobs(api)
            existing, now = {job.name for job in jobs}, datetime.now(UTC)

            def is_running(summary: TrainingSummary) -> bool:
                return summary.name in existing or alive_seconds(summary, credentials, now) is not None

            look_up = partial(with_known_end, credentials=credentials)
            rows = ended_rows(read_summaries(store, api.namespace, limit), is_running, now, look_up)
    except ClusterError as error:
        raise refused(error) from None
    except (StorageError, StoreNotReached, ValueError) as error:
        raise click.ClickException(str(error)) from None
    for refusal in refusals:
        click.echo(f"Warning: {refusal}", err=True)
    if not rows:
        click.echo(f"No ended trainings of namespace {api.namespace} in {store.uri}.")
        return
    for line in format_table(EndedRow._fields, rows):
        click.echo(line)
