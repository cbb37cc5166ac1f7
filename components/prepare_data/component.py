"""The KFP signature of the step."""

from kfp import dsl


def prepare_data(
    train_dataset: dsl.Output[dsl.Dataset],
    validation_dataset: dsl.Output[dsl.Dataset],
    test_dataset: dsl.Output[dsl.Dataset],
    overview: dsl.Output[dsl.HTML],
    source: str = "digits",
    label_column: str = "label",
    validation_fraction: float = 0.1,
    test_fraction: float = 0.1,
    shards: int = 8,
    seed: int = 0,
    image_size: str = "",
    drop_columns: list[str] = [],
) -> None:
    """Splits labelled rows or images into sharded datasets.

    Args:
        train_dataset: The training split, in as many shards as asked for.
        validation_dataset: The validation split, in one shard.
        test_dataset: The test split, in one shard.
        overview: Counts by class and split, sample images or column statistics.
        source: "digits"; CSV, Parquet, .npz, or a folder of images by class (path, http, s3).
        label_column: Column to predict.
        validation_fraction: Share of the rows.
        test_fraction: Share of the rows.
        shards: Training files.
        seed: Of the split.
        image_size: WIDTHxHEIGHT; empty for the first image's.
        drop_columns: Columns to leave out.

    Raises:
        SystemExit: With the cause as its text, which so ends the step's log; KFP shows it nowhere else.
    """
    from kfp_distributed.components.prepare_data.plan import parse_options
    from kfp_distributed.components.prepare_data.prepare import prepare
    from kfp_distributed.storage.placeholders import refuse_placeholders

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
