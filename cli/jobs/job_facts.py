"""Follows a training in a cluster without changing anything."""

import time
from collections.abc import Generator, Iterator
from typing import Any

from kfp_distributed.cli.jobs.cluster_jobs import ClusterJob, grace_seconds, objects_of
from kfp_distributed.cli.jobs.job_search import check_permissions
from kfp_distributed.cluster_api.client import ClusterApi
from kfp_distributed.components.train.run.facts import Fact, JobEnded, JobEvent, clock
from kfp_distributed.components.train.run.runners.kubernetes.create.previous_attempt import pods_gone_seconds
from kfp_distributed.components.train.run.runners.kubernetes.follow import Follower
from kfp_distributed.components.train.run.runners.kubernetes.watch.watcher import Watcher
from kfp_distributed.components.train.run.shown_progress.printed_lines import read_line

_CREATE_SECONDS = 30.0
"""Seconds for the train step to create a failed job again after its pods have ended."""


def follow_job(api: ClusterApi, job: ClusterJob) -> Iterator[Fact]:
    """Yield the facts of a training until it has ended.

    If the train step restarts the whole job, this follows the new job.

    Raises:
        ClusterError: The account lacks a permission, or the API server does not answer.
    """
    objects = objects_of(job)
    check_permissions(
        api,
        [
            *((verb, job.kind.group, job.kind.plural) for verb in ("get", "list", "watch")),
            *((verb, "", "pods") for verb in ("get", "list", "watch")),
            ("get", "", "pods/log"),
            *((verb, "", "events") for verb in ("list", "watch")),
        ],
    )
    watcher = Watcher(api)
    try:
        follower = Follower(api, watcher, objects)
        follower.attach(dict(job.manifest))
        yield follower.adopted()
        follower.begin()
        uid = job.manifest["metadata"]["uid"]
        while True:
            restart: JobEvent | None = yield from _split(follower.facts())
            if restart is None:
                return
            created = _await_job(api, objects.path, uid, pods_gone_seconds(grace_seconds(job)) + _CREATE_SECONDS)
            if created is None:
                yield JobEnded(clock(), False, f"{job.kind.kind} failed, and its train step has not restarted it.")
                return
            uid = created["metadata"]["uid"]
            follower.attach(created)
            yield restart
            yield from follower.restarted()
    finally:
        watcher.close()


def _split(facts: Generator[Fact, None, JobEvent | None]) -> Generator[Fact, None, JobEvent | None]:
    while True:
        try:
            fact = next(facts)
        except StopIteration as end:
            restart: JobEvent | None = end.value
            return restart
        yield from read_line(fact)


def _await_job(api: ClusterApi, path: str, old_uid: str, seconds: float) -> dict[str, Any] | None:
    """Return the job that replaces another one of the same name, or None if there is none in time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        job = api.read(path)
        if job and job["metadata"]["uid"] != old_uid:
            return job
        time.sleep(0.5)
    return None
