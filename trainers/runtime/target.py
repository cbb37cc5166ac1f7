"""What the network of a built-in trainer predicts: its outputs, the scale of numbers, class weights and metrics."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.storage.dataset import Label


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


def metrics_of(loss: float, accuracy: float, label: Label) -> dict[str, float]:
    """Return the metrics of an epoch or a dataset by name.

    Args:
        loss: Mean loss of the rows: cross entropy, or squared error of the scaled numbers.
        accuracy: Fraction of the rows whose class is predicted. Ignored for numbers.
        label: Label of the training dataset.

    Returns:
        "loss" and "accuracy". For numbers "loss" and "rmse", the root of the mean squared error in their own unit.
    """
    if label.task == "regression":
        return {"loss": loss, "rmse": label.std * math.sqrt(loss)}
    return {"loss": loss, "accuracy": accuracy}
