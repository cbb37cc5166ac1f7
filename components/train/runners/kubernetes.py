"""The replicas of a job as pods, which the operators of a Kubernetes cluster start and start again."""

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from kfp_distributed.components.train.manifests import (
    HASH_ANNOTATION,
    JOB_LABEL,
    code_config_map,
    job_kind,
    job_manifest,
    launcher_config_map,
)
from kfp_distributed.components.train.manifests.setting import Object, Setting
from kfp_distributed.components.train.runners.cluster_api import ClusterApi
from kfp_distributed.components.train.runners.pods import job_end, replica_of, started_containers
from kfp_distributed.components.train.runners.preflight import check_cluster, served_mpi_version
from kfp_distributed.components.train.runners.protocol import (
    ClusterError,
    Fact,
    JobEnded,
    JobEvent,
    LogLine,
    Quiet,
    TrainingJob,
    clock,
)
from kfp_distributed.components.train.runners.tracker import Tracker
from kfp_distributed.components.train.runners.watching import Listed, News, Printed, Watcher
from kfp_distributed.trainers.requirements import STOCK_IMAGE, requirements_of

_SIGN_OF_LIFE_SECONDS = 30.0
"""How often the job is told that somebody follows it. It also keeps the connection open that a cancel goes over."""

_LAST_LINES_SECONDS = 5.0
"""How long an ended job's last lines and states may take to arrive."""

_SHORTEST_LOST_SECONDS = 120.0
"""A kubelet takes up to 90 seconds to hand a sign of life on to the pods."""

_GONE_SECONDS = 60.0
"""How long an ended job that is being deleted may take to be gone."""


class KubernetesRunner:
    """Runs a job as the operators' object of its type, and follows it by watching. For one job."""

    shares_disk = False

    def __init__(self, api: ClusterApi, setting: Setting) -> None:
        """Makes a runner.

        Args:
            api: The cluster, and the namespace in it.
            setting: The cluster's side of the job; `check` asks the API server for its `mpi_version`.
        """
        self._api = api
        self._setting = setting
        self._watcher = Watcher(api)
        self._ours = False
        self._how = "is created"
        self._logs: dict[tuple[str, str], threading.Thread] = {}
        self._ended_containers: set[tuple[str, str]] = set()

    def check(self, job: TrainingJob) -> None:
        """Asks the API server whether it would take the job: kind, permissions, every field, quota, policies.

        Raises:
            ValueError: It would not.
        """
        lost = job.specification.launcher_lost_timeout
        if lost is not None and lost < _SHORTEST_LOST_SECONDS:
            raise ValueError(
                f"launcher_lost_timeout = {lost:g} is less than {_SHORTEST_LOST_SECONDS:g} seconds, the least on "
                "Kubernetes: a kubelet takes up to 90 seconds to hand a sign of life on"
            )
        try:
            mpi_version = served_mpi_version(self._api) if job.topology.distribution_type == "MPI" else None
            program = job.description.program
            needed = requirements_of(program)
            self._setting = replace(
                self._setting,
                image=program.get("image") or STOCK_IMAGE,
                packages=needed.packages,
                packages_alone=needed.alone,
                mpi_version=mpi_version,
            )
            self._prepare(job)
            check_cluster(self._api, self._kind, [self._manifest, *self._config_maps])
        except ClusterError as error:
            raise ValueError(str(error)) from None

    def _prepare(self, job: TrainingJob) -> None:
        self._job = job
        self._kind = job_kind(job.topology.distribution_type, self._setting.mpi_version)
        self._manifest = job_manifest(job, self._setting)
        launcher = launcher_config_map(job, self._setting)
        self._config_maps = [code_config_map(job, self._setting), *([launcher] if launcher else [])]
        self._core = f"/api/v1/namespaces/{self._api.namespace}"
        self._jobs = (
            f"/apis/{self._kind.group}/{self._kind.version}/namespaces/{self._api.namespace}/{self._kind.plural}"
        )
        self._tracker = Tracker(job, self._kind.kind)

    def start(self, job: TrainingJob) -> None:
        """Creates the job, or goes on with the one that an earlier start of the same step has left.

        Raises:
            ClusterError: The API server refused, or there is another job of this name.
        """
        if not self._take_over():
            self._create()

    def _create(self) -> str:
        """Creates the job and what belongs to it; returns the job's uid."""
        self._ours = True
        for each in self._config_maps:
            self._put_config_map(each)
        try:
            created = self._api.call("POST", self._jobs, self._manifest)
        except ClusterError as error:
            # The answer to an earlier try was lost, or another start of this step was faster.
            if error.status != 409 or not self._take_over():
                raise
            return ""
        owner = {key: created[key] for key in ("apiVersion", "kind")}
        owner |= {key: created["metadata"][key] for key in ("name", "uid")}
        for each in self._config_maps:
            # Whoever deletes the job deletes them with it: a cancel has time for one request.
            owned = {"metadata": {"ownerReferences": [owner]}}
            self._api.call("PATCH", f"{self._core}/configmaps/{each['metadata']['name']}", owned)
        return str(owner["uid"])

    def _start_again(self) -> Iterator[Fact]:
        path = f"{self._jobs}/{self._job.name}"
        # In the foreground: the new job's pods have the old ones' names.
        self._delete(path, "Foreground")
        until = time.monotonic() + _GONE_SECONDS
        while self._api.read(path) and time.monotonic() < until:
            yield Quiet(clock())
            time.sleep(0.2)
        yield from self._tracker.start_again(self._create())

    def _take_over(self) -> bool:
        """Makes the job of this name ours if there is one; one that failed or is being deleted goes first."""
        until = time.monotonic() + _GONE_SECONDS
        path = f"{self._jobs}/{self._job.name}"
        while found := self._api.read(path):
            about, end = found["metadata"], job_end(found)
            if (
                about.get("annotations", {}).get(HASH_ANNOTATION)
                != self._manifest["metadata"]["annotations"][HASH_ANNOTATION]
            ):
                raise ClusterError(409, self._conflict())
            self._ours = True
            if "deletionTimestamp" not in about:
                if end is None or end[0]:
                    if self._setting.owner:
                        owned = {"metadata": {"ownerReferences": [self._setting.owner]}}
                        self._api.call("PATCH", path, owned)
                    self._how = "is there already: this step goes on with it"
                    return True
                self._delete(path)
            if time.monotonic() > until:
                raise ClusterError(409, f"{path} is being deleted, but does not go away")
            time.sleep(0.5)
        return False

    def _conflict(self) -> str:
        kind, name, namespace = self._kind, self._job.name, self._api.namespace
        return (
            f"there is a {kind.kind} {namespace}/{name} with another specification; if nobody needs it: "
            f"kubectl delete {kind.plural} {name} -n {namespace}"
        )

    def _put_config_map(self, config_map: Object) -> None:
        try:
            self._api.call("POST", f"{self._core}/configmaps", config_map)
        except ClusterError as error:
            if error.status != 409:
                raise
            # Left by a start that did not come to the job.
            self._delete(f"{self._core}/configmaps/{config_map['metadata']['name']}")
            self._api.call("POST", f"{self._core}/configmaps", config_map)

    def stop(self) -> None:
        """Deletes the job, and with it all that it owns; an ended one stays where `keep_job` says so."""
        self._watcher.close()
        if not self._ours or (self._tracker.end and self._job.specification.keep_job):
            return
        self._delete(f"{self._jobs}/{self._job.name}")
        for each in self._config_maps:
            self._delete(f"{self._core}/configmaps/{each['metadata']['name']}")
        self._ours = False

    def _delete(self, path: str, policy: str = "Background") -> None:
        try:
            self._api.call("DELETE", path, {"propagationPolicy": policy})
        except ClusterError as error:
            if error.status != 404:
                raise

    def facts(self) -> Iterator[Fact]:
        """Tells what the API server tells, until the job has ended."""
        yield JobEvent(clock(), f"{self._kind.kind} {self._api.namespace}/{self._job.name} {self._how}")
        watch, name = self._watcher.watch, self._job.name
        watch("job", self._jobs, {"fieldSelector": f"metadata.name={name}"})
        watch("pods", f"{self._core}/pods", {"labelSelector": f"{JOB_LABEL}={name}"})
        watch("events", f"{self._core}/events", {"fieldSelector": "type=Warning"})
        beat_due, ended = 0.0, None
        while not (self._tracker.end and self._is_told(ended or 0.0)):
            with suppress(queue.Empty):
                yield from self._tell(self._watcher.news.get(timeout=0.5 if ended is None else 0.05))
            if self._watcher.news.empty():
                yield from self._tracker.tell_time(clock())
                yield Quiet(clock())
                if time.monotonic() >= beat_due:
                    self._give_sign_of_life()
                    beat_due = time.monotonic() + _SIGN_OF_LIFE_SECONDS
            if self._tracker.may_start_again:
                yield from self._start_again()
            elif self._tracker.end and ended is None:
                ended = time.monotonic()
        yield JobEnded(clock(), *self._tracker.end)

    def _is_told(self, ended: float) -> bool:
        """Whether all is told that an ended job printed."""
        if time.monotonic() > ended + _LAST_LINES_SECONDS:
            return bool(ended)
        reading = any(self._logs[each].is_alive() for each in self._ended_containers if each in self._logs)
        return self._tracker.leader_is_over and not reading and self._watcher.news.empty()

    def _give_sign_of_life(self) -> None:
        path = f"{self._core}/configmaps/{self._config_maps[-1]['metadata']['name']}"
        with suppress(ClusterError):  # The next one will do.
            if "alive" in self._config_maps[-1]["data"]:
                alive = {"data": {"alive": str(int(time.time()))}}
                self._api.call("PATCH", path, alive, away_seconds=0, timeout_seconds=3)
            else:
                self._api.call("GET", path, away_seconds=0, timeout_seconds=3)

    def _tell(self, news: News) -> Iterator[Fact]:
        if isinstance(news, Printed):
            yield LogLine(clock(), news.replica, news.line)
            return
        objects = news.objects if isinstance(news, Listed) else [news.object]
        deleted = not isinstance(news, Listed) and news.change == "DELETED"
        if news.source == "job":
            yield from self._tracker.tell_job(objects[0] if objects else None, deleted)
        elif news.source == "events":
            for each in objects:
                yield from self._tracker.tell_event(each)
        else:
            # The lines of a pod are asked for before its end is told, and mostly come before it.
            for each in objects:
                self._follow_logs(each, deleted)
            if isinstance(news, Listed):
                yield from self._tracker.tell_pods(objects)
            else:
                yield from self._tracker.tell_pod(objects[0], deleted)

    def _follow_logs(self, pod: Mapping[str, Any], deleted: bool) -> None:
        about = pod["metadata"]
        for container, ended in started_containers(pod).items():
            key = (about["uid"], container)
            if ended or deleted:
                self._ended_containers.add(key)
            if key not in self._logs and not deleted:
                path = f"{self._core}/pods/{about['name']}/log"
                has_ended = partial(self._ended_containers.__contains__, key)
                self._logs[key] = self._watcher.follow_log(replica_of(pod), path, container, has_ended)
