"""Find the object store of a Kubeflow Pipelines installation by the rules of the KFP launcher."""

import base64
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from kfp_distributed.cluster_api.reader import MayNotRead, Read
from kfp_distributed.storage.kubeflow.kfp_backend import (
    ACCESS_KEY_FIELD,
    DEFAULT_PIPELINE_ROOT,
    KFP_NAMESPACE,
    LAUNCHER_CONFIG_MAP,
    PIPELINE_ROOT_KEY,
    PROVIDERS_KEY,
    SECRET_KEY_FIELD,
    STORE_PORT,
    STORE_SECRET,
    STORE_SERVICES,
)
from kfp_distributed.storage.uri import parse_endpoint, parse_uri

# Environment variable with the name of the Kubernetes Secret that has the keys: "name" or "namespace/name".
SECRET_VARIABLE = "KFP_DISTRIBUTED_OBJECT_STORE_SECRET"

KEYS_TO_SET = "set AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
WHAT_TO_SET = f"{KEYS_TO_SET}, or {SECRET_VARIABLE} to a Kubernetes Secret"


@dataclass(frozen=True)
class StoreReference:
    """An object store, and the Secret with its keys.

    Attributes:
        endpoint: "host:port".
        secret: Name of the Secret.
        namespace: Namespace of the Secret.
        access_key_field: Field of the Secret with the access key. Default: "accesskey".
        secret_key_field: Field of the Secret with the secret key. Default: "secretkey".
        secure: Whether to use TLS. Default: False.
        region: The region. Empty if it is not configured.
    """

    endpoint: str
    secret: str
    namespace: str
    access_key_field: str = ACCESS_KEY_FIELD
    secret_key_field: str = SECRET_KEY_FIELD
    secure: bool = False
    region: str = ""


def find_object_store(read: Read, namespace: str, uri: str = "") -> StoreReference:
    """Find the store of an address in the same way as the KFP launcher.

    The ConfigMap kfp-launcher may configure a store for the address. Otherwise it is the default store of the Kubeflow
    Pipelines installation.

    Args:
        read: Reads an object of the Kubernetes API.
        namespace: Namespace of the pipeline's pods.
        uri: Address in the store. Default: the pipeline root.

    Raises:
        ValueError: The store or its Secret does not exist, or the configuration is incomplete.
    """
    import yaml  # type: ignore[import-untyped]  # not installed in replicas

    data = (read(_path(namespace, "configmaps", LAUNCHER_CONFIG_MAP)) or {}).get("data") or {}
    uri = uri or data.get(PIPELINE_ROOT_KEY) or DEFAULT_PIPELINE_ROOT
    try:
        reference = _configured(yaml.safe_load(data.get(PROVIDERS_KEY) or "") or {}, namespace, uri)
    except (AttributeError, TypeError, ValueError, yaml.YAMLError) as error:
        raise ValueError(
            f"ConfigMap {namespace}/{LAUNCHER_CONFIG_MAP} has no valid store for {uri}: {error}. Correct it, or "
            f"{WHAT_TO_SET}"
        ) from None
    return _with_secret(read, reference or StoreReference(find_service(read, namespace), STORE_SECRET, namespace))


def _with_secret(read: Read, reference: StoreReference) -> StoreReference:
    path = _path(reference.namespace, "secrets", reference.secret)
    if _exists(read, path) is False:
        raise ValueError(
            f"Secret {reference.namespace}/{reference.secret} or its namespace does not exist. Pods read the keys of "
            f"the object store from it: `kfp-distributed doctor` prints the command that creates it. To use another "
            f"store in this process, {WHAT_TO_SET}"
        )
    return reference


def choose_object_store(
    get: Callable[[str], str | None], read: Read, namespace: str, secret: str, uri: str
) -> StoreReference:
    """Return the given Secret with its endpoint, or find the store of Kubeflow Pipelines.

    Args:
        get: Returns an environment variable. AWS_ENDPOINT_URL_S3 and AWS_ENDPOINT_URL are used only if `secret` is
            given.
        read: Reads an object of the Kubernetes API.
        namespace: Namespace of the Secret.
        secret: Name of the Secret. "" to find the store of Kubeflow Pipelines.
        uri: Address in the store.

    Raises:
        ValueError: The endpoint is not valid, or the store or the Secret does not exist.
    """
    if not secret:
        return find_object_store(read, namespace, uri)
    url = get("AWS_ENDPOINT_URL_S3") or get("AWS_ENDPOINT_URL")
    endpoint, secure = parse_endpoint(url) if url else (find_service(read, namespace), False)
    return _with_secret(read, StoreReference(endpoint, secret, namespace, secure=secure))


def _is_in_dns(host: str) -> bool:
    try:
        return bool(socket.getaddrinfo(host, STORE_PORT))
    except OSError:
        return False


def find_service(read: Read, namespace: str, is_in_dns: Callable[[str], bool] = _is_in_dns) -> str:
    """Return "host:port" of the Service of Kubeflow Pipelines' default store.

    Args:
        read: Reads an object of the Kubernetes API.
        namespace: Namespace of the pipeline's pods, which is searched before namespace kubeflow.
        is_in_dns: Whether a host name exists. It is called if the Services of namespace kubeflow may not be read.

    Raises:
        ValueError: Neither the namespace nor namespace kubeflow has such a Service with the port.
    """
    services = {
        f"{name}.{service_namespace}": _has_port(read, _path(service_namespace, "services", name))
        for service_namespace in (namespace, KFP_NAMESPACE)
        for name in STORE_SERVICES
    }
    for host, has_port in services.items():
        if has_port:
            return f"{host}:{STORE_PORT}"
    if None in services.values():
        # Most pods may not read namespace kubeflow. If both names exist, only the older is sure to have the port. If
        # none does, the step is outside of the cluster of the replicas, where each name would be a guess.
        newest, oldest = (f"{name}.{KFP_NAMESPACE}" for name in STORE_SERVICES)
        return f"{newest if is_in_dns(newest) and not is_in_dns(oldest) else oldest}:{STORE_PORT}"
    raise ValueError(
        f"no Service of an object store has port {STORE_PORT} (searched {', '.join(services)}): {WHAT_TO_SET}"
    )


def read_credentials(read: Read, reference: StoreReference) -> list[str]:
    """Return the access key and the secret key from the Secret of a store.

    Raises:
        ValueError: The Secret does not exist, cannot be read, or a field is missing or empty.
    """
    path = _path(reference.namespace, "secrets", reference.secret)
    secret = read(path)
    if secret is None:
        raise ValueError(f"{path} does not exist. Create it, or {WHAT_TO_SET}")
    data = secret.get("data") or {}
    fields = reference.access_key_field, reference.secret_key_field
    if not {*fields} <= {*data}:
        raise ValueError(f"{path} must have the fields {fields}, it has {sorted(data)}. Correct it, or {WHAT_TO_SET}")
    keys = [base64.b64decode(data[name] or "").decode() for name in fields]
    if not all(keys):
        raise ValueError(f"{path} has an empty key in the fields {fields}. Correct it, or {WHAT_TO_SET}")
    return keys


def environment_entries(reference: StoreReference) -> list[dict[str, Any]]:
    """Return the entries of a container's `env` for a store. The pod must be in the namespace of the Secret."""
    url = f"http{'s' * reference.secure}://{reference.endpoint}"
    values = {"AWS_ENDPOINT_URL": url, "AWS_REGION": reference.region}
    fields = {
        "AWS_ACCESS_KEY_ID": reference.access_key_field,
        "AWS_SECRET_ACCESS_KEY": reference.secret_key_field,
    }
    return [{"name": name, "value": value} for name, value in values.items() if value] + [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": reference.secret, "key": key}}}
        for name, key in fields.items()
    ]


def _path(namespace: str, kind: str, name: str) -> str:
    # The names of a Secret and of its namespace may come from an environment variable.
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/{kind}/{quote(name, safe='')}"


def _exists(read: Read, path: str) -> bool | None:
    """Return whether an object exists, or None if the account may not read it."""
    try:
        return read(path) is not None
    except MayNotRead:
        return None


def _has_port(read: Read, path: str) -> bool | None:
    """Return whether a Service exists and has the port of the store, or None if the account may not read it."""
    try:
        service = read(path)
    except MayNotRead:
        return None
    ports = ((service or {}).get("spec") or {}).get("ports")
    return service is not None and (not ports or any(port.get("port") == STORE_PORT for port in ports))


def _configured(providers: Mapping[str, Any], namespace: str, uri: str) -> StoreReference | None:
    """Return the store that a kfp-launcher ConfigMap configures for an address, or None if it configures none."""
    location = parse_uri(uri)
    # Without a provider s3, the launcher reads the keys of an s3:// address from its environment. Steps have no such
    # variables.
    name = "s3" if uri.lower().startswith("s3:") and providers.get("s3") else "minio"
    provider = providers.get(name) or {}
    chosen = provider.get("default") or {}
    # The launcher accepts both spellings.
    overrides = provider.get("overrides") or provider.get("Overrides") or ()
    if not chosen and not overrides:
        return None
    for override in overrides:
        prefix = (override.get("keyPrefix") or "").strip("/")
        if override.get("bucketName") == location.bucket and f"{location.key}/".startswith(prefix and f"{prefix}/"):
            chosen = chosen | {key: value for key, value in override.items() if value not in ("", None)}
            break
    credentials = chosen.get("credentials") or {}
    secret = {} if credentials.get("fromEnv") else credentials.get("secretRef") or {}
    keys = [secret.get(key) or "" for key in ("secretName", "accessKeyKey", "secretKeyKey")]
    if not all(keys):
        raise ValueError(
            f"its provider {name} has no credentials.secretRef with secretName, accessKeyKey and secretKeyKey"
        )
    endpoint = chosen.get("endpoint") or "s3.amazonaws.com"
    if "://" not in endpoint:
        endpoint = f"http{'' if chosen.get('disableSSL') else 's'}://{endpoint}"
    host, secure = parse_endpoint(endpoint)
    return StoreReference(host, keys[0], namespace, keys[1], keys[2], secure, chosen.get("region") or "")
