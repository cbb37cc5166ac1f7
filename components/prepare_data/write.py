"""Writes the rows into the shards of the splits, each with its manifest."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kfp_distributed.components.moments import Moments
from kfp_distributed.components.prepare_data.order_statistics import as_ordered, medians
from kfp_distributed.components.prepare_data.pieces import Pieces
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.profile import Profile, Profiler, with_statistics
from kfp_distributed.components.prepare_data.read_ahead import read_ahead
from kfp_distributed.components.prepare_data.scan import FIXED_SPLIT, Scan
from kfp_distributed.components.prepare_data.shard_files import ShardFiles
from kfp_distributed.components.prepare_data.source import SPLIT_KEY
from kfp_distributed.components.prepare_data.split import DRAWN_ROWS, DrawnRows, draw
from kfp_distributed.components.prepare_data.strata import Strata
from kfp_distributed.components.prepare_data.vocabulary import VocabularyCounter
from kfp_distributed.storage.dataset import DATASET_MANIFEST, Column, DatasetManifest, Label, Shard
from kfp_distributed.storage.files import describe_file

# Columns whose medians are found in the same passes. Each needs a megabyte.
_MEDIANS = 64
_SPLITS = ("train", "validation", "test")


def write_splits(
    pieces: Pieces,
    scan: Scan,
    strata: Strata,
    options: Options,
    name: str,
    folders: Mapping[str, Path],
    scratch: Path,
    drawn_rows: int = DRAWN_ROWS,
) -> tuple[dict[str, DatasetManifest], Profile]:
    """Write the rows of a source into the folders of the splits, each with its manifest.

    Each shard is a random sample of its split, with its fraction of every class, and in random order. The memory does
    not grow with the number of rows. Median, mean and deviation are those of the training rows alone, so that the
    training learns nothing about the other splits.

    Args:
        pieces: The rows.
        scan: What the pass over the source has found.
        strata: The rows that are drawn together, and where they go.
        options: The seed, the number of training shards and the dataset whose columns are applied.
        name: Source of the data, for the manifests.
        folders: An empty folder for each of "train", "validation" and "test".
        scratch: Folder for temporary files.
        drawn_rows: Rows whose files are drawn together. Another number gives another split.

    Returns:
        The manifest of each split, and a profile of the rows.
    """
    rows_of_files, shards = strata.plan.rows_of_files(), options.shards
    files = [folders["train"] / f"part-{shard:05d}.parquet" for shard in range(shards)]
    files += [folders[split] / "part-00000.parquet" for split in _SPLITS[1:]]
    draw(pieces, strata, options.seed, scratch / "targets", drawn_rows)
    drawn = DrawnRows(pieces, scan.codes, scratch / "targets")
    vocabularies = VocabularyCounter(_with_fills(scan, drawn, options), is_complete=options.like is not None)
    if vocabularies.names and not options.like:
        for rows, targets in drawn.read(vocabularies.names):
            vocabularies.add(rows, np.flatnonzero(targets < shards))
    columns = vocabularies.training_columns()
    rows_of_splits = (rows_of_files[:shards].sum(), *rows_of_files[shards:])
    profiler = Profiler(vocabularies, scan.label, [int(rows) for rows in rows_of_splits], options.seed)
    class_counts = np.zeros((len(_SPLITS), max(1, len(scan.label.classes))), np.int64)
    numbers, label = Moments(), scan.label

    def profiled() -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch, NDArray[np.uint16], NDArray[np.intp]]]:
        for rows, targets in drawn.read():
            rows = rows.select([name for name in rows.schema.names if name not in _INTERNAL])
            filled = _filled(rows, columns)
            # The files of the training split are followed by one for validation and one for test.
            splits = np.maximum(targets.astype(np.intp) - shards + 1, 0)
            if label.task == "classification":
                np.add.at(class_counts, (splits, rows[label.name].to_numpy()), 1)
            elif label.task == "regression":
                numbers.add(rows[label.name].to_numpy()[targets < shards])
            profiler.add(filled, splits)
            yield rows, vocabularies.recode(filled), targets, splits

    texts = [column.name for column in columns if column.kind in ("category", "kept")]
    with ShardFiles(files, [*texts, *(label.classes and [label.name])]) as shard_files:
        # Duplicates are counted here, so that both threads have about as much to do.
        for with_gaps, rows, targets, splits in read_ahead(profiled()):
            profiler.add_to_duplicates(with_gaps, splits)
            shard_files.add(rows, targets)
    if not options.like:
        columns = with_statistics(columns, profiler.moments)
        if label.task == "regression":
            # Labels and predictions are 64-bit floats, so that no deviation above 0 is too small to divide by.
            label = replace(label, mean=float(numbers.mean[0]), std=float(numbers.deviation[0]) or 1.0)
    manifests = _manifests(columns, label, rows_of_files, class_counts, options, name, folders, files, profiler.content)
    return manifests, profiler.profile(scan.unseen)


_INTERNAL = (SPLIT_KEY, FIXED_SPLIT)


def _with_fills(scan: Scan, drawn: DrawnRows, options: Options) -> tuple[Column, ...]:
    """Return the columns with the number that stands for a missing one: the median of the training rows."""
    is_imputed = options.missing == "impute" or (options.missing is None and scan.label.task != "none")
    if options.like or not is_imputed:
        return scan.columns
    gaps = [column.name for column in scan.columns if column.kind == "number" and scan.missing[column.name]]
    fills: dict[str, float] = {}
    for begin in range(0, len(gaps), _MEDIANS):
        names = gaps[begin : begin + _MEDIANS]

        def read(names: list[str] = names) -> Iterator[dict[str, NDArray[np.int64]]]:
            for rows, targets in drawn.read(names):
                training = rows.filter(pa.array(targets < options.shards))
                yield {name: as_ordered(training[name].drop_null().to_numpy()) for name in names}

        fills |= medians(read)
    # A column without any number in the training rows has no median.
    fills = dict.fromkeys(gaps, 0.0) | fills
    return tuple(
        replace(column, fill=fills[column.name]) if column.name in fills else column for column in scan.columns
    )


def _filled(rows: pa.RecordBatch, columns: tuple[Column, ...]) -> pa.RecordBatch:
    """Return rows without gaps in the columns that have a number for them."""
    for column in columns:
        if column.fill is not None and rows[column.name].null_count:
            position = rows.schema.names.index(column.name)
            values = pc.fill_null(rows[column.name], pa.scalar(column.fill, pa.float32()))
            rows = rows.set_column(position, rows.schema.field(position), values)
    return rows


def _manifests(
    columns: tuple[Column, ...],
    label: Label,
    rows_of_files: NDArray[np.int64],
    class_counts: NDArray[np.int64],
    options: Options,
    name: str,
    folders: Mapping[str, Path],
    files: list[Path],
    content: str,
) -> dict[str, DatasetManifest]:
    """Write the manifest of each split beside its shards, and return them."""
    entries = {target: describe_file(file, file.name) for target, file in enumerate(files) if rows_of_files[target]}
    preparation = hashlib.sha256("".join(entry.sha256 for entry in entries.values()).encode()).hexdigest()
    manifests = {}
    for split, folder in folders.items():
        targets = [target for target in entries if files[target].parent == folder]
        shards = tuple(
            Shard(entries[target].path, int(rows_of_files[target]), entries[target].size, entries[target].sha256)
            for target in targets
        )
        counts = class_counts[_SPLITS.index(split)].tolist() if label.classes else ()
        manifests[split] = DatasetManifest(
            split,
            columns,
            label,
            shards,
            tuple(counts),
            options.seed,
            name,
            True,
            preparation,
            content,
            options.source_fingerprint,
            options.like.preparation if options.like else "",
        )
        (folder / DATASET_MANIFEST).write_text(manifests[split].to_json())
    return manifests
