"""Measure whole processes: wall-clock time, processor time and peak memory."""

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
        seconds: Wall-clock time from start to end.
        peak_mib: Peak resident memory in MiB.
        cpu_seconds: Processor time of all threads, in user and kernel mode.
    """

    seconds: float
    peak_mib: float
    cpu_seconds: float


def measure(
    argv: Sequence[str | Path], environment: Mapping[str, str] | None = None, output: IO[bytes] | None = None
) -> Measured:
    """Run a command until it exits.

    Args:
        argv: The program and its arguments.
        environment: Additional environment variables.
        output: A file for the output. Default: the output is discarded.

    Raises:
        RuntimeError: The command failed. The message has the end of its output.
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
        if output:
            output.seek(max(0, output.tell() - 4000))
            text = output.read().decode(errors="replace")
        raise RuntimeError(f"{argv} exited with {process.returncode}:\n{text[-4000:]}")
    return Measured(time.monotonic() - started, _mebibytes(usage), usage.ru_utime + usage.ru_stime)


def _mebibytes(usage: resource.struct_rusage) -> float:
    # Linux counts in KiB, macOS in bytes.
    return usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def median(runs: Sequence[Measured]) -> Measured:
    """Return the median of each figure over the runs."""
    return Measured(*(statistics.median(values) for values in zip(*map(astuple, runs), strict=True)))


def compare(runs: int, ours: Callable[[int], float], by_hand: Callable[[int], float]) -> list[str]:
    """Run both functions `runs` times in alternating order.

    Args:
        runs: Number of runs.
        ours: Runs the train step. Its argument is the number of the run, its result the seconds.
        by_hand: Runs the same by hand.

    Returns:
        Cells of a table: the median seconds of each, with minimum and maximum in brackets; the added seconds, as the
        difference of the medians and of the minima; and the goal: 3 % and 1 s.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    for run in range(runs):
        for index in (0, 1) if run % 2 == 0 else (1, 0):
            seconds[index].append((ours, by_hand)[index](run))
    our_median, hand_median = map(statistics.median, seconds)
    cells = [f"{statistics.median(times):.1f} s ({min(times):.1f} to {max(times):.1f})" for times in seconds]
    added = (our_median - hand_median, min(seconds[0]) - min(seconds[1]))
    return [*cells, *(f"{difference:+.1f} s" for difference in added), f"{0.03 * hand_median + 1:.1f} s"]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
