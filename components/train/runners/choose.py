"""Which runner a `train` step asks for, and what it must know of the place where it runs."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kfp_distributed.components.train.manifests.cluster_settings import ClusterSettings, read_task_settings
from kfp_distributed.components.train.runners.kubernetes.cluster_api import ClusterApi, connect, install_advice
from kfp_distributed.components.train.runners.kubernetes.remote import open_remote_cluster
from kfp_distributed.components.train.runners.kubernetes.runner import KubernetesRunner
from kfp_distributed.components.train.runners.local.runner import LocalRunner
from kfp_distributed.components.train.runners.protocol import ClusterError, Runner
from kfp_distributed.library.content import REPLICA_ROOMS, read_library
from kfp_distributed.storage.kfp_store import (
    KFP_SECRET,
    SECRET_VARIABLE,
    MayNotRead,
    Read,
    StoreReference,
    choose_object_store,
    environment_entries,
    find_object_store,
)

RUNNER_VARIABLE = "KFP_DISTRIBUTED_RUNNER"
"""Environment variable: what "auto" means."""

EMBEDDED_STORE_VARIABLE = "KFP_DISTRIBUTED_EMBEDDED_STORE"
"""Environment variable: set where the object store is one of this machine alone."""

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def choose_runner(
    name: str, model_uri: str = "", secret: str = "", task_config: Mapping[str, Any] | None = None
) -> Runner:
    """Returns the runner that a `train` step asks for.

    Args:
        name: "local" or "kubernetes"; "auto" is Kubernetes in a pod and where KUBECONFIG is set. The file
            ~/.kube/config alone does not make it so: who has one for other purposes does not expect jobs there. The
            environment variable KFP_DISTRIBUTED_RUNNER, as local_run sets it, says it otherwise.
        model_uri: Where the model goes, which says in which object store.
        secret: Name of the Secret of another cluster, which then is where the replicas run.
        task_config: What is set on the step's own task, for pods.

    Raises:
        ValueError: There is no such runner, or not here; the Secret is wrong, or `task_config` cannot be read.
        ClusterError: The API server does not answer.
    """
    if name == "auto":
        name = os.environ.get(RUNNER_VARIABLE, name)
    if name not in ("auto", "local", "kubernetes"):
        raise ValueError(f"runner = {name!r} is not one of auto, kubernetes, local")
    if name == "kubernetes" and os.environ.get(EMBEDDED_STORE_VARIABLE):
        raise ValueError("runner = 'kubernetes': pods do not reach this run's store: local_run(embedded_store=False)")
    if secret and name == "local":
        raise ValueError(f"runner = 'local' does not go with cluster_configuration_secret = {secret!r}")
    here = _SERVICE_ACCOUNT.exists() or os.environ.get("KUBECONFIG")
    if name == "kubernetes" or secret or (name == "auto" and here):
        return kubernetes_runner(connect(), model_uri, secret, task_config)
    return LocalRunner()


def kubernetes_runner(
    api: ClusterApi, model_uri: str, secret: str = "", task_config: Mapping[str, Any] | None = None
) -> Runner:
    """Makes a runner for a cluster, whose pods find the object store of `model_uri` as Kubeflow Pipelines does.

    KFP_DISTRIBUTED_OBJECT_STORE_SECRET in the step's environment names another Secret, of the job's own namespace, and
    AWS_ENDPOINT_URL then says where the store is. Of another cluster neither says anything: its Secret does.

    Args:
        api: The step's own cluster.
        model_uri: Where the model goes.
        secret: Name of the Secret of another cluster, which then is where the replicas run.
        task_config: What is set on the step's own task.

    Raises:
        ValueError: The object store is not found, the other cluster's Secret is wrong, or `task_config` cannot be
            read.
    """
    keys: dict[str, str] = {}
    if secret:
        remote, api = open_remote_cluster(_reader(api), api.namespace, secret)
        # No owner: in another cluster the step's pod is unknown, and what it owns is deleted at once.
        owner = None
        if remote.endpoint:
            environment = [{"name": "AWS_ENDPOINT_URL", "value": remote.endpoint}]
            keys = {"AWS_ACCESS_KEY_ID": remote.access_key, "AWS_SECRET_ACCESS_KEY": remote.secret_key}
        else:
            environment = environment_entries(find_object_store(_reader(api), api.namespace, model_uri))
    else:
        environment, owner = environment_entries(_object_store(_reader(api), api.namespace, model_uri)), _pod()
    settings = ClusterSettings(
        api.namespace,
        environment=tuple(environment),
        object_store=keys,
        library=read_library(REPLICA_ROOMS),
        owner=owner,
        task=read_task_settings(task_config or {}),
    )
    return KubernetesRunner(api, settings)


def _reader(api: ClusterApi) -> Read:
    def read(path: str) -> dict[str, Any] | None:
        try:
            return api.read(path)
        except ClusterError as error:
            if error.status != 403:
                raise ValueError(str(error)) from None
            advice = install_advice(api.namespace)
            if "/secrets/" in path and not path.endswith(f"/{KFP_SECRET}"):
                advice += ", and add this Secret to the Role kfp-distributed-train"
            raise MayNotRead(f"{error}; {advice}") from None

    return read


def _object_store(read: Read, namespace: str, uri: str) -> StoreReference:
    home, _, secret = os.environ.get(SECRET_VARIABLE, "").rpartition("/")
    if home not in ("", namespace):
        raise ValueError(
            f"{SECRET_VARIABLE} = '{home}/{secret}' is not in {namespace}, where the job's pods run: they see the "
            "Secrets of their own namespace alone; copy it there"
        )
    return choose_object_store(os.environ.get, read, namespace, secret, uri)


def _pod() -> dict[str, Any] | None:
    """This step's pod as the owner of what it creates; None outside of KFP."""
    name, uid = os.environ.get("KFP_POD_NAME"), os.environ.get("KFP_POD_UID")
    if not (name and uid and _SERVICE_ACCOUNT.exists()):
        return None
    return {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
