"""Errors of disks that are full or cannot be written, with the folder, the bytes needed and what to do."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


@contextmanager
def disk_errors(folder: Path, scratch: Path, expected_bytes: int = 0) -> Iterator[None]:
    """Explain the errors of writing rows and the output of a step.

    Args:
        folder: Folder of the output, in which unfinished files are written first.
        scratch: Folder of what was downloaded or unpacked.
        expected_bytes: Approximate size of all rows in the shards; 0 if it is not known yet.

    Raises:
        OSError: The disk is full, or the folder cannot be written. Other errors are not changed.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise OSError(_about_full_disk(folder, scratch, expected_bytes)) from error
        if error.errno in _READ_ONLY and _is_about(error, folder):
            raise OSError(
                f"the folder {folder} cannot be written ({error.strerror}): the output and the "
                "rows that become it are written there. Use another folder, or a volume that the step may write"
            ) from error
        raise


def _is_about(error: OSError, folder: Path) -> bool:
    """Return whether an error is about a folder, what is in it, or the folders that it is in; not about the source."""
    path = Path(str(error.filename))
    return folder in (path, *path.parents) or path in folder.parents


def _about_full_disk(folder: Path, scratch: Path, expected_bytes: int) -> str:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    line = f"the disk of {folder} is full: {shutil.disk_usage(existing).free:,} bytes are free"
    if expected_bytes:
        line += (
            f". The rows need about {2 * expected_bytes:,} bytes there, because they are stored before they are drawn "
            "and again in the shards"
        )
    line += ". Free space, or give the step a larger disk (ephemeral-storage of its pod)"
    has_files = any(path.is_file() for path in scratch.rglob("*"))
    if has_files and scratch.stat().st_dev == existing.stat().st_dev:
        line += f". {scratch.parent} is on this disk, too, with the source: set TMPDIR to a folder on another disk"
    return line
