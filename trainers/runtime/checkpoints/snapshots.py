"""Snapshots of a local folder on its own disk, which are uploaded while the program goes on writing to the folder.

A snapshot is a folder of hard links, so it takes milliseconds and no space, whatever size the files have. A program
that replaces a file, as by a rename, does not change the snapshot. One that rewrites a file in place does: `check`
detects it by the time of the last change and the size. Small folders, and folders whose file system allows no links,
are copied.
"""

import fcntl
import os
import shutil
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from kfp_distributed.storage.files import storable_files

FolderState = dict[Path, tuple[int, int]]
"""Time of the last change in nanoseconds and size in bytes of each file."""

COPIED_BYTES = 64 << 20
"""Size up to which a folder is copied instead of linked, which takes about 0.1 s. The program may rewrite its files
in place then."""

_TICK_SECONDS = 0.1
"""Longest time to wait until the file system's clock has ticked. Linux has ticks of 1 to 10 ms."""

_FICLONE = 0x40049409
"""Request of ioctl_ficlone(2), by which two files share their content until one of them is changed."""


class RewrittenInPlace(OSError):
    """A file of a snapshot was rewritten in place."""


class Superseded(Exception):
    """A newer snapshot of the same folder is to be uploaded now instead of this one."""


class Snapshot:
    """A state of a folder to send.

    Attributes:
        folder: Folder with the files to send.
        state: State of the original folder.
        guessed: Whether only the rest of the folder says that its files are complete.
        is_superseded: Whether the upload is to end because of a newer snapshot.
    """

    def __init__(self, folder: Path, state: FolderState, guessed: bool, linked: FolderState | None = None) -> None:
        """Create the snapshot. See the attributes.

        Args:
            folder: See above.
            state: See above.
            guessed: See above.
            linked: The files in `folder` that the program may rewrite in place, with their state. Default: none.
        """
        self.folder, self.state, self.guessed, self.is_superseded = folder, state, guessed, False
        self._linked = linked or {}

    def check(self) -> None:
        """Check that the snapshot is still what it was when it was taken.

        Raises:
            RewrittenInPlace: The program has rewritten one of its files in place. The snapshot must not be used.
        """
        for file, state in self._linked.items():
            if _file_state(file) != state:
                raise RewrittenInPlace(f"{file.name} was rewritten in place before it was stored")

    def continue_upload(self, _: int = 0) -> None:
        """Let an upload go on. It is called for each block.

        Raises:
            Superseded: The upload is to end.
        """
        if self.is_superseded:
            raise Superseded


@cache
def leave_out(reason: str) -> None:
    """Log once that a file is not stored in object storage. The other files are stored, and the training continues.

    Args:
        reason: The file, and why it is not stored.
    """
    print(f"not stored: {reason}", flush=True)


def read_state(folder: Path) -> FolderState:
    """Return the state of a folder. It includes links, FIFOs and other special files, so that the log can name them."""
    state = {}
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):  # Deleted since rglob().
            status = file.lstat()
            if not stat.S_ISDIR(status.st_mode):
                state[file] = status.st_mtime_ns, status.st_size
    return state


def take_snapshot(
    source: Path, target: Path, state: FolderState, links: bool, guessed: bool, on_unsupported: Callable[[str], object]
) -> Snapshot:
    """Take a snapshot of a folder.

    Args:
        source: The folder.
        target: Folder of the snapshot on the same file system, which does not exist.
        state: State of the folder, as `read_state` has returned it just now.
        links: Whether to link the files, if the file system allows it. Otherwise they are copied.
        guessed: See `Snapshot`.
        on_unsupported: See `storable_files`.

    Raises:
        OSError: The folder has changed meanwhile, or the disk is full. There is no snapshot.
    """
    try:
        target.mkdir(parents=True)
        linked = {}
        for path in storable_files(source, on_unsupported):
            file, original = target / path, (source / path).resolve()
            file.parent.mkdir(parents=True, exist_ok=True)
            if clone_file(original, file):
                continue
            if links and _link(original, file):
                linked[file] = _file_state(file)
            else:
                _copy(original, file)
        _copy_recent(target, linked)
        if read_state(source) != state:
            raise OSError(f"{source.name} changed during the snapshot")
        return Snapshot(target, state, guessed, linked)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _copy_recent(target: Path, linked: FolderState) -> None:
    """Wait until a change of a linked file gets another time than it has now. Copy it if that is not soon.

    A file system counts time in ticks, so two changes within one tick have the same time.
    """
    until, tick = time.monotonic() + _TICK_SECONDS, target / ".tick"
    while linked:
        tick.write_bytes(b"x")
        now = tick.stat().st_mtime_ns
        tick.unlink()
        recent = [file for file, (changed, _) in linked.items() if changed >= now]
        if not recent:
            return
        if time.monotonic() > until:
            for file in recent:
                del linked[file]
                copy = file.with_name(f"{file.name}.copy")
                _copy(file, copy)
                copy.replace(file)
            return
        time.sleep(0.001)


def _file_state(file: Path) -> tuple[int, int]:
    # Not ctime, which changes with the number of links, so also when the program deletes or replaces its own.
    status = file.stat()
    return status.st_mtime_ns, status.st_size


def _link(original: Path, file: Path) -> bool:
    with suppress(OSError):  # EPERM, EXDEV, EMLINK, EOPNOTSUPP: a copy does.
        os.link(original, file)
        return True
    return False


def clone_file(original: Path, file: Path) -> bool:
    """Share the content of a file until one of the two changes, as XFS and Btrfs can. Return whether it is done."""
    try:
        with original.open("rb") as source, file.open("xb") as copy:
            fcntl.ioctl(copy, _FICLONE, source.fileno())
        return True
    except FileNotFoundError:
        raise
    except OSError:  # The file system or the platform cannot.
        file.unlink(missing_ok=True)
        return False


def _copy(original: Path, file: Path) -> None:
    with original.open("rb") as source, file.open("xb") as copy:
        with suppress(OSError, AttributeError):
            while os.copy_file_range(source.fileno(), copy.fileno(), 1 << 30):
                pass
            return
        # After an error or on another platform. A full disk is an error again.
        source.seek(0)
        copy.seek(0)
        copy.truncate()
        shutil.copyfileobj(source, copy, 1 << 20)
