"""The two passes over a source: check every row, then draw a file for each row and write it there."""

import hashlib
import math
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.column_kinds import class_names
from kfp_distributed.components.prepare_data.data_warnings import (
    ColumnCounts,
    column_warnings,
    spelling_warnings,
    text_form,
)
from kfp_distributed.components.prepare_data.plan import Options, order_classes
from kfp_distributed.components.prepare_data.profile import MAXIMUM_FEATURES, Profile, Profiler, with_statistics
from kfp_distributed.components.prepare_data.shuffle import PIECE_BYTES, ShuffledFiles, row_bytes
from kfp_distributed.components.prepare_data.sources import Source
from kfp_distributed.storage.dataset import DATASET_MANIFEST, Column, DatasetManifest, Label, Shard, column_matrix
from kfp_distributed.storage.files import describe_file

# A text column with more values is a name, an address or free text rather than a category. The manifest stays small.
MAXIMUM_DISTINCT = 1000
# Rows whose files are drawn together: at most this number and these bytes.
DRAWN_ROWS = 2**18
DRAWN_BYTES = 2**23
# Batches of about 1 MiB between two log lines about the progress of a pass.
_BATCHES_PER_LOG_LINE = 200


class Scan(NamedTuple):
    """Results of the first pass.

    Attributes:
        columns: The inputs with their vocabularies.
        label: The label with its classes.
        class_counts: Rows of each class.
        missing: Rows of each input without a value.
        warnings: One line for each problem of a column.
        collapsed: Inputs whose different numbers become equal as 32-bit floats.
    """

    columns: tuple[Column, ...]
    label: Label
    class_counts: tuple[int, ...]
    missing: dict[str, int]
    warnings: list[str]
    collapsed: tuple[str, ...] = ()


def scan(source: Source) -> Scan:
    """Check all rows, count the classes and collect the vocabularies.

    Raises:
        ValueError: A row or column cannot be used. The message names it and what to do.
    """
    columns = {column.name: ColumnCounts(column.kind) for column in source.columns}
    label = ColumnCounts("label")
    for file, begin, batch in _counted(source, "pass 1 of 2 (check)", are_labels_spelled=True):
        for name, values in zip(batch.schema.names, batch.columns, strict=True):
            counts = label if name == source.label else columns[name]
            if problem := _count(counts, values):
                row, reason = problem
                raise ValueError(f"row {begin + row} of {file}: {name!r} {reason}")
            if len(counts.values) > MAXIMUM_DISTINCT:
                advice = (
                    "name another label_column (a regression target?)" if counts is label else "name it in drop_columns"
                )
                raise ValueError(
                    f"column {name!r} has more than {MAXIMUM_DISTINCT} different values, of the form "
                    f"{text_form(next(iter(counts.values)))!r}: {advice}"
                )
    spellings = _spellings_by_class(label.values)
    class_rows = {name: sum(label.values[text] for text in texts) for name, texts in spellings.items()}
    classes = order_classes(class_rows, source.label)
    return Scan(
        tuple(replace(column, vocabulary=tuple(sorted(columns[column.name].values))) for column in source.columns),
        Label(source.label, classes),
        tuple(class_rows[name] for name in classes),
        {name: counts.missing for name, counts in columns.items()},
        [
            *column_warnings(columns, label.values.total(), source.label, classes),
            *spelling_warnings(source.label, spellings),
        ],
        tuple(name for name, counts in columns.items() if counts.precision.collapses()),
    )


def _spellings_by_class(texts: Iterable[str]) -> dict[str, list[str]]:
    """Return the spellings of each class."""
    spellings: dict[str, list[str]] = {}
    for text, name in zip(texts, class_names(pa.array(texts, pa.string())).to_pylist(), strict=True):
        spellings.setdefault(name, []).append(text)
    return spellings


def _count(counts: ColumnCounts, values: pa.Array) -> tuple[int, str] | None:
    """Add a batch's values of a column. Return the first row that cannot be used, and the reason; None without one."""
    if pa.types.is_string(values.type):
        counts.missing += values.null_count
        distinct = values.drop_null().value_counts().to_pylist()
        counts.values.update({pair["values"]: pair["counts"] for pair in distinct})
        if counts.kind == "label" and values.null_count:
            return int(np.asarray(values.is_null()).argmax()), "is missing: fill it in, or leave the row out"
        return None
    # Numbers that are too large for a 32-bit float become infinite.
    with np.errstate(over="ignore"):
        numbers = column_matrix(values)
    counts.missing += int(np.isnan(numbers).any(axis=1).sum())
    infinite = np.isinf(numbers).any(axis=1)
    if infinite.any():
        advice = "correct it, leave it empty, or name the column in drop_columns"
        return int(infinite.argmax()), f"is infinite or too large for a 32-bit number: {advice}"
    if counts.kind == "number":
        exact = values.to_numpy(zero_copy_only=False)
        counts.precision.add(exact)
        counts.whole_numbers.add(exact)
    elif values.type.value_type == pa.float64() and numbers.shape[1] <= MAXIMUM_FEATURES:
        counts.precision.add(values.flatten().to_numpy().reshape(numbers.shape))
    # These two ignore NaN.
    counts.lowest = float(np.fmin.reduce(numbers, axis=None, initial=counts.lowest))
    counts.highest = float(np.fmax.reduce(numbers, axis=None, initial=counts.highest))
    return None


def _counted(
    source: Source, pass_name: str, *, are_labels_spelled: bool = False
) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """Yield each batch with its file and the line number of its first row, and log the progress."""
    rows: Counter[str] = Counter()
    for number, (file, batch) in enumerate(source.batches(are_labels_spelled=are_labels_spelled), 1):
        yield file, rows[file] + source.first_row, batch
        rows[file] += batch.num_rows
        if number % _BATCHES_PER_LOG_LINE == 0:
            print(f"{pass_name}: {rows.total():,} rows", flush=True)
    print(f"{pass_name}: {rows.total():,} rows, done", flush=True)


def draw_targets(
    left: NDArray[np.int_], classes: NDArray[np.int32], generator: np.random.Generator
) -> NDArray[np.intp]:
    """Draw a target file for each row, in proportion to the rows that the files still lack.

    In the end each file has exactly its planned rows, and every arrangement of rows is equally likely. No earlier row
    is kept in memory.

    Args:
        left: Rows of each class that each target still lacks, [classes, targets]. The drawn rows are subtracted.
        classes: The class of each row.
        generator: Random generator.

    Raises:
        ValueError: A class has more rows than the targets lack.
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
    drawn_rows: int = DRAWN_ROWS,
    piece_bytes: int = PIECE_BYTES,
) -> tuple[dict[str, DatasetManifest], Profile]:
    """Write the rows of a source into the folders of the splits, each with its manifest.

    Each shard is a random sample of its split, with its fraction of every class, and in random order. The memory does
    not grow with the number of rows. Mean and deviation are those of the training rows alone, so that the training
    learns nothing about the other splits.

    Args:
        source: The rows that the first pass has checked.
        columns: The inputs with their vocabularies.
        label: The label with its classes.
        plan: Rows of each class for each training shard, validation and test, from `plan_split`.
        options: The seed and the number of training shards.
        name: Source of the data, for the manifests.
        folders: An empty folder for each of "train", "validation" and "test".
        drawn_rows: Rows whose files are drawn together. Another number gives another split.
        piece_bytes: Size of the pieces in which a shard is shuffled. Another number gives another order of its rows.

    Returns:
        The manifest of each split, and a profile of the rows.

    Raises:
        ValueError: The source has other rows than in the first pass.
    """
    counts = np.array(plan)
    files = [folders["train"] / f"part-{shard:05d}.parquet" for shard in range(options.shards)]
    files += [folders[split] / "part-00000.parquet" for split in ("validation", "test")]
    profiler = Profiler(columns, label, int(counts[:, : options.shards].sum()), options.seed)
    encoded = (_encode(batch, columns, label) for *_, batch in _counted(source, "pass 2 of 2 (write)"))
    with tempfile.TemporaryDirectory(prefix=".pieces-", dir=folders["train"].parent) as scratch:
        shuffled: ShuffledFiles | None = None
        for batch, drawn in _drawn(encoded, counts, label.name, options.seed, drawn_rows):
            shuffled = shuffled or ShuffledFiles(
                files, counts.sum(axis=0).tolist(), batch.schema, Path(scratch), options.seed, piece_bytes
            )
            shuffled.add(batch, drawn)
            # The files of the training split are followed by one for validation and one for test.
            profiler.add(batch, np.maximum(drawn - options.shards + 1, 0))
        if shuffled:
            shuffled.write(profiler.vocabularies.recode)
    columns = with_statistics(profiler.vocabularies.training_columns(), profiler.moments)
    return _manifests(columns, label, counts, options, name, folders, files, profiler.content), profiler.profile()


def _manifests(
    columns: tuple[Column, ...],
    label: Label,
    counts: NDArray[np.int_],
    options: Options,
    name: str,
    folders: Mapping[str, Path],
    files: Sequence[Path],
    content: str,
) -> dict[str, DatasetManifest]:
    """Write the manifest of each split beside its shards, and return them."""
    entries = {target: describe_file(file, file.name) for target, file in enumerate(files) if counts[:, target].any()}
    preparation = hashlib.sha256("".join(entry.sha256 for entry in entries.values()).encode()).hexdigest()
    manifests = {}
    for split, folder in folders.items():
        targets = [target for target, file in enumerate(files) if file.parent == folder and counts[:, target].any()]
        rows = counts[:, targets].sum(axis=0).tolist()
        shards = tuple(
            Shard(entry.path, n, entry.size, entry.sha256)
            for target, n in zip(targets, rows, strict=True)
            if (entry := entries.get(target))
        )
        class_counts = tuple(counts[:, targets].sum(axis=1).tolist())
        manifests[split] = DatasetManifest(
            split,
            columns,
            label,
            shards,
            class_counts,
            options.seed,
            name,
            True,
            preparation,
            content,
            options.source_fingerprint,
        )
        (folder / DATASET_MANIFEST).write_text(manifests[split].to_json())
    return manifests


def _drawn(
    batches: Iterable[pa.RecordBatch], counts: NDArray[np.int_], label: str, seed: int, maximum_rows: int
) -> Iterator[tuple[pa.RecordBatch, NDArray[np.intp]]]:
    """Yield the rows of the shards with the index of each row's file, which still lacks rows of its class.

    Raises:
        ValueError: There are fewer rows than planned.
    """
    generator, left = np.random.default_rng(seed), counts.copy()
    for rows in _rechunked(batches, maximum_rows):
        yield rows, draw_targets(left, rows[label].to_numpy(), generator)
    if left.any():
        raise ValueError("source: it had fewer rows when it was read again")


def _encode(batch: pa.RecordBatch, columns: Sequence[Column], label: Label) -> pa.RecordBatch:
    """Return rows of a source in the form of the shards."""
    texts = {column.name: [None, *column.vocabulary] for column in columns if column.kind == "category"}
    texts[label.name] = [*label.classes]
    rows = dict(zip(batch.schema.names, batch.columns, strict=True))
    for name, vocabulary in texts.items():
        rows[name] = pc.index_in(rows[name], pa.array(vocabulary, pa.string()))
        if rows[name].null_count:
            raise ValueError(f"source: {name!r} had other values when it was read again")
    for column in columns:
        if column.kind == "number":
            rows[column.name] = rows[column.name].cast(pa.float32(), safe=False)
        elif column.dtype == "float32":
            kind = pa.list_(pa.float32(), math.prod(column.shape))
            rows[column.name] = rows[column.name].cast(kind, safe=False)
    return pa.record_batch(rows)


def _rechunked(batches: Iterable[pa.RecordBatch], maximum_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches of one length (the last may be shorter), so that a draw depends on the rows alone."""
    pending: list[pa.RecordBatch] = []
    for batch in batches:
        rows = max(1, min(maximum_rows, DRAWN_BYTES // row_bytes(batch.schema)))
        pending.append(batch)
        while sum(part.num_rows for part in pending) >= rows:
            joined = pa.concat_batches(pending)
            yield joined[:rows]
            pending = [joined[rows:]]
    if any(part.num_rows for part in pending):
        yield pa.concat_batches(pending)
