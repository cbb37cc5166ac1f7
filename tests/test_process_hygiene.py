"""pytest under ignored signals, and tests that fail while their programs run."""

import os
import subprocess
import sys
from pathlib import Path

from train.programs.jobs import MARKER, marked, wait_until

TESTS = """
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DISPOSITIONS = "import signal; print(*map(signal.getsignal, (signal.SIGINT, signal.SIGHUP)), sep='\\\\n')"
FAMILY = "sleep 1001 & setsid sleep 1002 & touch ready; wait"


def start_family(folder):
    subprocess.Popen(["sh", "-c", FAMILY], cwd=folder, start_new_session=True)
    while not (folder / "ready").exists():
        time.sleep(0.01)


def test_children_react_to_signals_that_pytest_ignores():
    printed = subprocess.run([sys.executable, "-c", DISPOSITIONS], check=True, capture_output=True, text=True).stdout
    interrupt, hang_up = printed.splitlines()
    assert "default_int_handler" in interrupt
    assert hang_up == str(signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.raise_signal(number)


def test_an_assertion_that_fails():
    folder = Path("failed")
    folder.mkdir()
    start_family(folder)
    assert False


@pytest.mark.timeout(1)
def test_a_timeout():
    folder = Path("late")
    folder.mkdir()
    start_family(folder)
    time.sleep(60)
"""


def test_children_react_to_signals_and_end_with_a_test_that_fails(tmp_path):
    """Where SIGINT and SIGHUP are ignored by who started pytest, as by `nohup make test &` in a script."""
    (tmp_path / "test_inner.py").write_text(TESTS)
    pytest_command = [sys.executable, "-m", "pytest", "-p", "process_hygiene", "-p", "no:cacheprovider", "-rA", "."]
    done = subprocess.run(
        ["sh", "-c", "trap '' INT HUP; exec \"$@\"", "sh", *pytest_command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent), MARKER: str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "PASSED test_inner.py::test_children_react_to_signals_that_pytest_ignores" in done.stdout, done.stdout
    assert "1 passed" in done.stdout
    assert "2 failed" in done.stdout
    assert "Timeout" in done.stdout
    assert [(tmp_path / folder / "ready").exists() for folder in ("failed", "late")] == [True, True]
    assert wait_until(lambda: not marked(str(tmp_path))), marked(str(tmp_path))
