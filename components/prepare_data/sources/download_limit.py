"""How many bytes a source may have: what the disk has room for, and what the environment allows."""

import re
import shutil
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

VARIABLE = "KFP_DISTRIBUTED_SOURCE_LIMIT"
"""Environment variable with the largest size of a source, as a quantity such as 20Gi."""

_FACTORS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_FACTORS |= {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}

RESERVE_SHARE = 0.05
"""Share of the disk that a download leaves free, up to MAXIMUM_RESERVE."""

MAXIMUM_RESERVE = 512 << 20
"""The most bytes that a download leaves free."""

# Bytes after which the free space is read again, because other programs write to the same disk.
_CHECK_BYTES = 64 << 20


class SourceTooLarge(OSError):
    """A source has more bytes than it may have. The message says how many, and why."""


class DownloadLimit:
    """The size that a source may have.

    Args:
        folder: Existing folder of the download; None if the source is read where it is.
        variables: Environment variables, such as os.environ.

    Raises:
        ValueError: KFP_DISTRIBUTED_SOURCE_LIMIT is not a size.
    """

    def __init__(self, folder: Path | None, variables: Mapping[str, str]) -> None:
        self._folder = folder
        allowed, self._lock, self._unchecked = parse_limit(variables.get(VARIABLE, "")), threading.Lock(), 0
        self._allowed, self.maximum, self._reason = allowed, sys.maxsize, ""
        if folder:
            self.maximum = _room(folder)
            self._reason = (
                f"the disk of {folder} has room for: {_free(folder):,} bytes are free, of which {_reserve(folder):,} "
                "stay free. Use a smaller source, or more ephemeral storage for the step"
            )
        if allowed is not None and allowed < self.maximum:
            self.maximum = allowed
            self._reason = f"{VARIABLE}={variables[VARIABLE]} of the step's environment allows"

    def refuse_more(self, size: int, *, declared: bool) -> None:
        """Check the size of a source, or of what has arrived of it.

        Args:
            size: Size in bytes.
            declared: Whether the server has declared the size, or so many bytes have arrived.

        Raises:
            SourceTooLarge: The size is larger than allowed.
        """
        if size > self.maximum:
            found = f"it has {size:,} bytes" if declared else "it declares no size, and the download was stopped"
            raise SourceTooLarge(f"{found}: more than the {self.maximum:,} bytes that {self._reason}")

    def refuse_unpacked(self, sizes: Iterable[int]) -> None:
        """Check the unpacked size of a source that has been downloaded. Without the variable, it has no limit.

        Args:
            sizes: Numbers of bytes, whose sum is the size. They are read up to the limit.

        Raises:
            SourceTooLarge: The size is larger than the variable allows.
        """
        if self._allowed is None:
            return
        total = 0
        for size in sizes:
            total += size
            if total > self._allowed:
                raise SourceTooLarge(f"unpacked, it has more than the {self._allowed:,} bytes that {self._reason}")

    def on_bytes(self, count: int) -> None:
        """Note that bytes have arrived, and check the free space from time to time. Any thread may call it.

        Raises:
            SourceTooLarge: Other programs have filled the disk, so that less than the reserve is free.
        """
        with self._lock:
            self._unchecked += count
            if self._unchecked < _CHECK_BYTES:
                return
            self._unchecked = 0
        if self._folder and _room(self._folder) == 0:
            raise SourceTooLarge(
                f"the disk of {self._folder} has only {_free(self._folder):,} bytes free, and "
                f"{_reserve(self._folder):,} must stay free. Free space, or use a step with more ephemeral storage"
            )


def _room(folder: Path) -> int:
    return max(0, _free(folder) - _reserve(folder))


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _reserve(folder: Path) -> int:
    return min(int(shutil.disk_usage(folder).total * RESERVE_SHARE), MAXIMUM_RESERVE)


def parse_limit(text: str) -> int | None:
    """Return the bytes of a size such as "20Gi", "500M" or "1000000"; None for an empty text.

    Raises:
        ValueError: The text is not a size.
    """
    match = re.fullmatch(r"(?a)(\d+)([kMGT]|[KMGT]i|)", text.strip())
    if text.strip() and not match:
        raise ValueError(
            f"{VARIABLE}={text!r} is not a size: write a whole number of bytes, or one with k, M, G, T, Ki, Mi, Gi or "
            "Ti, such as 20Gi"
        )
    return int(match[1]) * _FACTORS[match[2]] if match else None
