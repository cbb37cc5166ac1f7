"""Another cluster than the step's own: where it is, and who we are there, as a Secret tells."""

import base64
import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import quote

from kfp_distributed.components.train.log_format import log
from kfp_distributed.components.train.runners.kubernetes.cluster_api import ClusterApi
from kfp_distributed.components.train.runners.protocol import ClusterError
from kfp_distributed.storage.kfp_store import Read

_HOST = r"://(\[[\da-fA-F:.]+\]|[\w.-]+)(:\d{1,5})?"
# In the order of RemoteCluster's fields: what a value must match, and what it is.
_KEYS = {
    "host": (rf"https{_HOST}(/[\w./-]*)?", "https://HOST:PORT of the API server"),
    "token": (r"[!-~]+", "the token of an account there"),
    "namespace": (r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "the namespace there that jobs run in"),
    "ca.crt": (r"(?s).*-----BEGIN CERTIFICATE-----.*", "the certificates to trust, as PEM"),
    "object_store_endpoint": (rf"https?{_HOST}/?", "http(s)://HOST:PORT by which pods there reach the object store"),
    "object_store_access_key": (r"[!-~]+", "the object store's access key"),
    "object_store_secret_key": (r"[!-~]+", "the object store's secret key"),
}


@dataclass(frozen=True)
class RemoteCluster:
    """A cluster, an account there, and how its pods reach the object store. Its text form shows no secret.

    Attributes:
        host: URL of the API server.
        token: The account's.
        namespace: Where jobs run.
        authority: The certificates to trust, as PEM; "" means the public ones.
        endpoint: URL of the object store for the pods; "" means that it is found there as in any cluster.
        access_key: The object store's access key; "" without an endpoint.
        secret_key: Its secret key, likewise.
    """

    host: str
    token: str = field(repr=False)
    namespace: str
    authority: str
    endpoint: str
    access_key: str
    secret_key: str = field(repr=False)


def parse_remote_cluster(secret: str, data: Mapping[str, str]) -> RemoteCluster:
    """Reads what a Secret says of a cluster. No error repeats a value.

    Args:
        secret: "namespace/name", for errors.
        data: Its fields as the API server has them, in base64.

    Raises:
        ValueError: A key is missing, malformed or unknown.
    """
    if unknown := sorted({*data} - {*_KEYS}):
        raise ValueError(f"the Secret {secret} has unknown keys {unknown}: allowed are {', '.join(_KEYS)}")
    store = {key for key in _KEYS if key.startswith("object_store")}
    # All three or none.
    optional = {"ca.crt"} if store & {*data} else {"ca.crt", *store}
    return RemoteCluster(*("" if key in optional - {*data} else _value(secret, key, data.get(key)) for key in _KEYS))


def _value(secret: str, key: str, encoded: str | None) -> str:
    pattern, meaning = _KEYS[key]
    with suppress(ValueError, OSError):
        value = base64.b64decode(encoded or "").decode("ascii").strip()
        if re.fullmatch(pattern, value):
            if key == "ca.crt":
                ssl.create_default_context(cadata=value)
            return value
    state = "missing" if encoded is None else "malformed"
    raise ValueError(f"the key {key} of the Secret {secret} is {state}: it must be {meaning}")


def open_remote_cluster(read: Read, namespace: str, name: str) -> tuple[RemoteCluster, ClusterApi]:
    """Reads the Secret of a cluster and connects to it. Its certificate is always verified.

    Args:
        read: Reads the API of the step's own cluster.
        namespace: Where the Secret is.
        name: Its name.

    Raises:
        ValueError: There is no such Secret, it is wrong, or the cluster does not answer to it.
    """
    secret = f"{namespace}/{name}"
    found = read(f"/api/v1/namespaces/{namespace}/secrets/{quote(name, safe='')}")
    if found is None:
        raise ValueError(f"cluster_configuration_secret = {name!r}: there is no Secret {secret}")
    cluster = parse_remote_cluster(secret, found.get("data") or {})
    api = _connect(cluster)
    try:
        api.call("GET", "/version")
    except ClusterError as error:
        keys = "token" if error.status == 401 else "host and ca.crt"
        raise ValueError(f"the cluster of the Secret {secret} is not to be used, see its {keys}: {error}") from None
    log("INFO", f"the job runs in namespace {cluster.namespace} of {cluster.host}")
    return cluster, api


def _connect(cluster: RemoteCluster) -> ClusterApi:
    # The package takes half a second, which a local run does not need.
    from kubernetes import client, config

    configuration = client.Configuration()
    place = {"server": cluster.host}
    if cluster.authority:
        place["certificate-authority-data"] = base64.b64encode(cluster.authority.encode()).decode()
    name = "remote"
    kubeconfig = {
        "clusters": [{"name": name, "cluster": place}],
        "users": [{"name": name, "user": {"token": cluster.token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    config.load_kube_config_from_dict(kubeconfig, client_configuration=configuration)
    return ClusterApi(configuration, cluster.namespace)
