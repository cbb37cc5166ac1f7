"""Records the metrics of epochs: in a file, which is stored in the background, in a line, and for Kubeflow Trainer."""

from collections.abc import Mapping
from pathlib import Path
from typing import SupportsFloat

from kfp_distributed.trainers.runtime.checkpoints.folder_uploads import commit
from kfp_distributed.trainers.runtime.monitoring.progress import Progress, format_progress
from kfp_distributed.trainers.runtime.monitoring.status_server import report_progress
from kfp_distributed.trainers.runtime.outputs.metrics_file import (
    changing,
    checked_metrics,
    not_finite,
    read_epochs,
    update_metrics_file,
)


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
        metrics: Metrics of the epoch, by name. "epoch" and "step" are left out, because they are numbers of the epoch.

    Raises:
        TypeError: A metric is not a number. The message names it.
    """
    values = checked_metrics("record_epoch", metrics)
    with changing:
        past = [entry for entry in read_epochs(file) if entry["epoch"] < epoch]
        # The epoch of the model is that of an earlier training, which goes on now.
        entries = {"replica": replica, "epochs": [*past, {"epoch": epoch, **values}], "model_epoch": None}
        update_metrics_file(file, entries)
    before = not_finite(past[-1]) if past else set()
    for name in sorted(not_finite(values) - before):
        print(
            f"warning: {name} is {values[name]} in epoch {epoch}: fill missing values, which are NaN in the rows, "
            "or set a smaller learning rate",
            flush=True,
        )
    commit()
    progress = Progress(epoch, epochs, values)
    print(format_progress(progress), flush=True)
    report_progress(progress)
