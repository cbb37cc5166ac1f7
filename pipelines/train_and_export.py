"""The pipeline `train_and_export`: data to shards, a distributed training, an evaluation, and a version in a bucket."""

from kfp import dsl

from kfp_distributed.components import Steps, evaluate, export_model, prepare_data, train

# A deliverable of its own for each way in which steps find our code, so the pipeline is made by a function.
DIGITS_DISTRIBUTION = {"distribution_type": "TF", "number_of_workers": 3, "number_of_parameter_servers": 0}


def make_train_and_export(with_steps: Steps):  # type: ignore[no-untyped-def]  # noqa: ANN201  (kfp types no pipeline)
    """Makes the pipeline from the four steps.

    Args:
        with_steps: The steps of `kfp_distributed.components.steps()`, for stock images, an image or a package.

    Returns:
        The pipeline: to call in another pipeline or under `local_run()`, or to compile.
    """
    export_if_good_enough = _make_export_if_good_enough(with_steps)

    @dsl.pipeline(name="train-and-export", description="Prepares data, trains distributed, evaluates and exports.")
    def train_and_export(
        source: str = "digits",
        label_column: str = "label",
        shards: int = 8,
        train_specification: dict = {"trainer": "keras_classifier"},  # noqa: B006
        train_parameters: dict = {"epochs": 15},  # noqa: B006
        distribution_specification: dict = DIGITS_DISTRIBUTION,
        runner: str = "auto",
        checkpoint_uri: str = "",
        resume_from: str = "",
        cluster_configuration_secret: str = "",
        minimum_accuracy: float = 0.9,
        model_name: str = "digits",
        bucket: str = "models",
    ) -> float:
        """Prepares data, trains distributed, evaluates on the test split and exports what is good enough.

        Args:
            source: "digits", or path or http(s):// or s3:// address of CSV, Parquet, .npz or folders of images.
            label_column: Column to predict, in tables.
            shards: Files that the training data is cut into.
            train_specification: {"trainer": NAME}, {"function": NAME, "source": TEXT} or {"command": [...]}.
            train_parameters: Arguments of what is trained, by name.
            distribution_specification: {"distribution_type": "TF", "number_of_workers": 3, ...}; {} is one process.
            runner: Where the replicas run: "kubernetes", "local", or "auto": pods where there is a cluster.
            checkpoint_uri: Where checkpoints go; empty means beside the model.
            resume_from: Folder of another training, CHECKPOINT_URI/JOB, whose newest checkpoint this one starts from.
            cluster_configuration_secret: Secret with host, token and namespace of another cluster to train on.
            minimum_accuracy: A model that is worse on the test split is not exported.
            model_name: Name of the exported model.
            bucket: Where it goes, as bucket/model_name/version/.

        Returns:
            Accuracy on the test split, from 0 to 1.
        """
        data = with_steps.prepare_data(source=source, label_column=label_column, shards=shards)
        fitted = with_steps.train(
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
        scored = with_steps.evaluate(model=fitted.outputs["model"], dataset=data.outputs["test_dataset"])
        export_if_good_enough(
            model=fitted.outputs["model"],
            metrics=scored.outputs["metrics"],
            accuracy=scored.outputs["accuracy"],
            minimum_accuracy=minimum_accuracy,
            model_name=model_name,
            bucket=bucket,
        )
        return scored.outputs["accuracy"]

    return train_and_export


def _make_export_if_good_enough(with_steps: Steps):  # type: ignore[no-untyped-def]  # noqa: ANN202
    # A pipeline of its own, for kfp's local runner cannot compare the output of a task beside the condition.
    @dsl.pipeline(name="export-if-good-enough")
    def export_if_good_enough(
        model: dsl.Input[dsl.Model],
        metrics: dsl.Input[dsl.Metrics],
        accuracy: float,
        minimum_accuracy: float,
        model_name: str,
        bucket: str,
    ) -> None:
        with dsl.If(accuracy >= minimum_accuracy, name="good-enough"):
            with_steps.export_model(model=model, metrics=metrics, model_name=model_name, bucket=bucket)

    return export_if_good_enough


train_and_export = make_train_and_export(Steps(prepare_data, train, evaluate, export_model))
