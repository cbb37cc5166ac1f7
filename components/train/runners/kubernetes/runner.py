"""The lifecycle of a job in a Kubernetes cluster: check, adopt or create, own, restart, delete."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from kfp_distributed.components.train.job import Fact, JobEvent, Quiet, TrainingJob, clock
from kfp_distributed.components.train.log_format import log
from kfp_distributed.components.train.manifests.cluster_settings import ClusterSettings, Object
from kfp_distributed.components.train.runners.kubernetes.cluster_api import ClusterApi
from kfp_distributed.components.train.runners.kubernetes.follow import Follower
from kfp_distributed.components.train.runners.kubernetes.heartbeat import Heartbeat, heartbeat_interval
from kfp_distributed.components.train.runners.kubernetes.job_objects import JobObjects, plan_objects
from kfp_distributed.components.train.runners.kubernetes.objects import (
    GONE_SECONDS,
    await_removal,
    create,
    create_part,
    delete,
    path_of,
    removal_command,
)
from kfp_distributed.components.train.runners.kubernetes.pods import job_end
from kfp_distributed.components.train.runners.kubernetes.preflight import check_cluster, served_mpi_version
from kfp_distributed.components.train.runners.kubernetes.previous_attempt import PODS_GONE_SECONDS, await_pods_gone
from kfp_distributed.components.train.runners.kubernetes.watching import Trouble, Watcher
from kfp_distributed.components.train.runners.protocol import ClusterError
from kfp_distributed.storage.model import ModelIncomplete, verify_model
from kfp_distributed.storage.opener import open_store
from kfp_distributed.trainers.requirements import STOCK_IMAGE, image_of, requirements_of

_SHORTEST_LOST_SECONDS = 60.0
"""A step on a busy node may be late by some heartbeats, of which eight fall into launcher_lost_timeout."""


class KubernetesRunner:
    """Runs one job as the operators' object of its type, and follows it by watching.

    Attributes:
        manifest: The job's own object, once the job is checked.
    """

    shares_disk = False

    def __init__(self, api: ClusterApi, settings: ClusterSettings) -> None:
        """Sends nothing yet.

        Args:
            api: The cluster, and the namespace in it.
            settings: The cluster's side of the job. Image and packages are added from the job's program.
        """
        self.manifest: Object = {}
        self._api = api
        self._settings = settings
        self._watcher = Watcher(api)
        self._heartbeat: Heartbeat | None = None
        # Set by `check`.
        self._objects: JobObjects
        self._follower: Follower
        self._missing_claims: list[Object] = []
        # Whether a job of this name is this step's to delete.
        self._is_ours = False
        self._origin = "is created"

    def check(self, job: TrainingJob) -> None:
        """Asks the API server whether it would take the job: its kind, the step's permissions, every field.

        Raises:
            ValueError: It would not.
        """
        lost_timeout = job.specification.launcher_lost_timeout
        if lost_timeout is not None and lost_timeout < _SHORTEST_LOST_SECONDS:
            raise ValueError(
                f"launcher_lost_timeout = {lost_timeout:g}: on Kubernetes at least {_SHORTEST_LOST_SECONDS:g} seconds"
            )
        try:
            self._objects = plan_objects(job, self._settings_for(job))
            self.manifest = self._objects.manifest
            self._follower = Follower(self._api, self._watcher, self._objects)
            # A cancel during what follows is to delete the job that a previous attempt of this step has left.
            existing: Object = {}
            with suppress(ClusterError):
                existing = self._api.call("GET", self._objects.path, away_seconds=0)
                self._is_ours = self._objects.is_same_job(existing) and not job_end(existing)
            self._missing_claims = self._find_missing_claims()
            created = [self.manifest, *self._objects.parts, *self._missing_claims]
            check_cluster(self._api, self._objects.kind, created, is_there=bool(existing))
        except ClusterError as error:
            raise ValueError(str(error)) from None

    def _settings_for(self, job: TrainingJob) -> ClusterSettings:
        distribution_type, program = job.topology.distribution_type, job.description.program
        mpi_version = served_mpi_version(self._api) if distribution_type == "MPI" else None
        image = image_of(program, distribution_type, os.environ)
        needed = requirements_of({**program, "image": "" if image == STOCK_IMAGE else image})
        return replace(
            self._settings,
            image=image,
            packages=needed.packages,
            packages_alone=needed.alone,
            mpi_version=mpi_version,
        )

    def _find_missing_claims(self) -> list[Object]:
        """The claims to create. An existing one is left out: a quota that it has used up would refuse another."""
        claims = {claim["metadata"]["name"]: claim for claim in self._objects.claims}
        for name in (dict(volume)["name"] for volume in self._objects.job.specification.volumes):
            if self._api.read(f"{self._objects.core_path}/persistentvolumeclaims/{name}"):
                claims.pop(name, None)
            elif name not in claims:
                claim = f"{self._api.namespace}/{name}"
                raise ValueError(f"volumes: there is no PersistentVolumeClaim {claim}; create it, or give it a size")
        return list(claims.values())

    def start(self, job: TrainingJob) -> None:
        """Creates the checked job, or adopts the one that a previous attempt of this step created.

        Raises:
            ClusterError: The API server refused, or there is another job of this name.
            StorageError: The object store does not take the heartbeat.
        """
        existing = self._adopt()
        self._begin_heartbeat()
        if existing:
            self._is_ours = True
            self._origin = "is there already: this step goes on with it"
            self._own(existing)
        else:
            self._create()

    def _adopt(self) -> Object | None:
        """Makes this step's pod the owner of the existing job; returns the job, or None if there is none to adopt."""
        while existing := self._existing():
            if not self._settings.owner:
                return existing
            try:
                owners = {"metadata": {"ownerReferences": [self._settings.owner]}}
                self._api.call("PATCH", self._objects.path, owners)
            except ClusterError as error:
                # The job was removed together with the pod of the previous attempt, which was its owner.
                if error.status != 404:
                    raise
            else:
                return existing
        return None

    def _existing(self) -> Object | None:
        """The existing job if it can be adopted. One that has failed is deleted, and its removal awaited."""
        # A job that is deleted in the foreground is there until its pods are gone.
        until = time.monotonic() + PODS_GONE_SECONDS
        path = self._objects.path
        while existing := self._api.read(path):
            if not self._objects.is_same_job(existing):
                self._is_ours = False
                raise ClusterError(
                    409,
                    f"there is a {self._objects.title} with another specification; "
                    f"if nobody needs it: {removal_command(self._api, path)}",
                )
            if "deletionTimestamp" not in existing["metadata"]:
                end = job_end(existing)
                if end is None or (end[0] and self._has_model()):
                    return existing
                delete(self._api, path, "Foreground")
            if time.monotonic() > until:
                raise ClusterError(409, f"{path} is being deleted, but does not go away")
            time.sleep(0.2)
        await_pods_gone(self._api, self._objects.job.name)
        return None

    def _has_model(self) -> bool:
        """Whether the job has stored its model. An MPIJob that lost its step for long succeeds without one."""
        if self._objects.kind.kind != "MPIJob":
            return True
        job = self._objects.job
        with suppress(ModelIncomplete):
            return verify_model(open_store(job.description.model_uri)).job == job.name
        return False

    def _begin_heartbeat(self) -> None:
        description, timeout = self._objects.job.description, self._objects.job.specification.launcher_lost_timeout
        if description.heartbeat_uri and timeout is not None:
            self._heartbeat = Heartbeat(description.heartbeat_uri, lambda text: self._watcher.news.put(Trouble(text)))
            self._heartbeat.begin()
            self._watcher.repeat(self._heartbeat.beat, heartbeat_interval(timeout))

    def _create(self) -> None:
        """Creates the job, and then what it owns, so that no part is ever without its owner. The pods wait for it."""
        self._is_ours = True
        for part in self._objects.parts:
            if part["kind"] == "ConfigMap":
                # That of an earlier job would be removed after the new pods have mounted it.
                await_removal(self._api, path_of(part, self._objects.namespace))
        for claim in self._missing_claims:
            try:
                self._api.call("POST", f"{self._objects.core_path}/persistentvolumeclaims", claim)
            except ClusterError as error:
                if error.status != 409:  # It exists by now.
                    raise
        try:
            created = create(self._api, self._objects.jobs_path, self.manifest)
        except ClusterError as error:
            # The answer to an earlier try was lost, or another attempt of this step was faster.
            existing = self._existing() if error.status == 409 else None
            if not existing:
                raise
            created = existing
        self._own(created)

    def _own(self, created: Object) -> None:
        """Makes the job the owner of its parts, which are deleted with it: a cancel has time for one request."""
        owner = {key: created[key] for key in ("apiVersion", "kind")}
        owner |= {key: created["metadata"][key] for key in ("name", "uid")}
        for part in self._objects.parts:
            create_part(self._api, part, owner)
        self._follower.attach(created)

    def facts(self) -> Iterator[Fact]:
        """Yields what happens to the started job, and restarts the whole job if need be, until the job has ended."""
        yield JobEvent(clock(), f"{self._objects.title} {self._origin}")
        for claim in self._missing_claims:
            yield JobEvent(clock(), f"PersistentVolumeClaim {claim['metadata']['name']} is created, and stays")
        self._follower.begin()
        while restart := (yield from self._follower.facts()):
            yield from self._recreate()
            yield restart
            yield from self._follower.restarted()

    def _recreate(self) -> Iterator[Fact]:
        # In the foreground: the pods of the new job have the names of the old ones.
        delete(self._api, self._objects.path, "Foreground")
        until = time.monotonic() + GONE_SECONDS
        while self._api.read(self._objects.path) and time.monotonic() < until:
            yield Quiet(clock())
            time.sleep(0.2)
        self._create()

    def stop(self) -> None:
        """Deletes the job with all that it owns, and the heartbeat; `keep_job` keeps a job that has ended.

        An object that cannot be deleted is printed, with the command that deletes it. No exception is raised for it,
        which would hide an earlier one.
        """
        self._watcher.close()
        if self._is_ours:
            self._delete_objects()
        self._is_ours = False
        if self._heartbeat:
            self._heartbeat.remove()
        self._heartbeat = None

    def _delete_objects(self) -> None:
        has_ended, job_path = self._follower.job_ended_by_itself, self._objects.path
        is_kept = has_ended and self._objects.job.specification.keep_job
        # A cancel has time for one request, so the job is the first. An ended job has no more use for keys.
        secrets = [part for part in self._objects.parts if part["kind"] == "Secret"]
        paths = [path_of(secret, self._objects.namespace) for secret in secrets]
        for path in paths if is_kept else [job_path, *paths]:
            try:
                existed = delete(self._api, path)
            except ClusterError as error:
                command = removal_command(self._api, path)
                log("WARNING", f"{path} could not be deleted: {error}; to remove it: {command}")
                continue
            if existed and path == job_path and not has_ended:
                log("INFO", f"{self._objects.title} is deleted")
        if is_kept:
            log("INFO", f"the job is kept (keep_job); to remove it: {removal_command(self._api, job_path)}")
