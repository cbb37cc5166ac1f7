"""Checks of the datasets of a training, by their manifests (pure)."""

from dataclasses import asdict

from kfp_distributed.storage.alignment import align
from kfp_distributed.storage.dataset import DatasetManifest
from kfp_distributed.storage.provenance import find_contamination, training_data


def check_datasets(train: DatasetManifest, validation: DatasetManifest | None, ranks: int) -> list[str]:
    """Check that the datasets of a training fit together and have a row for each rank.

    Args:
        train: Manifest of the training data.
        validation: Manifest of the validation data, whose columns may be in another order; None without such data.
        ranks: Number of ranks that read training rows.

    Returns:
        Warnings, a line each.

    Raises:
        ValueError: There are too few rows, or the columns, their types or vocabularies, or the classes differ.
    """
    if train.rows < ranks:
        raise ValueError(
            f"train_dataset: {train.rows} rows are too few for {ranks} ranks that read it; use fewer workers"
        )
    if validation:
        try:
            align(validation, [asdict(column) for column in train.columns], asdict(train.label))
        except ValueError as error:
            raise ValueError(
                f"validation_dataset does not fit train_dataset: {error}. Pass splits of one run of prepare_data"
            ) from None
    warnings = []
    if validation and (reason := find_contamination(validation, [training_data(train)])):
        warnings.append(
            f"validation_dataset: {reason}. The validation metrics then do not say how the model performs on new rows: "
            "pass splits of one run of prepare_data"
        )
    if not train.shuffled:
        warnings.append(
            "train_dataset was written by an earlier version of prepare_data: its shards keep parts of the source's "
            "order. If the source was sorted, by class or time, the training may be much worse: run prepare_data again"
        )
    return warnings
