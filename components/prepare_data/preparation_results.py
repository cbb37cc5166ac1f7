"""What the pods of a step leave for it in the object store: the manifests and the overview, or why there are none."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from kfp_distributed.components.artifacts import Artifact
from kfp_distributed.storage.dataset import DATASET_MANIFEST, DatasetManifest
from kfp_distributed.storage.errors import KeyNotFound
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store

_RESULT = "result.json"
_OVERVIEW = "overview"


@dataclass(frozen=True)
class PreparationResult:
    """The end of a preparation. It is stored when everything else is.

    Attributes:
        request: Hash of the job's description.
        metadata: Metadata of the datasets by split.
        error: Why there are no datasets; "" if there are.
    """

    request: str
    metadata: Mapping[str, Mapping[str, object]]
    error: str = ""


def read_result(store: Store, request: str) -> PreparationResult | None:
    """Return the result of a job; None if there is none yet, or if it is of another job.

    Raises:
        StorageError: The store cannot be read.
    """
    try:
        result = PreparationResult(**json.loads(store.read(_RESULT)))
    except KeyNotFound:
        return None
    return result if result.request == request else None


def store_error(store: Store, request: str, error: Exception) -> None:
    """Store why there are no datasets.

    Raises:
        StorageError: It cannot be stored.
    """
    _write(store, PreparationResult(request, {}, f"{type(error).__name__}: {error}"))


def store_results(store: Store, request: str, datasets: Mapping[str, Artifact], overview: Path) -> None:
    """Store the manifests, the overview and the result.

    Raises:
        StorageError: They cannot be stored.
    """
    for split, dataset in datasets.items():
        store.upload(Path(dataset.path, DATASET_MANIFEST), f"{split}/{DATASET_MANIFEST}")
    store.upload(overview, _OVERVIEW)
    _write(store, PreparationResult(request, {split: dataset.metadata for split, dataset in datasets.items()}))


def take_results(store: Store, result: PreparationResult, datasets: Mapping[str, Artifact], overview: Path) -> None:
    """Download the manifests and the overview into the output artifacts of the step, and check that the shards exist.

    Raises:
        StorageError: They cannot be read.
        OSError: They cannot be written, or a shard is missing. A pod that was replaced because its node did not answer
            may have deleted it.
    """
    for split, dataset in datasets.items():
        file = Path(dataset.path, DATASET_MANIFEST)
        store.download(f"{split}/{DATASET_MANIFEST}", file)
        manifest = DatasetManifest.from_json(file.read_text())
        stored = {entry.key: entry.size for entry in open_store(manifest.shards_uri).list()}
        for shard in manifest.shards:
            if stored.get(shard.path) != shard.size:
                raise OSError(
                    f"the {split} shard {shard.path} of {shard.size} bytes is not in {manifest.shards_uri}: start the "
                    "step again"
                )
        dataset.metadata.update(result.metadata[split])
    store.download(_OVERVIEW, overview)


def forget_result(store: Store) -> None:
    """Delete the error of an earlier attempt.

    Raises:
        StorageError: It cannot be deleted.
    """
    store.delete([_RESULT])


def delete_all(store: Store) -> None:
    """Delete what the pods and the step have stored.

    Raises:
        StorageError: It cannot be deleted.
    """
    store.delete([entry.key for entry in store.list()])


def _write(store: Store, result: PreparationResult) -> None:
    store.write(_RESULT, json.dumps(asdict(result)).encode())
