"""Scores a classifier on a dataset, and logs its metrics to KFP."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from kfp_distributed.components.evaluate.model_function import ModelFunction
from kfp_distributed.components.evaluate.scoring.calibration import Calibration
from kfp_distributed.components.evaluate.scoring.classification_scores import (
    Evaluation,
    Scores,
    check_probabilities,
    shown_error,
)
from kfp_distributed.components.evaluate.scoring.finite import NonFiniteOutputs
from kfp_distributed.components.evaluate.scoring.mistakes import WorstMistakes
from kfp_distributed.components.evaluate.scoring.spool import ScoreSpool
from kfp_distributed.components.kfp_interface.artifacts import ClassificationMetricsArtifact
from kfp_distributed.components.model_formats.model_outputs import class_matrix
from kfp_distributed.storage.dataset import DatasetManifest
from kfp_distributed.storage.shards import read_stored_batches

_MISTAKES = 12
# KFP stores every point as metadata in its database.
_ROC_POINTS = 100
# keras.config.epsilon(): a lower probability counts as this one, so that the loss is finite and the same as Keras'.
# scikit-learn clips at the resolution of the numbers' type: 1.2e-7 for float32, 2.2e-16 for float64. Like scikit-learn,
# and unlike Keras, the probabilities of a row are not divided by their sum.
_SMALLEST_PROBABILITY = 1e-7


def score_rows(classifier: ModelFunction, dataset: Path, manifest: DatasetManifest) -> Evaluation:
    """Score a classifier on all rows. One batch of rows at a time is in memory, and all probabilities (`ScoreSpool`).

    Args:
        classifier: The classifier.
        dataset: Folder of the dataset.json.
        manifest: Manifest of the dataset.

    Raises:
        ValueError: The classifier fails or returns no finite probabilities.
    """
    classes = manifest.label.classes
    confusion = np.zeros((len(classes), len(classes)), np.int64)
    spool, calibration, mistakes = ScoreSpool(len(classes)), Calibration(), WorstMistakes(_MISTAKES)
    non_finite = NonFiniteOutputs(manifest.columns)
    loss, first_row = 0.0, 0
    for features, labels in read_stored_batches(dataset, manifest):
        begin, first_row = first_row, first_row + len(labels)
        outputs = class_matrix(classifier(features), len(labels), len(classes))
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


def log_lines(evaluation: Evaluation) -> list[str]:
    """Return the lines of the step's log: the scores that are not exact, then accuracy and loss."""
    scores = evaluation.scores
    inexact = [
        f"{name} is within {shown_error(error):.4f} of the exact value: {scores.rows} rows do not fit in memory"
        for name, error in evaluation.errors().items()
    ]
    return [*inexact, f"accuracy={scores.accuracy:.4f} loss={scores.loss:.4f} on {scores.rows} rows"]


def metric_values(evaluation: Evaluation) -> Mapping[str, float]:
    """Return the metrics that KFP shows, by name. Undefined ones are left out, and those of more than 100 classes."""
    values = evaluation.summary()
    values |= {f"{name}_error": error for name, error in evaluation.errors().items()}
    return values | (class_values(evaluation.scores) if evaluation.scores.drawn else {})


def class_values(scores: Scores) -> dict[str, float]:
    """Return precision and recall of every class by "precision_CLASS" and "recall_CLASS". Undefined ones are left out.

    KFP shows those of up to 100 classes.
    """
    values: dict[str, float] = {}
    for name, (precision, recall, _) in zip(scores.classes, scores.class_scores(), strict=True):
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
