"""`kfp-distributed watch`."""

import sys
from datetime import UTC, datetime
from functools import reduce

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from kfp_distributed.cli.jobs.cluster_jobs import ClusterJob, objects_of
from kfp_distributed.cli.jobs.ended_jobs import alive_seconds, describe_end, has_report, kind_of, with_known_end
from kfp_distributed.cli.jobs.ended_search import ended_job
from kfp_distributed.cli.jobs.job_facts import follow_job
from kfp_distributed.cli.jobs.job_search import existing_job
from kfp_distributed.cli.options import bucket_option, connected, namespace_option, refused
from kfp_distributed.cluster_api.client import ClusterApi, ClusterError
from kfp_distributed.components.train.describe.durations import format_seconds
from kfp_distributed.components.train.run.conclusions.status import JobStatus, advance, begin, failure_cause
from kfp_distributed.components.train.run.facts import Fact, LogLine, ReplicaChanged, clock, moment
from kfp_distributed.components.train.run.shown_progress.log_entry import LogEntry
from kfp_distributed.components.train.run.shown_progress.training_progress import TrainingProgress
from kfp_distributed.components.train.tell.log_format import error_lines
from kfp_distributed.components.train.tell.step_log import log_entry
from kfp_distributed.components.train.tell.training_summary import TrainingSummary
from kfp_distributed.pipelines.progress_table import progress_table
from kfp_distributed.trainers.runtime.monitoring.progress import parse_progress


@click.command()
@click.argument("job")
@namespace_option("Namespace of the job.")
@bucket_option
@click.pass_context
def command(context: click.Context, job: str, namespace: str, bucket: str) -> None:
    """Show the progress of the training JOB until it ends.

    On a terminal this is a table with a row for each replica, elsewhere a line for each event and each epoch. The exit
    code is 0 if the training succeeded and 1 if it failed. Ctrl-C ends only this command; the training continues.

    If the job is gone, its end comes from the object store.
    """
    api = connected(namespace)
    try:
        training = existing_job(api, job)
        if training is None:
            with ended_job(api, job, bucket, "watch") as (summary, credentials):
                now = datetime.now(UTC)
                age = alive_seconds(summary, credentials, now)
                if age is None:
                    summary = with_known_end(summary, credentials)
                    lines = describe_end(summary, now, has_report(summary, credentials))
                else:
                    lines = _describe_step(summary, age)
            click.echo("\n".join(lines))
            context.exit(int(summary.state != "succeeded"))
        status = _watch(api, training)
    except ClusterError as error:
        raise refused(error) from None
    except KeyboardInterrupt:
        again = f"kfp-distributed watch {job} --namespace {api.namespace}"
        click.echo(f"Stopped watching. {job} continues; to watch it again: {again}")
        raise
    if status.ended and status.ended.succeeded:
        click.echo(f"{training.title} succeeded.")
        return
    click.echo(error_lines(failure_cause(status)))
    click.echo(f"{training.title} failed.")
    context.exit(1)


def _describe_step(summary: TrainingSummary, age: float) -> list[str]:
    """Return lines about a training that has no job, but whose step wrote its heartbeat so many seconds ago."""
    return [
        f"{kind_of(summary)} {summary.namespace}/{summary.name} has no object at the moment, but its step wrote its "
        f"heartbeat {format_seconds(round(age))} ago: it creates the job again, or is ending. Watch it again in 2 "
        "minutes at the latest."
    ]


def _watch(api: ClusterApi, job: ClusterJob) -> JobStatus:
    """Show a job until it ends; return its status then."""
    console = Console(file=sys.stdout)
    view = _View(job)
    live = Live(get_renderable=lambda: view.render(console.height), console=console, refresh_per_second=4)
    if console.is_terminal:
        with live:
            for fact in follow_job(api, job):
                view.add(fact)
                # Warnings and errors scroll above the table.
                if (entry := log_entry(fact)) and entry.level != "INFO":
                    console.print(str(entry), highlight=False, markup=False, soft_wrap=True)
    else:
        for fact in follow_job(api, job):
            view.add(fact)
            if entry := _line(fact):
                click.echo(str(entry))
    return view.status


class _View:
    """Status and progress of a job."""

    def __init__(self, job: ClusterJob) -> None:
        training = objects_of(job).job
        self.status = begin(training, clock())
        self._title = job.title
        self._progress = TrainingProgress()
        for replica in training.topology.replicas:
            self._progress.add_fact(ReplicaChanged(clock(), replica.name, "waiting"))

    def add(self, fact: Fact) -> None:
        """Add a fact of the job."""
        self.status = reduce(advance, [fact], self.status)
        self._progress.add_fact(fact)

    def render(self, height: int) -> Group:
        """Return the table of the job."""
        ended = self.status.ended
        state = "running" if ended is None else "succeeded" if ended.succeeded else "failed"
        replicas = list(self._progress.replicas.values())
        title = f"{self._title} {state}: {self._progress.states()}"
        return Group(
            Text(title, "bold", no_wrap=True, overflow="ellipsis"),
            progress_table([(None, replicas)], clock(), height - 2),
        )


def _line(fact: Fact) -> LogEntry | None:
    """Return the line for a fact if there is no terminal: events of the job, and epochs of replicas."""
    if isinstance(fact, LogLine):
        return LogEntry(moment(fact), "INFO", fact.replica, fact.line) if parse_progress(fact.line) else None
    return log_entry(fact)
