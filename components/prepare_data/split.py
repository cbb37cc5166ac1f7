"""The two passes over a source: look at every row, then draw where each one goes and write it there."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.plan import Options, order_classes
from kfp_distributed.components.prepare_data.remarks import ColumnCounts, remarks_of, text_form
from kfp_distributed.components.prepare_data.sources import Source
from kfp_distributed.storage.dataset import DATASET_MANIFEST, Column, DatasetManifest, Label, Shard, column_matrix
from kfp_distributed.storage.files import describe_file

# Above this a text column is rather a name, an address or free text than a category; and the manifest stays small.
MAXIMUM_DISTINCT = 1000
# The rows that are mixed with each other, and of which each shard gets one row group: so many, of so many bytes.
MIXED_ROWS, MIXED_BYTES = 2**18, 2**23
# Batches between two lines that say how far a pass is; a batch is about 1 MiB.
_SAY_EVERY = 200


@dataclass
class Moments:
    """Statistics of the numbers added so far, in float64; NaN counts as missing."""

    count: int = 0
    missing: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    def add(self, numbers: NDArray[np.float32]) -> None:
        """Add numbers, by Chan's rule for joining the mean and the squared deviations of two parts."""
        values = numbers[~np.isnan(numbers)].astype(float)
        self.missing += numbers.size - values.size
        if values.size:
            self.count += values.size
            share, apart = values.size / self.count, values.mean() - self.mean
            self.squares += values.var() * values.size + apart**2 * values.size * (1 - share)
            self.mean += apart * share
            self.low, self.high = min(self.low, values.min()), max(self.high, values.max())

    @property
    def std(self) -> float:
        """Standard deviation of the numbers; 1 where they are all equal, so that one can divide by it."""
        return math.sqrt(self.squares / self.count) if self.low < self.high else 1.0


class Scan(NamedTuple):
    """Results of the first pass.

    Attributes:
        columns: The inputs with their vocabularies.
        label: The label with its classes.
        class_counts: Rows of each class.
        remarks: What a person should know of the columns, a line each.
    """

    columns: tuple[Column, ...]
    label: Label
    class_counts: tuple[int, ...]
    remarks: list[str]


def scan(source: Source) -> Scan:
    """Check all rows, count the classes and collect the vocabularies.

    Raises:
        ValueError: A row or a column cannot be used; the message says where and what to do.
    """
    columns = {column.name: ColumnCounts(column.kind) for column in source.columns}
    label = ColumnCounts("label")
    for file, begin, batch in _counted(source, "pass 1 of 2 (check)"):
        for name, values in zip(batch.schema.names, batch.columns, strict=True):
            counts = label if name == source.label else columns[name]
            fault = _count(counts, values)
            if fault:
                row, why = fault
                raise ValueError(f"row {begin + row} of {file}: {name!r} {why}")
            if len(counts.values) > MAXIMUM_DISTINCT:
                advice = (
                    "name another label_column (a regression target?)" if counts is label else "name it in drop_columns"
                )
                raise ValueError(
                    f"column {name!r} has more than {MAXIMUM_DISTINCT} different values, of the form "
                    f"{text_form(next(iter(counts.values)))!r}: {advice}"
                )
    classes = order_classes(label.values, source.label)
    return Scan(
        tuple(replace(column, vocabulary=tuple(sorted(columns[column.name].values))) for column in source.columns),
        Label(source.label, classes),
        tuple(label.values[name] for name in classes),
        remarks_of(columns, label.values.total(), source.label, classes),
    )


def _count(counts: ColumnCounts, values: pa.Array) -> tuple[int, str] | None:
    """Add a batch's values of a column; returns the first row that cannot be used, and why."""
    if pa.types.is_string(values.type):
        counts.missing += values.null_count
        distinct = values.drop_null().value_counts().to_pylist()
        counts.values.update({pair["values"]: pair["counts"] for pair in distinct})
        if counts.kind == "label" and values.null_count:
            return int(np.asarray(values.is_null()).argmax()), "is missing: fill it in, or leave the row out"
        return None
    numbers = column_matrix(values)
    counts.missing += int(np.isnan(numbers).any(axis=1).sum())
    infinite = np.isinf(numbers).any(axis=1)
    if infinite.any():
        advice = "correct it, leave it empty, or name the column in drop_columns"
        return int(infinite.argmax()), f"is infinite or too large for a 32-bit number: {advice}"
    counts.largest = max(counts.largest, float(np.nanmax(np.abs(numbers), initial=0)))
    return None


def _counted(source: Source, what: str) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """A source's batches with their files and what a person calls their first rows; says how many rows went by."""
    rows: Counter[str] = Counter()
    for number, (file, batch) in enumerate(source.batches(), 1):
        yield file, rows[file] + source.first_row, batch
        rows[file] += batch.num_rows
        if number % _SAY_EVERY == 0:
            print(f"{what}: {rows.total():,} rows", flush=True)
    print(f"{what}: {rows.total():,} rows, done", flush=True)


def draw_targets(
    left: NDArray[np.int_], classes: NDArray[np.int32], generator: np.random.Generator
) -> NDArray[np.intp]:
    """Draw a target for each row, each row's chances being the places that are left.

    With the counts of a plan this gives exactly those counts, every arrangement of rows is equally likely, and
    nothing is kept of the rows gone by.

    Args:
        left: Places of each class [classes, targets]; those drawn are taken away.
        classes: The class of each row.
        generator: Where chance comes from.

    Raises:
        ValueError: There are more rows of a class than places.
    """
    targets = np.empty(len(classes), np.intp)
    for index in np.unique(classes):
        rows = np.flatnonzero(classes == index)
        drawn = generator.multivariate_hypergeometric(left[index], len(rows))
        left[index] -= drawn
        targets[rows] = generator.permutation(np.repeat(np.arange(len(drawn)), drawn))
    return targets


def write_splits(
    source: Source,
    columns: Sequence[Column],
    label: Label,
    plan: Sequence[Sequence[int]],
    options: Options,
    name: str,
    folders: Mapping[str, Path],
    mixed_rows: int = MIXED_ROWS,
) -> tuple[dict[str, DatasetManifest], dict[str, Moments]]:
    """Write the rows of a source into the folders of the splits, each with its manifest.

    Memory is that of the rows that are mixed, whatever the number of rows. Mean and deviation are those of the training
    rows alone, so that nothing of the other splits is known in training.

    Args:
        source: The rows, as the first pass saw them.
        columns: The inputs with their vocabularies.
        label: The label with its classes.
        plan: Rows of each class for each training shard, validation and test, from `plan_split`.
        options: The seed and the number of training shards.
        name: What the manifests say of where the data is from.
        folders: An empty folder for each of "train", "validation" and "test".
        mixed_rows: Rows that are mixed with each other; another number gives another order of the rows.

    Returns:
        The manifest of each split, and the statistics of the inputs of numbers in the training split.

    Raises:
        ValueError: The source gives other rows than in the first pass.
    """
    places = np.array(plan)
    files = [folders["train"] / f"part-{shard:05d}.parquet" for shard in range(options.shards)]
    files += [folders[split] / "part-00000.parquet" for split in ("validation", "test")]
    moments = {column.name: Moments() for column in columns if column.kind != "category"}
    _write_rows(source, columns, label, places, options, files, moments, mixed_rows)
    columns = [
        replace(column, mean=seen.mean, std=seen.std) if (seen := moments.get(column.name)) else column
        for column in columns
    ]
    manifests = {}
    for split, folder in folders.items():
        own = [target for target, file in enumerate(files) if file.parent == folder and places[:, target].any()]
        rows = places[:, own].sum(axis=0).tolist()
        described = [describe_file(files[target], files[target].name) for target in own]
        shards = tuple(Shard(of.path, n, of.size, of.sha256) for of, n in zip(described, rows, strict=True))
        counts = tuple(places[:, own].sum(axis=1).tolist())
        manifests[split] = DatasetManifest(split, tuple(columns), label, shards, counts, options.seed, name)
        (folder / DATASET_MANIFEST).write_text(manifests[split].to_json())
    return manifests, moments


def _write_rows(
    source: Source,
    columns: Sequence[Column],
    label: Label,
    places: NDArray[np.int_],
    options: Options,
    files: Sequence[Path],
    moments: Mapping[str, Moments],
    mixed_rows: int,
) -> None:
    """Write each row into a file that has a place for its class, and add the training rows to the statistics."""
    generator, left = np.random.default_rng(options.seed), places.copy()
    row_bytes = 4 + sum(4 * math.prod(column.shape) for column in columns)
    encoded = (_encode(batch, columns, label) for *_, batch in _counted(source, "pass 2 of 2 (write)"))
    writers: dict[int, pq.ParquetWriter] = {}
    with ExitStack() as stack:
        for rows in _rechunked(encoded, max(1, min(mixed_rows, MIXED_BYTES // row_bytes))):
            targets = draw_targets(left, rows[label.name].to_numpy(), generator)
            order = generator.permutation(rows.num_rows)
            for target in np.unique(targets):
                if target not in writers:
                    writers[target] = stack.enter_context(pq.ParquetWriter(files[target], rows.schema))
                writers[target].write_batch(rows.take(pa.array(order[targets[order] == target])))
            for column, seen in moments.items():
                seen.add(column_matrix(rows[column])[targets < options.shards])
    if left.any():
        raise ValueError("source: it had fewer rows when it was read again")


def _encode(batch: pa.RecordBatch, columns: Sequence[Column], label: Label) -> pa.RecordBatch:
    """Rows of a source in the form of the shards."""
    texts = {column.name: [None, *column.vocabulary] for column in columns if column.kind == "category"}
    texts[label.name] = [*label.classes]
    rows = dict(zip(batch.schema.names, batch.columns, strict=True))
    for name, known in texts.items():
        rows[name] = pc.index_in(rows[name], pa.array(known, pa.string()))
        if rows[name].null_count:
            raise ValueError(f"source: {name!r} had other values when it was read again")
    return pa.record_batch(rows)


def _rechunked(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of one length (the last may be shorter), so that a draw depends on the rows alone."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        while sum(part.num_rows for part in held) >= rows:
            joined = pa.concat_batches(held)
            yield joined[:rows]
            held = [joined[rows:]]
    if any(part.num_rows for part in held):
        yield pa.concat_batches(held)
