"""ProcessGroup with real processes: its children end with the parent process."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from process_hygiene import is_alive, started

from kfp_distributed.processes import ProcessGroup

pytestmark = pytest.mark.takes(8)

# Without a timeout, a test would wait forever for a signal that is not sent.

STUBBORN = "trap '' TERM INT HUP; echo ready; while :; do sleep 1000; done"
# A grandchild in the session of its parent, and one in its own session, like the ranks of mpirun.
WITH_GRANDCHILDREN = "sleep 1001 & setsid sleep 1002 & sleep 0.3; echo ready; wait"

# A program that starts children of all kinds and then waits.
PARENT = f"""
import os, subprocess, sys, time
from kfp_distributed.processes import ProcessGroup
with ProcessGroup() as group:
    children = [group.start("family", ["sh", "-c", {WITH_GRANDCHILDREN!r}], stdout=subprocess.PIPE)]
    # With an exception, the test would wait for the grace period of the stubborn child.
    if "fail" not in sys.argv:
        children.append(group.start("stubborn", ["sh", "-c", {STUBBORN!r}], stdout=subprocess.PIPE))
    group.start("quiet", ["sleep", "1003"])
    for child in children:
        child.stdout.readline()
    if "fork" in sys.argv and os.fork() == 0:
        time.sleep(1004)
    print("ready", flush=True)
    if "fail" in sys.argv:
        raise LookupError("raised by the test")
    time.sleep(1005)
"""


def wait_until_gone(processes, seconds=120):
    deadline = time.monotonic() + seconds
    while (remaining := [process for process in processes if is_alive(process)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return remaining


@contextmanager
def running_parent(*arguments):
    with started([sys.executable, "-c", PARENT, *arguments], stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == "ready\n"
        family = psutil.Process(parent.pid).children(recursive=True)
        try:
            yield parent, family
        finally:
            for process in family:
                if process.is_running():
                    process.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_no_process_survives_a_signal_to_the_parent(number):
    with running_parent() as (parent, family):
        # The guard, the stubborn shell and its sleep, the family's shell and two sleeps, the quiet child.
        assert len(family) == 7
        parent.send_signal(number)
        # The output ends although the children shared it, so the children have ended.
        assert parent.stdout.read() == ""
        assert parent.wait(timeout=120) == -number
        assert wait_until_gone(family) == []


def test_no_process_survives_the_parent_while_a_forked_copy_of_it_runs():
    with running_parent("fork") as (parent, family):
        copies = [process for process in family if process.cmdline()[-1:] == ["fork"]]
        assert len(copies) == 1
        parent.kill()
        assert wait_until_gone([process for process in family if process not in copies]) == []
        assert is_alive(copies[0])


def test_no_process_survives_an_exception():
    argv = [sys.executable, "-c", PARENT, "fail"]
    with started(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as parent:
        _, errors = parent.communicate(timeout=120)
    assert parent.returncode == 1
    assert errors.splitlines()[-1] == "LookupError: raised by the test"
    # communicate() reached the end of the output that all children shared, so all of them have ended.


def test_guard_keeps_no_output_open_and_ignores_terminal_signals():
    with running_parent() as (parent, family):
        (guard,) = [process for process in family if "guard.py" in " ".join(process.cmdline())]
        opened = {Path(link).readlink() for link in Path(f"/proc/{guard.pid}/fd").iterdir()}
        assert Path(f"/proc/{parent.pid}/fd/1").readlink() not in opened
        assert os.getsid(guard.pid) == guard.pid
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            guard.send_signal(number)
        parent.kill()
        assert wait_until_gone(family) == []


def test_fifty_children_are_stopped_together_and_reaped():
    before = psutil.Process().children()
    with ProcessGroup() as group:
        children = [group.start(f"child-{index}", ["sleep", "1000"]) for index in range(50)]
        start = time.monotonic()
        group.stop(["child-7"])
        assert [index for index, child in enumerate(children) if child.poll() is not None] == [7]
    assert {child.returncode for child in children} == {-signal.SIGTERM}
    assert time.monotonic() - start < 30
    # No zombies: psutil lists processes that have ended and were not reaped.
    assert psutil.Process().children() == before


def test_stop_sends_sigterm_then_sigkill(tmp_path):
    gentle = f"trap 'echo saved > {tmp_path}/state; exit 3' TERM; echo ready; while :; do sleep 0.1; done"
    with ProcessGroup() as group:
        first = group.start("gentle", ["sh", "-c", gentle], stdout=subprocess.PIPE)
        second = group.start("stubborn", ["sh", "-c", STUBBORN], stdout=subprocess.PIPE)
        for child in (first, second):
            assert child.stdout.readline() == b"ready\n"
        group.stop(grace_seconds=2)
        group.stop()
    assert (first.returncode, second.returncode) == (3, -signal.SIGKILL)
    assert (tmp_path / "state").read_text() == "saved\n"


def test_environment_folder_and_files_of_a_child(tmp_path):
    script = 'pwd; env; cat; echo error >&2; ls /proc/self/fd | wc -l; exit "$1"'
    with ProcessGroup() as group:
        child = group.start(
            "child",
            ["sh", "-c", script, "sh", "5"],
            env={"PATH": os.environ["PATH"], "A": "b c"},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
        )
        output, _ = child.communicate(timeout=120)
    lines = output.decode().splitlines()
    assert child.returncode == 5
    assert lines[0] == str(tmp_path)
    assert "A=b c" in lines
    # The standard input is empty, the standard error goes to the output, and the open files are 0, 1, 2 and one of ls.
    assert lines[-2:] == ["error", "4"]


def test_name_can_be_reused_after_its_child_has_ended():
    with ProcessGroup() as group:
        first = group.start("child", ["sh", "-c", "sleep 1000 & echo $!"], stdout=subprocess.PIPE)
        orphan = psutil.Process(int(first.stdout.readline()))
        assert first.wait(timeout=120) == 0
        assert is_alive(orphan)
        second = group.start("child", ["sleep", "1000"])
        assert not is_alive(orphan)
        with pytest.raises(ValueError, match=f"process {second.pid} .* is running"):
            group.start("child", ["sleep", "1000"])


@pytest.mark.parametrize("argv", [["no-such-program"], ["./no-such-program"], ["/no/such/program"]])
def test_missing_program_is_named(argv):
    with ProcessGroup() as group, pytest.raises(FileNotFoundError, match=rf"cannot start child: .*{argv[0]}"):
        group.start("child", argv)


def test_program_is_searched_relative_to_the_working_directory_of_the_child(tmp_path):
    (tmp_path / "run").write_text("#!/bin/sh\necho hello\n")
    (tmp_path / "run").chmod(0o755)
    with ProcessGroup() as group:
        child = group.start("child", ["./run"], cwd=tmp_path, stdout=subprocess.PIPE)
        assert child.communicate(timeout=120)[0] == b"hello\n"


def test_start_fails_outside_the_context():
    group = ProcessGroup()
    with pytest.raises(RuntimeError, match="inside `with ProcessGroup"):
        group.start("child", ["sleep", "1000"])
    assert group.stop() is None


def test_start_fails_without_the_guard():
    before = psutil.Process().children()
    with ProcessGroup() as group:
        (guard,) = set(psutil.Process().children()) - set(before)
        guard.kill()
        guard.wait(timeout=120)
        with pytest.raises(RuntimeError, match="guard process"):
            group.start("child", ["sleep", "1000"])


def test_children_outlive_the_thread_that_started_them():
    with ProcessGroup() as group:
        children = []
        thread = threading.Thread(target=lambda: children.append(group.start("child", ["sleep", "1000"])))
        thread.start()
        thread.join()
        with pytest.raises(subprocess.TimeoutExpired):
            children[0].wait(timeout=0.5)
