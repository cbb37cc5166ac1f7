"""pytest with ignored signals, and failed tests whose programs are running."""

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


@pytest.fixture(scope="module")
def server():
    process = subprocess.Popen(["sleep", "1003"])
    yield process
    process.kill()
    process.wait()


def test_that_is_skipped(server):
    pytest.skip("starts the server of this module, which later tests need")


def test_an_assertion_that_fails(server):
    folder = Path("failed")
    folder.mkdir()
    start_family(folder)
    assert False


def test_a_timeout(server):
    folder = Path("late")
    folder.mkdir()
    start_family(folder)
    signal.raise_signal(signal.SIGALRM)  # Like pytest-timeout after the timeout.


def test_processes_of_fixtures_are_kept(server):
    assert server.poll() is None
"""


def test_children_react_to_signals_and_end_with_a_failed_test(tmp_path):
    """pytest is started with ignored SIGINT and SIGHUP, as by `nohup make test &` in a script."""
    (tmp_path / "test_inner.py").write_text(TESTS)
    pytest_command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "process_hygiene",
        "-p",
        "no:cacheprovider",
        "-rA",
        "--timeout=300",
        ".",
    ]
    process = subprocess.run(
        ["sh", "-c", "trap '' INT HUP; exec \"$@\"", "sh", *pytest_command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent), MARKER: str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert "PASSED test_inner.py::test_children_react_to_signals_that_pytest_ignores" in process.stdout, process.stdout
    assert "2 failed, 2 passed, 1 skipped" in process.stdout
    assert "Timeout" in process.stdout
    assert [(tmp_path / folder / "ready").exists() for folder in ("failed", "late")] == [True, True]
    assert wait_until(lambda: not marked(str(tmp_path))), marked(str(tmp_path))
