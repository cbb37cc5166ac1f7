"""Folders that the library `datasets` of Hugging Face writes."""

import json
from pathlib import Path
from typing import Any

from kfp_distributed.components.prepare_data.left_out import LeftOut
from kfp_distributed.components.prepare_data.source_files import SourceFiles, relative_name

_STATE = "state.json"
# Files of `Dataset.save_to_disk` that describe the rows.
_DESCRIPTIONS = (_STATE, "dataset_info.json")


def saved_dataset(listing: SourceFiles, source: Path) -> SourceFiles | None:
    """Return the files of a folder that `Dataset.save_to_disk` has written; None for any other folder.

    Its state.json lists them. An earlier dataset in the same folder may have left more files.

    Args:
        listing: The folder.
        source: The source that has the folder.

    Raises:
        ValueError: A file is missing, or the folder is one of an early version of `datasets`.
    """
    state = _json(listing.path / _STATE)
    if not isinstance(state, dict) or not isinstance(state.get("_data_files"), list):
        return None
    folder = relative_name(listing.path, source) if listing.path != source else source.name
    if state.get("_indices_data_files"):
        raise ValueError(
            f"source {folder}: {_STATE} names a file of row numbers, as early versions of datasets wrote it: save the "
            "dataset again with datasets 2 or later"
        )
    names = [str(file.get("filename")) for file in state["_data_files"] if isinstance(file, dict)]
    present = {file.name: file for file in listing.files}
    if missing := [name for name in names if name not in present]:
        raise ValueError(
            f"source {folder}: {_STATE} lists {len(names)} files, but {len(missing)} of them are missing, such as "
            f"{missing[0]!r}: copy the whole folder again"
        )
    others = [file for file in listing.files if file.name not in (*names, *_DESCRIPTIONS)]
    unlisted = tuple(LeftOut(relative_name(file, source), "unlisted") for file in others)
    return SourceFiles(listing.path, tuple(present[name] for name in names), (*listing.left_out, *unlisted))


def _json(file: Path) -> Any:  # noqa: ANN401  (any JSON value)
    """Return the content of a JSON file; None if there is no such file or it has another content."""
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
