"""Finds and opens the object store of a namespace's pipelines from this machine, with the keys of its Secret."""

import os
import shlex
import socket
from urllib.parse import urlsplit

from kfp_distributed.cli.checks import Refusal
from kfp_distributed.cli.options import endpoint_from_here
from kfp_distributed.cli.store_checks import forward_command
from kfp_distributed.cluster_api.client import ClusterApi
from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.cluster_api.reader import Read, reader
from kfp_distributed.storage.credentials import Credentials
from kfp_distributed.storage.kfp_backend import DEFAULT_PIPELINE_ROOT, LAUNCHER_CONFIG_MAP, PIPELINE_ROOT_KEY
from kfp_distributed.storage.kfp_store import (
    SECRET_VARIABLE,
    StoreReference,
    choose_object_store,
    read_credentials,
)
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store

_REACH_SECONDS = 3.0


class StoreNotReached(Exception):
    """The store does not answer at its address. The text says how to reach it from this machine."""


def open_pipeline_store(api: ClusterApi, bucket: str, command: str) -> tuple[Store, Credentials]:
    """Open the pipeline root of a namespace.

    Args:
        api: The cluster.
        bucket: URI of the pipeline root; "" for that of the namespace.
        command: Command line for the advice.

    Returns:
        The store, opened at the root, and its credentials.

    Raises:
        StoreNotReached: The store does not answer.
        ValueError: The store or its keys are not known, or may not be read.
        ClusterError: The API server does not answer.
    """
    read = reader(api)
    uri, reference = find_store(read, api.namespace, bucket)
    if isinstance(reference, Refusal):
        raise ValueError(str(reference))  # noqa: TRY004 - it is a fact about the cluster
    endpoint = endpoint_from_here(os.environ) or (reference.endpoint, reference.secure)
    try:
        reach(*endpoint)
    except (OSError, ValueError) as error:
        advice = forward_command(reference, command)
        raise StoreNotReached(f"{uri} cannot be reached from this machine: {error}; {advice}") from None
    credentials = store_credentials(read, reference, endpoint)
    return open_store(uri, credentials, retry_seconds=_REACH_SECONDS), credentials


def bucket_words(bucket: str) -> str:
    """Return the option of a command line, with a blank before it; "" for the pipeline root of the namespace."""
    return f" --bucket {shlex.quote(bucket)}" if bucket else ""


def find_store(read: Read, namespace: str, bucket: str) -> tuple[str, StoreReference | Refusal]:
    """Return the URI of the pipeline root of a namespace, and its object store.

    The Secret of the store need not exist.

    Args:
        read: Reads an object of the Kubernetes API.
        namespace: The namespace.
        bucket: URI of the pipeline root; "" for that of the namespace.
    """
    uri = bucket or DEFAULT_PIPELINE_ROOT
    try:
        launcher = (read(f"/api/v1/namespaces/{namespace}/configmaps/{LAUNCHER_CONFIG_MAP}") or {}).get("data") or {}
        uri = bucket or launcher.get(PIPELINE_ROOT_KEY) or uri
        secret = os.environ.get(SECRET_VARIABLE, "").rpartition("/")[2]

        def read_without_secrets(path: str) -> Object | None:
            return {} if "/secrets/" in path else read(path)

        return uri, choose_object_store(os.environ.get, read_without_secrets, namespace, secret, uri)
    except ValueError as error:
        return uri, Refusal(error)


def reach(endpoint: str, secure: bool) -> None:
    """Check that something listens at an address.

    Args:
        endpoint: "host" or "host:port".
        secure: Whether the store uses TLS.

    Raises:
        OSError: Nothing listens there.
        ValueError: The address is not valid.
    """
    address = urlsplit(f"//{endpoint}")
    port = address.port or (443 if secure else 80)
    socket.create_connection((address.hostname, port), timeout=_REACH_SECONDS).close()


def store_credentials(read: Read, store: StoreReference, endpoint: tuple[str, bool]) -> Credentials:
    """Return the keys of a store's Secret, with an address.

    Args:
        read: Reads an object of the Kubernetes API.
        store: The store.
        endpoint: The address as host:port, and whether it uses TLS.

    Raises:
        ValueError: The Secret does not exist, cannot be read, or lacks a field.
    """
    access, secret = read_credentials(read, store)
    bundle = os.environ.get("AWS_CA_BUNDLE", "")
    return Credentials(endpoint[0], access, secret, region=store.region, secure=endpoint[1], ca_bundle=bundle)
