"""The pipeline `train_and_export`: prepares data, trains distributed, evaluates, and exports the model to a bucket."""

from collections.abc import Callable
from typing import Any

from kfp import dsl

from kfp_distributed import components
from kfp_distributed.components import Steps
from kfp_distributed.components.kfp_interface.input_values import accept_input_values

DIGITS_DISTRIBUTION = {"distribution_type": "TF", "number_of_workers": 3, "number_of_parameter_servers": 0}


def make_train_and_export(with_steps: Steps):  # type: ignore[no-untyped-def]  # noqa: ANN201  (kfp types no pipeline)
    """Return the pipeline of five steps, which may find the library in an image, a package or a ConfigMap.

    Args:
        with_steps: Steps of `kfp_distributed.components.steps()`.

    Returns:
        The pipeline. Call it in another pipeline or in `local_run()`, or compile it.
    """
    # A separate pipeline, because kfp's local runner cannot compare the output of a task beside the condition.
    export_if_good_enough = dsl.pipeline(export_function(with_steps), name="export-if-good-enough")
    function = training_function(with_steps, export_if_good_enough)
    description = "Prepares data, trains distributed, evaluates and exports."
    return accept_input_values(dsl.pipeline(function, name="train-and-export", description=description))


def training_function(with_steps: Steps, export_if_good_enough: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of the pipeline, for `dsl.pipeline`.

    Args:
        with_steps: As of `make_train_and_export`.
        export_if_good_enough: Creates the task that exports the model. It is called with `model_uri`, `mlflow_run_id`,
            `metrics`, `is_good_enough`, and the parameters of the pipeline about the export.
    """

    def train_and_export(
        source: str = "digits",
        label_column: str = "label",
        task: str = "auto",
        columns: dict = {},  # noqa: B006
        drop_columns: list[str] = [],  # noqa: B006
        split: dict = {},  # noqa: B006
        missing: str = "auto",
        csv_format: dict = {},  # noqa: B006
        rare_classes: str = "refuse",
        shards: int = 8,
        train_specification: dict = {"trainer": "keras_classifier"},  # noqa: B006
        train_parameters: dict = {"epochs": 15},  # noqa: B006
        distribution_specification: dict = DIGITS_DISTRIBUTION,
        runner: str = "auto",
        checkpoint_uri: str = "",
        resume_from: str = "",
        cluster_configuration_secret: str = "",
        metric: str = "",
        bound: float = 0.9,
        model_name: str = "digits",
        bucket: str = "",
        aliases: list[str] = [],  # noqa: B006
        keep: int = 0,
    ) -> float:
        """Prepares data, trains distributed, evaluates on the test split, and exports the model if it is good enough.

        Args:
            source: Data to train on: "digits" (scikit-learn's 1,797 handwritten digits), or the path or address of CSV,
                Parquet or .npz files or of folders of images. Examples: "s3://data/flowers.csv",
                "https://example.com/flowers.parquet". Default: "digits".
            label_column: Name of the column or array to predict. Example: "species". Default: "label".
            task: What is predicted. Allowed values: "classification" (a class), "regression" (a number) and "auto" (the
                labels decide). Default: "auto".
            columns: Kinds of columns that are not to be guessed, by name: "number", "category" (also of integer codes)
                or "date". Example: {"zip": "category"}. Default: {}.
            drop_columns: Names of the columns that are neither inputs nor the label. Example: ["id"]. Default: no
                columns.
            split: How the rows are divided. The keys used most are "validation_fraction", "test_fraction",
                "group_column" (rows with equal values of it come into one dataset) and "time_column" (the newest rows
                become the test dataset). Example: {"group_column": "patient", "test_fraction": 0.2}. Default: {}, which
                means a tenth of the rows for each, drawn at random.
            missing: What becomes of missing values. Allowed values: "impute" (the median of the training rows), "drop"
                (leave the row out), "refuse" (an error), "keep" (NaN) and "auto" (impute). Default: "auto".
            csv_format: How CSV files are written. Example: {"separator": ";", "decimal": ",", "missing": ["?"]}.
                Default: {}, which means commas, points, UTF-8 and a header.
            rare_classes: What becomes of classes of one row. Allowed values: "refuse" (an error) and "drop" (leave
                their rows out). Default: "refuse".
            shards: Number of Parquet files that the training data is divided into, from 1 to 512. More shards
                make each file smaller, and a replica must have memory for one. Default: 8.
            train_specification: What each replica runs: {"trainer": NAME}, {"function": NAME, "source": TEXT} or
                {"command": [WORD, ...]}, with the optional keys "image" and "packages". Example:
                {"trainer": "keras_classifier", "image": "registry.example.com/team/tensorflow:1"}. Default: the
                built-in trainer keras_classifier, without an image.
            train_parameters: Arguments of the trainer or function, by name. Example: {"epochs": 40, "batch_size": 64}.
                Default: 15 epochs.
            distribution_specification: Type of the job and the number and size of its replicas. The keys used most are
                "distribution_type" ("Job", "MPI", "TF" or "PyTorch"), "number_of_workers",
                "number_of_parameter_servers" (TF only), "worker_cpus", "worker_memory", "worker_gpus" and
                "restart_limit". Example: {"distribution_type": "TF", "number_of_workers": 2, "worker_memory": "4Gi"}.
                Default: TensorFlow on 3 workers without parameter servers. {} means one process.
            runner: Where the replicas run. Allowed values: "kubernetes" (pods of a cluster), "local" (processes of the
                step) and "auto" (pods where there is a cluster, else processes). Default: "auto".
            checkpoint_uri: Folder in an object store for checkpoints and metrics. Example: "s3://training/checkpoints".
                Default: empty, which means a folder beside the model.
            resume_from: Folder of another training, CHECKPOINT_URI/JOB, whose latest checkpoint this training starts
                from. Example: "s3://training/checkpoints/train-8ccbe16558f9". Default: empty, which means a new
                training.
            cluster_configuration_secret: Name of a Secret with host, token and namespace of another Kubernetes cluster
                to train on. Example: "gpu-cluster". Default: empty, which means the cluster of the pipeline.
            metric: Name of the metric on the test dataset that decides about the export. Allowed for classification:
                "accuracy", "macro_f1", "roc_auc", "average_precision", "loss", "calibration_error", "precision_CLASS"
                and "recall_CLASS" of a class. Allowed for regression: "r2", "mae" and "rmse". Example: "macro_f1".
                Default: empty, which means "accuracy" for classification and "r2" for regression.
            bound: Value that the metric must reach for the export. It is the highest good value of "loss",
                "calibration_error", "mae" and "rmse", and the lowest good value of every other metric. Default: 0.9.
            model_name: Name of the exported model, of letters, digits, dots, hyphens and underscores. Example:
                "flowers". Default: "digits".
            bucket: Bucket to export to, with an optional prefix. The bucket must exist. The model goes to
                BUCKET/MODEL_NAME/VERSION/. Examples: "models", "s3://models/team-a". Default: empty, which means the
                folder "models" beside the artifacts of Kubeflow Pipelines, such as minio://mlpipeline/models.
            aliases: Names that move to the exported version. BUCKET/MODEL_NAME@ALIAS is then its address. Example:
                ["production"]. Default: [].
            keep: Number of the newest complete versions to keep after the export. Older ones are deleted, except those
                with an alias. Example: 5. Default: 0, which means all.

        Returns:
            Output: Value of the metric on the test dataset.
        """
        # Never cached, so that the cache of prepare_data notices a source that has changed.
        fingerprint = with_steps.fingerprint_source(source=source)
        data = with_steps.prepare_data(
            source=source,
            label_column=label_column,
            task=task,
            columns=columns,
            drop_columns=drop_columns,
            split=split,
            missing=missing,
            csv_format=csv_format,
            rare_classes=rare_classes,
            shards=shards,
            source_fingerprint=fingerprint.output,
        )
        training = with_steps.train(
            train_dataset=data.outputs["train_dataset"],
            validation_dataset=data.outputs["validation_dataset"],
            train_specification=train_specification,
            train_parameters=train_parameters,
            distribution_specification=distribution_specification,
            runner=runner,
            checkpoint_uri=checkpoint_uri,
            resume_from=resume_from,
            cluster_configuration_secret=cluster_configuration_secret,
        )
        evaluation = with_steps.evaluate(
            model=training.outputs["model"], dataset=data.outputs["test_dataset"], metric=metric, bound=bound
        )
        export_if_good_enough(
            # The address, so that Kubeflow Pipelines does not download the model into the step.
            model_uri=training.outputs["model_uri"],
            mlflow_run_id=training.outputs["mlflow_run_id"],
            metrics=evaluation.outputs["metrics"],
            is_good_enough=evaluation.outputs["is_good_enough"],
            model_name=model_name,
            bucket=bucket,
            aliases=aliases,
            keep=keep,
        )
        return evaluation.outputs["score"]

    return train_and_export


def export_function(with_steps: Steps, deploy: Callable[[Any], None] | None = None) -> Callable[..., Any]:
    """Return the function of the pipeline that exports a model if it is good enough, for `dsl.pipeline`.

    Args:
        with_steps: As of `make_train_and_export`.
        deploy: Creates a task that deploys the version at the address that it gets. Default: none.
    """

    def export_if_good_enough(
        model_uri: str,
        mlflow_run_id: str,
        metrics: dsl.Input[dsl.Metrics],
        is_good_enough: bool,
        model_name: str,
        bucket: str,
        aliases: list[str],
        keep: int,
    ) -> None:
        """Exports a model if it is good enough.

        Args:
            model_uri: Address of the model to export. Example: "s3://mlpipeline/v2/artifacts/.../model".
            mlflow_run_id: ID of the MLflow run of the training, or empty. Example: "3f1c0c1be0a14f6c9d3c7a0e6c1d2b4a".
            metrics: Metrics to store in the manifest of the exported version.
            is_good_enough: Whether the evaluation found the model good enough.
            model_name: Name of the exported model. Example: "digits".
            bucket: Bucket to export to, with an optional prefix, or empty. Example: "models".
            aliases: Names that move to the exported version. Example: ["production"].
            keep: Number of the newest complete versions to keep, 0 for all. Example: 5.
        """
        with dsl.If(is_good_enough == True, name="good-enough"):  # noqa: E712  (kfp compiles the comparison)
            exported = with_steps.export_model(
                model_uri=model_uri,
                mlflow_run_id=mlflow_run_id,
                metrics=metrics,
                model_name=model_name,
                bucket=bucket,
                aliases=aliases,
                keep=keep,
            )
            if deploy:
                deploy(exported.outputs["uri"])

    return export_if_good_enough


train_and_export = make_train_and_export(Steps(*(getattr(components, name) for name in Steps._fields)))
