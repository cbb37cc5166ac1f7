"""Run pytest, and run tests that failed once more, alone, so that a flaky test is named and does not stop a merge.

`python tools/flaky_tests.py FOLDER ARGUMENTS` runs `pytest ARGUMENTS`. If one or two tests fail, each of them runs
again in a process of its own. Those that pass then are flaky: FOLDER/flaky.txt gets their names, and the file
FOLDER/output-N.log is the first output. All runs with the same FOLDER together may have two flaky tests.

`python tools/flaky_tests.py FOLDER` prints what these runs took: the seconds of all tests by folder, the longest tests,
and those that had not ended, as if a run was stopped. It ends with the names of flaky tests.

The exit code is that of pytest. It is 0 if all failed tests are flaky.
"""

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

LIMIT = 2
"""Number of flaky tests of all runs with one folder. More of them mean that the code or the machine is at fault."""

_TESTS_FAILED = 1
"""Exit code of pytest. Others mean that it was interrupted, or could not collect the tests."""


_LONGEST = 10
"""Number of tests that are printed as the longest."""


def main(folder: Path, arguments: Sequence[str]) -> int:
    """Run the tests, or print a summary of earlier runs if there are no arguments, and return the exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    names, record = folder / "flaky.txt", folder / "record.txt"
    earlier = names.read_text(encoding="utf-8").splitlines() if names.exists() else []
    if not arguments:
        lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
        for line in [*summary(lines, time.time()), *["flaky", *earlier] * bool(earlier)]:
            print(line)
        return 0
    os.environ["TESTS_RECORD"] = str(record)  # The plugin running_tests of tests/ writes it.
    log = folder / f"output-{len(earlier) + 1}.log"
    cache = folder / "pytest-cache"
    pytest = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}"]
    code = _run_and_log([*pytest, "--cache-clear", *arguments], log)
    failed = _last_failed(cache)
    if code != _TESTS_FAILED or not failed or len(failed) + len(earlier) > LIMIT:
        return code
    print(f"Running {len(failed)} failed tests once more: {', '.join(failed)}", flush=True)
    flaky = [name for name in failed if _passes([*pytest, name, "-n", "0"], name, record)]
    names.write_text("".join(f"{name}\n" for name in [*earlier, *(f"{name}: {log}" for name in flaky)]))
    return code if len(flaky) < len(failed) else 0


def _passes(command: Sequence[str], name: str, record: Path) -> bool:
    """Return whether a test passes. One that is skipped, for example because the cluster has changed, does not."""
    size = record.stat().st_size
    code = subprocess.run(command, check=False).returncode
    return code == 0 and f" passed {name}\n".encode() in record.read_bytes()[size:]


def summary(record: Sequence[str], now: float) -> list[str]:
    """Return lines with the seconds of tests by folder, the longest tests, and those that have not ended.

    Args:
        record: Lines `SECONDS start TEST` and `SECONDS end TEST`. The seconds count from the same time as now. The last
            line may be cut, and others are ignored.
        now: Tests without an end are taken to run until now.
    """
    begun: dict[str, float] = {}
    took: dict[str, float] = {}
    folders: defaultdict[str, float] = defaultdict(float)
    for line in record:
        seconds, event, test = [*line.split(" ", 2), "", ""][:3]
        if event == "start":
            begun[test] = float(seconds)
        elif event == "end" and test in begun:
            took[test] = float(seconds) - begun.pop(test)
            folders[test.partition("::")[0].rpartition("/")[0] or "."] += took[test]
    longest = [f"{took[test]:.0f} s {test}" for test in sorted(took, key=took.__getitem__, reverse=True)[:_LONGEST]]
    running = [f"{now - start:.0f} s {test}" for test, start in begun.items()]
    by_folder = sorted(folders.items(), key=lambda item: item[1], reverse=True)
    seconds_of = ", ".join(f"{folder} {seconds:.0f}" for folder, seconds in by_folder)
    return [
        *[f"seconds of tests, which ran side by side: {seconds_of}"] * bool(took),
        *["longest", *longest] * bool(longest),
        *["not ended", *running] * bool(running),
    ]


def _run_and_log(command: Sequence[str], log: Path) -> int:
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process, log.open("wb") as file:
        assert process.stdout
        for line in process.stdout:
            file.write(line)
            sys.stdout.buffer.write(line)
            sys.stdout.flush()
    return process.returncode


def _last_failed(cache: Path) -> list[str]:
    """Return the names of the tests that failed in the last run, as its cache has them."""
    try:
        return list(json.loads((cache / "v" / "cache" / "lastfailed").read_text(encoding="utf-8")))
    except FileNotFoundError:
        return []


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
