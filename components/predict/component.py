"""The step `predict` as Kubeflow Pipelines sees it."""

from typing import NamedTuple

from kfp import dsl


def predict(
    predictions: dsl.Output[dsl.Artifact],
    model: dsl.Input[dsl.Model] = None,
    model_uri: str = "",
    dataset: dsl.Input[dsl.Dataset] = None,
    source: str = "",
    key_columns: list[str] = [],
    csv_format: dict = {},  # type: ignore[type-arg]  # kfp knows it as it is
    on_bad_row: str = "refuse",
    probabilities: bool = False,
    distribution_specification: dict = {},  # type: ignore[type-arg]
) -> NamedTuple("Predicted", [("rows", int)]):  # type: ignore[valid-type]
    """Predicts the class or the number of every row of a dataset or a table.

    The output is a folder of Parquet files and a manifest, predictions.json, which is written last. The rows are in the
    order of the source. Memory does not grow with the rows.

    Args:
        model: Folder of a model that returns a probability for each class, or one number for regression: a SavedModel,
            model.onnx, model.keras, model.pt of TorchScript or model.pt2 of torch.export. It may be of `train`, of
            dsl.importer or of another step. Set either `model` or `model_uri`. Default: none.
        model_uri: Address of such a model: an output of `train`, or a version that `export_model` has exported, by
            number or by alias. Examples: "s3://models/digits/3", "s3://models/digits@production". Default: empty,
            which means `model`.
        dataset: Dataset of `prepare_data`, with the columns that the model was trained with. All of its rows are
            predicted. It needs no label. Set either `dataset` or `source`. Default: none.
        source: Path or address of rows, in the formats and at the places that `prepare_data` reads. Columns that the
            model does not need, such as a label, are not read. Examples: "s3://data/new.csv",
            "https://example.com/new.parquet". Default: empty, which means `dataset`.
        key_columns: Columns that are copied to the output, such as IDs: any columns of `source`, or inputs and the
            label of `dataset`. Example: ["id", "day"]. Default: no columns. The output then has `file` (of a dataset
            `shard`) and `row`, the number of the row in this file from 0.
        csv_format: How the CSV files of `source` are written, with the keys that `prepare_data` takes. Example:
            {"separator": ";", "decimal": ","}. Default: {}, which means UTF-8 and a header. Separator and decimal
            commas are found by the first rows.
        on_bad_row: What becomes of rows that cannot be used, such as those with a text in a column of numbers, or for
            which the model returns NaN. Allowed values: "refuse" (an error that names the first 20 of them) and "skip"
            (leave them out; the log and the manifest have their number). Default: "refuse".
        probabilities: Whether a classifier's output has the probability of each class. Default: False, which means
            that of the predicted class.
        distribution_specification: Workers that share the work, for which the predictions are the same for any number:
            "number_of_workers" (pods of a Job, which need `dataset` or an "s3://" source and read its parts
            themselves, or processes where there is no cluster) and settings of each, as of `prepare_data`. Instead,
            "dask_scheduler" is the address of the scheduler of a Dask cluster that runs already, such as
            "tcp://dask:8786". Example: {"number_of_workers": 8, "worker_memory": "2Gi"}. Default: {}, which means the
            step alone.

    Returns:
        predictions: Folder of part-00000.parquet, part-00001.parquet and so on, of 100,000 rows each. Columns: the
            keys, `prediction` (the class, or the number as float64), and for classes `probability` and `probabilities`.
        rows: Number of predicted rows.

    Raises:
        SystemExit: The rows cannot be predicted. The message is the last line of the step's log, because KFP shows an
            error nowhere else.
    """
    parameters = dict(locals())
    from kfp_distributed.components.predict.step import run_step

    return run_step(**parameters)
