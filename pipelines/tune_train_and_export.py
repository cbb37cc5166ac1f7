"""The pipeline `tune_train_and_export`: searches parameters, trains with the best ones on more rows, and exports."""

from kfp import dsl

from kfp_distributed import components
from kfp_distributed.components import Steps
from kfp_distributed.components.kfp_interface.input_values import accept_input_values
from kfp_distributed.pipelines.train_and_export import export_function


def make_tune_train_and_export(with_steps: Steps):  # type: ignore[no-untyped-def]  # noqa: ANN201  (kfp types no pipeline)
    """Return the pipeline of seven tasks, which may find the library in an image, a package or a ConfigMap.

    Args:
        with_steps: Steps of `kfp_distributed.components.steps()`.

    Returns:
        The pipeline. Call it in another pipeline or in `local_run()`, or compile it.
    """
    export_if_good_enough = dsl.pipeline(export_function(with_steps), name="export-if-good-enough")

    @dsl.pipeline(
        name="tune-train-and-export",
        description="Searches parameters, trains with the best ones on all rows but those of the test, and exports.",
    )
    def tune_train_and_export(
        source: str = "digits",
        label_column: str = "label",
        validation_fraction: float = 0.1,
        test_fraction: float = 0.1,
        group_column: str = "",
        train_specification: dict = {"trainer": "keras_classifier"},  # noqa: B006
        search_space: dict = {"learning_rate": {"low": 1e-4, "high": 1e-1, "log": True}},  # noqa: B006
        search_metric: str = "val_loss",
        trials: int = 10,
        parallel_trials: int = 1,
        search: dict = {},  # noqa: B006
        train_parameters: dict = {"epochs": 15},  # noqa: B006
        distribution_specification: dict = {},  # noqa: B006
        runner: str = "auto",
        metric: str = "",
        bound: float = 0.9,
        model_name: str = "digits",
        bucket: str = "",
    ) -> float:
        """Searches parameters, trains with the best ones on all rows but those of the test, and exports the model.

        The trials train on the training rows and are compared on the validation rows. The last training has the rows of
        both, so it has no validation rows, and saves the model of its last epoch. The test rows are the same for all.

        Args:
            source: Data to train on: "digits" (scikit-learn's 1,797 handwritten digits), or the path or address of CSV,
                Parquet or .npz files or of folders of images. Examples: "s3://data/flowers.csv",
                "https://example.com/flowers.parquet". Default: "digits".
            label_column: Name of the column or array to predict. Example: "species". Default: "label".
            validation_fraction: Fraction of the rows on which trials are compared, above 0. Default: 0.1.
            test_fraction: Fraction of the rows for the test, which no training sees. Default: 0.1.
            group_column: Column whose equal values come into one dataset. Example: "patient". Default: empty, which
                means that the rows are drawn one by one.
            train_specification: What each replica runs: {"trainer": NAME}, {"function": NAME, "source": TEXT} or
                {"command": [WORD, ...]}, with the optional keys "image" and "packages". Example:
                {"trainer": "keras_classifier", "image": "registry.example.com/team/tensorflow:1"}. Default: the
                built-in trainer keras_classifier, without an image.
            search_space: Values to try, by the name of a parameter, as of `tune`. Example:
                {"learning_rate": {"low": 1e-5, "high": 1e-2, "log": true}, "batch_size": {"choices": [16, 32]}}.
                Default: the learning rate, from 1e-4 to 0.1.
            search_metric: Metric that decides between trials. Examples: "val_loss", "val_accuracy". Default:
                "val_loss".
            trials: Number of trials. Default: 10.
            parallel_trials: Number of trials that run at once, at most. Default: 1.
            search: How values are searched, as of `tune`. Example: {"pruner": "median"}. Default: {}.
            train_parameters: Arguments of the trainer or function that all trainings have, by name. Example:
                {"epochs": 40, "batch_size": 64}. Default: 15 epochs.
            distribution_specification: Type of the job of each training and the number and size of its replicas.
                Example: {"distribution_type": "TF", "number_of_workers": 2}. Default: {}, which means one process.
            runner: Where the replicas run. Allowed values: "kubernetes" (pods of a cluster), "local" (processes of the
                step) and "auto" (pods where there is a cluster, else processes). Default: "auto".
            metric: Name of the metric on the test dataset that decides about the export, as of `evaluate`. Example:
                "macro_f1". Default: empty, which means "accuracy" for classification and "r2" for regression.
            bound: Value that this metric must reach for the export. Default: 0.9.
            model_name: Name of the exported model, of letters, digits, dots, hyphens and underscores. Example:
                "flowers". Default: "digits".
            bucket: Bucket to export to, with an optional prefix. Examples: "models", "s3://models/team-a". Default:
                empty, which means the folder "models" beside the artifacts of Kubeflow Pipelines.

        Returns:
            Output: Value of the metric on the test dataset.
        """
        # Never cached, so that the cache of prepare_data notices a source that has changed.
        fingerprint = with_steps.fingerprint_source(source=source)
        fixed = {
            "source": source,
            "label_column": label_column,
            "source_fingerprint": fingerprint.output,
        }
        held_out = {"test_fraction": test_fraction, "group_column": group_column}
        divided = with_steps.prepare_data(split={"validation_fraction": validation_fraction, **held_out}, **fixed)
        program = {"train_specification": train_specification, "runner": runner}
        best = with_steps.tune(
            train_dataset=divided.outputs["train_dataset"],
            validation_dataset=divided.outputs["validation_dataset"],
            search_space=search_space,
            metric=search_metric,
            trials=trials,
            parallel_trials=parallel_trials,
            search=search,
            train_parameters=train_parameters,
            distribution_specification=distribution_specification,
            **program,
        )
        # The rows of the test are drawn first, so that they are the same.
        together = with_steps.prepare_data(split={"validation_fraction": 0, **held_out}, **fixed)
        training = with_steps.train(
            train_dataset=together.outputs["train_dataset"],
            train_parameters=best.outputs["best_parameters"],
            distribution_specification=best.outputs["best_distribution"],
            **program,
        )
        evaluation = with_steps.evaluate(
            model=training.outputs["model"], dataset=together.outputs["test_dataset"], metric=metric, bound=bound
        )
        export_if_good_enough(
            model_uri=training.outputs["model_uri"],
            mlflow_run_id=training.outputs["mlflow_run_id"],
            metrics=evaluation.outputs["metrics"],
            is_good_enough=evaluation.outputs["is_good_enough"],
            model_name=model_name,
            bucket=bucket,
            aliases=[],
            keep=0,
        )
        return evaluation.outputs["score"]

    return accept_input_values(tune_train_and_export)


tune_train_and_export = make_tune_train_and_export(Steps(*(getattr(components, name) for name in Steps._fields)))
