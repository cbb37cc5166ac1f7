"""Whether rows of a dataset have trained a model, from the manifests of both (pure)."""

from collections.abc import Mapping, Sequence
from typing import Any

from kfp_distributed.storage.dataset import DatasetManifest


def training_data(manifest: DatasetManifest) -> dict[str, Any]:
    """Return what a model's manifest says about its training data.

    Args:
        manifest: Manifest of the complete training dataset.
    """
    names = ("split", "source", "seed", "preparation", "content")
    return {name: getattr(manifest, name) for name in names} | {"shards": [shard.sha256 for shard in manifest.shards]}


def with_training_data(earlier: Sequence[Mapping[str, Any]], manifest: DatasetManifest) -> list[Mapping[str, Any]]:
    """Return the training data of a model, the newest last: those of the trainings it was resumed from, and its own.

    Args:
        earlier: Training data so far, each of `training_data`, or {} if unknown.
        manifest: Manifest of the complete training dataset.
    """
    own = training_data(manifest)
    return [*(data for data in earlier if data != own), own]


def find_contamination(dataset: DatasetManifest, trained: Sequence[Mapping[str, Any]]) -> str:
    """Return why rows of a dataset may have trained a model, as a sentence; "" if they have not, as far as is known.

    Splits of one run of `prepare_data` have different rows. Another split of the same source has rows of each split of
    the first. Sources are the same if they have the same rows or the same address.

    Args:
        dataset: Manifest of the dataset.
        trained: The model's training data, each of `training_data`, or {} if unknown.
    """
    return next(filter(None, (_overlap(dataset, data) for data in trained)), "")


def _overlap(dataset: DatasetManifest, trained: Mapping[str, Any]) -> str:
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
