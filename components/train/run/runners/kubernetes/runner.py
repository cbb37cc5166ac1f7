"""Lifecycle of a job in a Kubernetes cluster: check, adopt or create, follow, restart, delete."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import suppress

from kfp_distributed.cluster_api.client import ClusterApi, ClusterError
from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.describe.manifests.job_objects import JobObjects, plan_objects, settings_for
from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.components.train.run.facts import Fact, JobEvent, Log, Tick, clock
from kfp_distributed.components.train.run.runners.kubernetes.cluster_records.pods import job_end
from kfp_distributed.components.train.run.runners.kubernetes.connect.remote_token import RenewableToken
from kfp_distributed.components.train.run.runners.kubernetes.create.choose_operator import choose_operator
from kfp_distributed.components.train.run.runners.kubernetes.create.gone_objects import await_gone
from kfp_distributed.components.train.run.runners.kubernetes.create.object_requests import (
    await_removal,
    create,
    create_part,
    delete,
    path_of,
    removal_command,
)
from kfp_distributed.components.train.run.runners.kubernetes.create.preflight import check_cluster
from kfp_distributed.components.train.run.runners.kubernetes.create.previous_attempt import (
    await_pods_gone,
    pods_gone_seconds,
)
from kfp_distributed.components.train.run.runners.kubernetes.create.train_job_requests import (
    await_train_job_gone,
    create_runtime,
    create_train_job,
    own_runtime,
)
from kfp_distributed.components.train.run.runners.kubernetes.follow import Follower
from kfp_distributed.components.train.run.runners.kubernetes.heartbeat import Heartbeat, heartbeat_interval
from kfp_distributed.components.train.run.runners.kubernetes.progress_patches import PATCH_SECONDS, ProgressPatches
from kfp_distributed.components.train.run.runners.kubernetes.watch.watcher import RequestFailed, Watcher
from kfp_distributed.components.train.run.signals import signals_wait
from kfp_distributed.storage.model import ModelIncomplete, verify_model
from kfp_distributed.storage.opener import open_store


class KubernetesRunner:
    """Runs one job as a Kubernetes object of its kind, and follows it by watches.

    Attributes:
        manifest: The job's own object; {} before `check`.
        namespace: Namespace of the job.
    """

    shares_disk = False

    def __init__(
        self, api: ClusterApi, settings: ClusterSettings, log: Log, token: RenewableToken | None = None
    ) -> None:
        """Create a runner without sending a request.

        Args:
            api: The cluster with the namespace of the job.
            settings: Settings of the cluster. The runner sets image, packages, mpi_version and operator.
            log: Receives lines of the step's log about what the runner does itself.
            token: Token of another cluster's account, whose expiry is checked. Default: None, the step's own account.
        """
        self.manifest: Object = {}
        self.namespace = api.namespace
        self._api = api
        self._settings = settings
        self._log, self._token = log, token
        self._watcher = Watcher(api)
        self._heartbeat: Heartbeat | None = None
        # Set by `check`.
        self._objects: JobObjects
        self._follower: Follower
        self._progress: ProgressPatches
        self._missing_claims: list[Object] = []
        # Whether this step may delete the job.
        self._is_ours = False
        self._is_adopted = False
        # UID of the job that this step may delete; "" before the API server has reported it.
        self._uid = ""
        # UID of the TrainingRuntime that this step has created.
        self._runtime_uid = ""

    def check(self, job: TrainingJob) -> None:
        """Check that the API server accepts the job: its kind, the step's permissions, and a dry run of all objects.

        Raises:
            ValueError: The job is invalid, or the API server refuses it or does not respond.
        """
        if self._token and (warning := self._token.warning(job.specification.total_timeout)):
            self._log("WARNING", warning)
        try:
            self._plan(job)
            # If the step is cancelled from here on, it deletes the job that its previous attempt has created.
            existing: Object = {}
            with suppress(ClusterError):
                existing = self._api.call("GET", self._objects.path, away_seconds=0)
                self._is_ours = self._objects.is_same_job(existing) and not job_end(existing)
                self._uid = existing["metadata"]["uid"]
            self._missing_claims = self._find_missing_claims()
            runtime = [self._objects.runtime] if self._objects.runtime else []
            objects = [*runtime, self.manifest, *self._objects.parts, *self._missing_claims]
            check_cluster(self._api, self._objects.kind, objects, job_exists=bool(existing))
        except ClusterError as error:
            raise ValueError(str(error)) from None

    def _plan(self, job: TrainingJob) -> None:
        choice = choose_operator(self._api, job.topology.distribution_type, job.specification.operator)
        if choice.is_logged and not self.manifest:
            self._log("INFO", choice.line)
        settings = settings_for(job, self._settings, choice.mpi_version, os.environ, operator=choice.operator)
        self._objects = plan_objects(job, settings)
        self.manifest = self._objects.manifest
        self._follower = Follower(self._api, self._watcher, self._objects)
        self._progress = ProgressPatches(self._api, self._objects, self._log)

    def _find_missing_claims(self) -> list[Object]:
        """Return the claims to create.

        Existing claims are not in the dry run, because a quota that they have used up would refuse them.
        """
        claims = {claim["metadata"]["name"]: claim for claim in self._objects.claims}
        for name in (dict(volume)["name"] for volume in self._objects.job.specification.volumes):
            if self._api.read(f"{self._objects.core_path}/persistentvolumeclaims/{name}"):
                claims.pop(name, None)
            elif name not in claims:
                claim = f"{self._api.namespace}/{name}"
                raise ValueError(f"volumes: there is no PersistentVolumeClaim {claim}; create it or set its size")
        return list(claims.values())

    def start(self, job: TrainingJob) -> None:
        """Create the checked job, or adopt the one that a previous attempt of this step created.

        Raises:
            ClusterError: The API server refused a request, or another job has this name.
            StorageError: The heartbeat cannot be written.
        """
        existing = self._adopt()
        self._begin_heartbeat()
        if existing:
            self._is_ours = self._is_adopted = True
            self._own(existing)
        else:
            self._create()

    def adopt(self, job: TrainingJob) -> bool:
        """See Runner."""
        self._plan(job)
        existing = self._api.read(self._objects.path)
        if not existing or not self._objects.is_same_job(existing):
            return False
        end = job_end(existing)
        # A finished job is kept by keep_job, also one that failed after it had saved its model.
        self._is_ours = not (end and job.specification.keep_job)
        self._uid = existing["metadata"]["uid"]
        if "deletionTimestamp" in existing["metadata"] or (end and not end[0]):
            return False
        self._begin_heartbeat()
        self._is_ours = self._is_adopted = True
        self._own(existing)
        return True

    def _adopt(self) -> Object | None:
        """Make this step's pod the owner of the existing job; return the job, or None if there is none to adopt."""
        while existing := self._existing():
            if not self._settings.owner:
                return existing
            try:
                if self._objects.runtime:  # Without it, the webhook denies the change of the job.
                    own_runtime(self._api, self._objects, existing["metadata"]["uid"])
                owners = {"metadata": {"ownerReferences": [self._settings.owner]}}
                self._api.call("PATCH", self._objects.path, owners)
            except ClusterError as error:
                # Kubernetes deleted the job with its owner, the pod of the previous attempt.
                if error.status != 404:
                    raise
            else:
                return existing
        return None

    def _existing(self) -> Object | None:
        """Return the existing job if it can be adopted. A failed job is deleted first.

        Returns:
            The job; None if there is none and its pods have ended.

        Raises:
            ClusterError: A job with another specification exists, or the job or its pods are not deleted in time.
        """
        # After a foreground deletion the job exists until its pods are deleted.
        limit = pods_gone_seconds(self._grace_seconds)
        deadline = time.monotonic() + limit
        path = self._objects.path
        while existing := self._api.read(path):
            if not self._objects.is_same_job(existing):
                self._is_ours = False
                raise ClusterError(
                    409,
                    f"{self._objects.title} exists with another specification; "
                    f"if it is not needed: {removal_command(self._api, path)}",
                )
            if "deletionTimestamp" not in existing["metadata"]:
                end = job_end(existing)
                if end is None or (end[0] and self._has_model()):
                    return existing
                delete(self._api, path, self._objects.awaited_deletion, existing["metadata"]["uid"])
            if not await_gone(self._api, path, existing["metadata"]["uid"], deadline - time.monotonic()):
                raise ClusterError(409, f"the deletion of {self._objects.title} has not ended within {limit:g} s")
        self._await_earlier_objects_gone()
        return None

    def _await_earlier_objects_gone(self) -> None:
        """Wait until the pods of a deleted job are gone, and what else Kubernetes deletes with a TrainJob."""
        if self._objects.runtime:
            await_train_job_gone(self._api, self._objects, pods_gone_seconds(self._grace_seconds))
        await_pods_gone(self._api, self._objects.job.name, self._grace_seconds, self._log)

    @property
    def _grace_seconds(self) -> float:
        return self._objects.job.specification.termination_grace_seconds

    def _has_model(self) -> bool:
        """Return whether the job has stored its model. An MPI job whose step was lost may succeed without a model."""
        if self._objects.job.topology.distribution_type != "MPI":
            return True
        description = self._objects.job.description
        with suppress(ModelIncomplete):
            return verify_model(open_store(description.model_uri)).request == description.request
        return False

    def _begin_heartbeat(self) -> None:
        description, timeout = self._objects.job.description, self._objects.job.specification.launcher_lost_timeout
        if description.heartbeat_uri and timeout is not None:
            self._heartbeat = Heartbeat(
                description.heartbeat_uri, lambda text: self._watcher.news.put(RequestFailed(text)), self._log
            )
            self._heartbeat.begin()
            self._watcher.repeat(self._heartbeat.beat, heartbeat_interval(timeout))

    def _create(self) -> None:
        """Create the job, and then the objects that it owns. The pods wait for these objects."""
        self._is_ours, self._uid = True, ""
        for part in self._objects.parts:
            if part["kind"] == "ConfigMap":
                # Otherwise new pods could mount the ConfigMap of an earlier job before Kubernetes deletes it.
                await_removal(self._api, path_of(part, self._objects.namespace))
        for claim in self._missing_claims:
            try:
                self._api.call("POST", f"{self._objects.core_path}/persistentvolumeclaims", claim)
            except ClusterError as error:
                if error.status != 409:  # The claim was created in the meantime.
                    raise
        try:
            if self._objects.runtime:
                with signals_wait():  # Otherwise a cancel could come before the UID is kept.
                    self._runtime_uid = create_runtime(self._api, self._objects)
                created = create_train_job(self._api, self._objects)
            else:
                created = create(self._api, self._objects.jobs_path, self.manifest)
        except ClusterError as error:
            # The job was created by a request whose response was lost, or by another attempt of this step.
            existing = self._existing() if error.status == 409 else None
            if not existing:
                raise
            created = existing
        self._own(created)

    def _own(self, created: Object) -> None:
        """Create the parts of the job with the job as their owner.

        Kubernetes deletes them with the job. A cancel only has time for the request that deletes the job.
        """
        owner = {key: created[key] for key in ("apiVersion", "kind")}
        owner |= {key: created["metadata"][key] for key in ("name", "uid")}
        self._uid = created["metadata"]["uid"]
        if self._objects.runtime:
            own_runtime(self._api, self._objects, self._uid)
        for part in self._objects.parts:
            create_part(self._api, part, owner)
        self._follower.attach(created)

    def facts(self) -> Iterator[Fact]:
        """Yield the facts of the started job until it has ended; restart the whole job if necessary."""
        self._watcher.repeat(lambda: self._progress.patch(self._uid), PATCH_SECONDS)
        yield from self._progress.observe(self._facts())

    def _facts(self) -> Iterator[Fact]:
        title = self._objects.title
        if self._is_adopted:
            yield self._follower.adopted(f"adopted the existing {title}")
        else:
            yield JobEvent(clock(), f"created {title}")
        for claim in self._missing_claims:
            name = f"{self._api.namespace}/{claim['metadata']['name']}"
            yield JobEvent(clock(), f"created PersistentVolumeClaim {name}, which is not deleted with the job")
        self._follower.begin()
        while restart := (yield from self._follower.facts()):
            yield from self._recreate()
            yield restart
            yield from self._follower.restarted()

    def _recreate(self) -> Iterator[Fact]:
        # The pods must be gone, because the pods of the new job have the same names.
        delete(self._api, self._objects.path, self._objects.awaited_deletion, self._uid)
        deletion = self._watcher.run(self._await_job_gone)
        while not deletion.done():
            yield Tick(clock())
            wait([deletion], timeout=1)
        deletion.result()
        self._create()

    def _await_job_gone(self) -> None:
        await_gone(self._api, self._objects.path, self._uid, pods_gone_seconds(self._grace_seconds))
        if self._objects.runtime:
            self._await_earlier_objects_gone()

    def stop(self) -> None:
        """Delete the job with the objects that it owns, and the heartbeat. `keep_job` keeps a finished job.

        If an object cannot be deleted, the command that deletes it is logged. No exception is raised, because it would
        hide an earlier one.
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
        title = self._objects.title
        is_kept = has_ended and self._objects.job.specification.keep_job
        # The job is deleted first, because a cancel has time for one request. A finished job does not need its Secret.
        secrets = [part for part in self._objects.parts if part["kind"] == "Secret"]
        paths = [path_of(secret, self._objects.namespace) for secret in secrets]
        uids = {job_path: self._uid}
        if self._runtime_uid:
            # The TrainJob owns it, unless the step ends before it could create or change one of both.
            paths.append(self._objects.runtime_path)
            uids[self._objects.runtime_path] = self._runtime_uid
        for path in paths[: len(secrets)] if is_kept else [job_path, *paths]:
            try:
                existed = delete(self._api, path, uid=uids.get(path, ""))
            except ClusterError as error:
                command = removal_command(self._api, path)
                self._log("WARNING", f"cannot delete {path}: {error}; to delete it: {command}")
                continue
            if existed and path == job_path and not has_ended:
                self._log("INFO", f"deleted {title}")
        if is_kept:
            self._progress.finish(self._uid)
            self._log("INFO", f"kept {title} (keep_job); to delete it: {removal_command(self._api, job_path)}")
