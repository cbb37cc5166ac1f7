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


@pytest.fixture(scope="module")
def server():
    process = subprocess.Popen(["sleep", "1003"])
    yield process
    process.kill()
    process.wait()


def test_that_is_skipped(server):
    pytest.skip("it starts a server of this module, which later tests need")


def test_an_assertion_that_fails(server):
    folder = Path("failed")
    folder.mkdir()
    start_family(folder)
    assert False


def test_a_timeout(server):
    folder = Path("late")
    folder.mkdir()
    start_family(folder)
    signal.raise_signal(signal.SIGALRM)  # As pytest-timeout does when the time is over.


def test_the_servers_of_others_live(server):
    assert server.poll() is None
"""


def test_children_react_to_signals_and_end_with_a_test_that_fails(tmp_path):
    """Where SIGINT and SIGHUP are ignored by who started pytest, as by `nohup make test &` in a script."""
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
    done = subprocess.run(
        ["sh", "-c", "trap '' INT HUP; exec \"$@\"", "sh", *pytest_command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent), MARKER: str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "PASSED test_inner.py::test_children_react_to_signals_that_pytest_ignores" in done.stdout, done.stdout
    assert "2 failed, 2 passed, 1 skipped" in done.stdout
    assert "Timeout" in done.stdout
    assert [(tmp_path / folder / "ready").exists() for folder in ("failed", "late")] == [True, True]
    assert wait_until(lambda: not marked(str(tmp_path))), marked(str(tmp_path))
