"""What is left out of a source folder: the names, the reasons, and the lines for log and overview (pure)."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import Literal

Reason = Literal["system", "table log", "hidden", "no class", "no images", "unlisted", "description", "empty"]

# Files whose names only the named systems use. A folder with such a name is data.
_SYSTEM_FILES = (
    # Hadoop and Spark, Dask and Arrow, Databricks, Hadoop on S3
    *("_SUCCESS", "_metadata", "_common_metadata", "_committed_[0-9]*", "_committed_vacuum[0-9]*", "_started_[0-9]*"),
    "*_$folder$",
    # Windows, Office, macOS
    *("[Tt]humbs.db", "ehthumbs.db", "[Dd]esktop.ini", "~$*", "Icon\r"),
)
_SYSTEM_FOLDERS = (
    # Hadoop, Delta Lake
    *("_temporary", "_change_data", "_symlink_format_manifest"),
    # macOS archives, Synology, ext4, Windows, Python
    *("__MACOSX", "@eaDir", "[#]recycle", "[#]snapshot", "lost+found", "$RECYCLE.BIN", "System Volume Information"),
    "__pycache__",
)
# Hidden files and folders that are certainly no data.
_SYSTEM_HIDDEN = (
    # macOS, KDE, file managers, NFS and NAS systems
    *(".DS_Store", "._*", ".AppleDouble", ".Spotlight-V100", ".Trashes", ".fseventsd", ".localized", ".directory"),
    *(".Trash-*", ".nfs[0-9a-f]*", ".snapshot", ".zfs"),
    # Hadoop's checksums, volumes of Kubernetes (ConfigMap, Secret)
    *(".*.crc", "..data", "..[0-9]*"),
    # version control, data tools, editors
    *(".git", ".gitignore", ".gitattributes", ".gitmodules", ".gitkeep", ".keep", ".svn", ".hg", ".dvc", ".dvcignore"),
    *(".ipynb_checkpoints", ".idea", ".vscode", ".*.swp", ".~lock.*"),
)
# Folders of table formats that list which of the data files are current: Delta Lake, Hudi, Spark streaming.
_TABLE_LOGS = ("_delta_log", ".hoodie", "_spark_metadata")

# A single expression, because a source may have a million files.
_IS_SYSTEM_FILE = re.compile("|".join(map(translate, (*_SYSTEM_HIDDEN, *_SYSTEM_FILES))))
_IS_SYSTEM_FOLDER = re.compile("|".join(map(translate, (*_SYSTEM_HIDDEN, *_SYSTEM_FOLDERS))))

_LINES: Mapping[Reason, tuple[str, str]] = {
    "system": ("name{s} that only operating systems and tools use", ""),
    "table log": (
        "log{s} of a table format",
        "All data files are read, even those whose rows the table has deleted or replaced. Write the current rows into "
        "a folder without a log",
    ),
    "hidden": ("hidden name{s} (first character '.')", "Rename those that are data"),
    "no class": ("file{s} beside the folders of the classes", "Move those that are images into the folder of a class"),
    "no images": ("folder{s} without images, which would be a class", ""),
    "unlisted": ("name{s} that state.json or dataset_dict.json does not list, as of an earlier dataset", ""),
    "description": ("description{s} of the data", ""),
    "empty": ("file{s} of 0 bytes, as Spark writes them for partitions without rows", ""),
}
# So many names, and so much of each, are enough to recognize the kind of the files.
_NAMES = 4
_NAME_LENGTH = 60


@dataclass(frozen=True)
class LeftOut:
    """A file or folder that is left out.

    Attributes:
        name: Path relative to the source. A folder's ends with "/".
        reason: Why it is left out.
    """

    name: str
    reason: Reason


def reason_to_leave_out(name: str, *, is_folder: bool) -> Reason | None:
    """Return why a file or folder of this name is left out; None if it is data.

    Args:
        name: Name without the path.
        is_folder: Whether it is a folder.
    """
    if is_folder and name in _TABLE_LOGS:
        return "table log"
    if (_IS_SYSTEM_FOLDER if is_folder else _IS_SYSTEM_FILE).match(name):
        return "system"
    return "hidden" if name.startswith(".") else None


def lines_about_files(left_out: Iterable[LeftOut]) -> list[str]:
    """Return one line for each reason, with the number of the files and folders and the first names."""
    entries = [*left_out]
    lines = []
    for reason, (what, advice) in _LINES.items():
        if names := [entry.name for entry in entries if entry.reason == reason]:
            what = what.format(s="s" * (len(names) != 1))
            lines.append(f"left out {len(names):,} {what}: {first_names(names)}{f'. {advice}' * bool(advice)}")
    return lines


def lines_about_columns(names: Mapping[str, Sequence[str]], first: str, others: Collection[str]) -> list[str]:
    """Return one line if files have columns that the first file lacks, with the number of the columns and files.

    Args:
        names: Columns of each file.
        first: The file whose columns are read.
        others: Columns that are read all the same, or that the user has named in drop_columns.
    """
    known = {*names[first], *others}
    extra = {file: unknown for file, present in names.items() if (unknown := {*present} - known)}
    if not extra:
        return []
    # A set has no order, so the order is that of the files.
    columns = [*dict.fromkeys(name for file in extra for name in names[file] if name in extra[file])]
    return [
        f"left out {len(columns):,} column{'s' * (len(columns) != 1)} that {first} does not have, in {len(extra):,} of "
        f"{len(names):,} files ({first_names([*extra])}): {first_names(columns)}. Write the same columns into all "
        "files, or name these in drop_columns"
    ]


def lines_about_keys(keys: Sequence[str], first: str) -> list[str]:
    """Return one line about keys of JSON Lines that the first lines lack; none if there are none.

    Args:
        keys: The keys.
        first: The file whose first lines set the columns.
    """
    if not keys:
        return []
    return [
        f"left out {len(keys):,} key{'s' * (len(keys) != 1)} that the first lines of {first} do not have: "
        f"{first_names(keys)}. Write each key into the first line, null where it has no value, or name these in "
        "drop_columns"
    ]


def first_names(names: Sequence[str]) -> str:
    """Return the first names, in quotes, shortened."""
    texts = [repr(name if len(name) <= _NAME_LENGTH else f"{name[:_NAME_LENGTH]}…") for name in names[:_NAMES]]
    return ", ".join([*texts, "…"] if len(names) > _NAMES else texts)
