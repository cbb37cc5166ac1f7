"""What the pods of the step leave for it in the object store: the manifests and the overview."""

from collections.abc import Mapping
from pathlib import Path

from kfp_distributed.components.kfp_interface.artifacts import Artifact
from kfp_distributed.components.worker_pool.worker_results import WorkerResult, store_result
from kfp_distributed.storage.dataset import DATASET_MANIFEST, DatasetManifest
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store

_OVERVIEW = "overview"


def store_results(store: Store, request: str, datasets: Mapping[str, Artifact], overview: Path) -> None:
    """Store the manifests, the overview and the result.

    Raises:
        StorageError: They cannot be stored.
    """
    for split, dataset in datasets.items():
        store.upload(Path(dataset.path, DATASET_MANIFEST), f"{split}/{DATASET_MANIFEST}")
    store.upload(overview, _OVERVIEW)
    store_result(store, request, {split: dataset.metadata for split, dataset in datasets.items()})


def take_results(store: Store, result: WorkerResult, datasets: Mapping[str, Artifact], overview: Path) -> None:
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
