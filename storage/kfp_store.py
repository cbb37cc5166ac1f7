"""Where a Kubeflow Pipelines installation has its object store, found by the rules of its own launcher."""

import base64
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from urllib3.exceptions import HTTPError

from kfp_distributed.storage.uri import parse_endpoint, parse_uri

# The environment variable that names a Kubernetes Secret with the keys: "name" or "namespace/name".
SECRET_VARIABLE = "KFP_DISTRIBUTED_OBJECT_STORE_SECRET"

WHAT_TO_SET = (
    f"set AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or {SECRET_VARIABLE} to a Kubernetes Secret"
)

OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""Where a pod finds its own, where it may ask the API server."""

# What Kubeflow Pipelines is installed with.
KFP_NAMESPACE = "kubeflow"
KFP_SECRET = "mlpipeline-minio-artifact"

# Takes a path of the Kubernetes API and returns the object there as JSON, or None where there is none (404). Raises
# MayNotRead for 403.
Read = Callable[[str], dict[str, Any] | None]


class MayNotRead(ValueError):
    """The Kubernetes API does not let us read an object."""


@dataclass(frozen=True)
class StoreReference:
    """An object store, and the Secret that has the keys to it.

    Attributes:
        endpoint: "host:port".
        secret: Name of the Secret.
        namespace: The Secret's namespace.
        access_key_field: The Secret's field with the access key.
        secret_key_field: The Secret's field with the secret key.
        secure: Whether to use TLS.
        region: The region; empty where nothing says.
    """

    endpoint: str
    secret: str
    namespace: str
    access_key_field: str = "accesskey"
    secret_key_field: str = "secretkey"
    secure: bool = False
    region: str = ""


def find_object_store(read: Read, namespace: str, uri: str = "") -> StoreReference:
    """Find the store as the launcher of Kubeflow Pipelines does.

    That is what the ConfigMap kfp-launcher says for the address; where it says nothing, the store that Kubeflow
    Pipelines is installed with.

    Args:
        read: Reads the Kubernetes API.
        namespace: The namespace of the pipeline's pods.
        uri: The address that the store is wanted for; by default the pipelines' root.

    Raises:
        ValueError: Nothing is found, or what is found does not say enough; the text says what to do.
    """
    import yaml  # type: ignore[import-untyped]  # replicas lack it

    data = (read(_path(namespace, "configmaps", "kfp-launcher")) or {}).get("data") or {}
    uri = uri or data.get("defaultPipelineRoot") or "minio://mlpipeline/v2/artifacts"
    try:
        reference = _configured(yaml.safe_load(data.get("providers") or "") or {}, namespace, uri)
    except (AttributeError, TypeError, ValueError, yaml.YAMLError) as error:
        raise ValueError(
            f"the ConfigMap {namespace}/kfp-launcher does not say where {uri} is: {error}. Correct it, or {WHAT_TO_SET}"
        ) from None
    return _with_secret(read, reference or StoreReference(find_service(read, namespace), KFP_SECRET, namespace))


def _with_secret(read: Read, reference: StoreReference) -> StoreReference:
    path = _path(reference.namespace, "secrets", reference.secret)
    if _exists(read, path) is False:
        raise ValueError(
            f"there is no Secret {reference.namespace}/{reference.secret}, or no such namespace. It should have the "
            f"object store's keys, and pods need it: `kfp-distributed doctor` has the command. For this process you "
            f"may {WHAT_TO_SET}"
        )
    return reference


def choose_object_store(
    get: Callable[[str], str | None], read: Read, namespace: str, secret: str, uri: str
) -> StoreReference:
    """Take the Secret and the endpoint that the environment names, or find the store of Kubeflow Pipelines.

    Args:
        get: Reads a variable of the environment. An endpoint there counts for a named Secret alone.
        read: Reads the Kubernetes API.
        namespace: The Secret's namespace.
        secret: Its name; "" where none is named.
        uri: The address that the store is wanted for.

    Raises:
        ValueError: The endpoint is wrong, or no store or Secret is found.
    """
    if not secret:
        return find_object_store(read, namespace, uri)
    url = get("AWS_ENDPOINT_URL_S3") or get("AWS_ENDPOINT_URL")
    endpoint, secure = parse_endpoint(url) if url else (find_service(read, namespace), False)
    return _with_secret(read, StoreReference(endpoint, secret, namespace, secure=secure))


def find_service(read: Read, namespace: str) -> str:
    """Find the Service of the store that Kubeflow Pipelines is installed with, as "host:port".

    Raises:
        ValueError: There is none in the namespace, nor in kubeflow.
    """
    services = {
        f"{name}.{home}:9000": _exists(read, _path(home, "services", name))
        for home in (namespace, KFP_NAMESPACE)
        for name in ("seaweedfs", "minio-service")
    }
    for endpoint, there in services.items():
        if there:
            return endpoint
    if None in services.values():
        # Most pods may not look into namespace kubeflow; there, either store has a Service of this name.
        return endpoint
    raise ValueError(f"there is no Service {' or '.join(services)}: {WHAT_TO_SET}")


def read_keys(read: Read, reference: StoreReference) -> list[str]:
    """Read the access key and the secret key from a store's Secret.

    Raises:
        ValueError: There is no such Secret, we may not read it, or it lacks a field.
    """
    path = _path(reference.namespace, "secrets", reference.secret)
    data = (read(path) or {}).get("data") or {}
    fields = reference.access_key_field, reference.secret_key_field
    if not {*fields} <= {*data}:
        raise ValueError(f"{path} must have the fields {fields}, it has {sorted(data)}: {WHAT_TO_SET}")
    return [base64.b64decode(data[name]).decode() for name in fields]


def environment_entries(reference: StoreReference) -> list[dict[str, Any]]:
    """The entries of a container's `env` that lead to a store, for pods in the Secret's namespace."""
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


def cluster_configuration() -> tuple[Any, str]:
    """Return the Kubernetes client's configuration and its namespace: a pod's own or, outside of one, KUBECONFIG's.

    Raises:
        ValueError: There is none, or it is wrong.
    """
    from kubernetes import client, config
    from yaml import YAMLError  # type: ignore[import-untyped]

    configuration, kubeconfig, in_pod = client.Configuration(), os.environ.get("KUBECONFIG"), OWN_NAMESPACE.exists()
    file = str(OWN_NAMESPACE.parent) if in_pod else kubeconfig or "~/.kube/config"
    try:
        if in_pod:
            config.load_incluster_config(client_configuration=configuration)
            return configuration, OWN_NAMESPACE.read_text().strip()
        config.load_kube_config(kubeconfig, client_configuration=configuration)
        return configuration, config.list_kube_config_contexts(kubeconfig)[1]["context"].get("namespace") or "default"
    # The client looks at little of a file before it takes it for a configuration.
    except (config.ConfigException, YAMLError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        known = isinstance(error, (config.ConfigException, YAMLError, OSError))
        why = " ".join(str(error).split()) if known else "it has another form"
        raise ValueError(f"{file} is no configuration of a cluster, set KUBECONFIG to one: {why}") from None


def kubernetes_reader() -> Read:
    """Make what reads ConfigMaps, Secrets and Services.

    Raises:
        ValueError: There is no configuration. What it returns raises it too, where the cluster does not answer.
    """
    from kubernetes import client

    try:
        api = client.ApiClient(cluster_configuration()[0])
    except ValueError as error:
        raise ValueError(f"{error}; or {WHAT_TO_SET}") from None
    core = client.CoreV1Api(api)
    # Releases of the client differ in how they get a bare path.
    kinds = {
        "configmaps": core.read_namespaced_config_map,
        "secrets": core.read_namespaced_secret,
        "services": core.read_namespaced_service,
    }

    def read(path: str) -> dict[str, Any] | None:
        *_, namespace, kind, name = path.split("/")
        try:
            json: dict[str, Any] = api.sanitize_for_serialization(kinds[kind](name, namespace, _request_timeout=30))
            return json
        except (client.ApiException, HTTPError) as error:
            status = getattr(error, "status", 0)
            if status == 404:
                return None
            reason = getattr(error, "reason", error)
            raise (MayNotRead if status == 403 else ValueError)(
                f"cannot get {path} of the Kubernetes API: {reason}. Allow it, or {WHAT_TO_SET}"
            ) from None

    return read


def _path(namespace: str, kind: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/{kind}/{name}"


def _exists(read: Read, path: str) -> bool | None:
    """Whether there is an object; None where we may not look."""
    try:
        return read(path) is not None
    except MayNotRead:
        return None


def _configured(providers: Mapping[str, Any], namespace: str, uri: str) -> StoreReference | None:
    """What a kfp-launcher ConfigMap's providers say about an address; None where they say nothing."""
    location = parse_uri(uri)
    # Without a provider s3 the launcher takes the keys of an s3:// address from its environment. Ours has none.
    name = "s3" if uri.lower().startswith("s3:") and providers.get("s3") else "minio"
    provider = providers.get(name) or {}
    chosen = provider.get("default") or {}
    # Its reader of YAML takes either.
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
        wanted = "secretName, accessKeyKey and secretKeyKey"
        raise ValueError(f"its provider {name} has no credentials.secretRef with {wanted}")
    endpoint = chosen.get("endpoint") or "s3.amazonaws.com"
    if "://" not in endpoint:
        endpoint = f"http{'' if chosen.get('disableSSL') else 's'}://{endpoint}"
    host, secure = parse_endpoint(endpoint)
    return StoreReference(host, keys[0], namespace, keys[1], keys[2], secure, chosen.get("region") or "")
