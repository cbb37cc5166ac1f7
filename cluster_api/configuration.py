"""The cluster that this process belongs to, and the account that it has there."""

import os
from pathlib import Path
from typing import Any

from kfp_distributed.cluster_api.client import ClusterApi

OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""The file with the namespace of this pod. It exists only in pods that mount a service account token."""

_KUBECONFIG = "~/.kube/config"


def connect(namespace: str = "") -> ClusterApi:
    """Connect with the service account of the pod, or outside of a pod with KUBECONFIG.

    Args:
        namespace: Namespace to use. Default: the namespace of the pod, or of the current context of KUBECONFIG.

    Raises:
        ValueError: There is no configuration, or it is invalid.
    """
    configuration, default_namespace = _cluster_configuration()
    return ClusterApi(configuration, namespace or default_namespace)


def _cluster_configuration() -> tuple[Any, str]:
    """Return the configuration of the Kubernetes client, and its namespace.

    In a pod these come from its service account, elsewhere from the kubeconfig file.

    Raises:
        ValueError: There is no configuration, or it is not valid.
    """
    from kubernetes import client, config
    from yaml import YAMLError  # type: ignore[import-untyped]

    configuration, kubeconfig, in_pod = client.Configuration(), os.environ.get("KUBECONFIG"), OWN_NAMESPACE.exists()
    file = str(OWN_NAMESPACE.parent) if in_pod else kubeconfig or _KUBECONFIG
    if not in_pod and not any(Path(name).expanduser().exists() for name in file.split(os.pathsep) if name):
        looked_for = f"KUBECONFIG = {kubeconfig!r} names no existing file"
        raise ValueError(
            "there is no configuration of a cluster: "
            + (looked_for if kubeconfig else f"KUBECONFIG is not set, {_KUBECONFIG} does not exist")
            + f", and there is no service account of a pod in {OWN_NAMESPACE.parent}; set KUBECONFIG to a kubeconfig "
            "file, or run this in a pod of the cluster"
        )
    try:
        if in_pod:
            config.load_incluster_config(client_configuration=configuration)
            return configuration, OWN_NAMESPACE.read_text().strip()
        config.load_kube_config(kubeconfig, client_configuration=configuration)
        return configuration, config.list_kube_config_contexts(kubeconfig)[1]["context"].get("namespace") or "default"
    # The client validates little of a kubeconfig file, so that a wrong one may raise any of these.
    except (config.ConfigException, YAMLError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        is_readable = isinstance(error, (config.ConfigException, YAMLError, OSError))
        cause = " ".join(str(error).split()) if is_readable else "its structure is not that of a kubeconfig"
        raise ValueError(
            f"{file} is not a valid cluster configuration, set KUBECONFIG to a kubeconfig file: {cause}"
        ) from None
