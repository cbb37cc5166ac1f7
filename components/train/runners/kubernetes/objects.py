"""Creating and deleting the objects that belong to a job, with the few permissions that the step has."""

import time

from kfp_distributed.components.train.manifests.cluster_settings import Object
from kfp_distributed.components.train.runners.kubernetes.cluster_api import ClusterApi
from kfp_distributed.components.train.runners.protocol import ClusterError
from kfp_distributed.components.train.signals import signals_wait

GONE_SECONDS = 60.0
"""How long an object that is being deleted may take to be gone."""


def path_of(part: Object, namespace: str) -> str:
    """The path of a core object, such as a Secret."""
    return f"/api/v1/namespaces/{namespace}/{part['kind'].lower()}s/{part['metadata']['name']}"


def removal_command(api: ClusterApi, path: str) -> str:
    """The command by which a person deletes an object."""
    *_, plural, name = path.split("/")
    return f"kubectl delete {plural} {name} -n {api.namespace}"


def create(api: ClusterApi, path: str, body: Object) -> Object:
    """Creates an object. A cancel waits for the answer: a DELETE that overtakes it would find nothing to delete.

    Raises:
        ClusterError: The API server refused, or did not answer.
    """
    with signals_wait():
        return api.call("POST", path, body)


def delete(api: ClusterApi, path: str, policy: str = "Background") -> bool:
    """Deletes an object; returns whether it was there.

    Raises:
        ClusterError: The API server refused, or did not answer.
    """
    try:
        api.call("DELETE", path, {"propagationPolicy": policy})
    except ClusterError as error:
        if error.status != 404:
            raise
        return False
    return True


def create_part(api: ClusterApi, part: Object, owner: Object) -> None:
    """Creates a ConfigMap or Secret that a job owns, so that Kubernetes removes it with the job.

    The step may not change or delete ConfigMaps: one of this job that is there already is as it should be, one of an
    earlier job is removed soon. A Secret is deleted first, because who may read or change Secrets could do so with all.

    Args:
        api: The cluster.
        part: The object, without its owner.
        owner: The job as an ownerReference.

    Raises:
        ClusterError: The API server refused, or there is another object of this name.
    """
    path = path_of(part, api.namespace)
    owned = {**part, "metadata": {**part["metadata"], "ownerReferences": [owner]}}
    for is_last in (False, True):
        if part["kind"] == "Secret":
            delete(api, path)
        elif await_removal(api, path, owner["uid"]):
            return
        try:
            create(api, path.rpartition("/")[0], owned)
            return
        except ClusterError as error:
            # The answer to an earlier try was lost, or another attempt of this step was faster.
            if is_last or error.status != 409:
                raise


def await_removal(api: ClusterApi, path: str, owner_uid: str = "") -> bool:
    """Waits until Kubernetes has removed an object whose owner is gone; returns whether one of `owner_uid` is there.

    Raises:
        ClusterError: It stays.
    """
    until = time.monotonic() + GONE_SECONDS
    while existing := api.read(path):
        owners = [owner["uid"] for owner in existing["metadata"].get("ownerReferences", ())]
        if owner_uid in owners:
            return True
        # One without an owner is never removed.
        if not owners or time.monotonic() > until:
            kind, name = path.split("/")[-2:]
            text = f"there is {kind} {api.namespace}/{name} of another owner; if nobody needs it: "
            raise ClusterError(409, text + removal_command(api, path))
        time.sleep(0.2)
    return False
