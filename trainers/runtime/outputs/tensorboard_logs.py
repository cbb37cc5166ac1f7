"""Writes logs for TensorBoard, by TensorFlow where the program uses it, and by tensorboardX elsewhere."""

import os
import sys
from collections.abc import Callable, Mapping
from functools import cache


def log_scalars(folder: str, number: int, metrics: Mapping[str, float]) -> None:
    """Write the metrics of an epoch or a step, with "loss" and "val_loss" as two runs in one chart.

    If neither TensorFlow nor tensorboardX is there, nothing is written, and a line says so once.

    Args:
        folder: Folder of the logs.
        number: Number of the epoch or step.
        metrics: Metrics by name.
    """
    for name, value in metrics.items():
        run, tag = ("validation", name[4:]) if name.startswith("val_") else ("train", name)
        if write := _writer(f"{folder}/{run}", os.getpid()):
            write(tag, value, number)


@cache
def _writer(folder: str, process: int) -> Callable[[str, float, int], object] | None:
    if sys.modules.get("tensorflow"):  # A program blocks the import of a module by None.
        return _tensorflow_writer(folder)
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        _name_missing()
        return None
    # It writes in another thread, which a fork does not have, and its file is complete at most so many seconds later.
    writer = SummaryWriter(folder, flush_secs=2, filename_suffix=f".{process}")
    add_scalar: Callable[[str, float, int], object] = writer.add_scalar
    return add_scalar


@cache
def _name_missing() -> None:
    print("no logs for TensorBoard: add tensorboardX to the packages of train_specification", flush=True)


def _tensorflow_writer(folder: str) -> Callable[[str, float, int], object]:
    import tensorflow as tf

    # This is what tf.summary.scalar does, but that needs the package tensorboard.
    kind = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": "scalars"})
    writer = tf.summary.create_file_writer(folder)

    def write(tag: str, value: float, number: int) -> None:
        with writer.as_default(number):
            tf.summary.write(tag, value, metadata=kind)
        writer.flush()

    return write
