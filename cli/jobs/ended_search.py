"""Finds a training whose job is gone."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import click

from kfp_distributed.cli.jobs.ended_jobs import read_summaries
from kfp_distributed.cli.jobs.job_search import missing_job
from kfp_distributed.cli.pipeline_store import StoreNotReached, bucket_words, pipeline_store
from kfp_distributed.cluster_api.client import ClusterApi
from kfp_distributed.components.train.tell.training_summary import TrainingSummary
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.kubeflow.credentials import Credentials


@contextmanager
def ended_job(api: ClusterApi, job: str, bucket: str, command: str) -> Iterator[tuple[TrainingSummary, Credentials]]:
    """Yield the summary of a training that the cluster does not have, and the credentials of its store.

    Args:
        api: The cluster.
        job: Name of the job.
        bucket: URI of the pipeline root, or checkpoint_uri of a training from a laptop; "" for the pipeline root of the
            namespace.
        command: Name of the command, for the advice.

    Raises:
        ClusterError: The API server does not answer.
        ClickException: There is no such training, or the store cannot be read, also in the block.
    """
    again = f"kfp-distributed {command} {job} --namespace {api.namespace}{bucket_words(bucket)}"
    with ExitStack() as stack:
        try:
            store, credentials = stack.enter_context(pipeline_store(api, bucket, again))
            summary = next(read_summaries(store, api.namespace, 1, job), None)
        except (StorageError, StoreNotReached, ValueError) as error:
            raise click.ClickException(f"{missing_job(api, job)}. Whether it has ended is not known: {error}") from None
        if summary is None:
            text = f"{missing_job(api, job)}. {store.uri} has no ended training of this name either"
            raise click.ClickException(text)
        try:
            yield summary, credentials
        except (StorageError, ValueError) as error:
            raise click.ClickException(f"the records of {job} cannot be read: {error}") from None
