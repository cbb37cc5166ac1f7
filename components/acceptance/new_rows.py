"""Checks that no row of a dataset has trained the model that is scored with it (pure)."""

from collections.abc import Mapping, Sequence
from typing import Any

from kfp_distributed.storage.dataset import DatasetManifest
from kfp_distributed.storage.provenance import find_contamination


def check_new_rows(dataset: DatasetManifest, trained: Sequence[Mapping[str, Any]], allow_training_rows: bool) -> str:
    """Check that no row of a dataset has trained a model; return a warning, "" for none.

    Args:
        dataset: Manifest of the dataset.
        trained: `training_data` of the manifest of the model.
        allow_training_rows: Whether such rows cause a warning instead of an error.

    Raises:
        ValueError: Rows have trained the model, and `allow_training_rows` is false.
    """
    reason = find_contamination(dataset, trained)
    if reason and not allow_training_rows:
        raise ValueError(
            f"{reason}: its scores would not say how the model performs on new rows. Evaluate the test_dataset of the "
            "run of prepare_data that trained the model, or set allow_training_rows=True."
        )
    if reason:
        return f"{reason}: the scores do not say how the model performs on new rows"
    if trained and all(trained):
        return ""
    return "the model has no record of all rows that trained it. If they are in this dataset, scores are too high"
