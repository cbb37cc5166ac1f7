"""The file of the metrics of a replica.

Its form is {"replica": NAME, "epochs": [{"epoch": 1, ...}, ...], "steps": [{"step": 1, ...}, ...]}. One list may
be missing.
"""

import json
import math
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, SupportsFloat

from kfp_distributed.storage.files import unfinished_file

NUMBERS = ("epoch", "step")
"""Names of the numbers of epochs and steps. No metric has one of these names."""

changing = threading.RLock()
"""Held from reading a metrics file until it is written again: a thread writes steps when the replica must end."""

# A fork would wait forever for a thread that it does not have.
os.register_at_fork(before=changing.acquire, after_in_parent=changing.release, after_in_child=changing.release)

_MODEL_EPOCH = "model_epoch"
"""Key of the epoch of the model in a metrics file."""


def read_epochs(file: Path) -> list[dict[str, float]]:
    """Return the epochs of a metrics file; [] if the file is missing or has another form."""
    return _read_rows(file, "epochs", "epoch")


def read_steps(file: Path) -> list[dict[str, float]]:
    """Return the steps of a metrics file, by number; [] if the file is missing or has another form."""
    return _read_rows(file, "steps", "step")


def _read_rows(file: Path, key: str, number: str) -> list[dict[str, float]]:
    try:
        content = json.loads(file.read_text()) if file.exists() else {key: []}
        if not {"epochs", "steps"} & content.keys():
            raise KeyError(key)
        return [{number: row[number], **_without_numbers(row)} for row in content.get(key, [])]
    except (AttributeError, KeyError, TypeError, ValueError):
        form = '{"replica": NAME, "epochs": [{"epoch": 1, ...}], "steps": [{"step": 1, ...}]}'
        print(f"{file.name} has not the form {form}", flush=True)
        return []


def _without_numbers(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name not in NUMBERS}


def update_metrics_file(file: Path, changes: Mapping[str, Any]) -> None:
    """Change entries of a metrics file and keep the others, also those of other programs. None removes an entry."""
    content: dict[str, Any] = {}
    with changing:
        with suppress(OSError, ValueError):
            content = dict(json.loads(file.read_text()))
        content = {name: value for name, value in {**content, **changes}.items() if value is not None}
        with unfinished_file(file) as stream:
            stream.write(json.dumps({"epochs": [], **content}).encode())


def mark_model_epoch(file: Path, epoch: int | None) -> None:
    """Record in a metrics file of which epoch the model is.

    Args:
        file: Metrics file. If it is missing, nothing is recorded.
        epoch: Number of the epoch, from 1; None for the last one.
    """
    if file.exists():
        update_metrics_file(file, {_MODEL_EPOCH: epoch})


def read_model_metrics(file: Path) -> dict[str, float]:
    """Return the metrics of the model.

    They are those of the epoch that `mark_model_epoch` has recorded, or of the last one, and the last value of each
    metric of steps that has another name. The result is {} if the file has neither epochs nor steps.
    """
    epochs = read_epochs(file)
    of_steps: dict[str, float] = {}
    for row in read_steps(file):
        of_steps |= row
    if not epochs:
        return of_steps
    epoch = json.loads(file.read_text()).get(_MODEL_EPOCH, epochs[-1]["epoch"])
    return of_steps | next((entry for entry in epochs if entry["epoch"] == epoch), {"epoch": epoch})


def checked_metrics(function: str, metrics: Mapping[str, SupportsFloat]) -> dict[str, float]:
    """Return metrics as floats by name, without the numbers of epochs and steps, which are no metrics.

    Args:
        function: Name of the function that got them, for the error.
        metrics: The metrics. Each is a number that `float` accepts.

    Raises:
        TypeError: A metric is not a number. The message names it.
    """
    return _without_numbers({str(name): _number(function, name, value) for name, value in metrics.items()})


def _number(function: str, name: object, value: object) -> float:
    # float() would also accept text such as "0.5".
    if not isinstance(value, str | bytes):
        with suppress(TypeError, ValueError, OverflowError):
            return float(value)  # type: ignore[arg-type]
    raise TypeError(
        f"{function}: the metric {name!r} is {value!r:.100} ({type(value).__name__}); allowed is a number, such as a "
        "float or a scalar of NumPy, TensorFlow or PyTorch. Take the mean of several values first"
    )


def not_finite(metrics: Mapping[str, float]) -> set[str]:
    """Return the names of the metrics that are NaN or infinite."""
    return {name for name, value in metrics.items() if isinstance(value, float) and not math.isfinite(value)}
