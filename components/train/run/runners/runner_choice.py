"""Chooses the runner of a `train` step, and finds the object store for its pods."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from kfp_distributed.cluster_api.client import ClusterApi, ClusterError
from kfp_distributed.cluster_api.configuration import connect
from kfp_distributed.cluster_api.reader import Read, reader
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings, read_task_settings
from kfp_distributed.components.train.run.facts import Log
from kfp_distributed.components.train.run.runners.kubernetes.connect.remote import open_remote_cluster
from kfp_distributed.components.train.run.runners.kubernetes.create.preflight import install_advice
from kfp_distributed.components.train.run.runners.kubernetes.runner import KubernetesRunner
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.runners.protocol import Runner
from kfp_distributed.library.content import REPLICA_PACKAGES, read_library
from kfp_distributed.storage.kubeflow.kfp_backend import POD_NAME_VARIABLE, POD_UID_VARIABLE, STORE_SECRET
from kfp_distributed.storage.kubeflow.kfp_store import (
    SECRET_VARIABLE,
    StoreReference,
    choose_object_store,
    environment_entries,
    find_object_store,
)
from kfp_distributed.storage.object_stores.buckets import EMBEDDED_STORE_VARIABLE

RUNNER_VARIABLE = "KFP_DISTRIBUTED_RUNNER"
"""Environment variable: the runner that "auto" means."""

TOKEN_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
"""The file with the token of this pod's service account. It exists only in pods that mount such a token."""


def kind_of_runner(name: str) -> Literal["kubernetes", "local"]:
    """Return whether a step uses a cluster or this machine.

    Args:
        name: "local", "kubernetes" or "auto". "auto" means "kubernetes" in a pod and if KUBECONFIG is set. The file
            ~/.kube/config alone does not count: people who have it for other purposes do not expect jobs there. The
            environment variable KFP_DISTRIBUTED_RUNNER, which local_run sets, overrides "auto".

    Raises:
        ValueError: The runner is unknown or not available here.
    """
    name = _checked(name)
    has_cluster = TOKEN_FILE.exists() or os.environ.get("KUBECONFIG")
    return "kubernetes" if name == "kubernetes" or (name == "auto" and has_cluster) else "local"


def choose_runner(
    name: str,
    log: Log,
    model_uri: str = "",
    secret: str = "",
    task_config: Mapping[str, Any] | None = None,
    packages: Sequence[str] = REPLICA_PACKAGES,
) -> Runner:
    """Return the runner of a step that starts replicas.

    Args:
        name: As of `kind_of_runner`.
        log: Receives lines of the step's log about what the runner does itself.
        model_uri: Folder of an output of the step, which determines the object store.
        secret: Name of the Secret of another cluster to run the replicas on. Default: "", the step's own cluster.
        task_config: Settings of the KFP task, which are applied to pods. Default: none.
        packages: Packages of the library that the replicas import. Default: those of a training.

    Raises:
        ValueError: The runner is unknown or not available here, the Secret is wrong, or `task_config` is invalid.
        ClusterError: The API server does not answer.
    """
    name = _checked(name)
    if secret and name == "local":
        raise ValueError(
            f"runner = 'local' cannot be combined with cluster_configuration_secret = {secret!r}; remove one of the two"
        )
    if secret or kind_of_runner(name) == "kubernetes":
        warn_of_missing(model_uri, log)
        return kubernetes_runner(connect(), model_uri, log, secret, task_config, packages)
    return LocalRunner()


def _checked(name: str) -> str:
    """Return "auto", "kubernetes" or "local", after the environment has overridden "auto"."""
    if name == "auto":
        name = os.environ.get(RUNNER_VARIABLE, name)
    if name not in ("auto", "local", "kubernetes"):
        raise ValueError(f"runner = {name!r} is not one of auto, kubernetes, local")
    if name == "kubernetes" and os.environ.get(EMBEDDED_STORE_VARIABLE):
        raise ValueError(
            "runner = 'kubernetes': pods cannot reach the object store of this run; use "
            "local_run(embedded_store=False) and an object store that they can reach"
        )
    return name


def warn_of_missing(model_uri: str, log: Log) -> None:
    """Log what the KFP backend should have given to this step and has not.

    Args:
        model_uri: URI of the step's model. A local path means that no backend runs the step.
        log: Receives lines of the step's log.
    """
    if not TOKEN_FILE.exists() or "://" not in model_uri:
        return
    unset = [name for name in (POD_NAME_VARIABLE, POD_UID_VARIABLE) if not os.environ.get(name)]
    if unset:
        log(
            "WARNING",
            f"the KFP backend has not set {' and '.join(unset)} in this step: Kubernetes does not delete the job "
            "together with the step's pod, and the name of the job may lack sub-pipelines and iterations. If the pod "
            "disappears, run kfp-distributed cancel",
        )


def kubernetes_runner(
    api: ClusterApi,
    model_uri: str,
    log: Log,
    secret: str = "",
    task_config: Mapping[str, Any] | None = None,
    packages: Sequence[str] = REPLICA_PACKAGES,
) -> Runner:
    """Return a runner for a cluster. Its pods find the object store of `model_uri` as Kubeflow Pipelines does.

    The environment variable KFP_DISTRIBUTED_OBJECT_STORE_SECRET names another Secret in the namespace of the job, and
    AWS_ENDPOINT_URL is then the address of the store. Both are ignored for another cluster, whose Secret has the
    store.

    Args:
        api: The step's own cluster.
        model_uri: Folder of the model.
        log: As of `choose_runner`.
        secret: Name of the Secret of another cluster to run the replicas on. Default: "", the step's own cluster.
        task_config: Settings of the KFP task. Default: none.
        packages: As of `choose_runner`.

    Raises:
        ValueError: The object store is not found, the Secret of the other cluster is wrong, or `task_config` is
            invalid.
        ClusterError: The API server does not answer.
    """
    keys: dict[str, str] = {}
    token = None
    if secret:
        remote, api, token = open_remote_cluster(cluster_reader(api), api.namespace, secret, log)
        # Without an owner: another cluster does not have the step's pod, and would delete its objects at once.
        owner = None
        if remote.endpoint:
            environment = [{"name": "AWS_ENDPOINT_URL", "value": remote.endpoint}]
            keys = {"AWS_ACCESS_KEY_ID": remote.access_key, "AWS_SECRET_ACCESS_KEY": remote.secret_key}
        else:
            environment = environment_entries(find_object_store(cluster_reader(api), api.namespace, model_uri))
    else:
        environment = environment_entries(pod_object_store(cluster_reader(api), api.namespace, model_uri))
        owner = _pod()
    settings = ClusterSettings(
        api.namespace,
        environment=tuple(environment),
        object_store=keys,
        library=read_library(packages),
        owner=owner,
        task=read_task_settings(task_config or {}),
    )
    return KubernetesRunner(api, settings, log, token)


def cluster_reader(api: ClusterApi) -> Read:
    """Return a function that reads objects of a cluster. Its errors say how a step gets a permission."""

    def explain(path: str, error: ClusterError) -> str:
        if error.status != 403:
            return str(error)
        advice = install_advice(api.namespace)
        if "/secrets/" in path and not path.endswith(f"/{STORE_SECRET}"):
            advice += ", and add this Secret to the Role kfp-distributed-train"
        return f"{error}; {advice}"

    return reader(api, explain)


def pod_object_store(read: Read, namespace: str, uri: str) -> StoreReference:
    """Return the object store that the pods of a job in the step's own cluster use.

    Args:
        read: Reads objects of the cluster.
        namespace: Namespace of the pods.
        uri: Folder of the model.

    Raises:
        ValueError: The store is not found, or its Secret is in another namespace.
        ClusterError: The API server does not answer.
    """
    home, _, secret = os.environ.get(SECRET_VARIABLE, "").rpartition("/")
    if home not in ("", namespace):
        raise ValueError(
            f"{SECRET_VARIABLE} = '{home}/{secret}' is not in {namespace}, where the pods of the job run. They can "
            "only use Secrets of their own namespace. Copy it there"
        )
    return choose_object_store(os.environ.get, read, namespace, secret, uri)


def _pod() -> dict[str, Any] | None:
    """Return the pod of this step as an ownerReference, or None outside of KFP."""
    name, uid = os.environ.get(POD_NAME_VARIABLE), os.environ.get(POD_UID_VARIABLE)
    if not (name and uid and TOKEN_FILE.exists()):
        return None
    return {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
