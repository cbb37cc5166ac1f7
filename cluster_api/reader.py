"""Reads objects of a cluster, and tells a refused read from an object that does not exist."""

from collections.abc import Callable

from kfp_distributed.cluster_api.client import AWAY_SECONDS, ClusterApi, ClusterError
from kfp_distributed.cluster_api.objects import Object

Read = Callable[[str], Object | None]
"""Returns the object at a path of the Kubernetes API, or None if it does not exist.

Raises MayNotRead if the account may not read it, and ClusterError if the API server does not answer."""


class MayNotRead(ValueError):
    """The account may not read an object of the Kubernetes API."""


def _error_text(path: str, error: ClusterError) -> str:
    return str(error)


def reader(
    api: ClusterApi,
    explain: Callable[[str, ClusterError], str] = _error_text,
    away_seconds: float = AWAY_SECONDS,
) -> Read:
    """Return a function that reads objects of a cluster.

    Args:
        api: The cluster.
        explain: Returns the text of the error that is raised, for the path and the error of the request. Default: that
            of the request.
        away_seconds: Seconds during which a request is retried. Default: 60.
    """

    def read(path: str) -> Object | None:
        try:
            return api.read(path, away_seconds)
        except ClusterError as error:
            text = explain(path, error)
            raise (MayNotRead(text) if error.status == 403 else ClusterError(error.status, text)) from None

    return read
