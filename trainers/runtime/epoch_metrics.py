"""Records the metrics of epochs: in a file, which is stored at once, in a line, and for Kubeflow Trainer."""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import SupportsFloat

from kfp_distributed.trainers.runtime.folder_uploads import flush
from kfp_distributed.trainers.runtime.progress import Progress
from kfp_distributed.trainers.runtime.status_server import report_progress


def read_epochs(file: Path) -> list[dict[str, float]]:
    """Return the epochs of a metrics file; [] if the file is missing or has another form."""
    try:
        epochs: list[dict[str, float]] = json.loads(file.read_text())["epochs"] if file.exists() else []
        return [{"epoch": entry["epoch"], **entry} for entry in epochs]
    except (KeyError, TypeError, ValueError):
        print(f'{file.name} has not the form {{"replica": NAME, "epochs": [{{"epoch": 1, ...}}]}}', flush=True)
        return []


def record_epoch(file: Path, replica: str, epoch: int, epochs: int, metrics: Mapping[str, SupportsFloat]) -> None:
    """Record the end of an epoch: in the metrics file, in object storage, and with a progress line.

    Where Kubeflow Trainer has a status server, the leader also posts the progress to it, in another thread.

    A metric that becomes NaN or infinite causes a warning. The program continues, because this may be intended, and
    `evaluate` fails for a model that answers NaN.

    A metric may be any number that `float` accepts: an int, a float, or a scalar of NumPy, TensorFlow or PyTorch.

    Args:
        file: Metrics file, such as metrics_dir/training.json.
        replica: Name of the replica that trains, such as "worker-0".
        epoch: Number of the epoch, from 1.
        epochs: Number of the last epoch.
        metrics: Metrics of the epoch, by name.

    Raises:
        TypeError: A metric is not a number. The message names it.
    """
    values = {str(name): _number(name, value) for name, value in metrics.items()}
    past = [entry for entry in read_epochs(file) if entry["epoch"] < epoch]
    before = _not_finite(past[-1]) if past else set()
    for name in sorted(_not_finite(values) - before):
        print(
            f"warning: {name} is {values[name]} in epoch {epoch}: fill missing values, which are NaN in the rows, "
            "or set a smaller learning rate",
            flush=True,
        )
    file.write_text(json.dumps({"replica": replica, "epochs": [*past, {"epoch": epoch, **values}]}))
    flush()
    print(format_progress(epoch, epochs, values), flush=True)
    report_progress(Progress(epoch, epochs, values))


def _number(name: object, value: object) -> float:
    # float() would also accept text such as "0.5".
    if not isinstance(value, str | bytes):
        with suppress(TypeError, ValueError, OverflowError):
            return float(value)  # type: ignore[arg-type]
    raise TypeError(
        f"record_epoch: the metric {name!r} is {value!r:.100} ({type(value).__name__}); allowed is a number, such as a "
        "float or a scalar of NumPy, TensorFlow or PyTorch. Take the mean of several values first"
    )


def _not_finite(metrics: Mapping[str, float]) -> set[str]:
    return {name for name, value in metrics.items() if isinstance(value, float) and not math.isfinite(value)}


def format_progress(epoch: int, epochs: int, metrics: Mapping[str, float]) -> str:
    """Return the progress line that `parse_progress` parses, such as "epoch 3/6 loss=0.1234 accuracy=0.9812"."""
    return f"epoch {epoch}/{epochs}" + "".join(f" {name}={value:.4f}" for name, value in metrics.items())
