"""The evaluation of a model: check model and dataset, score batch by batch, write the metrics and the report."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from kfp_distributed.components.artifacts import ClassificationMetricsArtifact, MetricsArtifact
from kfp_distributed.components.evaluate.calibration import Calibration
from kfp_distributed.components.evaluate.classifier import Classifier, load_classifier
from kfp_distributed.components.evaluate.finite import NonFiniteOutputs
from kfp_distributed.components.evaluate.mistakes import WorstMistakes
from kfp_distributed.components.evaluate.report import evaluation_page
from kfp_distributed.components.evaluate.scores import (
    Evaluation,
    Scores,
    check_probabilities,
    output_matrix,
    shown_error,
)
from kfp_distributed.components.evaluate.spool import ScoreSpool
from kfp_distributed.components.evaluate.weights import check_weights
from kfp_distributed.reports.page import render_page
from kfp_distributed.storage.alignment import align
from kfp_distributed.storage.dataset import DATASET_MANIFEST, DatasetManifest, input_shape, read_batches
from kfp_distributed.storage.files import describe_folder
from kfp_distributed.storage.model import ModelManifest, verify_model_folder
from kfp_distributed.storage.provenance import find_contamination

_MISTAKES = 12
# KFP stores every point as metadata in its database.
_ROC_POINTS = 100
# keras.config.epsilon(): a lower probability counts as this one, so that the loss is finite and the same as Keras'.
# scikit-learn clips at the resolution of the numbers' type: 1.2e-7 for float32, 2.2e-16 for float64. Like scikit-learn,
# and unlike Keras, the probabilities of a row are not divided by their sum.
_SMALLEST_PROBABILITY = 1e-7


def run_evaluation(
    model: str,
    dataset: str,
    metrics: MetricsArtifact,
    classification_metrics: ClassificationMetricsArtifact,
    report: str,
    allow_training_rows: bool = False,
) -> Scores:
    """Evaluate a model on a dataset.

    Args:
        model: Folder of the model and its model.json.
        dataset: Folder of the dataset.json and its shards.
        metrics: Output artifact for the metrics.
        classification_metrics: Output artifact for the confusion matrix and the ROC curve.
        report: Path of the HTML report.
        allow_training_rows: Whether to score rows that trained the model. Default: False.

    Returns:
        The scores.

    Raises:
        ValueError: The dataset is empty or damaged, or has rows that trained the model. The model was trained on other
            columns or classes, cannot be loaded, has weights that are NaN, or returns no finite probabilities. No
            metrics are written.
        ModelIncomplete: The model lacks files, or a file differs from model.json.
    """
    evaluation, page = evaluate_model(Path(model), Path(dataset), allow_training_rows)
    for name, value in metric_values(evaluation).items():
        metrics.log_metric(name, value)
    log_classification_metrics(evaluation, classification_metrics)
    Path(report).write_text(page, encoding="utf-8")
    print(*log_lines(evaluation), sep="\n")
    return evaluation.scores


def log_lines(evaluation: Evaluation) -> list[str]:
    """Return the lines of the step's log: the scores that are not exact, then accuracy and loss."""
    scores = evaluation.scores
    inexact = [
        f"{name} is within {shown_error(error):.4f} of the exact value: {scores.rows} rows do not fit in memory"
        for name, error in evaluation.errors().items()
    ]
    return [*inexact, f"accuracy={scores.accuracy:.4f} loss={scores.loss:.4f} on {scores.rows} rows"]


def metric_values(evaluation: Evaluation) -> Mapping[str, float]:
    """Return the metrics by the names that KFP shows. Undefined values are left out."""
    values = evaluation.summary()
    values |= {f"{name}_error": error for name, error in evaluation.errors().items()}
    scores = evaluation.scores
    for name, (precision, recall, _) in zip(scores.drawn, scores.class_scores(), strict=False):
        values |= {f"precision_{name}": precision, f"recall_{name}": recall}
    return {name: value for name, value in values.items() if not math.isnan(value)}


def log_classification_metrics(evaluation: Evaluation, artifact: ClassificationMetricsArtifact) -> None:
    """Set the confusion matrix and the ROC curve of KFP's artifact, as far as they are defined."""
    scores, curve = evaluation.scores, evaluation.roc_curve()
    if scores.drawn:
        artifact.log_confusion_matrix(list(scores.drawn), scores.confusion.tolist())
    if not math.isnan(curve.roc_auc):
        points = curve.thinned(_ROC_POINTS)
        artifact.log_roc_curve(points.false_positive_rate.tolist(), points.recall.tolist(), points.thresholds.tolist())


def evaluate_model(model: Path, dataset: Path, allow_training_rows: bool = False) -> tuple[Evaluation, str]:
    """Score a model on every row of a dataset.

    Returns:
        The evaluation and the HTML report.

    Raises:
        ValueError: See `run_evaluation`.
        ModelIncomplete: See `run_evaluation`.
    """
    manifest, trained = read_dataset(dataset), verify_model_folder(model)
    manifest = align_with_model(manifest, trained)
    warning = check_new_rows(manifest, trained, allow_training_rows)
    if warning:
        print(f"warning: {warning}", flush=True)
    classifier = load_classifier(model, input_shape(manifest))
    check_weights(model)
    evaluation = score_rows(classifier, dataset, manifest)
    return evaluation, render_page("evaluate.html", evaluation_page(manifest, evaluation, warning))


def score_rows(classifier: Classifier, dataset: Path, manifest: DatasetManifest) -> Evaluation:
    """Score a classifier on all rows. One batch of rows at a time is in memory, and all probabilities (`ScoreSpool`).

    Args:
        classifier: The classifier.
        dataset: Folder of the shards.
        manifest: Manifest of the dataset.

    Raises:
        ValueError: The classifier fails or returns no finite probabilities.
    """
    classes = manifest.label.classes
    confusion = np.zeros((len(classes), len(classes)), np.int64)
    spool, calibration, mistakes = ScoreSpool(len(classes)), Calibration(), WorstMistakes(_MISTAKES)
    non_finite = NonFiniteOutputs(manifest.columns)
    loss, first_row = 0.0, 0
    for features, labels in read_batches(dataset, manifest):
        begin, first_row = first_row, first_row + len(labels)
        outputs = output_matrix(classifier(features), len(labels), len(classes))
        is_finite = non_finite.add(outputs, features, begin)
        probabilities = check_probabilities(outputs[is_finite], begin + np.flatnonzero(is_finite))
        if non_finite.rows:
            continue  # There will be no scores. Later batches are read to count the rows.
        label_probabilities = probabilities[np.arange(len(labels)), labels]
        loss -= float(np.log(label_probabilities.clip(_SMALLEST_PROBABILITY)).sum())
        predicted = probabilities.argmax(axis=1)
        np.add.at(confusion, (labels, predicted), 1)
        spool.add(probabilities, labels)
        calibration.add(probabilities.max(axis=1), predicted == labels)
        mistakes.add(features, labels, probabilities, begin)
    non_finite.check(manifest.rows)
    return Evaluation(Scores(classes, confusion, loss / manifest.rows), spool, calibration, mistakes)


def read_dataset(folder: Path) -> DatasetManifest:
    """Read a dataset's manifest and check the shards against it.

    Raises:
        FileNotFoundError: There is no manifest.
        ValueError: There is no row, or a shard is missing or damaged.
    """
    if not (folder / DATASET_MANIFEST).is_file():
        raise FileNotFoundError(f"{folder} has no {DATASET_MANIFEST}: pass a dataset of prepare_data.")
    manifest = DatasetManifest.from_json((folder / DATASET_MANIFEST).read_text(encoding="utf-8"))
    if not manifest.rows:
        raise ValueError(f"split {manifest.split!r} has no rows: raise its fraction in prepare_data.")
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


def check_new_rows(dataset: DatasetManifest, model: ModelManifest, allow_training_rows: bool) -> str:
    """Check that no row of a dataset has trained a model; return a warning, "" for none.

    Args:
        dataset: Manifest of the dataset.
        model: Manifest of the model.
        allow_training_rows: Whether such rows cause a warning instead of an error.

    Raises:
        ValueError: Rows have trained the model, and `allow_training_rows` is false.
    """
    reason = find_contamination(dataset, model.training_data)
    if reason and not allow_training_rows:
        raise ValueError(
            f"{reason}: its scores would not say how the model performs on new rows. Evaluate the test_dataset of the "
            "run of prepare_data that trained the model, or set allow_training_rows=True."
        )
    if reason:
        return f"{reason}: the scores do not say how the model performs on new rows"
    if model.training_data and all(model.training_data):
        return ""
    return "model.json does not say all rows that trained the model. If they are in this dataset, scores are too high"
