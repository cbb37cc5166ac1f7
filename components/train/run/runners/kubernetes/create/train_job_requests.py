"""Create a TrainJob after its TrainingRuntime, and wait until all objects of an earlier one are gone."""

import time

from kfp_distributed.cluster_api.client import ClusterApi, ClusterError
from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.train.describe.manifests.job_objects import JobObjects
from kfp_distributed.components.train.describe.manifests.train_job import owned_by_train_job
from kfp_distributed.components.train.describe.manifests.train_job_names import train_job_names
from kfp_distributed.components.train.run.runners.kubernetes.create.object_requests import (
    create,
    delete,
    removal_command,
)

RUNTIME_IS_MISSING = "must be created before the TrainJob"
"""Part of the message with which the webhook of Kubeflow Trainer denies a TrainJob without a TrainingRuntime."""

_LEARNING_SECONDS = 30.0
"""Maximum seconds until the webhook knows a TrainingRuntime that was just created. It takes less than a second."""


def create_runtime(api: ClusterApi, objects: JobObjects) -> str:
    """Create the TrainingRuntime of a TrainJob that does not exist. One that an earlier attempt has left is replaced.

    Returns:
        Its UID.

    Raises:
        ClusterError: The API server refused a request or did not respond.
    """
    runtime = dict(objects.runtime or {})
    try:
        return str(create(api, objects.runtimes_path, runtime)["metadata"]["uid"])
    except ClusterError as error:
        if error.status != 409:
            raise
    delete(api, objects.runtime_path)
    return str(create(api, objects.runtimes_path, runtime)["metadata"]["uid"])


def create_train_job(api: ClusterApi, objects: JobObjects) -> Object:
    """Create the TrainJob and return it. The webhook denies it until it knows the TrainingRuntime.

    Raises:
        ClusterError: The API server refused the request or did not respond.
    """
    deadline = time.monotonic() + _LEARNING_SECONDS
    while True:
        try:
            return create(api, objects.jobs_path, objects.manifest)
        except ClusterError as error:
            if RUNTIME_IS_MISSING not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def own_runtime(api: ClusterApi, objects: JobObjects, uid: str) -> None:
    """Make the TrainJob the owner of its TrainingRuntime, so that Kubernetes deletes both.

    Without its runtime, which somebody may have deleted, a TrainJob cannot be changed. It is created again.

    Args:
        api: The cluster.
        objects: Objects of the job.
        uid: UID of the TrainJob.

    Raises:
        ClusterError: The API server refused a request or did not respond.
    """
    owner = owned_by_train_job(uid, objects.job)
    try:
        api.call("PATCH", objects.runtime_path, owner)
    except ClusterError as error:
        if error.status != 404:
            raise
        create_runtime(api, objects)
        api.call("PATCH", objects.runtime_path, owner)


def await_train_job_gone(api: ClusterApi, objects: JobObjects, seconds: float) -> None:
    """Wait until Kubernetes has deleted what an earlier TrainJob of this name owned, but for its pods.

    Kubeflow Trainer and JobSet would take them for those of the next one.

    Args:
        api: The cluster.
        objects: Objects of the job.
        seconds: Maximum seconds to wait.

    Raises:
        ClusterError: An object is not deleted in time, or the API server refused a request.
    """
    names, namespace, deadline = train_job_names(objects.job), objects.namespace, time.monotonic() + seconds
    paths = [
        f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets/{names.train_job}",
        *(f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}" for name in names.jobs),
        f"{objects.core_path}/configmaps/{names.snapshot}",
    ]
    for path in paths:
        while api.read(path):
            if time.monotonic() > deadline:
                resource, name = path.split("/")[-2:]
                text = f"{resource} {namespace}/{name} of an earlier TrainJob has not been deleted within {seconds:g} s"
                raise ClusterError(409, f"{text}; if it is not needed: {removal_command(api, path)}")
            time.sleep(0.2)
