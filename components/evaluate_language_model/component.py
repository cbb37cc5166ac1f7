"""The step `evaluate_language_model` as Kubeflow Pipelines sees it."""

from typing import NamedTuple, Optional

from kfp import dsl


def evaluate_language_model(
    dataset: dsl.Input[dsl.Dataset],
    model_uri: str,
    evaluation: dsl.Output[dsl.Artifact],
    metrics: dsl.Output[dsl.Metrics],
    report: dsl.Output[dsl.HTML],
    metric: str = "",
    bound: Optional[float] = None,  # noqa: UP045  (kfp does not accept float | None)
    allow_training_rows: bool = False,
    evaluation_parameters: dict = {},  # type: ignore[type-arg]  # kfp knows it as it is
    distribution_specification: dict = {},  # type: ignore[type-arg]
    image: str = "",
    runner: str = "auto",
    cluster_configuration_secret: str = "",
    task_config: dsl.TaskConfig = None,
) -> NamedTuple("Verdict", [("score", float), ("is_good_enough", bool)]):  # type: ignore[valid-type]
    """Evaluates a language model on rows, by a job of one or more replicas as of `train`, and waits until it ends.

    KFP may take the outputs of an earlier task with the same inputs from its cache. For an alias in `model_uri`, which
    may have moved, call `set_caching_options(False)`.

    Args:
        dataset: Dataset of `prepare_data` with conversations, prompts, preferences or texts, usually test_dataset. The
            training dataset of the model or of its base model, and datasets of another preparation of the same source,
            are refused.
        model_uri: Address of the model: the output `model_uri` of `train`, the output of `import_model`, a version that
            `export_model` has exported, by number or by alias, a folder of each replica, or a model of the Hugging Face
            Hub. Examples: "s3://models/assistant/3", "s3://models/assistant@production".
        metric: Name of the metric that `score` has and `bound` limits. Allowed values: "loss", "perplexity",
            "exact_match", and "TASK/METRIC" of a task in `harness_tasks`. Default: empty, which means "loss".
        bound: Value that `score` must reach for `is_good_enough`: the highest good value of "loss" and "perplexity",
            the lowest one of "exact_match", and one or the other of a metric of a task, as the harness says. Example:
            0.8. Default: none, which means that every value is good enough.
        allow_training_rows: Whether to score a dataset with rows that trained the model. The scores then do not say how
            the model performs on new rows. Default: False.
        evaluation_parameters: How the rows are computed, by name: "batch_size" (rows that a rank computes at once, 4),
            "max_length" (tokens of a row, 2048), "loss_on" (tokens whose loss counts, as of the trainer
            language_model), "chat_template", "answers" (number of prompts that the model answers, 100; 0 for none),
            "answer_tokens" (tokens of an answer, 128), "harness_tasks" and "harness_folder" (names of tasks of
            lm-evaluation-harness, and the address of their definitions and data), and "sharding" ("fsdp" divides the
            model among the ranks, "none", and "auto", which means "fsdp" if `worker_gpu_memory` does not hold it, else
            "none"; default "auto"). Example: {"answers": 500, "answer_tokens": 32}. Default: {}.
        distribution_specification: Type of the job, "Job" or "PyTorch", and the number and size of its replicas, as of
            `train`. Example: {"distribution_type": "PyTorch", "number_of_workers": 1, "worker_gpus": 1}. Default: {},
            which means one process.
        image: Image of the replicas, with PyTorch, transformers, trl and peft. Example:
            "registry.example.com/team/language-model:1". Default: empty, which means that of the step's environment
            for language models.
        runner: Where the replicas run. Allowed values: "kubernetes" (pods of a cluster), "local" (processes of this
            step) and "auto" (pods where there is a cluster, else processes). Default: "auto".
        cluster_configuration_secret: Name of a Secret in the step's namespace with host, token and namespace of
            another Kubernetes cluster to run the job on. Example: "gpu-cluster". Default: empty, which means the
            cluster of the step.
        task_config: Settings of the KFP task, such as resources and node selectors, for the replicas. KFP fills it in.

    Returns:
        evaluation: Folder of evaluation.json, with the scores, of answers.jsonl, with the prompts, the answers of the
            rows and those of the model, and of model.json, which lists them.
        metrics: Loss of a token, perplexity, rows and tokens, and, of prompts that were answered, their number and
            the fraction whose answer is that of the row (exact match).
        report: HTML page with the scores and answers. If the job fails, that of the job.
        score: Value of the metric `metric`.
        is_good_enough: Whether `score` reaches `bound`.

    Raises:
        SystemExit: The model cannot be evaluated. The message is the last line of the step's log, because KFP shows an
            error nowhere else.
    """
    parameters = dict(locals())
    from kfp_distributed.components.evaluate_language_model.step import run_step

    return run_step(**parameters)
