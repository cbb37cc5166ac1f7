"""Follow a job in the cluster: turn watches, logs and refused requests into facts until the job has ended."""

import math
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress

from kfp_distributed.cluster_api.client import ClusterApi, ClusterError
from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.train.describe.manifests import JOB_LABEL
from kfp_distributed.components.train.describe.manifests.job_objects import JobObjects
from kfp_distributed.components.train.describe.mpirun import printed_by
from kfp_distributed.components.train.run.facts import Fact, JobAdopted, JobEnded, JobEvent, LogLine, Tick, clock
from kfp_distributed.components.train.run.runners.kubernetes.cluster_records.pods import is_being_deleted, replica_of
from kfp_distributed.components.train.run.runners.kubernetes.cluster_records.record_times import (
    happened_before,
    seconds_of,
)
from kfp_distributed.components.train.run.runners.kubernetes.connect.connection import JobConnection
from kfp_distributed.components.train.run.runners.kubernetes.heartbeat import heartbeat_interval
from kfp_distributed.components.train.run.runners.kubernetes.judge.job_tracker import JobTracker
from kfp_distributed.components.train.run.runners.kubernetes.logs.last_lines import LastLines
from kfp_distributed.components.train.run.runners.kubernetes.watch.pod_events import PodEvents
from kfp_distributed.components.train.run.runners.kubernetes.watch.watcher import (
    Changed,
    Listed,
    News,
    ObjectRead,
    Printed,
    RequestFailed,
    ThreadFailed,
    Watcher,
)
from kfp_distributed.components.train.run.runners.newest_checkpoint import NewestCheckpoint


class Follower:
    """Follows a job. The caller creates, restarts and deletes it; a follower only reads from the cluster."""

    def __init__(self, api: ClusterApi, watcher: Watcher, objects: JobObjects) -> None:
        """Create a follower without sending a request.

        Args:
            api: The cluster.
            watcher: Source of news. The caller closes it.
            objects: Objects of the job.
        """
        self._api = api
        self._watcher = watcher
        self._objects = objects
        self._job_tracker = JobTracker(objects.job, objects.kind.kind)
        lost_timeout = objects.job.specification.launcher_lost_timeout
        # Refusals are tolerated as long as the replicas tolerate a missing heartbeat.
        self._connection = JobConnection(api, objects.path, math.inf if lost_timeout is None else lost_timeout)
        self._pod_events = PodEvents()
        self._last_lines = LastLines()
        self._newest_checkpoint = NewestCheckpoint(objects.job.description.checkpoint_uri)

    @property
    def job_ended_by_itself(self) -> bool:
        """Whether the job has ended according to the status of its object. If sidecars hold it, it runs on."""
        return self._job_tracker.ended_by_itself and not self._job_tracker.is_held

    def attach(self, created: Object) -> None:
        """Set the object of the job. News of an earlier object of the same name are ignored."""
        self._job_tracker.uid = created["metadata"]["uid"]
        self._job_tracker.created = created["metadata"].get("creationTimestamp", "")

    def adopted(self, text: str = "") -> JobAdopted:
        """Return the fact that the object of the job existed before. Call it after `attach`.

        Args:
            text: The event for the log. Default: none.
        """
        now = clock()
        return JobAdopted(now, min(now, seconds_of(self._job_tracker.created) or now), text)

    def begin(self) -> None:
        """Start to watch the job, its pods and its warning events, and to keep the connection open.

        Events are selected by the names of the objects, not by their UIDs: the names remain if the job is recreated.
        """
        core, name = self._objects.core_path, self._objects.job.name
        self._watcher.watch("job", self._objects.jobs_path, {"fieldSelector": f"metadata.name={name}"})
        self._watcher.watch("pods", f"{core}/pods", self._pods_query)
        for event_name in self._objects.event_names:
            selector = f"type=Warning,involvedObject.name={event_name}"
            self._watcher.watch(f"events of {event_name}", f"{core}/events", {"fieldSelector": selector})
        self._watcher.ask("events of pods", f"{core}/events", lambda: self._pod_events.next_query(time.monotonic()))
        interval = heartbeat_interval(self._objects.job.specification.launcher_lost_timeout)
        self._watcher.repeat(self._connection.probe, interval)

    def facts(self) -> Generator[Fact, None, JobEvent | None]:
        """Yield facts until the job has ended and its last lines are read.

        Returns:
            None after `JobEnded`. If the whole job must be restarted, the event that announces the restart. In that
            case the caller recreates the job, calls `attach` and `restarted`, and calls `facts` again.

        Raises:
            Exception: A thread of the watcher has failed.
        """
        job_tracker = self._job_tracker
        tick_due, ended, restart = 0.0, None, None
        while restart or job_tracker.end is None or ended is None or not self._last_lines_are_read(ended):
            if news := self._watcher.take(0.5 if ended is None else 0.05):
                yield from self._read(news)
            if self._watcher.news.empty() or time.monotonic() >= tick_due:
                yield from job_tracker.advance_time(clock())
                if not job_tracker.end:  # Waiting for the last lines counts for no timeout.
                    yield Tick(clock())
                tick_due = time.monotonic() + 1
            if self._connection.refusal and not job_tracker.end:
                job_tracker.end = (False, self._connection.refusal)
            if restart is None and job_tracker.can_restart:
                restart = job_tracker.restart_event()
            if (restart or job_tracker.end) and ended is None:
                self._follow_remaining_logs()
                ended = time.monotonic()
            # The deletion of the job deletes the logs of the replicas that have ended.
            if restart and ended is not None and self._last_lines_are_read(ended, of_restart=True):
                return restart
        for replica in self._watcher.failing_logs:
            text = f"the last lines of {replica} may be missing: its log could not be read until the job ended"
            yield JobEvent(clock(), text, "WARNING")
        end_time = job_tracker.end_time.timestamp() if job_tracker.end_time else None
        yield JobEnded(now := clock(), *job_tracker.end, happened_before(end_time, now))
        return None

    def restarted(self) -> Iterator[Fact]:
        """Yield the facts of a restart of the whole job, after it was recreated."""
        yield from self._job_tracker.restart()

    @property
    def _pods_query(self) -> dict[str, str]:
        return {"labelSelector": f"{JOB_LABEL}={self._objects.job.name}"}

    def _follow_remaining_logs(self) -> None:
        """Follow the logs of all pods, because the end of a job may be known before the start of some of its pods."""
        with suppress(ClusterError):
            path = f"{self._objects.core_path}/pods"
            self._follow_logs(self._api.list_objects(path, self._pods_query, away_seconds=0).items)

    def _last_lines_are_read(self, ended: float, of_restart: bool = False) -> bool:
        """Return whether to stop waiting. Replicas that a restart ends print until they are deleted."""
        return self._last_lines.are_read(
            time.monotonic(),
            ended,
            unread=self._watcher.unread,
            leader_is_over=of_restart or self._job_tracker.leader_is_over,
            no_news=self._watcher.news.empty(),
            given_up=of_restart or not self._job_tracker.ended_by_itself,
        )

    def _read(self, news: News) -> Iterator[Fact]:
        if isinstance(news, ThreadFailed):
            raise news.error
        if isinstance(news, RequestFailed):
            yield JobEvent(clock(), news.text, "WARNING")
        elif isinstance(news, Printed):
            spec = self._objects.job.specification
            for text, stamp in news.lines:
                now = clock()
                # The clock of a node may be ahead of this process.
                happened = None if stamp is None else min(stamp, now)
                line = LogLine(now, *printed_by(news.replica, text, spec), happened)
                self._job_tracker.policy.see_line(line)
                yield line
            self._last_lines.line_arrived(time.monotonic())
        elif isinstance(news, ObjectRead):
            yield from self._check_existence(news)
        elif news.source == "job":
            yield from self._read_job(news)
        elif news.source == "pods":
            yield from self._read_pods(news)
        else:
            for event in news.objects if isinstance(news, Listed) else [news.object]:
                yield from self._job_tracker.add_event(event)

    def _read_job(self, news: Listed | Changed) -> Iterator[Fact]:
        if isinstance(news, Changed):
            yield from self._job_tracker.update_job(news.object, news.change == "DELETED")
            return
        if news.objects and self._is_followed(news.objects[0]):
            yield from self._job_tracker.update_job(news.objects[0])
        elif not self._job_tracker.end:
            # The list may be older than a job that was recreated.
            self._watcher.read_once(self._objects.path, self._job_tracker.uid)

    def _check_existence(self, news: ObjectRead) -> Iterator[Fact]:
        if news.uid == self._job_tracker.uid:
            yield from self._job_tracker.update_job(news.object if self._is_followed(news.object) else None)
        elif not self._job_tracker.end:  # The job was recreated since the read was requested.
            self._watcher.read_once(self._objects.path, self._job_tracker.uid)

    def _read_pods(self, news: Listed | Changed) -> Iterator[Fact]:
        if isinstance(news, Listed) or news.change == "DELETED" or is_being_deleted(news.object):
            self._job_tracker.policy.checkpoint = self._newest_checkpoint.read()
        # The log of a pod is requested before its end is handled, so most of its lines arrive before.
        if isinstance(news, Listed):
            self._follow_logs(news.objects)
            self._pod_events.update_all(
                [pod for pod in news.objects if self._job_tracker.is_ours(pod)], time.monotonic()
            )
            yield from self._job_tracker.update_pods(news.objects)
        else:
            deleted = news.change == "DELETED"
            self._follow_logs([news.object], deleted)
            if self._job_tracker.is_ours(news.object):
                self._pod_events.update(news.object, deleted=deleted, now=time.monotonic())
            yield from self._job_tracker.update_pod(news.object, deleted)

    def _follow_logs(self, pods: Iterable[Object], deleted: bool = False) -> None:
        for pod in filter(self._job_tracker.is_ours, pods):
            path = f"{self._objects.core_path}/pods/{pod['metadata']['name']}"
            replica = replica_of(pod)
            is_leader = replica == self._objects.job.topology.leader
            self._watcher.follow_logs(replica, path, pod, deleted, leader=is_leader)

    def _is_followed(self, job: Object | None) -> bool:
        return job is not None and job["metadata"]["uid"] == self._job_tracker.uid
