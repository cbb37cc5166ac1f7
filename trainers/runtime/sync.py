"""Local folders that are kept in object storage while a program goes on writing into them, and an epoch's metrics."""

import json
import math
import stat
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from kfp_distributed.storage.errors import StorageError

LOOK_SECONDS = 2.0
"""How often `flush_at_rest` looks at the folders, and how long what it sends has not changed."""

_BUSY_LOOKS = 30
"""After so many looks, a minute, it is said that a folder has been another one at each."""

_looks: list[Callable[[bool], None]] = []
_lock = threading.Lock()


def keep(folder: Path, send: Callable[[set[Path], Callable[[], None], bool], object], grows: bool = False) -> None:
    """Have a folder sent by `flush` each time it has changed; what is in it already is known to be there.

    Args:
        folder: The local folder.
        send: Sends the folder. It is given which files are new or changed; a function that raises OSError where the
            folder is another one by now, which is then sent again; and whether a program may go on writing into it.
        grows: Whether its files only ever grow: they may be sent at any time, and a program may never let them rest.
    """
    seen = sent = _state(folder)
    busy, since = 0, time.monotonic()

    def look(at_rest: bool) -> None:
        nonlocal seen, sent, busy, since
        state, before = _state(folder), seen
        if state != before:
            seen, since = state, time.monotonic()
        busy = busy + 1 if at_rest and state != before and not grows else 0
        if busy == _BUSY_LOOKS:
            print(f"{folder.name} is not stored: it never rests for {LOOK_SECONDS:g} s", flush=True)
        # Two looks may be close together, the last one is where the program ends.
        rests = state == before and time.monotonic() - since >= LOOK_SECONDS
        if state != sent and (rests or not at_rest or grows):

            def check() -> None:
                if _state(folder) != state:
                    raise OSError(f"{folder.name} changes meanwhile")

            send({file for file, _ in state.items() - sent.items()}, check, at_rest)
            sent = state

    _looks.append(look)


def flush(at_rest: bool = False) -> None:
    """Send what has changed: when this returns, the last checkpoint and metrics are in object storage.

    Where they cannot be sent a line says so, and the next call, if there is one, tries again.

    Args:
        at_rest: Send only what is seen not to have changed for `LOOK_SECONDS`: it may be half written.
    """
    with _lock:
        for look in _looks:
            try:
                look(at_rest)
            except (StorageError, OSError) as error:
                print(f"not stored: {error}", flush=True)


@cache
def leave_out(reason: str) -> None:
    """Say, once, why a file is not kept in object storage. The training goes on: its other files are kept."""
    print(f"left out of what is stored: {reason}", flush=True)


def flush_at_rest() -> None:
    """Flush for ever: for a thread beside a program that does not do it by itself."""
    while True:
        time.sleep(LOOK_SECONDS)
        try:
            flush(at_rest=True)
        except Exception as error:  # noqa: BLE001 - a thread that ends would store no checkpoint any more
            print(f"not stored: {error!r}", flush=True)


def read_epochs(file: Path) -> list[dict[str, float]]:
    """Return the epochs of a metrics file; none where there is no such file, or one of another form."""
    try:
        epochs: list[dict[str, float]] = json.loads(file.read_text())["epochs"] if file.exists() else []
        return [{"epoch": entry["epoch"], **entry} for entry in epochs]
    except (KeyError, TypeError, ValueError):
        print(f"{file.name} has no epochs of the form that is read", flush=True)
        return []


def record_epoch(file: Path, replica: str, epoch: int, epochs: int, metrics: Mapping[str, float]) -> None:
    """Say that an epoch is done: in the metrics file, in object storage, and by the progress line.

    A metric that becomes NaN or infinite is named in one line. The program goes on: it may know what it does, and a
    model that answers NaN fails at its evaluation.
    """
    past = [entry for entry in read_epochs(file) if entry["epoch"] < epoch]
    before = _not_finite(past[-1]) if past else set()
    for name in sorted(_not_finite(metrics) - before):
        print(
            f"warning: {name} is {metrics[name]} in epoch {epoch}: fill missing values, which are NaN in the rows, "
            "or set a smaller learning rate",
            flush=True,
        )
    file.write_text(json.dumps({"replica": replica, "epochs": [*past, {"epoch": epoch, **metrics}]}))
    flush()
    print(format_progress(epoch, epochs, metrics), flush=True)


def _not_finite(metrics: Mapping[str, float]) -> set[str]:
    return {name for name, value in metrics.items() if isinstance(value, float) and not math.isfinite(value)}


def format_progress(epoch: int, epochs: int, metrics: Mapping[str, float]) -> str:
    """Return the line that `parse_progress` reads, for example "epoch 3/6 loss=0.1234 accuracy=0.9812"."""
    return f"epoch {epoch}/{epochs}" + "".join(f" {name}={value:.4f}" for name, value in metrics.items())


def _state(folder: Path) -> dict[Path, tuple[int, int]]:
    # With links, FIFOs and the like, so that `leave_out` is told of them.
    state = {}
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):  # Deleted meanwhile.
            status = file.lstat()
            if not stat.S_ISDIR(status.st_mode):
                state[file] = status.st_mtime_ns, status.st_size
    return state
