"""Measures whole processes: seconds on the wall and the peak memory of the largest process."""

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import IO


@dataclass(frozen=True)
class Measured:
    """One run of a process.

    Attributes:
        seconds: From start to end, on the wall.
        peak_mib: Largest resident memory of the process, in MiB.
        cpu_seconds: Of all its threads, and of the kernel for it.
    """

    seconds: float
    peak_mib: float
    cpu_seconds: float


def measure(
    argv: Sequence[str | Path], environment: Mapping[str, str] | None = None, output: IO[bytes] | None = None
) -> Measured:
    """Runs a command to its end; a file may take what it prints.

    Raises:
        RuntimeError: It failed; the message has its output.
    """
    started = time.monotonic()
    process = subprocess.Popen(
        [str(part) for part in argv],
        stdout=output or subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    text = process.stdout.read() if process.stdout else ""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{argv} ended with {process.returncode}:\n{text[-4000:]}")
    return Measured(time.monotonic() - started, _mebibytes(usage), usage.ru_utime + usage.ru_stime)


def _mebibytes(usage: resource.struct_rusage) -> float:
    # Linux counts in KiB, macOS in bytes.
    return usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def median(runs: Sequence[Measured]) -> Measured:
    """The medians over runs, each figure for itself."""
    return Measured(*(statistics.median(each) for each in zip(*map(astuple, runs), strict=True)))


def compare(runs: int, ours: Callable[[int], float], by_hand: Callable[[int], float]) -> list[str]:
    """Runs both `runs` times, each number of a run by turns first with the one and with the other.

    Returns:
        Cells of a table: the median seconds of ours and by hand, with the least and the most in brackets; what ours
        adds, by the medians and by the least; and the goal: 3 % and 1 s.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    for run in range(runs):
        for which in (0, 1) if run % 2 == 0 else (1, 0):
            seconds[which].append((ours, by_hand)[which](run))
    here, hand = map(statistics.median, seconds)
    cells = [f"{statistics.median(each):.1f} s ({min(each):.1f} to {max(each):.1f})" for each in seconds]
    added = (here - hand, min(seconds[0]) - min(seconds[1]))
    return [*cells, *(f"{each:+.1f} s" for each in added), f"{0.03 * hand + 1:.1f} s"]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
