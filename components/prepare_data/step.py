"""Runs the step `prepare_data` on the artifacts of KFP."""

from collections.abc import Sequence

from kfp_distributed.components.artifacts import Artifact
from kfp_distributed.components.prepare_data.plan import parse_options
from kfp_distributed.components.prepare_data.prepare import prepare
from kfp_distributed.storage.placeholders import refuse_placeholders


def run_step(
    *,
    train_dataset: Artifact,
    validation_dataset: Artifact,
    test_dataset: Artifact,
    overview: Artifact,
    source: str,
    label_column: str,
    validation_fraction: float,
    test_fraction: float,
    shards: int,
    seed: int,
    image_size: str,
    drop_columns: Sequence[str],
) -> None:
    """Prepare data; the parameters are those of the component.

    Raises:
        SystemExit: The data cannot be prepared. The message is the last line of the step's log, because KFP shows an
            error nowhere else.
    """
    datasets = {"train": train_dataset, "validation": validation_dataset, "test": test_dataset}
    texts = {"source": source, "label_column": label_column, "image_size": image_size, "drop_columns": drop_columns}
    try:
        refuse_placeholders(texts)
        options = parse_options(
            label_column, validation_fraction, test_fraction, shards, seed, image_size, drop_columns
        )
        prepare(source, options, datasets, overview.path)
    except (ValueError, OSError) as error:
        raise SystemExit(f"\n{type(error).__name__}: {error}") from None
