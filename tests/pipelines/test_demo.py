"""The demo ends cleanly whichever way it ends."""

import fcntl
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from forked_replicas import forked, programs_of_forks
from process_hygiene import started

pytestmark = pytest.mark.takes(55)

MODULE = "kfp_distributed.pipelines.demo"
# Its steps and their replicas are forks.
WITH_FORKS = f"""
import runpy, sys
sys.executable = sys.argv.pop(1)
runpy.run_module("{MODULE}", run_name="__main__", alter_sys=True)
"""


def demo(*arguments):
    """Run the demo in a fork."""
    command = forked(sys.executable, "-m", MODULE, *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("distribution", ['{"distribution_type": "tf"}', ""])
def test_a_wrong_distribution_is_refused_before_anything_starts(tmp_path, distribution):
    done = demo("--folder", tmp_path / "run", "--distribution", distribution)
    assert done.returncode == 2
    assert "distribution" in done.stdout
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "run").write_text("a file")
    done = demo("--folder", tmp_path / "run")
    assert done.returncode == 1
    assert done.stdout.startswith(f"demo: {tmp_path / 'run'} cannot be used, pass another --folder: ")
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_a_second_demo_does_not_write_into_the_folder_of_the_first(tmp_path):
    (tmp_path / "demo.log").write_text("the first one's")
    with (tmp_path / "demo.log").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = demo("--folder", tmp_path)
    assert done.returncode == 1
    assert done.stdout == f"demo: another demo runs in {tmp_path}: wait for it, or run make demo FOLDER=ANOTHER\n"
    assert (tmp_path / "demo.log").read_text() == "the first one's"
    assert [path.name for path in tmp_path.iterdir()] == ["demo.log"]


def _left(marker: str) -> list[psutil.Process]:
    """Processes that were started by the demo with this marker in its environment."""
    left = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("DEMO_MARKER") == marker and process.status() != psutil.STATUS_ZOMBIE:
                left.append(process)
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            continue
    return left


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)], ids=["Ctrl-C", "SIGKILL"])
def test_a_signal_in_the_middle_leaves_nothing_running(tmp_path, number, code):
    """All processes of the killed demo are real, because a server would end forks.

    That a step with several replicas handles each signal is shown by train/test_local_signals.py.
    """
    marker = f"{tmp_path}-{number}"
    program = ["-m", MODULE] if number == signal.SIGKILL else ["-c", WITH_FORKS, programs_of_forks() / "python"]
    with started(
        [sys.executable, *program, "--folder", str(tmp_path / "run"), "--epochs", "5000", "--distribution", "{}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={**os.environ, "DEMO_MARKER": marker},
    ) as process:
        _read_until(process, "worker-0: epoch 1/")
        # A terminal sends the signal of Ctrl-C to all processes of the program.
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        assert process.wait(120) == code
    # It says itself that nothing is left, unless it was killed.
    deadline = time.monotonic() + (60 if number == signal.SIGKILL else 0.5)
    while (left := _left(marker)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == []


def _read_until(process: subprocess.Popen[str], text: str) -> None:
    """Reads what a process prints, up to the first line that has a text."""
    for line in process.stdout:
        if text in line:
            return
    pytest.fail(f"it ended with {process.wait()} before it printed {text!r}")
