"""Connect to another cluster than the step's own, with the address and account of a Secret."""

import base64
import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import quote

from kfp_distributed.cluster_api.client import ClusterApi, ClusterError
from kfp_distributed.cluster_api.reader import Read
from kfp_distributed.components.train.run.facts import Log
from kfp_distributed.components.train.run.runners.kubernetes.connect.remote_token import RenewableToken

_HOST = r"://(\[[\da-fA-F:.]+\]|[\w.-]+)(:\d{1,5})?"
# Pattern and description of each key, in the order of the fields of RemoteCluster.
_KEYS = {
    "host": (rf"https{_HOST}(/[\w./-]*)?", "https://HOST:PORT of the API server"),
    "token": (r"[!-~]+", "the token of an account of that cluster"),
    "namespace": (r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "the namespace of the jobs in that cluster"),
    "ca.crt": (r"(?s).*-----BEGIN CERTIFICATE-----.*", "CA certificates in PEM format"),
    "object_store_endpoint": (rf"https?{_HOST}/?", "http(s)://HOST:PORT of the object store as seen by the pods"),
    "object_store_access_key": (r"[!-~]+", "the access key of the object store"),
    "object_store_secret_key": (r"[!-~]+", "the secret key of the object store"),
}


@dataclass(frozen=True)
class RemoteCluster:
    """Address and account of a cluster, and the object store of its pods. `repr()` contains no secrets.

    Attributes:
        host: URL of the API server.
        token: Token of the account.
        namespace: Namespace of the jobs.
        authority: CA certificates in PEM format; "" for the public ones.
        endpoint: URL of the object store for the pods; "" if pods use the object store of that cluster.
        access_key: Access key of the object store; "" without an endpoint.
        secret_key: Secret key of the object store; "" without an endpoint.
    """

    host: str
    token: str = field(repr=False)
    namespace: str
    authority: str
    endpoint: str
    access_key: str
    secret_key: str = field(repr=False)


def parse_remote_cluster(secret: str, data: Mapping[str, str]) -> RemoteCluster:
    """Parse the data of a Secret. Error messages contain no values.

    Args:
        secret: "namespace/name" of the Secret, for error messages.
        data: Data of the Secret, encoded in base64.

    Raises:
        ValueError: A key is missing, malformed or unknown.
    """
    if unknown := sorted({*data} - {*_KEYS}):
        raise ValueError(f"the Secret {secret} has unknown keys {unknown}; allowed keys: {', '.join(_KEYS)}")
    store_keys = {key for key in _KEYS if key.startswith("object_store")}
    # Either all three keys of the object store are set or none.
    optional = {"ca.crt"} if store_keys & {*data} else {"ca.crt", *store_keys}
    return RemoteCluster(*("" if key in optional - {*data} else _value(secret, key, data.get(key)) for key in _KEYS))


def _value(secret: str, key: str, encoded: str | None) -> str:
    pattern, description = _KEYS[key]
    with suppress(ValueError, OSError):
        value = base64.b64decode(encoded or "").decode("ascii").strip()
        if re.fullmatch(pattern, value):
            if key == "ca.crt":
                ssl.create_default_context(cadata=value)
            return value
    state = "missing" if encoded is None else "malformed"
    raise ValueError(f"the key {key} of the Secret {secret} is {state}: it must be {description}")


def open_remote_cluster(
    read: Read, namespace: str, name: str, log: Log
) -> tuple[RemoteCluster, ClusterApi, RenewableToken]:
    """Read the Secret of a cluster and connect to the cluster. Its certificate is always verified.

    When the API server of the cluster refuses the token, the client reads the Secret again and uses its new token.

    Args:
        read: Reads an object from the API of the step's own cluster.
        namespace: Namespace of the Secret.
        name: Name of the Secret.
        log: Receives a line of the step's log.

    Raises:
        ValueError: The Secret does not exist or is invalid, its token has expired, or the cluster refuses the
            connection.
        ClusterError: The API server of the step's own cluster does not answer.
    """
    secret = f"{namespace}/{name}"

    def read_cluster() -> RemoteCluster:
        secret_object = read(f"/api/v1/namespaces/{namespace}/secrets/{quote(name, safe='')}")
        if secret_object is None:
            raise ValueError(f"cluster_configuration_secret = {name!r}: there is no Secret {secret}")
        return parse_remote_cluster(secret, secret_object.get("data") or {})

    cluster = read_cluster()

    def read_token() -> str:
        renewed = read_cluster()
        if renewed.host != cluster.host:
            # A server must not get the token of another one.
            raise ValueError(f"its host is {renewed.host} now, and this step uses {cluster.host}")
        return renewed.token

    token = RenewableToken(secret, cluster.token, read_token, log)
    if fault := token.fault():
        raise ValueError(fault)
    api = _connect(cluster, token)
    try:
        api.call("GET", "/version")
    except ClusterError as error:
        keys = "token" if error.status == 401 else "host and ca.crt"
        raise ValueError(f"cannot connect to the cluster of the Secret {secret}, check its {keys}: {error}") from None
    log("INFO", f"connected to namespace {cluster.namespace} of {cluster.host}")
    return cluster, api, token


def _connect(cluster: RemoteCluster, token: RenewableToken) -> ClusterApi:
    # Imported here, because importing the package takes half a second and a local run does not need it.
    from kubernetes import client, config

    configuration = client.Configuration()
    server = {"server": cluster.host}
    if cluster.authority:
        server["certificate-authority-data"] = base64.b64encode(cluster.authority.encode()).decode()
    name = "remote"
    kubeconfig = {
        "clusters": [{"name": name, "cluster": server}],
        "users": [{"name": name, "user": {"token": cluster.token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    config.load_kube_config_from_dict(kubeconfig, client_configuration=configuration)

    def set_token(configuration: client.Configuration) -> None:
        configuration.api_key["authorization"] = f"Bearer {token.current}"

    # Called before each request. It replaces the hook of the kubeconfig, which would set the first token.
    configuration.refresh_api_key_hook = set_token
    return ClusterApi(configuration, cluster.namespace, token.renew)
