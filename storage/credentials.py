"""How an object store is reached and who asks."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kfp_distributed.storage.kfp_store import (
    KFP_NAMESPACE,
    OWN_NAMESPACE,
    SECRET_VARIABLE,
    WHAT_TO_SET,
    choose_object_store,
    kubernetes_reader,
    read_keys,
)
from kfp_distributed.storage.uri import parse_endpoint


@dataclass(frozen=True)
class Credentials:
    """One object store and one account of it. Its text form shows no secret.

    Attributes:
        endpoint: "host" or "host:port".
        access_key: The account's public name.
        secret_key: Its secret.
        session_token: For temporary credentials.
        region: The bucket's region; empty for servers that have none, and for AWS to be asked for.
        secure: Whether to use TLS.
        ca_bundle: A PEM file with the certificates to trust instead of the public ones.
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
            raise ValueError(f"AWS_CA_BUNDLE = {self.ca_bundle!r}: there is no such file")


def credentials_from_environment(env: Mapping[str, str] | None = None, uri: str = "") -> Credentials:
    """Read credentials from the variables that AWS's tools use too, or from a Secret of the Kubernetes cluster.

    Args:
        env: The variables, by default this process's own: AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID,
            AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION or AWS_DEFAULT_REGION, AWS_CA_BUNDLE. Without keys,
            the Secret that KFP_DISTRIBUTED_OBJECT_STORE_SECRET names is read; without that, in a pod, the one that
            Kubeflow Pipelines uses. Without an endpoint it is AWS itself for keys of the environment, for a Secret's
            the object store of Kubeflow Pipelines.
        uri: The address that the credentials are for; Kubeflow Pipelines may use several stores.

    Raises:
        ValueError: There are no keys, half of them, or a wrong endpoint; the Secret cannot be found or read.
    """
    get = (os.environ if env is None else env).get
    url = get("AWS_ENDPOINT_URL_S3") or get("AWS_ENDPOINT_URL")
    host, secure = parse_endpoint(url or "s3.amazonaws.com")
    region, token = get("AWS_REGION") or get("AWS_DEFAULT_REGION") or "", get("AWS_SESSION_TOKEN") or ""
    access_key, secret_key = get("AWS_ACCESS_KEY_ID"), get("AWS_SECRET_ACCESS_KEY")
    secret = get(SECRET_VARIABLE)
    if not access_key and not secret_key and (secret or get("KUBERNETES_SERVICE_HOST")):
        read = kubernetes_reader()
        namespace, _, name = (secret or "").rpartition("/")
        namespace = namespace or (OWN_NAMESPACE.read_text().strip() if OWN_NAMESPACE.exists() else KFP_NAMESPACE)
        reference = choose_object_store(get, read, namespace, name, uri)
        access_key, secret_key = read_keys(read, reference)
        token, region = "", region or reference.region
        if not url:
            host, secure = reference.endpoint, reference.secure
    if not access_key or not secret_key:
        raise ValueError(f"no keys for the object store: {WHAT_TO_SET}")
    return Credentials(host, access_key, secret_key, token, region, secure, get("AWS_CA_BUNDLE") or "")
