"""The harness of the benchmarks: measured processes that take turns, medians, tables and pages.

Each benchmark has a page of its own, which begins with `header`. All of them accept `--page`, and those that repeat
programs also `--runs`.
"""

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any, TypeVar

_K = TypeVar("_K")
_T = TypeVar("_T")
Command = Sequence[str | Path]
"""A program and its arguments."""

_FOLDER = Path(__file__).parent
_LOAD = os.getloadavg()[0]

# A process starts with the peak memory of its parent, so a small process starts what is measured.
_LAUNCH = """
import json, os, subprocess, sys, time
begin = time.monotonic()
process = subprocess.Popen(sys.argv[2:])
_, status, usage = os.wait4(process.pid, 0)
end, code = time.monotonic(), os.waitstatus_to_exitcode(status)
peak = usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
os.write(int(sys.argv[1]), json.dumps([code, end - begin, end, peak, usage.ru_utime + usage.ru_stime]).encode())
"""


@dataclass(frozen=True)
class Measured:
    """One run of a process.

    Attributes:
        seconds: Wall-clock time from start to end.
        ended: When it ended (`time.monotonic`).
        peak_mib: Peak resident memory in MiB.
        cpu_seconds: Processor time of all threads, in user and kernel mode.
        printed: What it printed as the last line of JSON; None if it printed none.
    """

    seconds: float
    ended: float
    peak_mib: float
    cpu_seconds: float
    printed: Any


def measure(
    argv: Command,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    output: IO[bytes] | None = None,
) -> Measured:
    """Run a command until it exits.

    Args:
        argv: The program and its arguments.
        environment: All environment variables. Default: those of this process.
        folder: The working directory. Default: that of this process.
        output: A file for all that it prints. Default: it is discarded, except the last line of JSON.

    Raises:
        RuntimeError: The command failed. The message has the end of its output.
    """
    receiver, sender = os.pipe()
    with open(receiver) as reader, tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as errors:  # noqa: PTH123 - a pipe
        launch = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(sender), *map(str, argv)]
        streams = {"stdout": output or printed, "stderr": output or errors}
        subprocess.run(launch, env=environment, cwd=folder, pass_fds=[sender], check=False, **streams)  # type: ignore[call-overload]
        os.close(sender)
        # Without a program to start, there is no result.
        code, seconds, ended, peak, cpu_seconds = json.loads(reader.read() or "[127, 0, 0, 0, 0]")
        if code:
            text = _end(output or printed) + ("" if output else _end(errors))
            raise RuntimeError(f"{argv} exited with {code}:\n{text}")
        return Measured(seconds, ended, peak, cpu_seconds, None if output else _last_json(printed))


def _end(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - 4000))
    return file.read().decode(errors="replace")


def _last_json(file: IO[bytes]) -> Any:  # noqa: ANN401
    """Return the last line that is a list or an object of JSON. A library may print other lines after it."""
    for line in reversed(_end(file).splitlines()):
        if line.startswith(("[", "{")):
            with contextlib.suppress(ValueError):
                return json.loads(line)
    return None


def take_turns(ways: Mapping[_K, Callable[[int], _T]], runs: int) -> dict[_K, list[_T]]:
    """Run all ways `runs` times, every second time in reverse order, and log each result.

    Args:
        ways: What is run, by its name. The argument is the number of the run, from 0.
        runs: Number of runs.
    """
    results: dict[_K, list[_T]] = {way: [] for way in ways}
    for run in range(runs):
        for way in [*ways] if run % 2 == 0 else [*reversed([*ways])]:
            results[way].append(ways[way](run))
            log(f"run {run + 1}, {way}: {results[way][-1]}")
    return results


def log(line: str) -> None:
    """Show what happens. The page alone is printed to the standard output."""
    print(line, file=sys.stderr, flush=True)


def spread(values: Sequence[float], unit: str = " s", form: str = ".2f") -> str:
    """Return the median with the least and the most, such as "1.20 s (1.10 to 1.30)"."""
    return f"{statistics.median(values):{form}}{unit} ({min(values):{form}} to {max(values):{form}})"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def header(target: str, versions: Mapping[str, str], compare: str = "rows", where: str = "") -> str:
    """Return the first paragraph of a page: how and when it was measured.

    Args:
        target: The target of make.
        versions: The versions of the software that is measured, by its name.
        compare: What of a table is comparable: "rows" or "columns".
        where: The machine. Default: the cores of this one, with its load at the beginning and now.
    """
    here = f"{os.cpu_count()} cores of a shared machine with a load of {_LOAD:.1f} at the beginning and "
    here += f"{os.getloadavg()[0]:.1f} at the end"
    software = ", ".join(
        f"{name} {number}" for name, number in {"Python": platform.python_version(), **versions}.items()
    )
    text = f"`make {target}` runs these measurements and writes this page. Latest run: {date.today().isoformat()}, "
    text += f"{software}, {where or here}. Compare the {compare} of one run, not different runs."
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def installed(*packages: str) -> dict[str, str]:
    """Return the versions of packages of this Python. That of TensorFlow may be called tensorflow-cpu."""
    return {package: _version(package) for package in packages}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return version(f"{package}-cpu")


def parser(description: str | None, page: str, runs: int = 0) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark.

    Args:
        description: The docstring of the benchmark.
        page: The file of its page in this folder.
        runs: Default of `--runs`. Default: 0, each program runs once and there is no such option.
    """
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if runs:
        options.add_argument("--runs", type=int, default=runs, help=f"runs of each program (default: {runs})")
    options.add_argument("--page", type=Path, default=_FOLDER / page, help=f"file to write (default: {page} here)")
    return options


def write_page(page: Path, text: str) -> None:
    """Write a page, and print it."""
    page.write_text(text, encoding="utf-8")
    print(text)
