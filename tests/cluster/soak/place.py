"""The namespace, the bucket and the proxies of the trainings of a soak."""

import base64
import os
import socket
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

from cluster.api_proxy import ApiProxy
from cluster.soak.plan import OPERATORS
from faulty_proxy import FaultyProxy, faulty_proxy
from kubernetes import client, config, watch

from kfp_distributed.components import prepare_data
from kfp_distributed.components.train.describe.manifests.cluster_settings import Operator
from kfp_distributed.storage import credentials_from_environment, open_store
from kfp_distributed.storage.store import Store

_GROUPS: dict[Operator, str] = {"training-operator": "kubeflow.org", "trainer": "trainer.kubeflow.org"}
_SECRET = "mlpipeline-minio-artifact"
_DEFAULT_ENDPOINT = "http://minio-service.kubeflow:9000"


@dataclass(frozen=True)
class Place:
    """Where trainings run.

    Attributes:
        api: Client of the API server, without a proxy.
        namespace: Namespace of the jobs, and name of the bucket.
        endpoint: URL of the object store, without a proxy.
        keys: Environment variables with the keys of the object store.
        folder: Local folder for the configurations of proxies.
    """

    api: client.CoreV1Api
    namespace: str
    endpoint: str
    keys: dict[str, str]
    folder: Path

    def store(self, path: str = "") -> Store:
        """Return a folder of the bucket, without a proxy."""
        environment = {**self.keys, "AWS_ENDPOINT_URL": self.endpoint}
        return open_store(f"s3://{self.namespace}/{path}".rstrip("/"), credentials_from_environment(environment))


@dataclass(frozen=True)
class Proxies:
    """The proxies between one training and its servers, and the environment variables with which a step uses them."""

    api: ApiProxy
    store: FaultyProxy
    environment: dict[str, str]


def served_operators() -> list[Operator]:
    """Return the operators whose API groups the cluster serves; the training operator if there are none."""
    config.load_config()
    groups = {group.name for group in client.ApisApi().get_api_versions().groups}
    return [operator for operator in OPERATORS if _GROUPS[operator] in groups] or [OPERATORS[0]]


@contextmanager
def open_place() -> Iterator[Place]:
    """Create a namespace and a bucket with the digits dataset, and delete them at the end."""
    config.load_config()
    api, name = client.CoreV1Api(), f"kfp-distributed-soak-{uuid.uuid4().hex[:8]}"
    data = api.read_namespaced_secret(_SECRET, "kubeflow").data
    secret = {key: base64.b64decode(value).decode() for key, value in data.items()}
    keys = {"AWS_ACCESS_KEY_ID": secret["accesskey"], "AWS_SECRET_ACCESS_KEY": secret["secretkey"]}
    with tempfile.TemporaryDirectory() as folder:
        place = Place(api, name, os.environ.get("S3_ENDPOINT", _DEFAULT_ENDPOINT), keys, Path(folder))
        _create_namespace(api, name)
        try:
            api.create_namespaced_secret(name, {"metadata": {"name": _SECRET}, "stringData": secret})
            place.store().make_bucket()
            _upload_dataset(place)
            yield place
        finally:
            place.store().delete([entry.key for entry in place.store().list()])
            api.delete_namespace(name)


def _create_namespace(api: client.CoreV1Api, name: str) -> None:
    api.create_namespace({"metadata": {"name": name}})
    # Pods are refused until the namespace has its default service account.
    accounts = watch.Watch()
    for event in accounts.stream(api.list_namespaced_service_account, name, timeout_seconds=60):
        if event["object"].metadata.name == "default":
            accounts.stop()


def _upload_dataset(place: Place) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        splits = ("train_dataset", "validation_dataset", "test_dataset")
        artifacts = {
            name: SimpleNamespace(path=f"{scratch}/{name}", uri=f"{scratch}/{name}", metadata={})
            for name in (*splits, "overview")
        }
        prepare_data.python_func(**artifacts, source="digits")
        place.store().upload_folder(Path(scratch, "train_dataset"), "train_dataset")


@contextmanager
def open_proxies(place: Place) -> Iterator[Proxies]:
    """Run the proxies of one training. The pods must be able to connect to this machine."""
    host = _address_towards(place.endpoint)
    with ApiProxy(place.api.api_client.configuration) as api, faulty_proxy(place.endpoint, host=host) as store:
        environment = {
            **place.keys,
            "KUBECONFIG": api.kubeconfig(place.folder),
            "AWS_ENDPOINT_URL": store.url,
            "KFP_DISTRIBUTED_OBJECT_STORE_SECRET": _SECRET,
        }
        yield Proxies(api, store, environment)


def _address_towards(url: str) -> str:
    """Return the address of this machine in the network of a server, which is the network of the cluster."""
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((parts.hostname, parts.port or 80))  # Sends nothing.
        return probe.getsockname()[0]
