"""What the network of a built-in trainer predicts: its outputs, the scale of numbers, class weights and metrics."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.storage.dataset import DatasetManifest, Label


def count_outputs(label: Label) -> int:
    """Return the number of outputs of a network: one for each class, or one for a number to predict."""
    return 1 if label.task == "regression" else len(label.classes)


def scale_labels(labels: NDArray[Any], label: Label) -> NDArray[Any]:
    """Return the labels that a network learns.

    Args:
        labels: Labels as `read_batches` yields them.
        label: Label of the training dataset.

    Returns:
        Numbers to predict less their mean and divided by their standard deviation, as float64. Classes as they are.
    """
    if label.task != "regression":
        return labels
    scaled: NDArray[np.float64] = (labels.astype(np.float64) - label.mean) / label.std
    return scaled


def weights_of_classes(manifest: DatasetManifest, class_weights: str) -> NDArray[np.float64]:
    """Return the weight of each class in the loss, [classes].

    Args:
        manifest: Manifest of the complete training dataset.
        class_weights: "none" for the weight 1, or "balanced" for rows / (classes * rows of the class), as
            `compute_class_weight` of scikit-learn returns them. Only classes with rows count. The weights of all rows
            have the mean 1. A class without rows has the weight 0.

    Raises:
        ValueError: class_weights is "balanced" and the dataset has no classes.
    """
    if class_weights == "none":
        return np.ones(len(manifest.label.classes))
    if not manifest.label.classes:
        raise ValueError(
            f"class_weights is {class_weights!r}, but the dataset has the task {manifest.label.task!r}, which has no "
            "classes; allowed is 'none'"
        )
    counts = np.array(manifest.class_counts, np.float64)
    weights = np.zeros(len(counts))
    weights[counts > 0] = manifest.rows / (np.count_nonzero(counts) * counts[counts > 0])
    return weights


def metrics_of(loss: float, accuracy: float, label: Label) -> dict[str, float]:
    """Return the metrics of an epoch or a dataset by name.

    Args:
        loss: Mean loss of the rows: cross entropy, multiplied by the weight of the class in a training with
            class_weights, or squared error of the scaled numbers.
        accuracy: Fraction of the rows whose class is predicted. Ignored for numbers.
        label: Label of the training dataset.

    Returns:
        "loss" and "accuracy". For numbers "loss" and "rmse", the root of the mean squared error in their own unit.
    """
    if label.task == "regression":
        return {"loss": loss, "rmse": label.std * math.sqrt(loss)}
    return {"loss": loss, "accuracy": accuracy}
