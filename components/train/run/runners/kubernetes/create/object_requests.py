"""Create and delete the objects of a job with the permissions that the step has."""

import time

from kfp_distributed.cluster_api.client import ClusterApi, ClusterError
from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.train.describe.manifests import differing_keys
from kfp_distributed.components.train.run.signals import signals_wait

GONE_SECONDS = 60.0
"""Maximum seconds until a deleted object has disappeared."""

_LONGEST_PAUSE = 2.0
"""Maximum seconds between two reads of an object that Kubernetes is about to delete."""


def path_of(part: Object, namespace: str) -> str:
    """Return the path of a core object, such as a Secret."""
    return f"/api/v1/namespaces/{namespace}/{part['kind'].lower()}s/{part['metadata']['name']}"


def removal_command(api: ClusterApi, path: str) -> str:
    """Return the kubectl command that deletes an object."""
    *_, plural, name = path.split("/")
    return f"kubectl delete {plural} {name} -n {api.namespace}"


def create(api: ClusterApi, path: str, body: Object) -> Object:
    """Create an object and return it.

    Signals are deferred until the response has arrived. Otherwise the DELETE of a cancel could arrive before the object
    exists.

    Raises:
        ClusterError: The API server refused the request or did not respond.
    """
    with signals_wait():
        return api.call("POST", path, body)


def delete(api: ClusterApi, path: str, policy: str = "Background", uid: str = "") -> bool:
    """Delete an object; return whether it existed.

    Args:
        api: The cluster.
        path: Path of the object.
        policy: Deletion of the objects that it owns: "Background" or "Foreground". Default: "Background".
        uid: UID of the object. Another object of the same name is not deleted. Default: "", any object of this name.

    Raises:
        ClusterError: The API server refused the request or did not respond.
    """
    try:
        preconditions = {"preconditions": {"uid": uid}} if uid else {}
        api.call("DELETE", path, {"propagationPolicy": policy, **preconditions})
    except ClusterError as error:
        # 409: an object of another UID has this name.
        if error.status != 404 and not (uid and error.status == 409):
            raise
        return False
    return True


def create_part(api: ClusterApi, part: Object, owner: Object) -> None:
    """Create a ConfigMap or Secret that a job owns, so that Kubernetes deletes it with the job.

    The step has no permission to change or delete ConfigMaps. An existing ConfigMap of this job must have the same
    content; Kubernetes soon deletes one of an earlier job. An existing Secret is deleted and created again, because the
    step has no permission to read or change Secrets: such a permission would apply to all Secrets of the namespace.

    Args:
        api: The cluster.
        part: The object, without its owner.
        owner: ownerReference to the job.

    Raises:
        ClusterError: The API server refused a request, or an object of this name has another owner or content.
    """
    path = path_of(part, api.namespace)
    owned = {**part, "metadata": {**part["metadata"], "ownerReferences": [owner]}}
    for is_last in (False, True):
        if part["kind"] == "Secret":
            delete(api, path)
        elif existing := await_removal(api, path, owner["uid"]):
            _refuse_other_content(api, path, differing_keys(part, existing))
            return
        try:
            create(api, path.rpartition("/")[0], owned)
            return
        except ClusterError as error:
            # The object was created by a request whose response was lost, or by another attempt of this step.
            if is_last or error.status != 409:
                raise


def _refuse_other_content(api: ClusterApi, path: str, keys: list[str]) -> None:
    if keys:
        resource, name = path.split("/")[-2:]
        raise ClusterError(
            409,
            f"{resource} {api.namespace}/{name} of this job exists with other content than this step creates: "
            f"{', '.join(keys)}; somebody has replaced it. Delete it and run the step again: "
            + removal_command(api, path),
        )


def await_removal(api: ClusterApi, path: str, owner_uid: str = "") -> Object | None:
    """Wait until Kubernetes has deleted an object whose owner was deleted.

    Args:
        api: The cluster.
        path: Path of the object.
        owner_uid: UID of the owner whose object is kept. Default: none.

    Returns:
        The object of `owner_uid`; None if there is none.

    Raises:
        ClusterError: The object has no owner or another one, and is not deleted in time.
    """
    deadline, pause = time.monotonic() + GONE_SECONDS, 0.2
    while existing := api.read(path):
        owners = [owner["uid"] for owner in existing["metadata"].get("ownerReferences", ())]
        if owner_uid in owners:
            return existing
        # Kubernetes never deletes an object without an owner.
        if not owners or time.monotonic() > deadline:
            resource, name = path.split("/")[-2:]
            text = f"{resource} {api.namespace}/{name} exists and belongs to another owner; if it is not needed: "
            raise ClusterError(409, text + removal_command(api, path))
        # Not awaited by a watch: the step may read a ConfigMap, but `watch` would show it those of the whole namespace.
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
    return None
