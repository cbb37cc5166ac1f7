"""Divides epochs into steps, and reads what the manifest of a dataset says about its rows."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.storage.dataset import DATASET_MANIFEST, DatasetManifest, mean_and_std
from kfp_distributed.trainers.programs.program import check_batch

_EPOCHS, _MOST_EPOCHS, _LEAST_UPDATES = 10, 100, 400


def read_manifest(folder: str) -> DatasetManifest:
    """Read the manifest of a dataset in a local folder."""
    return DatasetManifest.from_json(Path(folder, DATASET_MANIFEST).read_text())


class Scaling(NamedTuple):
    """How a network scales its inputs, each [width].

    (input - mean) / std * scale is of size 1, and 0 for a category. Inputs with a `log_unit` above 0 are replaced by
    `log_values` first. A quotient of such an input and its unit that is no 32-bit float counts as the largest one.
    """

    mean: NDArray[np.float32]
    std: NDArray[np.float32]
    scale: NDArray[np.float32]
    log_unit: NDArray[np.float32]


def scaling(manifest: DatasetManifest) -> Scaling:
    """Return how a network scales its inputs."""
    mean, std = mean_and_std(manifest)
    sizes = [math.prod(column.shape) for column in manifest.columns]
    own = [
        (column.log_unit or 0, column.log_mean, column.log_std, column.kind != "category")
        for column in manifest.columns
    ]
    units, log_means, log_stds, scale = np.repeat(np.array(own, np.float32).reshape(-1, 4), sizes, axis=0).T
    return Scaling(np.where(units > 0, log_means, mean), np.where(units > 0, log_stds, std), scale, units)


def fills(manifest: DatasetManifest) -> NDArray[np.float32]:
    """Return the number that stands for NaN in each value of a row, [width]: `fill` of the column, or else the mean.

    The mean of a category is 0, the index of a missing value. That of a column whose logarithms are scaled is the
    number whose logarithm is `log_mean`.
    """
    _, _, _, units = scales = scaling(manifest)
    with np.errstate(over="ignore"):
        means = np.sign(scales.mean) * units * np.expm1(np.where(units > 0, np.abs(scales.mean), 0))
    values = np.where(units > 0, np.nan_to_num(means), mean_and_std(manifest)[0])
    own = [
        np.full(math.prod(column.shape), np.nan if column.fill is None else column.fill) for column in manifest.columns
    ]
    filled: NDArray[np.float32] = np.where(np.isnan(np.concatenate(own)), values, np.concatenate(own)).astype(
        np.float32
    )
    return filled


def categories(manifest: DatasetManifest) -> dict[int, int]:
    """Return the number of values of each category, by its index in [n, width]: the vocabulary and "missing"."""
    ends = np.cumsum([math.prod(column.shape) for column in manifest.columns]).tolist()
    columns = zip(manifest.columns, ends, strict=True)
    return {end - 1: len(column.vocabulary) + 1 for column, end in columns if column.kind == "category"}


def number_of_epochs(epochs: int | None, rows: int, batch_size: int) -> int:
    """Return how often a training passes over all rows.

    Args:
        epochs: What the user has set; None for 10, or as many as 400 updates need, up to 100. A table of 100 rows has
            40 updates in 10 epochs, too few for the built-in network (benchmarks/public_tables.md).
        rows: Rows of all ranks together.
        batch_size: Rows of an update over all ranks.
    """
    if epochs is not None:
        return epochs
    return min(_MOST_EPOCHS, max(_EPOCHS, math.ceil(_LEAST_UPDATES / max(1, math.ceil(rows / batch_size)))))


class Epoch(NamedTuple):
    """Plan of an epoch for one input rank.

    Attributes:
        steps: Number of steps, the same for all ranks.
        batch: Rows of one device in one step.
        records: Rows of the rank, including the records that fill up the last step.
    """

    steps: int
    batch: int
    records: int


def plan_epoch(rows: int, batch_size: int, ranks: int = 1, devices: int = 1) -> Epoch:
    """Divide an epoch into batches of one size, so that every row comes once and no rank waits for another.

    Each device has `batch` rows in a step, so a step has a multiple of the number of devices: the largest one that is
    not above batch_size. It has fewer rows if that fills the last step better.

    Args:
        rows: Rows of all ranks together.
        batch_size: Rows of one step over all ranks, at most.
        ranks: Number of processes that read a part each. The parts differ by one row at most. Default: 1.
        devices: Devices of each rank. Default: 1.

    Returns:
        The plan. Records of weight 0 fill up the last batches; there are fewer of them than one for each device and
        step.

    Raises:
        ValueError: batch_size is below the number of devices.
    """
    check_batch(batch_size, ranks * devices)
    part = math.ceil(rows / ranks)
    steps = math.ceil(part / (batch_size // ranks // devices * devices))
    batch = math.ceil(part / (steps * devices))
    return Epoch(steps, batch, steps * batch * devices)


def describe_batch(plan: Epoch, batch_size: int, devices: int) -> str:
    """Return the line for the log about the rows of an update, which may be fewer than batch_size.

    Args:
        plan: The plan.
        batch_size: Rows of one update that the user has set.
        devices: Devices of all ranks together.
    """
    rows = plan.batch * devices
    return f"batch_size {batch_size} over {devices} devices: {rows} rows in each of {plan.steps} updates an epoch"


class Step(NamedTuple):
    """One step of an epoch.

    Attributes:
        part: Its rows, among the rows of a rank.
        rows: Number of its rows over all ranks.
    """

    part: slice
    rows: int


def steps_of_epoch(rows: int, batch_size: int, ranks: int, rank: int) -> list[Step]:
    """Divide an epoch into steps of exactly batch_size rows over all ranks. The last step has the rest.

    The batches of the ranks in a step differ by one row at most. A rank may have no row in the last step.

    Args:
        rows: Rows of all ranks together. Rank number r has the rows from rows * r // ranks on, as in `parts_of_rank`.
        batch_size: Rows of one step over all ranks.
        ranks: Number of ranks.
        rank: Number of this rank.

    Raises:
        ValueError: batch_size is below the number of ranks.
    """
    check_batch(batch_size, ranks)
    parts = [rows * (number + 1) // ranks - rows * number // ranks for number in range(ranks)]
    # The ranks take rows in turns, those with a row more first. Then each has used its part after the last step.
    turn = sorted(range(ranks), key=lambda number: -parts[number]).index(rank)
    ends = [*range(0, rows, batch_size), rows]
    return [
        Step(slice((start + ranks - 1 - turn) // ranks, (stop + ranks - 1 - turn) // ranks), stop - start)
        for start, stop in pairwise(ends)
    ]
