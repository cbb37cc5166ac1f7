"""The step `prepare_data` as Kubeflow Pipelines sees it."""

from kfp import dsl


def prepare_data(
    train_dataset: dsl.Output[dsl.Dataset],
    validation_dataset: dsl.Output[dsl.Dataset],
    test_dataset: dsl.Output[dsl.Dataset],
    overview: dsl.Output[dsl.HTML],
    source: str,
    label_column: str = "label",
    task: str = "auto",
    columns: dict = {},  # type: ignore[type-arg]  # kfp knows it as it is
    drop_columns: list[str] = [],
    split: dict = {},  # type: ignore[type-arg]
    missing: str = "auto",
    csv_format: dict = {},  # type: ignore[type-arg]
    image_size: str = "",
    on_bad_row: str = "refuse",
    rare_classes: str = "refuse",
    shards: int = 8,
    like: str = "",
    source_fingerprint: str = "",
    distribution_specification: dict = {},  # type: ignore[type-arg]
) -> None:
    """Divides rows or images into a training, a validation and a test dataset.

    Each dataset is a folder of Parquet shards with a manifest, dataset.json, which `train` and `evaluate` read. Each
    split gets its fraction of every class.

    Args:
        source: Data to split: "digits" (scikit-learn's 1,797 handwritten digits), or the path or address of a .csv,
            .tsv, .parquet, .arrow, .jsonl or .npz file, of a folder of files of one of the first five kinds, or of a
            folder that has a folder of images for each class. Folders may have splits of their own, such as train.csv
            and test.csv or those of Hugging Face: each becomes its dataset. CSV and JSON Lines files may be compressed
            (.csv.gz, .jsonl.zst). Hidden files and files of operating systems are left out, with a warning. A folder's
            address must be a path or an s3:// address. Examples: "s3://data/flowers.csv", "https://example.com/flowers.parquet".
        label_column: Name of the column or array to predict. For "digits" and for folders of images, the label gets
            this name. Example: "species". Default: "label". Empty means that there is nothing to predict. Without a
            column "label", rows of conversations ("messages" or "conversations"), "prompt" and "completion",
            "instruction" and "output", "chosen" and "rejected", or "text" are kept for language models.
        task: What is predicted. Allowed values: "classification" (a class of texts or whole numbers), "regression" (a
            number), "none" (nothing: all columns keep their types, for functions of your own) and "auto": regression
            for numbers with fractions or more than 100 different whole numbers, else classification, and none without a
            label_column. The log says what was chosen and why. Default: "auto".
        columns: Kinds of columns that are not to be guessed, by name: "number", "category" (also of integer codes),
            "date", "text", "binary", "list<float>", "list<int>", "list<text>", "list<object>" or "conversation". Texts,
            binary values, lists and conversations are kept as they are, for functions of your own. After "date" may be
            a format of Python's strptime. Example: {"zip": "category", "review": "text", "sold_on": "date %d/%m/%Y"}.
            Default: {}.
        drop_columns: Names of the columns that are neither inputs nor the label, such as IDs. Example: ["id", "name"].
            Default: no columns.
        split: How the rows are divided. Keys: "validation_fraction" and "test_fraction" (fraction of the rows for that
            dataset, from 0 to less than 1, 0.1 by default; with 0 it is empty, and the sum of both must be less than 1
            unless `like` is set), "group_column" (rows with equal values of it, such as the patient, come into one
            dataset, with the fractions as near as whole groups allow), "time_column" (column of dates, times or
            numbers: the newest rows become the test dataset, those before them the validation dataset),
            "validation_source" and "test_source" (path or address of the rows of that dataset, with the same columns,
            in place of its fraction) and "seed" (a whole number of at least 0; the same data and seed give the same
            split). Both columns are no inputs unless they are in `columns`. Example: {"group_column": "patient",
            "test_fraction": 0.2}. Default: {}, which means a tenth of the rows for each, drawn at random with seed 0.
        missing: What becomes of missing values. Allowed values: "impute" (numbers by the median of the training rows,
            which the exported model puts there, too; a missing category is a class of its own), "drop" (leave the row
            out), "refuse" (an error), "keep" (NaN) and "auto": "keep" for the task "none", else "impute". Default:
            "auto".
        csv_format: How CSV files are written: "separator", "decimal" ("." or ","), "encoding", "header" (whether the
            first row has the names; else the columns are column_1, column_2, ...), "missing" (more texts that stand
            for a missing value) and "usual_missing" (whether NA, None and others do). Example: {"separator": ";",
            "decimal": ",", "encoding": "latin-1", "missing": ["?"]}. Default: {}, which means UTF-8 and a header.
            Separator and decimal commas are found by the first rows.
        image_size: Size to which all images are scaled, as WIDTHxHEIGHT in pixels. Example: "28x28". Default: empty,
            which means the size of the first image by name.
        on_bad_row: What becomes of rows that cannot be used, such as those with a text in a column of numbers. Allowed
            values: "refuse" (an error that names the first 20 of them) and "skip" (leave them out; the overview has
            their number). Default: "refuse".
        rare_classes: What becomes of classes of one row, of which a model can learn and be tested nothing. Allowed
            values: "refuse" (an error) and "drop" (leave their rows out; the overview has their number). Default:
            "refuse".
        shards: Number of Parquet files of the training dataset, from 1 to 512. More shards make each file
            smaller, and a replica of `train` must have memory for one. Default: 8.
        like: Folder of a dataset of an earlier run, whose columns, vocabularies, classes and statistics are applied to
            these rows, so that its model can be evaluated on them. It is the address that KFP shows for a dataset. With
            {"validation_fraction": 0, "test_fraction": 1} as `split` all rows become the test dataset. Example:
            "s3://mlpipeline/v2/artifacts/digits/8f3c.../prepare-data/51b2.../train_dataset". Default: empty, which
            means the columns and statistics of these rows.
        source_fingerprint: Output of `fingerprint_source` for the same source. The cache of Kubeflow Pipelines compares
            the text of the inputs alone. With this input it notices that the source has changed. The manifests of the
            datasets record it. Example: "sha256:9f8a... files=3 bytes=48211". Default: empty, which means that the
            cache does not notice changes.
        distribution_specification: Workers that share the work, for which the datasets are the same for any number:
            "number_of_workers" (pods of a Job, which read an "s3://" source by parts and store the shards themselves,
            or processes where there is no cluster) and settings of each, "worker_cpus", "worker_memory",
            "node_selector", "tolerations", "volumes", "queue_name", "restart_limit", timeouts and the other keys that
            `train` has for a Job. Instead, "dask_scheduler" is the address of the scheduler of a Dask cluster that runs
            already, such as "tcp://dask:8786". Its workers need this library, its packages and the credentials of the
            object store. Example: {"number_of_workers": 8, "worker_memory": "2Gi"}. Default: {}, which means the step
            alone.

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
