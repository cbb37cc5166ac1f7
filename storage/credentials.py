"""How an object store is reached and who asks."""

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

# The environment variable that names a Kubernetes Secret with the keys: "name" or "namespace/name".
SECRET_VARIABLE = "KFP_DISTRIBUTED_OBJECT_STORE_SECRET"

# What Kubeflow Pipelines itself is installed with.
KFP_SECRET = "mlpipeline-minio-artifact"
KFP_NAMESPACE = "kubeflow"

_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


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
            raise ValueError(f"AWS_CA_BUNDLE names {self.ca_bundle!r}, but there is no such file")


def parse_endpoint(url: str) -> tuple[str, bool]:
    """Take an endpoint's URL apart.

    Returns:
        "host:port" and whether it is used with TLS (https, also where no scheme is given).

    Raises:
        ValueError: It is no URL of that form.
    """
    parts = urlsplit(url if "://" in url else f"https://{url}")
    host = parts.netloc.rpartition("@")[2]
    if parts.scheme not in ("http", "https") or not host or parts.path.strip("/") or parts.query:
        # A user name or password in it must not be repeated.
        shown = url.rpartition("@")[2]
        raise ValueError(f"the object store's endpoint {shown!r} must be http://host:port or https://host:port")
    return host, parts.scheme == "https"


def credentials_from_environment(env: Mapping[str, str] | None = None) -> Credentials:
    """Read credentials from the variables that AWS's tools use too, or from the Secret that a variable names.

    Args:
        env: The variables, by default this process's own: AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL (AWS itself where
            neither is set), AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION or
            AWS_DEFAULT_REGION, AWS_CA_BUNDLE. Without keys, the Secret that KFP_DISTRIBUTED_OBJECT_STORE_SECRET names
            is read; without that, in a pod, the Secret that Kubeflow Pipelines is installed with.

    Raises:
        ValueError: There are no keys, half of them, or a wrong endpoint; the Secret cannot be read.
    """
    get = (os.environ if env is None else env).get
    url = get("AWS_ENDPOINT_URL_S3") or get("AWS_ENDPOINT_URL") or ""
    region = get("AWS_REGION") or get("AWS_DEFAULT_REGION") or ""
    ca_bundle = get("AWS_CA_BUNDLE") or ""
    access_key, secret_key = get("AWS_ACCESS_KEY_ID"), get("AWS_SECRET_ACCESS_KEY")
    secret = get(SECRET_VARIABLE) or (get("KUBERNETES_SERVICE_HOST") and KFP_SECRET)
    if secret and not access_key and not secret_key:
        namespace, _, name = secret.rpartition("/")
        own = _OWN_NAMESPACE.read_text().strip() if _OWN_NAMESPACE.exists() else KFP_NAMESPACE
        found = credentials_from_secret(name, namespace or own, endpoint=url)
        return replace(found, region=region, ca_bundle=ca_bundle)
    if not access_key or not secret_key:
        raise ValueError(
            "no credentials for the object store: set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL, "
            f"or {SECRET_VARIABLE} to the name of a Kubernetes Secret"
        )
    endpoint, secure = parse_endpoint(url or "s3.amazonaws.com")
    return Credentials(endpoint, access_key, secret_key, get("AWS_SESSION_TOKEN", ""), region, secure, ca_bundle)


def credentials_from_secret(
    name: str = KFP_SECRET,
    namespace: str = KFP_NAMESPACE,
    access_key_field: str = "accesskey",
    secret_key_field: str = "secretkey",
    endpoint: str = "",
) -> Credentials:
    """Read credentials from a Kubernetes Secret, with the configuration of KUBECONFIG or of the pod.

    Args:
        name: The Secret.
        namespace: Where it is.
        access_key_field: Its field with the access key.
        secret_key_field: Its field with the secret key.
        endpoint: The store's URL; by default that of Kubeflow Pipelines in this namespace.

    Raises:
        ValueError: The cluster does not answer, there is no such Secret, we may not read it, or it lacks a field.
    """
    from kubernetes import client, config
    from urllib3.exceptions import HTTPError

    where = f"the Secret {namespace}/{name} with the object store's keys"
    configuration = client.Configuration()
    try:
        if os.environ.get("KUBERNETES_SERVICE_HOST") and not os.environ.get("KUBECONFIG"):
            config.load_incluster_config(client_configuration=configuration)
        else:
            config.load_kube_config(os.environ.get("KUBECONFIG"), client_configuration=configuration)
        with client.ApiClient(configuration) as api:
            data = client.CoreV1Api(api).read_namespaced_secret(name, namespace, _request_timeout=30).data or {}
    except (config.ConfigException, client.ApiException, HTTPError) as error:
        raise ValueError(f"cannot read {where}: {getattr(error, 'reason', error)}") from None
    for wanted in (access_key_field, secret_key_field):
        if wanted not in data:
            raise ValueError(f"{where} has no field {wanted!r}; it has: {', '.join(sorted(data))}")
    access_key, secret_key = (base64.b64decode(data[key]).decode() for key in (access_key_field, secret_key_field))
    host, secure = parse_endpoint(endpoint or f"http://minio-service.{namespace}:9000")
    return Credentials(host, access_key, secret_key, secure=secure)
