"""The evaluation of a model: check model and dataset, score batch by batch, write the metrics and the report."""

from pathlib import Path

from kfp_distributed.components.acceptance.new_rows import check_new_rows
from kfp_distributed.components.acceptance.threshold import Threshold, Verdict
from kfp_distributed.components.evaluate import classification, regression
from kfp_distributed.components.evaluate.model_function import load_model_function
from kfp_distributed.components.evaluate.pages.classification_report import evaluation_page
from kfp_distributed.components.evaluate.pages.regression_report import regression_page
from kfp_distributed.components.evaluate.scoring.classification_scores import Evaluation
from kfp_distributed.components.evaluate.scoring.regression_scores import RegressionEvaluation
from kfp_distributed.components.evaluate.weights import check_weights
from kfp_distributed.components.kfp_interface.artifacts import ClassificationMetricsArtifact, MetricsArtifact
from kfp_distributed.reports.page import render_page
from kfp_distributed.storage.alignment import align
from kfp_distributed.storage.dataset import DATASET_MANIFEST, DatasetManifest, width
from kfp_distributed.storage.files import describe_folder
from kfp_distributed.storage.model import ModelManifest, read_model_folder
from kfp_distributed.storage.model_format import find_format, refuse_language_model


def run_evaluation(
    model: str,
    dataset: str,
    metrics: MetricsArtifact,
    classification_metrics: ClassificationMetricsArtifact,
    report: str,
    metric: str = "",
    bound: float | None = None,
    allow_training_rows: bool = False,
) -> Verdict:
    """Evaluate a model on a dataset.

    Args:
        model: Folder of the model, with its model.json if it has one.
        dataset: Folder of the dataset.json. The shards are in it or in the store that it names.
        metrics: Output artifact for the metrics.
        classification_metrics: Output artifact for the confusion matrix and the ROC curve of a classifier.
        report: Path of the HTML report.
        metric: Name of the metric to return. Default: "", which means "accuracy" for classification and "r2" for
            regression.
        bound: Value that the metric must reach: at least, or at most for a metric such as an error. Default: None,
            which means that every value is good enough.
        allow_training_rows: Whether to score rows that trained the model. Default: False.

    Returns:
        The value of the metric, and whether it reaches the bound.

    Raises:
        ValueError: The dataset is empty or damaged, has no label, or has rows that trained the model. The task has no
            such metric, its value is undefined, or the bound is not finite. The model was trained on other columns,
            classes or another task, cannot be loaded, has weights that are NaN, or returns no finite probabilities or
            predictions. No metrics are written.
        ModelIncomplete: The model lacks files, or a file differs from model.json.
    """
    if Path(model).is_dir():  # Before the dataset, which has no label for such a model.
        refuse_language_model(find_format(Path(model)))
    manifest = read_dataset(Path(dataset))
    threshold = Threshold.of_label(manifest.label, metric, bound)
    evaluation, page = score_model(Path(model), Path(dataset), manifest, allow_training_rows)
    if isinstance(evaluation, Evaluation):
        values, lines = classification.metric_values(evaluation), classification.log_lines(evaluation)
        judged = {**values, **classification.class_values(evaluation.scores)}
    else:
        values, lines = evaluation.metric_values(), [evaluation.log_line()]
        judged = values
    print(*lines, sep="\n")
    verdict = threshold.judge(judged)
    for name, value in values.items():
        metrics.log_metric(name, value)
    if isinstance(evaluation, Evaluation):
        classification.log_classification_metrics(evaluation, classification_metrics)
    Path(report).write_text(page, encoding="utf-8")
    print(threshold.describe(verdict))
    return verdict


def score_model(
    model: Path, dataset: Path, manifest: DatasetManifest, allow_training_rows: bool
) -> tuple[Evaluation | RegressionEvaluation, str]:
    """Score a model on every row of a dataset.

    Args:
        model: Folder of the model, with its model.json if it has one.
        dataset: Folder of the dataset.json.
        manifest: Manifest of the dataset, as `read_dataset` returns it.
        allow_training_rows: Whether to score rows that trained the model.

    Returns:
        The evaluation and the HTML report.

    Raises:
        ValueError: See `run_evaluation`.
        ModelIncomplete: See `run_evaluation`.
    """
    trained = read_model_folder(model)
    manifest = align_with_model(manifest, trained)
    warning = check_new_rows(manifest, trained.training_data, allow_training_rows)
    if warning:
        print(f"warning: {warning}", flush=True)
    width(manifest)  # Refuses columns without a form as numbers, before a model is loaded.
    is_regression = manifest.label.task == "regression"
    function = load_model_function(model, manifest.columns, "prediction" if is_regression else "probabilities")
    check_weights(model)
    signature = function.model.signature
    if is_regression:
        numbers = regression.score_rows(function, dataset, manifest)
        return numbers, render_page("evaluate_regression.html", regression_page(manifest, numbers, signature, warning))
    classes = classification.score_rows(function, dataset, manifest)
    return classes, render_page("evaluate.html", evaluation_page(manifest, classes, signature, warning))


def read_dataset(folder: Path) -> DatasetManifest:
    """Read a dataset's manifest, and check the shards against it if they are in the same folder.

    Raises:
        FileNotFoundError: There is no manifest.
        ValueError: There is no row or no label, or a shard is missing or damaged.
    """
    if not (folder / DATASET_MANIFEST).is_file():
        raise FileNotFoundError(f"{folder} has no {DATASET_MANIFEST}: pass a dataset of prepare_data.")
    manifest = DatasetManifest.from_json((folder / DATASET_MANIFEST).read_text(encoding="utf-8"))
    if manifest.label.task == "none":
        raise ValueError(
            'the dataset has no label, because it was prepared with the task "none": there is nothing to compare a '
            'prediction with. Run prepare_data with a label_column and the task "auto", or score the model in a step '
            "of your own."
        )
    if not manifest.rows:
        raise ValueError(f"split {manifest.split!r} has no rows: raise its fraction in prepare_data.")
    if manifest.shards_uri:  # Each is compared when it is downloaded.
        return manifest
    files = {(entry.path, entry.sha256) for entry in describe_folder(folder)}
    damaged = [shard.path for shard in manifest.shards if (shard.path, shard.sha256) not in files]
    if damaged:
        raise ValueError(f"shards {damaged} of the dataset in {folder} are missing or damaged: run prepare_data again.")
    return manifest


def align_with_model(dataset: DatasetManifest, model: ModelManifest) -> DatasetManifest:
    """Return the manifest of a dataset with the columns in the order in which the model takes them.

    The manifest of a model without columns is accepted, and the order stays.

    Raises:
        ValueError: The model was trained on other columns or classes. Its scores would be wrong even if the shapes fit.
    """
    if not model.columns:
        return dataset
    try:
        return align(dataset, model.columns, model.label)
    except ValueError as error:
        raise ValueError(
            f"the dataset is not of the kind that the model was trained on: {error}. Evaluate it on a split of the "
            "dataset it was trained with."
        ) from None
