"""Counts the bytes of a download, and prints its progress if it is large or slow."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kfp_distributed.storage.files import FileEntry, OnBytes
from kfp_distributed.trainers.runtime.monitoring.sampling import count_bytes

LARGE_MIB = 256
"""A download of at least so many MiB prints its size at once. A smaller one often takes less than `SLOW_SECONDS`."""

SLOW_SECONDS = 10.0
"""Seconds after which a smaller download prints its progress."""

INTERVAL_SECONDS = 30.0
"""Seconds between two lines of one download."""


@contextmanager
def observed(what: str, files: Sequence[FileEntry]) -> Iterator[OnBytes]:
    """Print the progress of a download in the block. A small and fast one prints nothing.

    The lines are printed when bytes arrive, so a download that hangs prints none.

    Args:
        what: What is downloaded, such as "training data".
        files: Files to download, with their sizes.

    Yields:
        The callback for the bytes that arrive.
    """
    total, started = sum(file.size for file in files), time.monotonic()
    size = f"{_mib(total)} MiB in {len(files)} file{'s' * (len(files) != 1)}"
    done, due, has_printed, lock = 0, started + SLOW_SECONDS, False, threading.Lock()

    def show(text: str) -> None:
        nonlocal due, has_printed
        print(text, flush=True)
        due, has_printed = time.monotonic() + INTERVAL_SECONDS, True

    def on_bytes(count: int) -> None:
        nonlocal done
        count_bytes(count)
        with lock:
            # The bytes of a file count again if its connection broke.
            done = min(done + count, total)
            if time.monotonic() >= due:
                show(f"downloading {what}: {_mib(done)} MiB of {size}")

    if total >= LARGE_MIB << 20:
        show(f"downloading {what}: {size}")
    yield on_bytes
    if has_printed:
        print(f"downloaded {what}: {size}, {time.monotonic() - started:.0f} s", flush=True)


def _mib(count: int) -> str:
    """Return bytes in MiB as text, with a decimal below 10 MiB."""
    mib = count / 2**20
    return f"{mib:,.0f}" if mib >= 10 else f"{mib:.1f}"
