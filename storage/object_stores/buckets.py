"""Check that the bucket of a parameter exists, before a step creates anything."""

import os
import shlex

from kfp_distributed.storage.store import Store
from kfp_distributed.storage.uri import parse_endpoint

EMBEDDED_STORE_VARIABLE = "KFP_DISTRIBUTED_EMBEDDED_STORE"
"""Variable that `local_run` sets if the store is its own S3 server, whose buckets are folders of the run."""


def require_bucket(store: Store, parameter: str, value: str) -> None:
    """Check that the store's bucket exists. A step creates no bucket, because a missing one is usually a typo.

    Two things are created: a local folder, and a bucket of the S3 server that `local_run` starts.

    Args:
        store: The store.
        parameter: Name of the parameter that names the bucket, for the error.
        value: Its value, for the error.

    Raises:
        ValueError: The bucket does not exist.
        StorageError: The server refuses the request or does not answer.
    """
    if not store.bucket or os.environ.get(EMBEDDED_STORE_VARIABLE):
        store.make_bucket()
    elif not store.bucket_exists():
        forward, url = port_forward(*parse_endpoint(store.endpoint))
        outside = f". Outside of the cluster, run {forward} before, and use {url}" if forward else ""
        raise ValueError(
            f"{parameter}={value!r} names the bucket {store.bucket!r}, which does not exist on {store.endpoint}: "
            f"correct the name, or create the bucket with {creation_command(store.bucket, store.endpoint)} "
            f"or mc mb ALIAS/{store.bucket}{outside}"
        )


def creation_command(bucket: str, endpoint: str) -> str:
    """Return the command that creates a bucket.

    Args:
        bucket: Name of the bucket.
        endpoint: URL of the S3 server.
    """
    return f"aws s3 mb {shlex.quote(f's3://{bucket}')} --endpoint-url {endpoint}"


def service_of(endpoint: str, secure: bool) -> tuple[str, str, int] | None:
    """Return the namespace, name and port of the Service that an address names, such as seaweedfs.kubeflow:9000.

    Args:
        endpoint: "host" or "host:port".
        secure: Whether the store uses TLS. Its certificate does not name localhost, so that no port can be forwarded.

    Returns:
        None if the host is no Service, or the store uses TLS.
    """
    host, _, port = endpoint.partition(":")
    service, _, namespace = host.removesuffix(".cluster.local").removesuffix(".svc").partition(".")
    return None if secure or not namespace or "." in namespace else (namespace, service, int(port or 80))


def port_forward(endpoint: str, secure: bool) -> tuple[str, str]:
    """Return the command that forwards a port of this machine to a store in the cluster, and its URL here.

    Returns:
        "" and "" if `service_of` names no Service.
    """
    found = service_of(endpoint, secure)
    if not found:
        return "", ""
    namespace, service, port = found
    # Only root may listen at a port below 1024.
    local_port = port if port > 1023 else 9000 + port
    ports = port if local_port == port else f"{local_port}:{port}"
    command = f"kubectl port-forward --namespace {namespace} service/{service} {ports}"
    return command, f"http://localhost:{local_port}"
