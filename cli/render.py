"""The Kubernetes objects that a `train` step would create. The step's own code creates them on a fake cluster."""

import base64
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from kfp_distributed.components.train.manifests.cluster_settings import MpiVersion, Object
from kfp_distributed.components.train.request import Request, plan_job
from kfp_distributed.components.train.runners.choose import kubernetes_runner
from kfp_distributed.components.train.runners.kubernetes.cluster_api import ClusterApi
from kfp_distributed.components.train.runners.protocol import ClusterError
from kfp_distributed.storage.dataset import DATASET_MANIFEST, DatasetManifest, Label, Shard
from kfp_distributed.storage.kfp_store import KFP_SECRET

_RUN = "minio://mlpipeline/v2/artifacts/PIPELINE/RUN"
_URIS: dict[str, Any] = {
    "train_uri": f"{_RUN}/prepare-data/UUID/train_dataset",
    "validation_uri": f"{_RUN}/prepare-data/UUID/validation_dataset",
    "model_uri": f"{_RUN}/train/UUID/model",
}

_HEADER = """\
# The objects that a train step would create in namespace {namespace}. Words in capitals stand for values of a run. The
# hash and the job's name depend on them. The object store is the one that Kubeflow Pipelines is installed with.
"""


_CLAIM = "# Created if there is no claim of this name. It has no owner, so it stays after the job is deleted.\n"


class FakeCluster(ClusterApi):
    """An API server that serves all kinds and refuses nothing. It records the objects of dry runs.

    Attributes:
        tried: Objects of the runner's dry run, the job first.
    """

    def __init__(self, namespace: str, mpi_version: MpiVersion, absent: Collection[str] = ()) -> None:
        """Create a cluster without a connection.

        Args:
            namespace: Namespace of the job.
            mpi_version: Version of MPIJob that is served.
            absent: Names of PersistentVolumeClaims that do not exist. All others exist. Default: none.
        """
        self.namespace = namespace
        self._absent = {f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}" for name in absent}
        self.tried: list[Object] = []
        self._served = {
            "/apis/batch/v1": ["jobs"],
            "/apis/kubeflow.org/v1": ["tfjobs", "pytorchjobs"],
            "/apis/kubeflow.org/v2beta1": [],
        }
        self._served[f"/apis/kubeflow.org/{mpi_version}"].append("mpijobs")

    def call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        query: Mapping[str, str] | None = None,
        away_seconds: float = 0.0,
        timeout_seconds: float = 0.0,
    ) -> Object:
        """Answer discovery and access reviews, and record the objects of dry runs. No other object exists."""
        if method == "GET":
            if path not in self._served:
                raise ClusterError(404, f"{path} is not there")
            return {"resources": [{"name": name} for name in self._served[path]]}
        if (query or {}).get("dryRun") == "All" and body:
            self.tried.append(body)
        return {"status": {"allowed": True}}

    def read(self, path: str) -> Object | None:
        """Return the object store's Secret and Service, and every claim that is not absent."""
        is_store = path.endswith((f"/secrets/{KFP_SECRET}", "/kubeflow/services/minio-service"))
        is_claim = "/persistentvolumeclaims/" in path and path not in self._absent
        return {"kind": "Something"} if is_store or is_claim else None


def rendered_objects(
    train_specification: Mapping[str, Any],
    train_parameters: Mapping[str, Any],
    distribution_specification: Mapping[str, Any],
    namespace: str,
    mpi_version: MpiVersion,
) -> list[Object]:
    """Return the job, its ConfigMap, and the PersistentVolumeClaims that the step would create.

    Args:
        train_specification: train_specification of `train`.
        train_parameters: train_parameters of `train`.
        distribution_specification: distribution_specification of `train`.
        namespace: Namespace of the job.
        mpi_version: Version of MPIJob that is served.

    Raises:
        ValueError: One of the three dicts is wrong. The text is that of the step.
    """
    with tempfile.TemporaryDirectory() as folder:
        # The step reads the number of rows, and nothing else of the dataset.
        rows = 10**9
        data = DatasetManifest("train", (), Label("", ("",)), (Shard("rows", rows, 0, ""),), (rows,), 0, "")
        Path(folder, DATASET_MANIFEST).write_text(data.to_json())
        job = plan_job(
            Request(
                train_uri=folder,
                model_uri=_URIS["model_uri"],
                train_specification=train_specification,
                train_parameters=train_parameters,
                distribution_specification=distribution_specification,
                identity=("RUN", "train", "TASK"),
            )
        )
    # The step creates the claims of volumes with a size.
    created = {volume["name"] for volume in map(dict, job.specification.volumes) if "size" in volume}
    cluster = FakeCluster(namespace, mpi_version, created)
    kubernetes_runner(cluster, _URIS["model_uri"]).check(replace(job, description=replace(job.description, **_URIS)))
    return cluster.tried


def as_yaml(objects: list[Object], *, full: bool) -> str:
    """Return objects as YAML documents.

    Args:
        objects: Objects of `rendered_objects`.
        full: Whether to print the archive of the library in full.
    """
    documents = [_document(item if full else _without_archives(item)) for item in objects]
    return _HEADER.format(namespace=objects[0]["metadata"]["namespace"]) + "".join(documents)


def _document(item: Object) -> str:
    text = yaml.dump(item, Dumper=_Dumper, sort_keys=False, width=1000)
    return f"---\n{_CLAIM if item['kind'] == 'PersistentVolumeClaim' else ''}{text}"


def _without_archives(item: Object) -> Object:
    """Return an object with the sizes of its binary data in place of the data."""
    if "binaryData" not in item:
        return item
    sizes = {key: len(base64.b64decode(text)) for key, text in item["binaryData"].items()}
    return {**item, "binaryData": {key: f"({size:,} bytes, --full prints them)" for key, size in sizes.items()}}


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes text of several lines as a block, and no aliases for values that occur more than once."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> Any:  # noqa: ANN401  (PyYAML has no types)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


def _list(dumper: _Dumper, entries: list[object]) -> Any:  # noqa: ANN401
    # The 127 exit codes of a Job's failure policy become one line.
    is_flow = all(isinstance(entry, int) for entry in entries)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", entries, flow_style=is_flow)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(list, _list)
