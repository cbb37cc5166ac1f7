"""Credentials of an object store, read from the environment or from a Kubernetes Secret."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.cluster_api.configuration import OWN_NAMESPACE, connect
from kfp_distributed.cluster_api.reader import reader
from kfp_distributed.storage.kubeflow.kfp_backend import KFP_NAMESPACE
from kfp_distributed.storage.kubeflow.kfp_store import (
    KEYS_TO_SET,
    SECRET_VARIABLE,
    WHAT_TO_SET,
    StoreReference,
    choose_object_store,
    read_credentials,
)
from kfp_distributed.storage.uri import is_minio, parse_endpoint

AWAY_SECONDS = 5.0
"""Seconds to wait for an API server that does not answer. On a user's machine, somebody waits for the error."""


@dataclass(frozen=True)
class Credentials:
    """The address of an object store, and an account. Its `repr` contains no secret.

    Attributes:
        endpoint: "host" or "host:port".
        access_key: ID of the access key.
        secret_key: The secret key.
        session_token: Session token of temporary credentials.
        region: The bucket's region. Empty for servers without regions, and to ask AWS for it.
        secure: Whether to use TLS. Default: True.
        ca_bundle: A PEM file with the certificate authorities to trust. Default: those of certifi.
    """

    endpoint: str
    access_key: str
    secret_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)
    region: str = ""
    secure: bool = True
    ca_bundle: str = ""

    def __post_init__(self) -> None:
        if self.ca_bundle and not Path(self.ca_bundle).is_file():
            raise ValueError(f"AWS_CA_BUNDLE = {self.ca_bundle!r}: the file does not exist. Set it to a PEM file")


def credentials_from_environment(env: Mapping[str, str] | None = None, uri: str = "") -> Credentials:
    """Read credentials from the environment variables of the AWS tools, or from a Kubernetes Secret.

    The keys come from the first source that exists:

    1. AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. The default endpoint is AWS.
    2. The Secret named by KFP_DISTRIBUTED_OBJECT_STORE_SECRET. The default endpoint is the store of Kubeflow Pipelines.
    3. In a pod, the Secret that Kubeflow Pipelines uses for `uri`, with its endpoint.

    AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL replaces the endpoint. Without it, the first source does not serve minio://.
    AWS_REGION or AWS_DEFAULT_REGION sets the region, AWS_SESSION_TOKEN the session token of the first source,
    AWS_CA_BUNDLE the certificate authorities.

    Args:
        env: The environment variables. Default: those of this process.
        uri: Address of the objects. Kubeflow Pipelines may use several stores.

    Raises:
        ValueError: A key is missing, the endpoint is not valid, or the Secret does not exist or cannot be read.
    """
    get = (os.environ if env is None else env).get
    url = get("AWS_ENDPOINT_URL_S3") or get("AWS_ENDPOINT_URL")
    host, secure = parse_endpoint(url or "s3.amazonaws.com")
    region, token = get("AWS_REGION") or get("AWS_DEFAULT_REGION") or "", get("AWS_SESSION_TOKEN") or ""
    keys = {name: get(name) or "" for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    are_of_aws = is_minio(uri) and not url and any(keys.values())
    access_key, secret_key = ("", "") if are_of_aws else keys.values()
    secret = get(SECRET_VARIABLE)
    if not access_key and not secret_key and (secret or get("KUBERNETES_SERVICE_HOST")):
        reference, (access_key, secret_key) = _store_of_cluster(get, secret or "", uri)
        token, region = "", region or reference.region
        if not url:
            host, secure = reference.endpoint, reference.secure
    elif not access_key or not secret_key:
        lacking = " and ".join(name for name, value in keys.items() if not value)
        reason = f"the environment lacks {lacking}"
        # One key alone takes precedence over a Secret.
        advice = KEYS_TO_SET if access_key or secret_key else WHAT_TO_SET
        if are_of_aws:
            reason = "keys without AWS_ENDPOINT_URL are those of AWS, which has no minio:// addresses"
        raise ValueError(f"no credentials for the object store, because {reason}: {advice}")
    return Credentials(host, access_key, secret_key, token, region, secure, get("AWS_CA_BUNDLE") or "")


def _store_of_cluster(get: Callable[[str], str | None], secret: str, uri: str) -> tuple[StoreReference, list[str]]:
    """Return the store of an address, and the access key and secret key of its Secret.

    Args:
        get: Returns an environment variable.
        secret: "name" or "namespace/name" of the Secret; "" for that of Kubeflow Pipelines.
        uri: Address in the store.

    Raises:
        ValueError: The cluster does not answer, the Secret does not exist or cannot be read, or there is no client.
    """
    try:
        read = reader(connect(), _explain, AWAY_SECONDS)
    except ModuleNotFoundError as error:
        if error.name != "kubernetes":
            raise
        # A replica in a stock image gets keys in its environment.
        reason = f"the environment has no keys: {KEYS_TO_SET}"
        if secret:
            reason = (
                f"the Secret {secret}, which {SECRET_VARIABLE} names, cannot be read without the Python package "
                f"kubernetes: install it, or {KEYS_TO_SET}"
            )
        raise ValueError(f"no credentials for the object store, because {reason}") from None
    except ValueError as error:
        # Without a cluster no Secret can be read.
        raise ValueError(f"{error}; or {KEYS_TO_SET}") from None
    namespace, _, name = secret.rpartition("/")
    namespace = namespace or (OWN_NAMESPACE.read_text().strip() if OWN_NAMESPACE.exists() else KFP_NAMESPACE)
    try:
        reference = choose_object_store(get, read, namespace, name, uri)
        return reference, read_credentials(read, reference)
    except ClusterError as error:
        raise ValueError(str(error)) from None


def _explain(path: str, error: ClusterError) -> str:
    # Where the API server does not answer, no other Secret can be read either.
    may_not = error.status == 403
    advice = f"Allow this account to get it, or {WHAT_TO_SET}" if may_not else f"Check the API server, or {KEYS_TO_SET}"
    return f"cannot read {path} from the Kubernetes API: {error}. {advice}"
