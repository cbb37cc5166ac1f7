"""The step `tune` as Kubeflow Pipelines sees it."""

from typing import NamedTuple

from kfp import dsl


def tune(
    train_dataset: dsl.Input[dsl.Dataset],
    model: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    report: dsl.Output[dsl.HTML],
    train_specification: dict,  # type: ignore[type-arg]  # kfp knows it as it is
    search_space: dict,  # type: ignore[type-arg]
    validation_dataset: dsl.Input[dsl.Dataset] = None,  # type: ignore[assignment]  # how kfp marks what may be left out
    metric: str = "val_loss",
    trials: int = 20,
    parallel_trials: int = 1,
    search: dict = {},  # type: ignore[type-arg]
    train_parameters: dict = {},  # type: ignore[type-arg]
    distribution_specification: dict = {},  # type: ignore[type-arg]
    runner: str = "auto",
    checkpoint_uri: str = "",
    cluster_configuration_secret: str = "",
    task_config: dsl.TaskConfig = None,
) -> NamedTuple(  # type: ignore[valid-type]
    "Tuned", [("best_parameters", dict), ("best_distribution", dict), ("best_value", float), ("model_uri", str)]
):
    """Searches the parameters with which `train` makes the best model. Each trial is a training as of `train`.

    Args:
        train_dataset: Training dataset of `prepare_data`.
        train_specification: What each replica of a trial runs, as of `train`. Example:
            {"trainer": "keras_classifier"}.
        search_space: Values to try, by the name of a parameter: numbers from low to high, or choices of one type.
            Optional keys of numbers are "log" (true: their logarithms are equally likely), "step" (distance of whole
            numbers) and "type" ("int" or "float", where the signature has no type). A key of distribution_specification
            is searched by a name such as "distribution_specification.number_of_workers". Example:
            {"learning_rate": {"low": 1e-5, "high": 1e-2, "log": true}, "batch_size": {"choices": [16, 32]}}.
        validation_dataset: Validation dataset of `prepare_data`, which metrics with the start "val_" need. Default:
            none.
        metric: Metric of the model that decides, such as one of the last epoch. Examples: "val_loss", "val_accuracy",
            "loss". Default: "val_loss".
        trials: Number of trials, also those that are pruned or fail. Default: 20.
        parallel_trials: Number of trials that run at once, at most. Default: 1.
        search: How values are searched, by name: "direction" ("minimize" or "maximize"; default: that of the metric, if
            it is known), "sampler" ("tpe", "random", "grid", "cma_es" or "gp"; default "tpe"), "pruner", which ends
            trials early that are worse than others ("none", "median", "hyperband" or "successive_halving"; default
            "none"), "seed" (default 0), "epochs" (epochs of a trial, for "hyperband"; default: the parameter epochs),
            "trial_failures" (trials that may fail, default 3), and "keep_models" ("best" or "all"; default "best").
            Example: {"pruner": "median"}. Default: {}.
        train_parameters: Arguments of the trainer or function that all trials have, by name. Example: {"epochs": 15}.
            Default: {}, which means the defaults of the trainer or function.
        distribution_specification: Type of the job of each trial and the number and size of its replicas, as of
            `train`. Example: {"distribution_type": "TF", "number_of_workers": 3}. Default: {}, which means one process.
        runner: Where the replicas run. Allowed values: "kubernetes" (pods of a cluster), "local" (processes of this
            step) and "auto" (pods where there is a cluster, else processes). Default: "auto".
        checkpoint_uri: Folder in an object store for the study, and for checkpoints and metrics of all trials. Example:
            "s3://training/checkpoints". Default: empty, which means a folder beside the model.
        cluster_configuration_secret: Name of a Secret in the step's namespace with host, token and namespace of
            another Kubernetes cluster to run the jobs on. Example: "gpu-cluster". Default: empty, which means the
            cluster of the step.
        task_config: Settings of the KFP task, such as resources and node selectors, for the replicas. KFP fills it in.

    Returns:
        model: Model of the best trial in the format in which the trainer saved it, with a manifest, model.json.
        metrics: Metrics of this model, such as loss and accuracy.
        report: HTML page with the trials, their curves and the importance of the parameters.
        best_parameters: train_parameters of the best trial, with those that all trials have.
        best_distribution: Its distribution_specification.
        best_value: Its value of the metric.
        model_uri: Address of the model.

    Raises:
        SystemExit: There is no best trial, or a value is wrong. The message is the last line of the step's log, because
            KFP shows an error nowhere else.
    """
    parameters = dict(locals())
    from kfp_distributed.components.tune.step import run_step

    return run_step(**parameters)
