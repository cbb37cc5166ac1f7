"""The pipeline `fine_tune_and_deploy`: fine-tunes a language model, evaluates it, exports it and serves it."""

from kfp import dsl

from kfp_distributed import components
from kfp_distributed.components import Steps
from kfp_distributed.components.kfp_interface.input_values import accept_input_values


def make_fine_tune_and_deploy(with_steps: Steps):  # type: ignore[no-untyped-def]  # noqa: ANN201  (kfp types no pipeline)
    """Return the pipeline of seven steps, which may find the library in an image, a package or a ConfigMap.

    Args:
        with_steps: Steps of `kfp_distributed.components.steps()`.

    Returns:
        The pipeline. Call it in another pipeline or in `local_run()`, or compile it.
    """

    # A separate pipeline, because kfp's local runner cannot compare the output of a task beside the condition.
    @dsl.pipeline(name="serve-if-good-enough")
    def serve_if_good_enough(
        model_uri: str,
        metrics: dsl.Input[dsl.Metrics],
        is_good_enough: bool,
        model_name: str,
        bucket: str,
        service_name: str,
        service_account: str,
        server_memory: str,
        server_gpus: int,
    ) -> None:
        """Exports and serves a model if it is good enough.

        Args:
            model_uri: Address of the model. Example: "s3://mlpipeline/v2/artifacts/.../model".
            metrics: Metrics to store in the manifest of the exported version.
            is_good_enough: Whether the evaluation found the model good enough.
            model_name: Name of the exported model. Example: "assistant".
            bucket: Bucket to export to, with an optional prefix, or empty. Example: "models".
            service_name: Name of the InferenceService. Example: "assistant".
            service_account: ServiceAccount of the model server, or empty. Example: "models".
            server_memory: Memory of each replica of the server, or empty. Example: "40Gi".
            server_gpus: Number of NVIDIA GPUs of each replica of the server. Example: 1.
        """
        with dsl.If(is_good_enough == True, name="good-enough"):  # noqa: E712  (kfp compiles the comparison)
            exported = with_steps.export_model(
                model_uri=model_uri, metrics=metrics, model_name=model_name, bucket=bucket
            )
            with_steps.deploy_model(
                name=service_name,
                model_uri=exported.outputs["uri"],
                service_account=service_account,
                memory=server_memory,
                gpus=server_gpus,
                timeout_minutes=60,
            )

    @dsl.pipeline(
        name="fine-tune-and-deploy", description="Fine-tunes a language model, evaluates, exports and deploys it."
    )
    def fine_tune_and_deploy(
        source: str,
        base_model: str,
        base_model_copy: str,
        method: str = "lora",
        epochs: int = 1,
        batch_size: int = 32,
        learning_rate: float = 0.0,
        max_length: int = 2048,
        distribution_specification: dict = {},  # noqa: B006
        metric: str = "loss",
        bound: float = 10.0,
        model_name: str = "assistant",
        bucket: str = "",
        service_name: str = "assistant",
        service_account: str = "",
        server_memory: str = "",
        server_gpus: int = 0,
    ) -> float:
        """Fine-tunes a language model, evaluates it on the test split, and exports and serves it if it is good enough.

        Args:
            source: Path or address of a file with conversations, prompts with completions, or texts. Example:
                "s3://data/chats.jsonl".
            base_model: Address of the model to fine-tune: of the Hugging Face Hub, of an object store, or a folder.
                Example: "hf://Qwen/Qwen2.5-7B-Instruct@a09a35458c702b33eeacc393d103063234e8bc28".
            base_model_copy: Address in an object store that the model is copied to, from which replicas read it. A
                model that is there already is not copied again. Example: "s3://models/Qwen2.5-7B-Instruct".
            method: What is trained. Allowed values: "lora" (an adapter), "qlora" (an adapter of a model with 4 bits, on
                GPUs) and "full" (all parameters). An adapter is merged into the model. Default: "lora".
            epochs: Number of passes over the training rows. Default: 1.
            batch_size: Rows in one update of the weights, over all ranks. Default: 32.
            learning_rate: Learning rate after the warm-up. Default: 0, which means that of the method.
            max_length: Tokens of a row, of which more are cut off. Default: 2048.
            distribution_specification: Type of the jobs that train and evaluate, "Job" or "PyTorch", and the number and
                size of their replicas. Example: {"distribution_type": "PyTorch", "number_of_workers": 3,
                "worker_gpus": 1, "worker_gpu_memory": "80Gi"}. Default: {}, which means one process.
            metric: Name of the metric on the test dataset that decides about the export. Allowed values: "loss",
                "perplexity" and "exact_match". Default: "loss".
            bound: Value that the metric must reach: the highest good value of "loss" and "perplexity", and the lowest
                one of "exact_match". Default: 10, the loss of hardly any model.
            model_name: Name of the exported model, of letters, digits, dots, hyphens and underscores. Example:
                "support". Default: "assistant".
            bucket: Bucket to export to, with an optional prefix, in which the model goes to MODEL_NAME/VERSION/.
                Examples: "models", "s3://models/team-a". Default: empty, which means the folder "models" beside the
                artifacts of Kubeflow Pipelines, such as minio://mlpipeline/models.
            service_name: Name of the InferenceService, at most 53 characters out of a-z, 0-9 and "-". Example:
                "support". Default: "assistant".
            service_account: ServiceAccount of the model server, which lists the Secret with the keys of the object
                store. Example: "models". Default: empty, which means that of the namespace.
            server_memory: Memory of each replica of the server. Example: "40Gi". Default: empty, which means that of
                the serving runtime.
            server_gpus: Number of NVIDIA GPUs of each replica of the server. Default: 0.

        Returns:
            Output: Value of the metric on the test dataset.
        """
        # Never cached, so that the cache of prepare_data notices a source that has changed.
        fingerprint = with_steps.fingerprint_source(source=source)
        data = with_steps.prepare_data(source=source, source_fingerprint=fingerprint.output)
        base = with_steps.import_model(source=base_model, target=base_model_copy)
        training = with_steps.train(
            train_dataset=data.outputs["train_dataset"],
            validation_dataset=data.outputs["validation_dataset"],
            train_specification={"trainer": "language_model"},
            train_parameters={
                "base_model": base.output,
                "method": method,
                "epochs": epochs,
                "batch_size": batch_size,
                "learning_rate": learning_rate,
                "max_length": max_length,
                "export": "merged",
            },
            distribution_specification=distribution_specification,
        )
        evaluation = with_steps.evaluate_language_model(
            dataset=data.outputs["test_dataset"],
            model_uri=training.outputs["model_uri"],
            metric=metric,
            bound=bound,
            evaluation_parameters={"max_length": max_length},
            distribution_specification=distribution_specification,
        )
        serve_if_good_enough(
            model_uri=training.outputs["model_uri"],
            metrics=evaluation.outputs["metrics"],
            is_good_enough=evaluation.outputs["is_good_enough"],
            model_name=model_name,
            bucket=bucket,
            service_name=service_name,
            service_account=service_account,
            server_memory=server_memory,
            server_gpus=server_gpus,
        )
        return evaluation.outputs["score"]

    return accept_input_values(fine_tune_and_deploy)


fine_tune_and_deploy = make_fine_tune_and_deploy(Steps(*(getattr(components, name) for name in Steps._fields)))
