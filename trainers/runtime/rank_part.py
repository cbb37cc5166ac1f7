"""Leaves a rank the manifest of a dataset whose rows it reads while it trains, and its part of them."""

import json
from pathlib import Path

from kfp_distributed.storage.dataset import DATASET_MANIFEST, DatasetManifest

_PART = "part.json"


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
