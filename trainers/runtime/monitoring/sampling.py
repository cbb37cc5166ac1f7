"""Measures the resource usage of a replica, and prints it every 10 s: memory, rows per second, GPUs."""

import json
import os
import re
import resource
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kfp_distributed.storage.answers import seconds_since_answer
from kfp_distributed.trainers.runtime.job_description import PEAK_MEMORY
from kfp_distributed.trainers.runtime.monitoring.samples import Sample, format_sample

INTERVAL_SECONDS = 10.0
"""Seconds between two samples."""

FIRST_SECONDS = 2.0
"""Seconds before the first sample, so that a short training has one."""

_NVIDIA_SMI_SECONDS = 5.0
"""Timeout of nvidia-smi. Without the driver's persistence mode it takes up to two seconds."""

USAGE_FOLDER = Path("samples").absolute()
"""Folder in the replica's working directory, where its ranks leave their values for the one that prints."""

_PEAK_FILE = Path(PEAK_MEMORY).absolute()
"""In the initial working directory. A program may change to another one."""


class _Counter:
    """Counts training rows, and bytes that were downloaded or uploaded."""

    rows = 0
    transferred = 0
    transferring = threading.Lock()
    started: float | None = None


class Usage(NamedTuple):
    """Values of one process that trains.

    Attributes:
        memory_kib: Resident memory of the process and its descendants in KiB.
        rows: Training rows read so far.
        transferred: Bytes downloaded and uploaded so far.
        store_seconds: Seconds since the last answer of the object store; None before the first one.
    """

    memory_kib: int
    rows: int
    transferred: int = 0
    store_seconds: float | None = None


def count_rows(rows: int) -> None:
    """Count training rows that this process has read. Trainers call it for each step."""
    if _Counter.started is None:
        _Counter.started = time.monotonic()
    _Counter.rows += rows


def count_bytes(count: int) -> None:
    """Count bytes that this process has downloaded or uploaded. Several threads may call it."""
    with _Counter.transferring:
        _Counter.transferred += count


def print_samples(other_ranks: Sequence[int] = (), adds_memory: bool = True) -> None:
    """Start a thread that prints the samples of this replica.

    Args:
        other_ranks: Other ranks of the replica, which call `store_usage`. Default: none.
        adds_memory: Whether their memory is added to that of this process. Descendants are in it already.
    """
    rate = RowRate()

    def sample() -> None:
        own, others = current_usage(), [read_usage(rank) for rank in other_ranks]
        memory = own.memory_kib + sum(usage.memory_kib for usage in others) * adds_memory
        rows = own.rows + sum(usage.rows for usage in others)
        transferred = own.transferred + sum(usage.transferred for usage in others)
        per_second = rate.update(rows, time.monotonic(), _Counter.started)
        answers = [usage.store_seconds for usage in (own, *others) if usage.store_seconds is not None]
        totals = rows or None, transferred // 1024 or None, round(min(answers)) if answers else None
        _print(Sample(round(memory / 1024) or None, per_second, *read_gpus(os.environ), *totals))

    _repeat(sample)


def store_usage(rank: int) -> None:
    """Start a thread that stores the usage of this rank for the process of its replica that prints samples."""
    _repeat(lambda: write_usage(rank, current_usage()))


def _repeat(work: Callable[[], object]) -> None:
    def run() -> None:
        time.sleep(FIRST_SECONDS)
        while True:
            # A training must not fail for a sample.
            with suppress(Exception):
                work()
            time.sleep(INTERVAL_SECONDS)

    threading.Thread(target=run, name="samples", daemon=True).start()


def current_usage() -> Usage:
    """Return the values of this process."""
    return Usage(memory_kib(os.getpid()), _Counter.rows, _Counter.transferred, seconds_since_answer())


class RowRate:
    """Rows per second between two samples."""

    def __init__(self) -> None:
        self._rows = 0
        self._time: float | None = None

    def update(self, rows: int, now: float, started: float | None) -> float | None:
        """Return the rate since the previous call, or None if no row was ever counted.

        Args:
            rows: Rows counted so far.
            now: Seconds of a monotonic clock.
            started: When counting began, by the same clock. None if another process counts.
        """
        since = self._time if self._rows or started is None else started
        before, self._rows, self._time = self._rows, rows, now
        if not rows or since is None or now <= since:
            return None
        return (rows - before) / (now - since)


def memory_kib(root: int, proc: Path = Path("/proc")) -> int:
    """Return the resident memory of a process and its descendants in KiB; 0 if there is no /proc.

    Pages that processes share are counted for each of them.
    """
    parents, sizes = {}, {}
    for folder in proc.glob("[0-9]*"):
        # A process may end during the loop.
        with suppress(OSError, ValueError, IndexError):
            # The name of the program is in brackets and may contain anything. Fields 4 and 24 of proc_pid_stat(5).
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            parents[int(folder.name)], sizes[int(folder.name)] = int(fields[1]), int(fields[21])
    family = {root} & sizes.keys()
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(sizes[pid] for pid in family) * os.sysconf("SC_PAGE_SIZE") // 1024


def store_peak_memory() -> None:
    """Write the peak memory of this process or of its largest child to a file, which the runner reads.

    Nothing is written if there is no /proc. getrusage does not replace it: for a process itself it may report the size
    that the parent had at the fork.
    """
    with suppress(OSError):
        own = re.findall(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
        children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        # All ranks of a replica write to the same file.
        before = int(_PEAK_FILE.read_text() or 0) if _PEAK_FILE.exists() else 0
        _PEAK_FILE.write_text(str(max([before, children, *map(int, own)])))


def read_gpus(environment: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return mean utilization in percent and used memory in MiB of the visible GPUs, or None where unknown."""
    command, devices = shutil.which("nvidia-smi"), environment.get("CUDA_VISIBLE_DEVICES")
    # Both values hide all GPUs.
    if not command or devices in ("", "-1"):
        return None, None
    chosen = ["--id", devices] if devices else []
    query = ["--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits"]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            [command, *chosen, *query], capture_output=True, text=True, timeout=_NVIDIA_SMI_SECONDS, check=True
        )
        return parse_gpus(done.stdout)
    return None, None


def parse_gpus(text: str) -> tuple[int | None, int | None]:
    """Return mean utilization and sum of memory from the output of nvidia-smi: a line "85, 10240" for each GPU.

    A GPU that is divided by MIG has "[N/A]" as utilization.
    """
    columns = list(zip(*(line.split(",") for line in text.splitlines() if line.strip()), strict=True))
    used, memory = ([int(value) for value in column if value.strip().isdigit()] for column in columns or [(), ()])
    return round(sum(used) / len(used)) if used else None, sum(memory) if memory else None


def _print(sample: Sample) -> None:
    if line := format_sample(sample):
        # One write, so that no other thread's text comes between the line and its end.
        os.write(1, f"{line}\n".encode())


def write_usage(rank: int, usage: Usage, folder: Path = USAGE_FOLDER) -> None:
    """Leave the values of a rank for the process of its replica that prints samples.

    Args:
        rank: The rank. Its former values are replaced atomically.
        usage: Its values.
        folder: Folder of all ranks of the replica. It is created. Default: `USAGE_FOLDER`.
    """
    folder.mkdir(exist_ok=True)
    file = folder / str(rank)
    unfinished = file.with_suffix(".new")
    unfinished.write_text(json.dumps(usage))
    unfinished.replace(file)


def read_usage(rank: int, folder: Path = USAGE_FOLDER) -> Usage:
    """Return the values that another rank has left, or zeros if there are none yet.

    Args:
        rank: The rank.
        folder: Folder of all ranks of the replica. Default: `USAGE_FOLDER`.
    """
    file = folder / str(rank)
    return Usage(*json.loads(file.read_text())) if file.exists() else Usage(0, 0)
