"""Leaves a rank its rows of a dataset, or the manifest of a dataset whose rows it reads while it trains."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kfp_distributed.storage.dataset import DATASET_MANIFEST, DatasetManifest, Shard, ShardPart
from kfp_distributed.storage.files import sha256_of

_PART = "part.json"


def keep_rows(folder: Path, manifest: DatasetManifest, parts: Sequence[ShardPart]) -> None:
    """Cut the shards in a folder to some rows, and write a manifest for them.

    A program that reads every file in the folder then sees each of its rows once.

    Args:
        folder: Folder of the shards.
        manifest: Manifest of the complete dataset.
        parts: Rows to keep.
    """
    shards, counts, label = [], np.zeros(len(manifest.label.classes), int), manifest.label.name
    for part in parts:
        file = folder / part.shard.path
        if part.rows < part.shard.rows:
            pq.write_table(pq.read_table(file).take(pa.array(part.row_numbers())), file)
        if manifest.label.classes:
            counts += np.bincount(pq.read_table(file, columns=[label])[label], minlength=len(counts))
        shards.append(Shard(part.shard.path, part.rows, file.stat().st_size, sha256_of(file)))
    own = replace(manifest, shards=tuple(shards), class_counts=tuple(counts.tolist()))
    (folder / DATASET_MANIFEST).write_text(own.to_json())


def write_part(folder: Path, manifest: DatasetManifest, part: int, parts: int) -> None:
    """Write the manifest of a dataset, and which part of its rows is that of this rank.

    Args:
        folder: The folder train_dir.
        manifest: Manifest of the complete dataset, with the address of its shards.
        part: Index of the part, see `parts_of_rank`.
        parts: Number of parts; 0 if this process has no rows.
    """
    (folder / DATASET_MANIFEST).write_text(manifest.to_json())
    (folder / _PART).write_text(json.dumps({"part": part, "parts": parts}))


def read_part(folder: Path) -> tuple[int, int]:
    """Return the index of this rank's part and the number of parts; (0, 1) if the folder has the rows of the rank."""
    file = folder / _PART
    if not file.exists():
        return 0, 1
    content = json.loads(file.read_text())
    return content["part"], content["parts"]
