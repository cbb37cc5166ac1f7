"""The step `prepare_data` as Kubeflow Pipelines sees it."""

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
    parameters = dict(locals())
    from kfp_distributed.components.prepare_data.step import run_step

    run_step(**parameters)
