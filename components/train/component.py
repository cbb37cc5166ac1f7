"""The step `train` as Kubeflow Pipelines sees it."""

from typing import NamedTuple

from kfp import dsl


def train(
    train_dataset: dsl.Input[dsl.Dataset],
    model: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    report: dsl.Output[dsl.HTML],
    train_specification: dict,  # type: ignore[type-arg]  # kfp knows it as it is
    validation_dataset: dsl.Input[dsl.Dataset] = None,  # type: ignore[assignment]  # how kfp marks what may be left out
    train_parameters: dict = {},  # type: ignore[type-arg]
    distribution_specification: dict = {},  # type: ignore[type-arg]
    runner: str = "auto",
    checkpoint_uri: str = "",
    cluster_configuration_secret: str = "",
    resume_from: str = "",
    task_config: dsl.TaskConfig = None,
) -> NamedTuple("Trained", [("model_uri", str), ("mlflow_run_id", str)]):  # type: ignore[valid-type]
    """Trains a model by a job of one or more replicas and waits until the job ends.

    Args:
        train_dataset: Training dataset of `prepare_data`.
        train_specification: What each replica runs: a built-in trainer, {"trainer": NAME}, a Python function,
            {"function": NAME, "source": TEXT}, or a command, {"command": [WORD, ...]}. Optional keys are "image"
            (container image of the replicas), "packages" (a list for pip) and "rows" ("stream" for a program that reads
            its rows while it trains, "all" for one that divides all rows among its ranks itself).
            `train_specification()` of the library makes this dict from a function.
            Examples: {"trainer": "keras_classifier"},
            {"command": ["python", "-m", "my_program", "--data", "{train_dir}"]}.
        validation_dataset: Validation dataset of `prepare_data`. Built-in trainers validate each epoch on it, and a
            function gets it as validation_dir. Default: none.
        train_parameters: Arguments of the trainer or function, by name. Example: {"epochs": 15, "batch_size": 64}.
            Default: {}, which means the defaults of the trainer or function.
        distribution_specification: Type of the job and the number and size of its replicas. The keys used most are
            "distribution_type" ("Job", "MPI", "TF" or "PyTorch"), "number_of_workers", "number_of_parameter_servers"
            (TF only), "worker_cpus", "worker_memory", "worker_gpus" and "restart_limit". Example:
            {"distribution_type": "TF", "number_of_workers": 3, "worker_memory": "4Gi"}. Default: {}, which means one
            process.
        runner: Where the replicas run. Allowed values: "kubernetes" (pods of a cluster), "local" (processes of this
            step) and "auto" (pods where there is a cluster, else processes). Default: "auto".
        checkpoint_uri: Folder in an object store for checkpoints and metrics. Each job has a folder of its own in it.
            Example: "s3://training/checkpoints". Default: empty, which means a folder beside the model.
        cluster_configuration_secret: Name of a Secret in the step's namespace with host, token and namespace of
            another Kubernetes cluster to run the job on. Example: "gpu-cluster". Default: empty, which means the
            cluster of the step.
        resume_from: Folder of another training, CHECKPOINT_URI/JOB, whose latest checkpoint this training starts from.
            A retry of the step resumes from its own checkpoints in any case. Example:
            "s3://training/checkpoints/train-8ccbe16558f9". Default: empty, which means a new training.
        task_config: Settings of the KFP task, such as resources and node selectors, for the replicas. KFP fills it in.

    Returns:
        model: Trained model in the format in which the trainer saved it, with a manifest, model.json.
        metrics: Metrics of the epoch whose model is saved, such as loss and accuracy.
        report: HTML page with the replicas, the training curves and the timeline of the job.
        model_uri: Address of the model, such as s3://mlpipeline/v2/artifacts/.../model. A step that gets this address
            instead of `model` does not download the model.
        mlflow_run_id: ID of the MLflow run of the training, or empty.
    """
    parameters = dict(locals())
    from kfp_distributed.components.train.step import run_step

    return run_step(**parameters)
