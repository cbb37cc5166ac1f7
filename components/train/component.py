"""The step `train` as Kubeflow Pipelines sees it."""

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
) -> None:
    """Trains a model by a job of one or many replicas, and waits for its end.

    Args:
        train_dataset: The training data, from prepare_data.
        model: The trained model, in the format that its program leaves.
        metrics: What the last epoch reached.
        report: Replicas, training curve and timeline of the job.
        train_specification: What to run, as {"trainer": NAME}, {"function": NAME, "source": TEXT} or
            {"command": [...]}.
        validation_dataset: The data that each epoch is validated on.
        train_parameters: Arguments of what runs, by name.
        distribution_specification: How it is distributed, as {"distribution_type": "TF", "number_of_workers": 3}.
            Empty means one process.
        runner: Where the replicas run: "kubernetes" (pods), "local" (processes of this step), or "auto": pods where
            there is a cluster.
        checkpoint_uri: Folder for checkpoints. Empty means beside the model.
        cluster_configuration_secret: Secret with host, token and namespace of another cluster, to train there.
            Empty means the step's own.
        resume_from: Folder of another training, CHECKPOINT_URI/JOB, whose newest checkpoint this one starts from. Empty
            means a training from the start. A task that is tried again resumes from its own checkpoints either way.
        task_config: What is set on the task itself, for the replicas. KFP fills it in.
    """
    # Each by its name. This function stands in the YAML as it is, and so is short.
    given = dict(locals())
    from kfp_distributed.components.train.step import run_step

    run_step(**given)
