"""Folders that have splits of their own: those that Hugging Face saves, and files such as train.csv and test.csv."""

import re
from collections.abc import Mapping

from kfp_distributed.components.prepare_data.sources.huggingface_folders import dictionary_splits, saved_dataset
from kfp_distributed.components.prepare_data.sources.left_out import LeftOut, first_names
from kfp_distributed.components.prepare_data.sources.source_files import (
    DELIMITED,
    JSON_LINES,
    TABLES,
    SourceFiles,
    below,
    ending,
    list_folder,
    relative_name,
)
from kfp_distributed.components.prepare_data.sources.stored_files import SourcePath

_SPLIT_NAME = re.compile(r"(?i)(train|validation|valid|val|dev|test)(?=[-._]|$)")
_SPLITS = {"train": "", "validation": "validation", "valid": "validation", "val": "validation", "dev": "validation"}
_DESCRIPTIONS = re.compile(r"(?i)README(\.\w+)?|LICEN[CS]E(\.\w+)?|.*\.json")
_SEPARATELY = "give the files of each split by themselves, as source, and as validation_source and test_source of split"


def split_sources(files: Mapping[str, SourcePath | None]) -> tuple[dict[str, SourceFiles | None], list[str]]:
    """Divide the main source into its own splits, but those that have a source of their own.

    Args:
        files: File or folder of each source, None for the digits: "" is the main source.

    Returns:
        The files of each source, and a line for the log about each split of the main source.

    Raises:
        ValueError: The files of a folder do not say to which split they belong, or a source of a split has splits.
    """
    main = files[""]
    splits = splits_of(main) if main else {}
    sources: dict[str, SourceFiles | None] = {"": splits.get("")}
    for split, path in files.items():
        if split:
            sources[split] = _one_split(split, path)
    lines = []
    for split, listing in splits.items() if len(splits) > 1 else ():
        count = f"{len(listing.files)} file{'s' * (len(listing.files) != 1)} of the source"
        names = first_names([relative_name(file, listing.path) for file in listing.files])
        if split and split in files:
            lines.append(f"{split}: {split}_source, and not {count}: {names}")
        else:
            sources[split] = listing
            lines.append(f"{split or 'train'}: {count}, by their names: {names}")
    return sources, lines


def _one_split(split: str, path: SourcePath | None) -> SourceFiles | None:
    """Return the files of the source of a split; None for the digits."""
    splits = splits_of(path) if path else {}
    if path and len(splits) > 1:
        raise ValueError(
            f"{split}_source {path.name} has splits of its own ({', '.join(name or 'train' for name in splits)}): give "
            "the files of one split"
        )
    return splits.get("")


def splits_of(path: SourcePath) -> dict[str, SourceFiles]:
    """Return the files of a source by split. Those of "" are for training, or are all files.

    Raises:
        ValueError: The folder has splits, and files of none of them, or is a dataset of Hugging Face that lacks files.
    """
    if not path.is_dir():
        return {"": SourceFiles(path, (path,))}
    root = list_folder(path, path)
    if saved := saved_dataset(root, path):
        return {"": saved}
    if (dictionary := dictionary_splits(root)) is not None:
        return _by_folder(root, dictionary)
    return _by_folder_name(root) or _by_name(_data_folder(root)) or {"": root}


def _by_folder(root: SourceFiles, folders: Mapping[str, SourceFiles]) -> dict[str, SourceFiles]:
    """Return the files of a saved dictionary of datasets."""
    if len(folders) == 1:
        return {"": next(iter(folders.values()))}
    splits: dict[str, SourceFiles] = {}
    for name, listing in folders.items():
        split = _split_of(name)
        if split is None or split in splits:
            others = [other for other in folders if _split_of(other) == split]
            problem = "is no split that is known" if split is None else f"are {len(others)} for one split"
            raise ValueError(
                f"source {root.path.name}: in dataset_dict.json, {first_names(others)} {problem}: {_SEPARATELY}"
            )
        splits[split] = listing
    if "" not in splits:
        raise ValueError(f"source {root.path.name}: dataset_dict.json has no split 'train', but {[*folders]}")
    return {"": splits.pop(""), **splits}


def _by_folder_name(root: SourceFiles) -> dict[str, SourceFiles] | None:
    """Return the files in folders such as train and test; None if there is any other folder.

    Raises:
        ValueError: Two folders are for one split.
    """
    folders = {entry.name: entry for entry in root.files if entry.is_dir()}
    described = [entry for entry in root.files if not entry.is_dir() and _DESCRIPTIONS.fullmatch(entry.name)]
    if (
        len(folders) < 2
        or not all(map(_SPLIT_NAME.fullmatch, folders))
        or "" not in map(_split_of, folders)
        or len(folders) + len(described) < len(root.files)
    ):
        return None
    left_out = [*root.left_out, *(LeftOut(file.name, "description") for file in described)]
    splits: dict[str, SourceFiles] = {}
    for name, folder in folders.items():
        split = _split_of(name) or ""
        if split in splits:
            same = [other for other in folders if _split_of(other) == split]
            raise ValueError(
                f"source {root.path.name}: the folders {first_names(same)} are {len(same)} for one split: {_SEPARATELY}"
            )
        listing = list_folder(folder, root.path)
        splits[split] = SourceFiles(root.path, listing.files, listing.left_out)
        left_out += listing.left_out if not split else ()
    training = SourceFiles(root.path, splits.pop("").files, tuple(left_out))
    return {"": training, **splits}


def _data_folder(root: SourceFiles) -> SourceFiles:
    """Return the entries of the one folder with data, or of the source itself where the data is not in one folder."""
    folders = [entry for entry in root.files if entry.is_dir()]
    others = [entry for entry in root.files if not entry.is_dir()]
    if len(folders) != 1 or not all(_DESCRIPTIONS.fullmatch(file.name) for file in others):
        return root
    listing = list_folder(folders[0], root.path)
    described = (LeftOut(file.name, "description") for file in others)
    return SourceFiles(root.path, listing.files, (*root.left_out, *described, *listing.left_out))


def _by_name(listing: SourceFiles) -> dict[str, SourceFiles] | None:
    """Return the files by split; None if their names do not tell it."""
    tables = [file for file in listing.files if not file.is_dir() and ending(file) in TABLES]
    data = tables or [file for file in listing.files if not file.is_dir() and ending(file) in JSON_LINES | DELIMITED]
    found = {split for file in data if (split := _split_of(file.name)) is not None}
    is_below = any(len(below(file, listing.path).parts) > 1 for file in data)
    if "" not in found or (len(found) == 1 and not is_below):
        return None
    others = [file for file in listing.files if file not in data]
    described = [file for file in others if not file.is_dir() and _DESCRIPTIONS.fullmatch(file.name)]
    unknown = [file for file in (*data, *others) if file not in described and _split_of(file.name) is None]
    if unknown:
        raise ValueError(
            f"source {listing.path.name} has files of splits by their names, and "
            f"{first_names([relative_name(file, listing.path) for file in unknown])}, whose split the name does not "
            f"tell: begin it with 'train-', 'validation-' or 'test-', remove the file, or {_SEPARATELY}"
        )
    left_out = [*listing.left_out, *(LeftOut(relative_name(file, listing.path), "description") for file in described)]
    used = [file for file in listing.files if file not in described]
    splits: dict[str, SourceFiles] = {
        split: SourceFiles(listing.path, tuple(file for file in used if _split_of(file.name) == split))
        for split in ("", "validation", "test")
        if split in found
    }
    splits[""] = SourceFiles(listing.path, splits[""].files, tuple(left_out))
    return splits


def _split_of(name: str) -> str | None:
    """Return the split whose name a name begins with, "" for training; None if it begins with none."""
    found = _SPLIT_NAME.match(name)
    return _SPLITS.get(found[1].lower(), "test") if found else None
