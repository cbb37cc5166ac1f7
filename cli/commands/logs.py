"""`kfp-distributed logs`."""

import re

import click

from kfp_distributed.cli.jobs.cluster_jobs import objects_of
from kfp_distributed.cli.jobs.ended_jobs import read_stored_log
from kfp_distributed.cli.jobs.ended_search import ended_job
from kfp_distributed.cli.jobs.job_facts import follow_job
from kfp_distributed.cli.jobs.job_logs import read_logs
from kfp_distributed.cli.jobs.job_search import existing_job
from kfp_distributed.cli.options import (
    WrongArgument,
    bucket_option,
    connected,
    namespace_option,
    refused,
)
from kfp_distributed.cluster_api.client import ClusterApi, ClusterError
from kfp_distributed.components.model_formats.quiet_import import STARTUP_REMARK
from kfp_distributed.components.train.run.facts import LogLine
from kfp_distributed.components.train.run.shown_progress.log_entry import JOB, LogEntry


@click.command()
@click.argument("job")
@namespace_option("Namespace of the job.")
@click.option("--replica", default="", help="Name of one replica, such as worker-0. Default: all replicas.")
@click.option("--follow", is_flag=True, help="Print new lines until the training ends.")
@bucket_option
def command(job: str, namespace: str, replica: str, follow: bool, bucket: str) -> None:
    """Print the output of the replicas of the training JOB, as TIME LEVEL REPLICA MESSAGE.

    Lines are in the order of their times. If a container was restarted in its pod, a line marks the restart, and the
    lines of the start before it come first. With --follow the time of a line is when it was read.

    If the job is gone, its log comes from the object store, in the order in which the train step read it. It has the
    events of the job, too.
    """
    api = connected(namespace)
    try:
        training = existing_job(api, job)
        if training is None:
            _print_stored(api, job, replica, bucket)
            return
        replicas = [item.name for item in objects_of(training).job.topology.replicas]
        if replica and replica not in replicas:
            raise WrongArgument(f"--replica {replica!r} is not one of the replicas: {', '.join(replicas)}")
        if not follow:
            for entry in read_logs(api, training, replica):
                click.echo(str(entry))
            return
        for fact in follow_job(api, training):
            if isinstance(fact, LogLine) and replica in ("", fact.replica) and not fact.is_remark:
                click.echo(str(LogEntry(fact.time, "INFO", fact.replica, fact.line)))
    except ClusterError as error:
        raise refused(error) from None


def _print_stored(api: ClusterApi, job: str, replica: str, bucket: str) -> None:
    with ended_job(api, job, bucket, "logs") as (summary, credentials):
        if replica not in ("", JOB, *summary.replicas):
            raise WrongArgument(f"--replica {replica!r} is not one of the replicas: {', '.join(summary.replicas)}")
        for entry in read_stored_log(summary, credentials):
            if replica in ("", entry.replica) and not re.search(STARTUP_REMARK, entry.message):
                click.echo(str(entry))
