"""Writes the rows into the shards of the splits, each with its manifest."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.pieces.piece_files import PieceFiles
from kfp_distributed.components.prepare_data.pieces.read_ahead import read_ahead
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.report.log_scale import with_log_scales
from kfp_distributed.components.prepare_data.report.profile import Profile, Profiler, with_statistics
from kfp_distributed.components.prepare_data.report.vocabulary import VocabularyCounter, count_values
from kfp_distributed.components.prepare_data.scan.scan_result import Scan
from kfp_distributed.components.prepare_data.split.drawn_rows import DrawnRows, draw
from kfp_distributed.components.prepare_data.split.order_statistics import Numbers, as_ordered, medians
from kfp_distributed.components.prepare_data.split.strata import CountsFile, Strata
from kfp_distributed.components.prepare_data.writing.piece_rows import PieceRows, RowWork
from kfp_distributed.components.prepare_data.writing.shard_files import ShardFiles, group_bytes
from kfp_distributed.components.prepare_data.writing.shard_tasks import shard_key, write_by_tasks
from kfp_distributed.components.summaries.moments import Moments
from kfp_distributed.components.worker_pool.piece_tasks import Result, RunTasks, run_here
from kfp_distributed.components.worker_pool.stored_tasks import StoredTasks
from kfp_distributed.storage.dataset import DATASET_MANIFEST, Column, DatasetManifest, Label, Shard
from kfp_distributed.storage.files import FileEntry, describe_file

# Columns whose medians are found in the same passes. Each needs a megabyte.
_MEDIANS = 64
_SPLITS = ("train", "validation", "test")


def write_splits(
    pieces: PieceFiles,
    scan: Scan,
    strata: Strata,
    counts: CountsFile,
    options: Options,
    name: str,
    folders: Mapping[str, Path],
    run: RunTasks = run_here,
    tasks: StoredTasks | None = None,
) -> tuple[dict[str, DatasetManifest], Profile]:
    """Write the rows of a source into the folders of the splits, each with its manifest.

    Each shard is a random sample of its split, with its fraction of every class, and in random order. The memory does
    not grow with the number of rows. Median, mean and deviation are those of the training rows alone, so that the
    training learns nothing about the other splits.

    Args:
        pieces: The rows.
        scan: What the pass over the source has found.
        strata: The rows that are drawn together, and where they go.
        counts: Rows of each stratum by piece.
        options: The seed, the number of training shards and the dataset whose columns are applied.
        name: Source of the data, for the manifests.
        folders: An empty folder for each of "train", "validation" and "test".
        run: Runs a function for each piece. Default: in this process.
        tasks: Runs the tasks that write the shards, which then are in the scratch. Default: this process writes them.

    Returns:
        The manifest of each split, and a profile of the rows.
    """
    rows_of_files, shards = strata.plan.rows_of_files(), options.shards
    files = [folders["train"] / f"part-{shard:05d}.parquet" for shard in range(shards)]
    files += [folders[split] / "part-00000.parquet" for split in _SPLITS[1:]]
    rows_by_file = draw(pieces, strata, counts, options.seed, run)
    drawn = DrawnRows(pieces, scan.codes, len(files))
    vocabularies = _vocabularies(scan, drawn, options, run)
    columns, label = vocabularies.training_columns(), scan.label
    by_split = np.add.reduceat(rows_by_file, [0, shards, shards + 1], axis=1, dtype=np.int64)
    profiler = Profiler(vocabularies, label, by_split, options.seed)
    work = RowWork(drawn, profiler.describing, vocabularies.indices)
    texts = [column.name for column in columns if column.kind in ("category", "kept")]
    texts += [label.name] if label.classes else []
    rows = {file: count for file, count in zip(files, rows_of_files.tolist(), strict=True) if count}
    if tasks:
        splits = {folder: split for split, folder in folders.items()}
        keys = {file: shard_key(splits[file.parent], file.name) for file in files}
        entries = write_by_tasks(tasks, work, profiler, keys, texts, group_bytes(len(rows)))
    else:
        write_shards(work, profiler, files, texts, group_bytes(len(rows)))
        entries = dict(zip(rows, run(_describe, rows), strict=True))
    profile = profiler.profile(scan.unseen)
    if not options.like:
        columns = with_statistics(columns, profiler.moments)
        if scan.label.task != "none":
            shares = {name: count / max(1, by_split.sum()) for name, count in scan.missing.items()}
            columns = with_log_scales(columns, profile.sample.columns(columns), profiler.moments, shares)
        label = _with_moments(label, profiler.labels["train"])
    manifests = _manifests(columns, label, entries, rows, options, name, folders, profiler)
    return manifests, profile


def write_shards(work: RowWork, profiler: Profiler, files: Sequence[Path], texts: Sequence[str], size: int) -> None:
    """Describe the rows and write all files, in one pass over the pieces."""

    def described() -> Iterator[tuple[PieceRows, pa.RecordBatch]]:
        for piece, sampled in zip(work.drawn.pieces.numbers, profiler.sampled(), strict=True):
            rows = work.read(piece)
            profiler.merge(work.profile(rows, sampled))
            yield rows, work.in_shards(rows)

    with ShardFiles(files, texts, size) as shard_files:
        # Duplicates are counted here, so that both threads have about as much to do.
        for rows, in_shards in read_ahead(described()):
            profiler.merge_duplicates(work.duplicates(rows, profiler.limit))
            shard_files.add(in_shards, rows.files)


def _vocabularies(scan: Scan, drawn: DrawnRows, options: Options, run: RunTasks) -> VocabularyCounter:
    """Return the inputs with the values of the training rows."""
    found = VocabularyCounter(_with_fills(scan, drawn, options, run), is_complete=options.like is not None)
    if found.sizes and not options.like:
        for counts in drawn.map(partial(count_values, found.sizes, options.shards), [*found.sizes], run):
            found.add(counts)
    return found


def _with_moments(label: Label, moments: Moments) -> Label:
    """Return the label, with mean and deviation if it is a number to predict."""
    if label.task != "regression":
        return label
    # Labels and predictions are 64-bit floats, so that no deviation above 0 is too small to divide by.
    return replace(label, mean=float(moments.mean[0]), std=float(moments.deviation[0]) or 1.0)


def _with_fills(scan: Scan, drawn: DrawnRows, options: Options, run: RunTasks) -> tuple[Column, ...]:
    """Return the columns with the number that stands for a missing one: the median of the training rows."""
    is_imputed = options.missing == "impute" or (options.missing is None and scan.label.task != "none")
    if options.like or not is_imputed:
        return scan.columns
    gaps = [column.name for column in scan.columns if column.kind == "number" and scan.missing[column.name]]
    fills: dict[str, float] = {}
    for begin in range(0, len(gaps), _MEDIANS):
        names = gaps[begin : begin + _MEDIANS]

        def numbers(function: Callable[[Numbers], Result], names: list[str] = names) -> Iterable[Result]:
            return drawn.map(partial(_of_training_numbers, function, options.shards), names, run)

        fills |= medians(numbers)
    # A column without any number in the training rows has no median.
    fills = dict.fromkeys(gaps, 0.0) | fills
    return tuple(
        replace(column, fill=fills[column.name]) if column.name in fills else column for column in scan.columns
    )


def _of_training_numbers(
    function: Callable[[Numbers], Result], shards: int, rows: pa.RecordBatch, targets: NDArray[np.uint16]
) -> Result:
    training = rows[: int(np.searchsorted(targets, shards))]
    return function({name: as_ordered(training[name].drop_null().to_numpy()) for name in rows.schema.names})


def _describe(file: Path) -> FileEntry:
    return describe_file(file, file.name)


def _manifests(
    columns: tuple[Column, ...],
    label: Label,
    entries: Mapping[Path, FileEntry],
    rows: Mapping[Path, int],
    options: Options,
    name: str,
    folders: Mapping[str, Path],
    profiler: Profiler,
) -> dict[str, DatasetManifest]:
    """Write the manifest of each split beside its shards, and return them."""
    preparation = hashlib.sha256("".join(entry.sha256 for entry in entries.values()).encode()).hexdigest()
    manifests = {}
    for split, folder in folders.items():
        shards = tuple(
            Shard(entry.path, rows[file], entry.size, entry.sha256)
            for file, entry in entries.items()
            if file.parent == folder
        )
        counts = profiler.class_counts[_SPLITS.index(split)].tolist() if label.classes else ()
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
            profiler.content,
            options.source_fingerprint,
            options.like.preparation if options.like else "",
        )
        (folder / DATASET_MANIFEST).write_text(manifests[split].to_json())
    return manifests
