"""The Kubernetes objects that a `train` step would create, planned by the step's own functions. Needs no cluster."""

import base64
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings, MpiVersion, Operator
from kfp_distributed.components.train.describe.manifests.job_objects import plan_objects, settings_for
from kfp_distributed.components.train.describe.specification import DistributionSpecification
from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.components.train.run.runners.kubernetes.create.choose_operator import as_set
from kfp_distributed.components.train.run.training_request.request import Request, plan_job
from kfp_distributed.library.content import REPLICA_PACKAGES, read_library
from kfp_distributed.storage.dataset import DATASET_MANIFEST, Column, DatasetManifest, Label, Shard
from kfp_distributed.storage.kubeflow.kfp_backend import (
    DEFAULT_PIPELINE_ROOT,
    KFP_NAMESPACE,
    STORE_PORT,
    STORE_SECRET,
    STORE_SERVICES,
)
from kfp_distributed.storage.kubeflow.kfp_store import StoreReference, environment_entries
from kfp_distributed.trainers.programs.program import LANGUAGE_MODEL

_RUN = f"{DEFAULT_PIPELINE_ROOT}/PIPELINE/RUN"
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


def planned_job(
    train_specification: Mapping[str, Any],
    train_parameters: Mapping[str, Any],
    distribution_specification: Mapping[str, Any],
) -> TrainingJob:
    """Return the job that the step would plan.

    Args:
        train_specification: train_specification of `train`.
        train_parameters: train_parameters of `train`.
        distribution_specification: distribution_specification of `train`.

    Raises:
        ValueError: One of the three dicts is wrong. The text is that of the step.
    """
    with tempfile.TemporaryDirectory() as folder:
        is_of_texts = isinstance(train_specification, Mapping) and train_specification.get("trainer") == LANGUAGE_MODEL
        given = train_parameters if isinstance(train_parameters, Mapping) else {}
        wanted = "dpo" if given.get("objective") == "dpo" else given.get("loss_on")
        Path(folder, DATASET_MANIFEST).write_text(_dataset(wanted, is_of_texts=is_of_texts).to_json())
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
    return replace(job, description=replace(job.description, **_URIS))


def _dataset(wanted: object, *, is_of_texts: bool) -> DatasetManifest:
    """Return a dataset that any training accepts: of rows for `language_model`, or of rows with a label."""
    rows = 10**9
    shards = (Shard("rows", rows, 0, ""),)
    if is_of_texts:
        forms = {
            "assistant": {"messages": "conversation"},
            "completion": dict.fromkeys(("prompt", "completion"), "required text"),
            "dpo": dict.fromkeys(("prompt", "chosen", "rejected"), "required text"),
        }
        kinds = forms.get(str(wanted), {"text": "required text"})
        columns = tuple(Column(name, "kept", "string", source_type=kind) for name, kind in kinds.items())
        return DatasetManifest("train", columns, Label("", task="none"), shards, (), 0, "", shuffled=True)
    return DatasetManifest("train", (), Label("label", ("",)), shards, (rows,), 0, "")


def rendered_objects(
    job: TrainingJob, namespace: str, mpi_version: MpiVersion, operator: Operator | None = None
) -> list[Object]:
    """Return the job, its ConfigMap, and the PersistentVolumeClaims that the step would create.

    A TrainJob comes after its TrainingRuntime, which must exist before it.

    Args:
        job: Job of `planned_job`.
        namespace: Namespace of the job.
        mpi_version: Version of MPIJob that is served.
        operator: Operator that `auto` takes on the cluster. Default: the training operator.

    Raises:
        ValueError: The operator cannot run the job. The text is that of the step.
    """
    store = StoreReference(f"{STORE_SERVICES[0]}.{KFP_NAMESPACE}:{STORE_PORT}", STORE_SECRET, namespace)
    settings = ClusterSettings(
        namespace, environment=tuple(environment_entries(store)), library=read_library(REPLICA_PACKAGES)
    )
    key = job.specification.operator
    taken = (operator or "training-operator") if key == "auto" else key
    objects = plan_objects(job, settings_for(job, settings, mpi_version, os.environ, operator=taken))
    runtime = [objects.runtime] if objects.runtime else []
    return [*runtime, objects.manifest, *objects.parts, *objects.claims]


def operator_line(specification: DistributionSpecification, operator: Operator | None) -> str:
    """Return the comment about the operator of the job and the reason; "" for a Job.

    Args:
        specification: Specification of the job.
        operator: Operator that `auto` takes on the cluster. Default: the training operator.
    """
    if specification.distribution_type == "Job":
        return ""
    if specification.operator != "auto":
        return f"# Operator: {specification.operator}, because {as_set(specification.operator)}.\n"
    reason = f"--operator = {operator}" if operator else "auto prefers it; doctor says what auto takes on a cluster"
    return f"# Operator: {operator or 'training-operator'}, because {reason}.\n"


def as_yaml(objects: list[Object], *, full: bool, comments: str = "") -> str:
    """Return objects as YAML documents.

    Args:
        objects: Objects of `rendered_objects`.
        full: Whether to print the archive of the library in full.
        comments: Lines of comments that begin with "#". Default: none.
    """
    documents = [_document(item if full else _without_archives(item)) for item in objects]
    return _HEADER.format(namespace=objects[0]["metadata"]["namespace"]) + comments + "".join(documents)


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
