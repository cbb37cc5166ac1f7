"""The passes over the rows on the disk: draw a file for each row, then write it there."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.options import Options
from kfp_distributed.components.prepare_data.pieces import Pieces
from kfp_distributed.components.prepare_data.profile import Profile, Profiler, with_statistics
from kfp_distributed.components.prepare_data.read_ahead import read_ahead
from kfp_distributed.components.prepare_data.scan import Scan
from kfp_distributed.components.prepare_data.shard_files import ShardFiles
from kfp_distributed.components.prepare_data.vocabulary import VocabularyCounter
from kfp_distributed.storage.dataset import DATASET_MANIFEST, Column, DatasetManifest, Label, Shard
from kfp_distributed.storage.files import describe_file

# Rows whose files are drawn together.
DRAWN_ROWS = 2**18


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
    order = np.argsort(classes, kind="stable")
    edges = np.searchsorted(classes[order], np.arange(len(left) + 1))
    for index in np.flatnonzero(np.diff(edges)).tolist():
        rows = order[edges[index] : edges[index + 1]]
        drawn = generator.multivariate_hypergeometric(left[index], len(rows))
        left[index] -= drawn
        targets[rows] = generator.permutation(np.repeat(np.arange(len(drawn)), drawn))
    return targets


def draw(
    pieces: Pieces,
    scan: Scan,
    plan: Sequence[Sequence[int]],
    seed: int,
    targets: Path,
    drawn_rows: int = DRAWN_ROWS,
) -> None:
    """Draw a file for each row, and write its index as uint16, in the order in which the pieces yield the rows.

    Args:
        pieces: The rows.
        scan: What the pass over the source has found.
        plan: Rows of each class for each file.
        seed: Seed of the split.
        targets: File to write.
        drawn_rows: Rows that are drawn together. Another number gives another split. Default: 262,144.
    """
    label, generator, left = scan.label.name, np.random.default_rng(seed), np.array(plan)
    classes = (scan.codes[label][rows[label].to_numpy()] for rows in pieces.read([label]))
    with targets.open("wb") as file:
        for block in _blocks(classes, drawn_rows):
            draw_targets(left, block, generator).astype(np.uint16).tofile(file)


def _blocks(parts: Iterable[NDArray[np.int32]], size: int) -> Iterator[NDArray[np.int32]]:
    """Yield numbers in arrays of one length (the last may be shorter), so that a draw depends on the rows alone."""
    pending = np.empty(0, np.int32)
    for part in parts:
        pending = np.concatenate([pending, part])
        while len(pending) >= size:
            yield pending[:size]
            pending = pending[size:]
    if len(pending):
        yield pending


@dataclass(frozen=True)
class DrawnRows:
    """The rows with their files, in random order.

    Attributes:
        pieces: The rows.
        codes: For each category and the label, the index of a value by its code in the pieces.
        targets: File with the index of each row's file.
    """

    pieces: Pieces
    codes: Mapping[str, NDArray[np.int32]]
    targets: Path

    def read(self, names: Sequence[str] | None = None) -> Iterator[tuple[pa.RecordBatch, NDArray[np.uint16]]]:
        """Yield the rows in the form of the shards, with all values of the categories, and the file of each row.

        Args:
            names: Names of the columns to read. Default: all columns.
        """
        with self.targets.open("rb") as file:
            for rows in self.pieces.read(names):
                for name in {*self.codes} & {*rows.schema.names}:
                    position = rows.schema.get_field_index(name)
                    codes = pa.array(self.codes[name][rows[name].to_numpy()])
                    rows = rows.set_column(position, rows.schema.field(position), codes)
                yield rows, np.fromfile(file, np.uint16, rows.num_rows)


def write_splits(
    pieces: Pieces,
    scan: Scan,
    plan: Sequence[Sequence[int]],
    options: Options,
    name: str,
    folders: Mapping[str, Path],
    scratch: Path,
    drawn_rows: int = DRAWN_ROWS,
) -> tuple[dict[str, DatasetManifest], Profile]:
    """Write the rows of a source into the folders of the splits, each with its manifest.

    Each shard is a random sample of its split, with its fraction of every class, and in random order. The memory does
    not grow with the number of rows. Mean and deviation are those of the training rows alone, so that the training
    learns nothing about the other splits.

    Args:
        pieces: The rows.
        scan: What the pass over the source has found.
        plan: Rows of each class for each training shard, validation and test, from `plan_split`.
        options: The seed and the number of training shards.
        name: Source of the data, for the manifests.
        folders: An empty folder for each of "train", "validation" and "test".
        scratch: Folder for temporary files.
        drawn_rows: Rows whose files are drawn together. Another number gives another split.

    Returns:
        The manifest of each split, and a profile of the rows.
    """
    counts, shards = np.array(plan), options.shards
    files = [folders["train"] / f"part-{shard:05d}.parquet" for shard in range(shards)]
    files += [folders[split] / "part-00000.parquet" for split in ("validation", "test")]
    draw(pieces, scan, plan, options.seed, scratch / "targets", drawn_rows)
    drawn = DrawnRows(pieces, scan.codes, scratch / "targets")
    vocabularies = VocabularyCounter(scan.columns)
    if vocabularies.names:
        for rows, targets in drawn.read(vocabularies.names):
            vocabularies.add(rows, np.flatnonzero(targets < shards))
    profiler = Profiler(vocabularies, scan.label, int(counts[:, :shards].sum()), options.seed)

    def profiled() -> Iterator[tuple[pa.RecordBatch, NDArray[np.uint16]]]:
        for rows, targets in drawn.read():
            # The files of the training split are followed by one for validation and one for test.
            profiler.add(rows, np.maximum(targets.astype(np.intp) - shards + 1, 0))
            yield vocabularies.recode(rows), targets

    with ShardFiles(files, [scan.label.name, *vocabularies.names]) as shard_files:
        for rows, targets in read_ahead(profiled()):
            shard_files.add(rows, targets)
    columns = with_statistics(vocabularies.training_columns(), profiler.moments)
    manifests = _manifests(columns, scan.label, counts, options, name, folders, files, profiler.content)
    return manifests, profiler.profile()


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
