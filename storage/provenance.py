"""Whether rows of a dataset have trained a model, from the manifests of both (pure)."""

from collections.abc import Mapping
from typing import Any

from kfp_distributed.storage.dataset import DatasetManifest


def training_data(manifest: DatasetManifest) -> dict[str, Any]:
    """Return what a model's manifest says about its training data.

    Args:
        manifest: Manifest of the complete training dataset.
    """
    names = ("split", "source", "seed", "preparation", "content")
    return {name: getattr(manifest, name) for name in names} | {"shards": [shard.sha256 for shard in manifest.shards]}


def find_contamination(dataset: DatasetManifest, trained: Mapping[str, Any]) -> str:
    """Return why rows of a dataset may have trained a model, as a sentence; "" if they have not, as far as is known.

    Splits of one run of `prepare_data` have different rows. Another split of the same source has rows of each split of
    the first. Sources are the same if they have the same rows or the same address.

    Args:
        dataset: Manifest of the dataset.
        trained: What the model's manifest says about its training data, of `training_data`. Empty if it says nothing.
    """
    shards = {*trained.get("shards", ())}
    common = sum(shard.sha256 in shards for shard in dataset.shards)
    if common:
        return f"{common} of the {len(dataset.shards)} shards of the dataset trained the model"
    preparation = trained.get("preparation", "")
    if preparation and preparation == dataset.preparation:
        return ""
    if dataset.content and dataset.content == trained.get("content"):
        same = "the same rows"
    elif dataset.source and dataset.source == trained.get("source"):
        same = f"the same source {dataset.source}"
    else:
        return ""
    if dataset.seed != trained.get("seed"):
        difference = f"with the seed {dataset.seed} instead of {trained.get('seed')}"
    elif preparation and dataset.preparation:
        difference = "with other options or after a change of the source"
    else:
        return ""  # Datasets of format 1 do not say more about their split.
    return f"the dataset is another split of {same}, {difference}, so rows of it may have trained the model"
