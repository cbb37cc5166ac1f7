"""The step `prepare_data` as Kubeflow Pipelines sees it."""

from kfp import dsl


def prepare_data(
    train_dataset: dsl.Output[dsl.Dataset],
    validation_dataset: dsl.Output[dsl.Dataset],
    test_dataset: dsl.Output[dsl.Dataset],
    overview: dsl.Output[dsl.HTML],
    source: str,
    label_column: str = "label",
    validation_fraction: float = 0.1,
    test_fraction: float = 0.1,
    shards: int = 8,
    seed: int = 0,
    image_size: str = "",
    drop_columns: list[str] = [],
    source_fingerprint: str = "",
) -> None:
    """Splits labelled rows or images into a training, a validation and a test dataset.

    Each dataset is a folder of Parquet shards with a manifest, dataset.json, which `train` and `evaluate` read. Each
    split gets its fraction of every class.

    Args:
        source: Data to split: "digits" (scikit-learn's 1,797 handwritten digits), or the path or address of a .csv,
            .parquet or .npz file, of a folder of .csv or of .parquet files, or of a folder that has a folder of images
            for each class. Hidden files and files of operating systems are left out, with a warning. A folder's address
            must be a path or an s3:// address. Examples: "s3://data/flowers.csv",
            "https://example.com/flowers.parquet".
        label_column: Name of the column or array to predict. It must hold classes: texts or whole numbers. For "digits"
            and for folders of images, the label gets this name. Example: "species". Default: "label".
        validation_fraction: Fraction of the rows for the validation dataset, from 0 to less than 1. With 0 that dataset
            is empty. Default: 0.1.
        test_fraction: Fraction of the rows for the test dataset, from 0 to less than 1. The sum of both fractions must
            be less than 1. Default: 0.1.
        shards: Number of Parquet files of the training dataset, from 1 to 512. More shards make each file
            smaller, and a replica of `train` must have memory for one. Default: 8.
        seed: Seed of the random split, a whole number of at least 0. The same data and seed give the same split.
            Default: 0.
        image_size: Size to which all images are scaled, as WIDTHxHEIGHT in pixels. Example: "28x28". Default: empty,
            which means the size of the first image by name.
        drop_columns: Names of the columns that are neither inputs nor the label, such as IDs. Example: ["id", "name"].
            Default: no columns.
        source_fingerprint: Output of `fingerprint_source` for the same source. The cache of Kubeflow Pipelines compares
            the text of the inputs alone. With this input it notices that the source has changed. The manifests of the
            datasets record it. Example: "sha256:9f8a... files=3 bytes=48211". Default: empty, which means that the
            cache does not notice changes.

    Returns:
        train_dataset: Training dataset, in the number of shards that `shards` sets.
        validation_dataset: Validation dataset in one shard, for `train`.
        test_dataset: Test dataset in one shard, for `evaluate`.
        overview: HTML page with warnings (files left out, missing values, constant columns, leakage, duplicates), the
            rows of each class and split, sample rows or images, and the distributions of the columns.

    Raises:
        SystemExit: The data cannot be prepared. The message is the last line of the step's log, because KFP shows an
            error nowhere else.
    """
    parameters = dict(locals())
    from kfp_distributed.components.prepare_data.step import run_step

    run_step(**parameters)
