"""The replicas of a job as pods, which the operators of a Kubernetes cluster start and start again."""

import math
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from kfp_distributed.components.train.job import Fact, JobEnded, JobEvent, LogLine, Quiet, TrainingJob, clock
from kfp_distributed.components.train.manifests import (
    HASH_ANNOTATION,
    JOB_LABEL,
    code_config_map,
    job_kind,
    job_manifest,
    object_store_secret,
    volume_claims,
)
from kfp_distributed.components.train.manifests.cluster_settings import ClusterSettings, Object
from kfp_distributed.components.train.mpirun import printed_by
from kfp_distributed.components.train.runners.kubernetes.cluster_api import ClusterApi
from kfp_distributed.components.train.runners.kubernetes.heartbeat import Heartbeat
from kfp_distributed.components.train.runners.kubernetes.objects import (
    GONE_SECONDS,
    await_removal,
    create,
    create_part,
    delete,
    path_of,
    removal_command,
)
from kfp_distributed.components.train.runners.kubernetes.pods import job_end, replica_of
from kfp_distributed.components.train.runners.kubernetes.preflight import check_cluster, served_mpi_version
from kfp_distributed.components.train.runners.kubernetes.previous_attempt import PODS_GONE_SECONDS, await_pods_gone
from kfp_distributed.components.train.runners.kubernetes.tracker import Tracker
from kfp_distributed.components.train.runners.kubernetes.watching import (
    Listed,
    News,
    Printed,
    ThreadFailed,
    Trouble,
    Watcher,
)
from kfp_distributed.components.train.runners.protocol import ClusterError
from kfp_distributed.storage.model import ModelIncomplete, verify_model
from kfp_distributed.storage.opener import open_store
from kfp_distributed.trainers.requirements import STOCK_IMAGE, image_of, requirements_of

_HEARTBEAT_SECONDS = 30.0
"""Longest interval of the heartbeat, and of the requests that keep the connection open that a cancel goes over."""

_LAST_LINES_SECONDS = 5.0
"""How long an ended job's last lines and states may take to arrive."""

_SHORTEST_LOST_SECONDS = 60.0
"""A step on a busy node may be late by some heartbeats, of which eight fall into launcher_lost_timeout."""


class KubernetesRunner:
    """Runs a job as the operators' object of its type, and follows it by watching. For one job."""

    shares_disk = False

    def __init__(self, api: ClusterApi, settings: ClusterSettings) -> None:
        """Makes a runner.

        Args:
            api: The cluster, and the namespace in it.
            settings: The cluster's side of the job; the program says what image and packages it is.
        """
        self.manifest: Object = {}
        self._api = api
        self._settings = settings
        self._watcher = Watcher(api)
        self._ours = False
        self._how = "is created"
        self._core = f"/api/v1/namespaces/{api.namespace}"
        self._last_line = self._last_reading = self._last_readable = 0.0
        self._heartbeat: Heartbeat | None = None
        self._refused_since: float | None = None
        self._refusal = ""

    def check(self, job: TrainingJob) -> None:
        """Asks the API server whether it would take the job: its kind, our permissions, every field.

        Raises:
            ValueError: It would not.
        """
        lost = job.specification.launcher_lost_timeout
        if lost is not None and lost < _SHORTEST_LOST_SECONDS:
            raise ValueError(
                f"launcher_lost_timeout = {lost:g}: on Kubernetes at least {_SHORTEST_LOST_SECONDS:g} seconds"
            )
        try:
            mpi_version = served_mpi_version(self._api) if job.topology.distribution_type == "MPI" else None
            program = job.description.program
            image = image_of(program, job.topology.distribution_type, os.environ)
            needed = requirements_of({**program, "image": "" if image == STOCK_IMAGE else image})
            self._settings = replace(
                self._settings,
                image=image,
                packages=needed.packages,
                packages_alone=needed.alone,
                mpi_version=mpi_version,
            )
            self._prepare(job)
            # A cancel during what follows is to end the job that an earlier start of this step has left.
            found: Object = {}
            with suppress(ClusterError):
                found = self._api.call("GET", self._path, away_seconds=0)
                self._ours = self._is_same(found) and not job_end(found)
            self._claims = self._missing_claims(job)
            check_cluster(self._api, self._kind, [self.manifest, *self._parts, *self._claims], is_there=bool(found))
        except ClusterError as error:
            raise ValueError(str(error)) from None

    def _missing_claims(self, job: TrainingJob) -> list[Object]:
        """The claims to create. One that is there is left out: a quota that it has used up would refuse another."""
        claims = {each["metadata"]["name"]: each for each in volume_claims(job, self._settings)}
        for name in (dict(each)["name"] for each in job.specification.volumes):
            if self._api.read(f"{self._core}/persistentvolumeclaims/{name}"):
                claims.pop(name, None)
            elif name not in claims:
                place = f"{self._api.namespace}/{name}"
                raise ValueError(f"volumes: there is no PersistentVolumeClaim {place}; create it, or give it a size")
        return list(claims.values())

    def _prepare(self, job: TrainingJob) -> None:
        self._job = job
        self._kind = job_kind(job.topology.distribution_type, self._settings.mpi_version)
        self.manifest = job_manifest(job, self._settings)
        parts = [make(job, self._settings) for make in (object_store_secret, code_config_map)]
        self._parts = [each for each in parts if each]
        lost = job.specification.launcher_lost_timeout
        self._lost = math.inf if lost is None else lost
        self._jobs = (
            f"/apis/{self._kind.group}/{self._kind.version}/namespaces/{self._api.namespace}/{self._kind.plural}"
        )
        self._path = f"{self._jobs}/{job.name}"
        self._title = f"{self._kind.kind} {self._api.namespace}/{job.name}"
        self._hash = self.manifest["metadata"]["annotations"][HASH_ANNOTATION]
        self._tracker = Tracker(job, self._kind.kind)

    def start(self, job: TrainingJob) -> None:
        """Creates the job, or goes on with the one that an earlier start of the same step has left.

        Raises:
            ClusterError: The API server refused, or there is another job of this name.
            StorageError: The object store does not take the heartbeat.
        """
        while (found := self._existing()) and not self._adopt():
            pass
        self._begin_heartbeat()
        if found:
            self._ours = True
            self._how = "is there already: this step goes on with it"
            self._own(found)
        else:
            self._create()

    def _adopt(self) -> bool:
        """Makes this step's pod the owner of the job; False where the job was removed together with the last owner."""
        if not self._settings.owner:
            return True
        try:
            self._api.call("PATCH", self._path, {"metadata": {"ownerReferences": [self._settings.owner]}})
        except ClusterError as error:
            if error.status != 404:
                raise
            return False
        return True

    def _existing(self) -> Object | None:
        """The job of this name, if it is one to go on with; one that failed or is being deleted goes first."""
        # A job that is deleted in the foreground is there until its pods are gone.
        until = time.monotonic() + PODS_GONE_SECONDS
        while found := self._api.read(self._path):
            if not self._is_same(found):
                self._ours = False
                raise ClusterError(409, self._conflict())
            if "deletionTimestamp" not in found["metadata"]:
                end = job_end(found)
                if end is None or (end[0] and self._has_model()):
                    return found
                delete(self._api, self._path, "Foreground")
            if time.monotonic() > until:
                raise ClusterError(409, f"{self._path} is being deleted, but does not go away")
            time.sleep(0.2)
        await_pods_gone(self._api, self._job.name)
        return None

    def _has_model(self) -> bool:
        """Whether the job has left its model: an MPIJob whose step was lost for long has succeeded too."""
        if self._kind.kind != "MPIJob":
            return True
        with suppress(ModelIncomplete):
            return verify_model(open_store(self._job.description.model_uri)).job == self._job.name
        return False

    def _is_same(self, found: Object) -> bool:
        """Whether a job of this name has our specification and code."""
        return bool(found["metadata"].get("annotations", {}).get(HASH_ANNOTATION) == self._hash)

    def _begin_heartbeat(self) -> None:
        uri = self._job.description.heartbeat_uri
        if uri and self._lost < math.inf:
            self._heartbeat = Heartbeat(uri, lambda text: self._watcher.news.put(Trouble(text)))
            self._heartbeat.begin()
            self._watcher.repeat(self._heartbeat.beat, self._interval)

    @property
    def _interval(self) -> float:
        return min(_HEARTBEAT_SECONDS, self._lost / 8)

    def _create(self) -> None:
        """Creates the job, and then what it owns: nothing is ever there without its owner. The pods wait for it."""
        self._ours = True
        for part in self._parts:
            if part["kind"] == "ConfigMap":
                # That of an earlier job would be removed after the new pods have mounted it.
                await_removal(self._api, path_of(part, self._api.namespace))
        for each in self._claims:
            try:
                self._api.call("POST", f"{self._core}/persistentvolumeclaims", each)
            except ClusterError as error:
                if error.status != 409:  # It is there already.
                    raise
        try:
            created = create(self._api, self._jobs, self.manifest)
        except ClusterError as error:
            # The answer to an earlier try was lost, or another start of this step was faster.
            found = self._existing() if error.status == 409 else None
            if not found:
                raise
            created = found
        self._own(created)

    def _own(self, created: Object) -> None:
        """Makes the job the owner of its parts: whoever deletes it deletes them, and a cancel is one request."""
        owner = {key: created[key] for key in ("apiVersion", "kind")}
        owner |= {key: created["metadata"][key] for key in ("name", "uid")}
        for part in self._parts:
            create_part(self._api, part, owner)
        self._tracker.uid, self._tracker.created = owner["uid"], created["metadata"].get("creationTimestamp", "")

    def _start_again(self) -> Iterator[Fact]:
        again = self._tracker.start_again()
        told = next(again)  # What failed is not recent any more when the job is gone.
        # In the foreground: the new job's pods have the old ones' names.
        delete(self._api, self._path, "Foreground")
        until = time.monotonic() + GONE_SECONDS
        while self._api.read(self._path) and time.monotonic() < until:
            yield Quiet(clock())
            time.sleep(0.2)
        self._create()
        yield told
        yield from again

    def _conflict(self) -> str:
        command = removal_command(self._api, self._path)
        return f"there is a {self._title} with another specification; if nobody needs it: {command}"

    def stop(self) -> None:
        """Deletes the job, and with it all that it owns, and the heartbeat; `keep_job` keeps a job that has ended.

        What cannot be deleted is named, with the command that deletes it. That hides nothing that was known before.
        """
        self._watcher.close()
        if self._ours:
            self._delete_objects()
        self._ours = False
        if self._heartbeat:
            self._heartbeat.remove()
        self._heartbeat = None

    def _delete_objects(self) -> None:
        kept = self._tracker.ended_by_itself and self._job.specification.keep_job
        # A cancel has time for one request, so the job is the first. An ended job has no more use for keys.
        paths = [path_of(part, self._api.namespace) for part in self._parts if part["kind"] == "Secret"]
        if not kept:
            paths.insert(0, self._path)
        for path in paths:
            try:
                was_there = delete(self._api, path)
            except ClusterError as error:
                command = removal_command(self._api, path)
                print(f"{path} could not be deleted: {error}; to remove it: {command}", flush=True)
                continue
            if was_there and path == self._path and not self._tracker.ended_by_itself:
                print(f"{self._title} is deleted", flush=True)
        if kept:
            print(f"the job is kept (keep_job); to remove it: {removal_command(self._api, self._path)}", flush=True)

    def facts(self) -> Iterator[Fact]:
        """Tells what the API server tells, until the job has ended."""
        yield JobEvent(clock(), f"{self._title} {self._how}")
        for each in self._claims:
            yield JobEvent(clock(), f"PersistentVolumeClaim {each['metadata']['name']} is created, and stays")
        watch, name = self._watcher.watch, self._job.name
        watch("job", self._jobs, {"fieldSelector": f"metadata.name={name}"})
        pods = {"labelSelector": f"{JOB_LABEL}={name}"}
        watch("pods", f"{self._core}/pods", pods)
        watch("events", f"{self._core}/events", {"fieldSelector": "type=Warning"})
        self._watcher.repeat(self._keep_connection, self._interval)
        quiet_due, ended = 0.0, None
        while not (self._tracker.end and ended and self._is_told(ended)):
            if news := self._watcher.take(0.5 if ended is None else 0.05):
                yield from self._tell(news)
            if self._watcher.news.empty() or time.monotonic() >= quiet_due:
                yield from self._tracker.tell_time(clock())
                if not self._tracker.end:  # No budget is for the reading of last lines.
                    yield Quiet(clock())
                quiet_due = time.monotonic() + 1
            if self._refusal and not self._tracker.end:
                self._tracker.end = (False, self._refusal)
            if self._tracker.may_start_again:
                yield from self._start_again()
                ended = None
            elif self._tracker.end and ended is None:
                # We may hear of the job's end before that of its pods, whose last lines are then still to come.
                with suppress(ClusterError):
                    listed = self._api.call("GET", f"{self._core}/pods", query=pods, away_seconds=0)
                    self._follow_logs(listed["items"])
                ended = time.monotonic()
        yield JobEnded(clock(), *self._tracker.end)

    def _is_told(self, ended: float) -> bool:
        """Whether all is told that an ended job printed. What is silent for some seconds is not waited for."""
        now = time.monotonic()
        # Replicas of a job that only this step has given up are started again, and print, until it is deleted.
        if not self._tracker.ended_by_itself and now - ended > 2 * _LAST_LINES_SECONDS:
            return True
        unread = self._watcher.unread
        if unread or not self._tracker.leader_is_over:
            self._last_reading = now
            if not all(unread):
                self._last_readable = now
            # What goes on printing may do so for ever, where the job has ended for another replica.
            return now - max(ended, min(self._last_line, self._last_readable)) > _LAST_LINES_SECONDS
        # A replica that has not ended may print for ever.
        return self._watcher.news.empty() or now - max(ended, self._last_reading) > GONE_SECONDS

    def _keep_connection(self) -> bool:
        """Keeps the connection open that a cancel goes over, and notices when the API server refuses this step."""
        try:
            self._api.call("GET", self._path, away_seconds=0, timeout_seconds=5)
        except ClusterError as error:
            if error.status not in (401, 403):
                self._refused_since = None
                return error.status == 404  # The job is created again just now.
            now = time.monotonic()
            self._refused_since = now if self._refused_since is None else self._refused_since
            # As long as replicas wait for a heartbeat. A token that has expired does not come back.
            if now - self._refused_since > self._lost:
                self._refusal = f"The API server refuses this step: {error}."
            return False
        self._refused_since = None
        return True

    def _tell(self, news: News) -> Iterator[Fact]:
        if isinstance(news, Printed):
            spec = self._job.specification
            yield from (LogLine(clock(), *printed_by(news.replica, line, spec)) for line in news.lines)
            self._last_line = time.monotonic()
            return
        if isinstance(news, ThreadFailed):
            raise news.error
        if isinstance(news, Trouble):
            yield JobEvent(clock(), news.text)
            return
        objects = news.objects if isinstance(news, Listed) else [news.object]
        deleted = not isinstance(news, Listed) and news.change == "DELETED"
        if news.source == "job":
            found = objects[0] if objects else None
            if isinstance(news, Listed) and not self._tracker.end:
                # The list may be older than a job that was created again.
                found = self._followed(found) or self._followed(self._api.read(self._path))
            yield from self._tracker.tell_job(found, deleted)
        elif news.source == "events":
            for each in objects:
                yield from self._tracker.tell_event(each)
        else:
            # The lines of a pod are asked for before its end is told, and mostly come before it.
            self._follow_logs(objects, deleted)
            if isinstance(news, Listed):
                yield from self._tracker.tell_pods(objects)
            else:
                yield from self._tracker.tell_pod(objects[0], deleted)

    def _follow_logs(self, pods: Iterable[Object], deleted: bool = False) -> None:
        for pod in filter(self._tracker.is_ours, pods):
            path = f"{self._core}/pods/{pod['metadata']['name']}"
            self._watcher.follow_logs(replica_of(pod), path, pod, deleted)

    def _followed(self, found: Object | None) -> Object | None:
        return found if found and found["metadata"]["uid"] == self._tracker.uid else None
