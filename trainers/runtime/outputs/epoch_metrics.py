"""Records the metrics of epochs: in a file, which is stored in the background, in a line, and for Kubeflow Trainer."""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import SupportsFloat

from kfp_distributed.storage.files import unfinished_file
from kfp_distributed.trainers.runtime.checkpoints.folder_uploads import commit
from kfp_distributed.trainers.runtime.monitoring.progress import Progress, format_progress
from kfp_distributed.trainers.runtime.monitoring.status_server import report_progress

_MODEL_EPOCH = "model_epoch"
"""Key of the epoch of the model in a metrics file."""


def read_epochs(file: Path) -> list[dict[str, float]]:
    """Return the epochs of a metrics file; [] if the file is missing or has another form."""
    try:
        epochs: list[dict[str, float]] = json.loads(file.read_text())["epochs"] if file.exists() else []
        return [{"epoch": entry["epoch"], **entry} for entry in epochs]
    except (KeyError, TypeError, ValueError):
        print(f'{file.name} has not the form {{"replica": NAME, "epochs": [{{"epoch": 1, ...}}]}}', flush=True)
        return []


def mark_model_epoch(file: Path, epoch: int | None) -> None:
    """Record in a metrics file of which epoch the model is.

    Args:
        file: Metrics file. If it is missing, nothing is recorded.
        epoch: Number of the epoch, from 1; None for the last one.
    """
    if not file.exists():
        return
    content = {name: value for name, value in json.loads(file.read_text()).items() if name != _MODEL_EPOCH}
    with unfinished_file(file) as stream:
        stream.write(json.dumps(content if epoch is None else {**content, _MODEL_EPOCH: epoch}).encode())


def read_model_metrics(file: Path) -> dict[str, float]:
    """Return the metrics of the epoch of the model: the one that `mark_model_epoch` has recorded, or the last one.

    The result is {} if the file has no epochs.
    """
    epochs = read_epochs(file)
    if not epochs:
        return {}
    epoch = json.loads(file.read_text()).get(_MODEL_EPOCH, epochs[-1]["epoch"])
    return next((entry for entry in epochs if entry["epoch"] == epoch), {"epoch": epoch})


def record_epoch(file: Path, replica: str, epoch: int, epochs: int, metrics: Mapping[str, SupportsFloat]) -> None:
    """Record the end of an epoch: in the metrics file, in object storage, and with a progress line.

    The metrics and the checkpoint in checkpoint_dir are stored in the background, so call it after the checkpoint of
    the epoch is written. It takes a snapshot of both on the local disk and returns, whether or not the object store
    answers. Large checkpoints are linked, so write a new file and rename it. If a program rewrites its file in place,
    it is copied, which takes longer. `flush` waits until all is stored.

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
    with unfinished_file(file) as stream:
        stream.write(json.dumps({"replica": replica, "epochs": [*past, {"epoch": epoch, **values}]}).encode())
    commit()
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
