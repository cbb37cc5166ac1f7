"""What tells that the files of a checkpoint are complete, although their program does not say so.

A file or a folder that was renamed into its folder was complete before. Several of them may belong to different
checkpoints, so only a single one is a complete checkpoint. The file `checkpoint` of TensorFlow names a complete
checkpoint. A file that a process has open for writing is not complete. All of this needs Linux. On other systems
nothing is known.
"""

import ctypes
import os
import re
import struct
from collections.abc import Mapping, Set
from contextlib import suppress
from pathlib import Path

# inotify(7) and <sys/inotify.h>.
_CLOSE_WRITE, _MOVED_TO, _CREATE, _IS_DIR, _OVERFLOW = 0x8, 0x80, 0x100, 0x40000000, 0x4000
_EVENT = struct.Struct("iIII")
_BUFFER = 64 * 1024
_WRITABLE = (os.O_WRONLY, os.O_RDWR)


class RenamedFiles:
    """The files of a folder that were renamed into it, and not written to since."""

    def __init__(self, folder: Path) -> None:
        """Begin to observe an existing folder.

        Args:
            folder: The folder. Folders in it are observed as they are created.
        """
        self._renamed: dict[Path, int] = {}
        self._renames = 0
        self._folders: dict[int, Path] = {}
        self._descriptor = -1
        with suppress(OSError, AttributeError):  # AttributeError: this is not Linux.
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._observe(folder)

    def read(self) -> Mapping[Path, int]:
        """Return the number of the rename for each file that is complete because of one, as of now.

        The files of a renamed folder have the same number.
        """
        with suppress(OSError):  # Nothing has happened since, or nothing is observed.
            while data := os.read(self._descriptor, _BUFFER):
                self._handle(data)
        return dict(self._renamed)

    def _observe(self, folder: Path) -> None:
        if self._descriptor < 0:
            return
        mask = _CLOSE_WRITE | _MOVED_TO | _CREATE
        watch = self._libc.inotify_add_watch(self._descriptor, os.fsencode(folder), mask)
        if watch >= 0:
            self._folders[watch] = folder
        with suppress(OSError):  # The folder may be deleted again.
            for entry in folder.iterdir():
                if entry.is_dir() and not entry.is_symlink():
                    self._observe(entry)

    def _handle(self, data: bytes) -> None:
        offset = 0
        while offset < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, offset)
            name = data[offset + _EVENT.size : offset + _EVENT.size + length].rstrip(b"\0")
            offset += _EVENT.size + length
            if mask & _OVERFLOW:  # Events are lost, so nothing is known about the files.
                self._renamed.clear()
            elif watch in self._folders:
                self._note(self._folders[watch] / os.fsdecode(name), mask)

    def _note(self, path: Path, mask: int) -> None:
        if mask & _MOVED_TO:
            self._renames += 1
        if mask & _IS_DIR:
            self._observe(path)
            if mask & _MOVED_TO:
                self._renamed |= {file: self._renames for file in path.rglob("*") if not file.is_dir()}
        elif mask & _MOVED_TO:
            self._renamed[path] = self._renames
        elif mask & (_CLOSE_WRITE | _CREATE):
            self._renamed.pop(path, None)


def is_marked(files: Set[Path], changed: Set[Path], renamed: RenamedFiles) -> bool:
    """Return whether the files of a folder have a mark that says that together they are a complete checkpoint.

    They have one if a single rename of a file or a folder brought all of them, or if TensorFlow's file `checkpoint`
    names what has changed.

    Args:
        files: All files of the folder.
        changed: Those that changed since the folder was stored.
        renamed: Observer of the folder.
    """
    renames = renamed.read()
    is_one_rename = files <= renames.keys() and len({renames[file] for file in files}) == 1
    return is_one_rename or all(named_by_tensorflow(file) for file in changed)


def named_by_tensorflow(file: Path) -> bool:
    """Return whether a file belongs to a checkpoint that the file `checkpoint` beside it names, latest or older."""
    state = file.with_name("checkpoint")
    try:
        paths = re.findall(r'^(?:all_)?model_checkpoint_paths?: "(.*)"$', state.read_text(), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        return False
    return bool(paths) and (file == state or any(file.name.startswith(f"{Path(path).name}.") for path in paths))


def is_written(folder: Path, proc: Path = Path("/proc")) -> bool:
    """Return whether a process of this user has a file of a folder open for writing. False if there is no /proc."""
    start = f"{folder.resolve()}/"
    for link in proc.glob("[0-9]*/fd/*"):
        # A process or its file may be gone, and processes of other users are not readable.
        with suppress(OSError, ValueError, IndexError):
            if str(link.readlink()).startswith(start):
                flags = (link.parent.with_name("fdinfo") / link.name).read_text().split("flags:")[1].split()[0]
                if int(flags, 8) & os.O_ACCMODE in _WRITABLE:
                    return True
    return False


def is_mapped(folder: Path, proc: Path = Path("/proc")) -> bool:
    """Return whether a process of this user has mapped a file of a folder to write to it. False if there is no /proc.

    Such a file may be changed without a change of its time.
    """
    start = f"{folder.resolve()}/"
    for maps in proc.glob("[0-9]*/maps"):
        with suppress(OSError):
            for line in maps.read_text(errors="surrogateescape").splitlines():
                fields = line.split(maxsplit=5)
                if len(fields) == 6 and fields[1][1] == "w" and fields[1][3] == "s" and fields[5].startswith(start):
                    return True
    return False
