"""Finds and opens the object store of a namespace's pipelines from this machine, with the keys of its Secret."""

import os
import shlex
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import click

from kfp_distributed.cli.cluster_checks.checks import Refusal
from kfp_distributed.cli.cluster_checks.store_checks import way_to_reach
from kfp_distributed.cli.options import endpoint_from_here, variable_of_endpoint
from kfp_distributed.cluster_api.client import ClusterApi, ClusterError
from kfp_distributed.cluster_api.configuration import connect
from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.cluster_api.port_forward import forwarded_port
from kfp_distributed.cluster_api.reader import Read, reader
from kfp_distributed.storage.kubeflow.credentials import Credentials
from kfp_distributed.storage.kubeflow.kfp_backend import DEFAULT_PIPELINE_ROOT, LAUNCHER_CONFIG_MAP, PIPELINE_ROOT_KEY
from kfp_distributed.storage.kubeflow.kfp_store import (
    SECRET_VARIABLE,
    StoreReference,
    choose_object_store,
    read_credentials,
)
from kfp_distributed.storage.object_stores.buckets import service_of
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store
from kfp_distributed.storage.uri import is_minio, parse_uri

_REACH_SECONDS = 3.0


class StoreNotReached(Exception):
    """The store does not answer at its address, and the API server does not forward a port to it."""


class Reached(NamedTuple):
    """An address at which this machine reaches a store.

    Attributes:
        endpoint: "host" or "host:port".
        secure: Whether it uses TLS.
        is_forwarded: Whether the API server forwards a port of this machine.
    """

    endpoint: str
    secure: bool
    is_forwarded: bool = False


@contextmanager
def pipeline_store(api: ClusterApi, bucket: str, command: str) -> Iterator[tuple[Store, Credentials]]:
    """Open the store of a namespace's pipelines for the block.

    If this machine does not reach it and it is a Service of the cluster, the API server forwards a port, which a line
    says.

    Args:
        api: The cluster.
        bucket: URI in the store; "" for the pipeline root of the namespace.
        command: Command line for the advice.

    Yields:
        The store, opened at the URI, and its credentials.

    Raises:
        StoreNotReached: The store does not answer. The text says what to do.
        ValueError: The store or its keys are not known, or may not be read.
        ClusterError: The API server does not answer.
    """
    read = reader(api)
    uri, reference = find_store(read, api.namespace, bucket)
    if isinstance(reference, Refusal):
        raise ValueError(str(reference))  # noqa: TRY004 - it is a fact about the cluster
    named = endpoint_from_here(os.environ)
    with ExitStack() as stack:
        try:
            reached = stack.enter_context(reach_store(api, reference, named))
        except StoreNotReached as error:
            by = f" at {variable_of_endpoint(os.environ)}" if named else ""
            advice = "correct or unset it" if named else way_to_reach(reference, command)
            raise StoreNotReached(f"{uri} cannot be reached from this machine{by}: {error}; {advice}") from None
        if reached.is_forwarded:
            click.echo(f"Reaching {reference.endpoint} by a port-forward through the API server.", err=True)
        credentials = store_credentials(read, reference, (reached.endpoint, reached.secure))
        yield open_store(uri, credentials, retry_seconds=_REACH_SECONDS), credentials


@contextmanager
def credentials_for(uri: str, namespace: str, command: str) -> Iterator[Credentials | None]:
    """Yield the credentials of the pipelines' store for a block; None if those of the environment serve an address.

    Those of the environment serve a local folder, and every address if the environment has keys, names their Secret, or
    is that of a pod. Keys without an address are those of AWS, and do not serve minio://.

    Args:
        uri: The address.
        namespace: Namespace of the pipelines; "" for that of the configuration.
        command: Command line for the advice.

    Raises:
        StoreNotReached: The store does not answer.
        ValueError: There is no configuration of a cluster, or the store or its keys are not known.
        ClusterError: The API server does not answer.
    """
    if parse_uri(uri).scheme == "file" or (not namespace and _has_keys(os.environ, uri)):
        yield None
        return
    try:
        api = connect(namespace)
    except ValueError as error:
        raise ValueError(f"the environment has no keys of the store of {uri}, and {error}") from None
    # With an address, keys of AWS in the environment would be used.
    again = command if namespace else f"{command} --namespace {api.namespace}"
    with pipeline_store(api, uri, again) as (_, credentials):
        yield credentials


def _has_keys(variables: Mapping[str, str], uri: str) -> bool:
    of_store = endpoint_from_here(variables) or not is_minio(uri)
    keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY") if of_store else ()
    return any(variables.get(name) for name in (*keys, SECRET_VARIABLE, "KUBERNETES_SERVICE_HOST"))


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


@contextmanager
def reach_store(api: ClusterApi, store: StoreReference, named: tuple[str, bool] | None) -> Iterator[Reached]:
    """Yield an address at which this machine reaches a store during the block.

    Args:
        api: The cluster.
        store: The store.
        named: Address that the user names, as "host:port" and whether it uses TLS; None for that of the store, or a
            forwarded port.

    Raises:
        StoreNotReached: Nothing listens at the address, and no port can be forwarded. The text says why.
    """
    reached = Reached(*(named or (store.endpoint, store.secure)))
    service = None if named else service_of(store.endpoint, store.secure)
    with ExitStack() as stack:
        try:
            _connect(reached)
        except (OSError, ValueError) as error:
            if not service:
                raise StoreNotReached(str(error)) from None
            try:
                port = stack.enter_context(forwarded_port(api, *service))
            except ClusterError as refusal:
                raise StoreNotReached(f"{error}; {refusal}") from None
            reached = Reached(f"127.0.0.1:{port}", False, True)
        yield reached


def _connect(address: Reached) -> None:
    """Check that something listens at an address.

    Raises:
        OSError: Nothing listens there.
        ValueError: The address is not valid.
    """
    parts = urlsplit(f"//{address.endpoint}")
    port = parts.port or (443 if address.secure else 80)
    socket.create_connection((parts.hostname, port), timeout=_REACH_SECONDS).close()


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
