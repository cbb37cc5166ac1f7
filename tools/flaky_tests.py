"""Run pytest, and run tests that failed once more, alone, so that a flaky test is named and does not stop a merge.

`python tools/flaky_tests.py FOLDER ARGUMENTS` runs `pytest ARGUMENTS`. If one or two tests fail, they run again in one
process. Those that pass then are flaky: FOLDER/flaky.txt gets their names, and FOLDER/flaky-N.log the first output.
All runs with the same FOLDER together may have two flaky tests. `python tools/flaky_tests.py FOLDER` prints the names.

The exit code is that of pytest. It is 0 if all failed tests are flaky.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

LIMIT = 2
"""Number of flaky tests of all runs with one folder. More of them mean that the code or the machine is at fault."""

_TESTS_FAILED = 1
"""Exit code of pytest. Others mean that it was interrupted, or could not collect the tests."""


def main(folder: Path, arguments: Sequence[str]) -> int:
    """Run the tests, or print the flaky ones if there are no arguments, and return the exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    names = folder / "flaky.txt"
    earlier = names.read_text(encoding="utf-8").splitlines() if names.exists() else []
    if not arguments:
        for line in ["flaky", *earlier] * bool(earlier):
            print(line)
        return 0
    log = folder / f"flaky-{len(earlier) + 1}.log"
    cache = folder / "pytest-cache"
    pytest = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}"]
    code = _run_and_log([*pytest, "--cache-clear", *arguments], log)
    failed = _last_failed(cache)
    if code != _TESTS_FAILED or not failed or len(failed) + len(earlier) > LIMIT:
        return code
    print(f"Running {len(failed)} failed tests once more: {', '.join(failed)}", flush=True)
    code = subprocess.run([*pytest, *failed, "-n", "0"], check=False).returncode
    if code == 0:
        names.write_text("".join(f"{name}\n" for name in [*earlier, *(f"{name}: {log}" for name in failed)]))
    return code


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
