"""Wait until objects are gone, by a watch that may break."""

import math
import time
from collections.abc import Iterator, Mapping

from kfp_distributed.cluster_api.client import TRANSIENT, WATCH_SECONDS, ClusterApi, ClusterError
from kfp_distributed.cluster_api.objects import Object

_BREAK_SECONDS = 0.2
"""Seconds to wait after a watch broke before the objects are listed again."""

_LONGEST_DELAY = 5.0


def until_gone(api: ClusterApi, path: str, query: Mapping[str, str], seconds: float) -> Iterator[dict[str, Object]]:
    """Yield the objects of a collection, by UID, first and after each change, until none exists or time runs out.

    The objects are listed and then watched. They are listed again after a watch broke or expired.

    Args:
        api: The cluster.
        path: Path of the collection.
        query: Selectors.
        seconds: Maximum seconds to wait. The last objects are not empty if some still exist then.

    Raises:
        ClusterError: A request was refused, or the API server does not respond.
    """
    deadline, version, objects = time.monotonic() + seconds, "", dict[str, Object]()
    delay = _BREAK_SECONDS
    while True:
        if not version:
            items, version = api.list_objects(path, query)
            objects = {item["metadata"]["uid"]: item for item in items}
            yield {**objects}
        remaining = deadline - time.monotonic()
        if not objects or remaining <= 0:
            return
        try:
            for event in api.watch(path, query, version, math.ceil(min(remaining, WATCH_SECONDS))):
                version, delay = event.version, _BREAK_SECONDS
                if event.change == "DELETED":
                    objects.pop(event.object["metadata"]["uid"], None)
                elif event.change != "BOOKMARK":
                    objects[event.object["metadata"]["uid"]] = event.object
                yield {**objects}
                if not objects or time.monotonic() > deadline:
                    return
        except ClusterError as error:
            if error.status not in (0, 410, *TRANSIENT):
                raise
            version = ""
        # A proxy may end each watch at once, also without an error.
        time.sleep(delay)
        delay = min(2 * delay, _LONGEST_DELAY)


def await_gone(api: ClusterApi, path: str, uid: str, seconds: float) -> bool:
    """Wait until an object is gone. Another object of its name may exist then.

    Args:
        api: The cluster.
        path: Path of the object.
        uid: UID of the object.
        seconds: Maximum seconds to wait.

    Returns:
        Whether it is gone.

    Raises:
        ClusterError: A request was refused, or the API server does not respond.
    """
    collection, _, name = path.rpartition("/")
    for objects in until_gone(api, collection, {"fieldSelector": f"metadata.name={name}"}, seconds):
        if uid not in objects:
            return True
    return False
