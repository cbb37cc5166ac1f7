"""Folders that the library `datasets` of Hugging Face writes."""

import json
from typing import Any

from kfp_distributed.components.prepare_data.sources.left_out import LeftOut
from kfp_distributed.components.prepare_data.sources.source_files import SourceFiles, list_folder, relative_name
from kfp_distributed.components.prepare_data.sources.stored_files import SourcePath

_STATE = "state.json"
_DICTIONARY = "dataset_dict.json"
# Files of `Dataset.save_to_disk` that describe the rows.
_DESCRIPTIONS = (_STATE, "dataset_info.json")


def saved_dataset(listing: SourceFiles, source: SourcePath) -> SourceFiles | None:
    """Return the files of a folder that `Dataset.save_to_disk` has written; None for any other folder.

    Its state.json lists them. An earlier dataset in the same folder may have left more files.

    Args:
        listing: The folder.
        source: The source that has the folder.

    Raises:
        ValueError: A file is missing, or the folder is one of an early version of `datasets`.
    """
    state = _json(listing, _STATE)
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


def dictionary_splits(root: SourceFiles) -> dict[str, SourceFiles] | None:
    """Return the files of each split of a folder that `DatasetDict.save_to_disk` has written; None for another folder.

    Args:
        root: The folder.

    Raises:
        ValueError: A split or a file of one is missing.
    """
    content = _json(root, _DICTIONARY)
    if not isinstance(content, dict) or not isinstance(content.get("splits"), list) or not content["splits"]:
        return None
    folders = {entry.name: entry for entry in root.files if entry.is_dir()}
    splits: dict[str, SourceFiles] = {}
    for name in map(str, content["splits"]):
        saved = saved_dataset(list_folder(folders[name], root.path), root.path) if name in folders else None
        if saved is None:
            raise ValueError(
                f"source {root.path.name}: {_DICTIONARY} lists the split {name!r}, but there is no folder {name!r} "
                f"with a {_STATE}: copy the whole folder again"
            )
        splits[name] = SourceFiles(root.path, saved.files, saved.left_out)
    others = [entry for entry in root.files if entry.name not in (*splits, _DICTIONARY)]
    unlisted = tuple(LeftOut(relative_name(entry, root.path), "unlisted") for entry in others)
    first = next(iter(splits))
    left_out = (*root.left_out, *unlisted, *splits[first].left_out)
    return {**splits, first: SourceFiles(root.path, splits[first].files, left_out)}


def _json(listing: SourceFiles, name: str) -> Any:  # noqa: ANN401  (any JSON value)
    """Return the content of a JSON file of a folder; None if there is no such file or it has another content."""
    try:
        return next((json.loads(file.read_bytes()) for file in listing.files if file.name == name), None)
    except (OSError, ValueError):
        return None
