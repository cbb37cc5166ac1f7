"""What this library uses of the Kubernetes client without its promise, with the reason, the versions and the tests.

The client documents its classes for each kind of object. tests/train/test_kubernetes_internals.py fails when a
use is no longer needed.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from urllib3 import PoolManager

if TYPE_CHECKING:
    from kubernetes import client

SocketOption = tuple[int, int, int | bytes]


def connections(api_client: "client.ApiClient") -> PoolManager:
    """Return the connections of a client, by which requests are sent as they are.

    The documented `ApiClient.call_api` raises an exception instead of returning a response with an error status:
    https://github.com/kubernetes-client/python/blob/v30.1.0/kubernetes/client/rest.py. Needed by
    all versions.
    """
    pool: PoolManager = api_client.rest_client.pool_manager
    return pool


def set_socket_options(api_client: "client.ApiClient", options: Sequence[SocketOption]) -> None:
    """Set the options of the sockets that a client will open.

    Needed by versions whose `Configuration` has no `socket_options`, such as 29 and 30:
    https://github.com/kubernetes-client/python/issues/2067.
    """
    connections(api_client).connection_pool_kw["socket_options"] = list(options)


def configured_users() -> list[str]:
    """Return the names of the users of the files in KUBECONFIG, merged as the client merges them.

    `kubernetes.config` lists contexts, but no users:
    https://github.com/kubernetes-client/python/blob/v30.1.0/kubernetes/config/__init__.py. Needed by all versions.
    """
    from kubernetes.config import kube_config

    merged = kube_config.KubeConfigMerger(kube_config.KUBE_CONFIG_DEFAULT_LOCATION).config.value
    return [user["name"] for user in merged["users"]]
