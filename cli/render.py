"""The Kubernetes objects that a `train` step would create: made the step's own way, on a cluster that is none."""

import base64
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from kfp_distributed.components.train.launch import Request, plan_job
from kfp_distributed.components.train.manifests.cluster_settings import MpiVersion, Object
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
# What a train step would create in namespace {namespace}. Words in capitals stand for what a run fills in; the hash
# and the job's name change with them. The object store is the one that Kubeflow Pipelines is installed with.
"""


_CLAIM = "# Created where there is no claim of this name yet. Nobody owns it: it stays when the job is gone.\n"


class PaperCluster(ClusterApi):
    """Answers as an API server that has all kinds and refuses nothing, and keeps what it is asked to try.

    Attributes:
        tried: The objects that the runner's dry run has sent, the job first.
    """

    def __init__(self, namespace: str, mpi_version: MpiVersion, absent: Collection[str] = ()) -> None:
        """Makes a cluster without a connection.

        Args:
            namespace: Where the job would run.
            mpi_version: The version of MPIJob that is served.
            absent: Names of PersistentVolumeClaims that are not there; any other is.
        """
        self.namespace = namespace
        self._absent = {f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{each}" for each in absent}
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
        """Answers discovery and reviews, takes a dry run's objects, and has no job."""
        if method == "GET":
            if path not in self._served:
                raise ClusterError(404, f"{path} is not there")
            return {"resources": [{"name": name} for name in self._served[path]]}
        if (query or {}).get("dryRun") == "All" and body:
            self.tried.append(body)
        return {"status": {"allowed": True}}

    def read(self, path: str) -> Object | None:
        """Has the object store's Secret and its Service, and every claim but the absent ones."""
        has = path.endswith((f"/secrets/{KFP_SECRET}", "/kubeflow/services/minio-service"))
        claimed = "/persistentvolumeclaims/" in path and path not in self._absent
        return {"kind": "Something"} if has or claimed else None


def rendered_objects(
    train_specification: Mapping[str, Any],
    train_parameters: Mapping[str, Any],
    distribution_specification: Mapping[str, Any],
    namespace: str,
    mpi_version: MpiVersion,
) -> list[Object]:
    """The job, its ConfigMap, and the PersistentVolumeClaims that the step makes where they are not there.

    Args:
        train_specification: As `train` takes it, and likewise the two others.
        train_parameters: See above.
        distribution_specification: See above.
        namespace: Where the job would run.
        mpi_version: The version of MPIJob that is served.

    Raises:
        ValueError: Something in the three is wrong: the step's own error.
    """
    with tempfile.TemporaryDirectory() as folder:
        # The step reads how many rows there are. Here nothing is read from them.
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
    # Who gives a volume a size wants its claim to be made.
    made = {dict(each)["name"] for each in job.specification.volumes if "size" in dict(each)}
    cluster = PaperCluster(namespace, mpi_version, made)
    kubernetes_runner(cluster, _URIS["model_uri"]).check(replace(job, description=replace(job.description, **_URIS)))
    return cluster.tried


def as_yaml(objects: list[Object], *, full: bool) -> str:
    """The objects as YAML documents.

    Args:
        objects: What `rendered_objects` gives.
        full: Whether to print the archive of the library, too.
    """
    documents = [_document(item if full else _without_archives(item)) for item in objects]
    return _HEADER.format(namespace=objects[0]["metadata"]["namespace"]) + "".join(documents)


def _document(found: Object) -> str:
    text = yaml.dump(found, Dumper=_Dumper, sort_keys=False, width=1000)
    return f"---\n{_CLAIM if found['kind'] == 'PersistentVolumeClaim' else ''}{text}"


def _without_archives(item: Object) -> Object:
    """Return an object with the sizes of its binary data in place of the data."""
    if "binaryData" not in item:
        return item
    sizes = {key: len(base64.b64decode(text)) for key, text in item["binaryData"].items()}
    return {**item, "binaryData": {key: f"({size:,} bytes, --full prints them)" for key, size in sizes.items()}}


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes text of several lines as such, and what occurs twice as often as it occurs."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> Any:  # noqa: ANN401  (PyYAML has no types)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


def _list(dumper: _Dumper, entries: list[object]) -> Any:  # noqa: ANN401
    # The exit codes of a Job's failure policy are one line, not 127.
    flow = all(isinstance(each, int) for each in entries)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", entries, flow_style=flow)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(list, _list)
