"""ProcessGroup with real processes: whatever happens to the parent, nothing of its children is left."""

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
from process_hygiene import started

from kfp_distributed.processes import ProcessGroup

# A test that waits for a signal which does not come ends soon.
pytestmark = pytest.mark.timeout(120)

STUBBORN = "trap '' TERM INT HUP; echo ready; while :; do sleep 1000; done"
# A grandchild in its session, and one that has left it, as mpirun's ranks do.
WITH_GRANDCHILDREN = "sleep 1001 & setsid sleep 1002 & sleep 0.3; echo ready; wait"

# What a run looks like from outside: it starts children of all kinds and then waits.
PARENT = f"""
import os, subprocess, sys, time
from kfp_distributed.processes import ProcessGroup
with ProcessGroup() as group:
    children = [group.start("family", ["sh", "-c", {WITH_GRANDCHILDREN!r}], stdout=subprocess.PIPE)]
    # An exception is handled as Ctrl-C is, for which the stubborn one is waited for.
    if "fail" not in sys.argv:
        children.append(group.start("stubborn", ["sh", "-c", {STUBBORN!r}], stdout=subprocess.PIPE))
    group.start("quiet", ["sleep", "1003"])
    for child in children:
        child.stdout.readline()
    if "fork" in sys.argv and os.fork() == 0:
        time.sleep(1004)
    print("ready", flush=True)
    if "fail" in sys.argv:
        raise LookupError("for a test")
    time.sleep(1005)
"""


def alive(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until_gone(processes, seconds=20):
    deadline = time.monotonic() + seconds
    while (left := [process for process in processes if alive(process)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


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
def test_nothing_survives_a_signal_to_the_parent(number):
    with running_parent() as (parent, family):
        # The guard, the stubborn shell and its sleep, the family's shell and two sleeps, the quiet one.
        assert len(family) == 7
        parent.send_signal(number)
        # Its reader sees the end of its output although children shared it: they are gone.
        assert parent.stdout.read() == ""
        assert parent.wait(timeout=20) == -number
        assert wait_until_gone(family) == []


def test_nothing_survives_the_parent_when_a_forked_copy_of_it_goes_on():
    with running_parent("fork") as (parent, family):
        copies = [process for process in family if process.cmdline()[-1:] == ["fork"]]
        assert len(copies) == 1
        parent.kill()
        assert wait_until_gone([process for process in family if process not in copies]) == []
        assert alive(copies[0])


def test_nothing_survives_an_exception():
    argv = [sys.executable, "-c", PARENT, "fail"]
    with started(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as parent:
        _, errors = parent.communicate(timeout=60)
    assert parent.returncode == 1
    assert errors.splitlines()[-1] == "LookupError: for a test"
    # communicate() came to the end of the output that all children shared: none of them runs.


def test_the_guard_holds_no_output_and_ignores_the_terminal():
    with running_parent() as (parent, family):
        (guard,) = [process for process in family if "guard.py" in " ".join(process.cmdline())]
        opened = {Path(link).readlink() for link in Path(f"/proc/{guard.pid}/fd").iterdir()}
        assert Path(f"/proc/{parent.pid}/fd/1").readlink() not in opened
        assert os.getsid(guard.pid) == guard.pid
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            guard.send_signal(number)
        parent.kill()
        assert wait_until_gone(family) == []


def test_fifty_children_are_stopped_together_and_collected():
    before = psutil.Process().children()
    with ProcessGroup() as group:
        children = [group.start(f"child-{index}", ["sleep", "1000"]) for index in range(50)]
        began = time.monotonic()
        group.stop(["child-7"])
        assert [index for index, child in enumerate(children) if child.poll() is not None] == [7]
    assert {child.returncode for child in children} == {-signal.SIGTERM}
    assert time.monotonic() - began < 30
    # Not one zombie: a process that has ended but is not collected would be listed.
    assert psutil.Process().children() == before


def test_stop_is_gentle_first_then_firm(tmp_path):
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


def test_children_see_only_what_they_were_given(tmp_path):
    script = 'pwd; env; cat; echo error >&2; ls /proc/self/fd | wc -l; exit "$1"'
    with ProcessGroup() as group:
        child = group.start(
            "child",
            ["sh", "-c", script, "sh", "5"],
            env={"PATH": os.environ["PATH"], "A": "b c"},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
        )
        output, _ = child.communicate(timeout=30)
    lines = output.decode().splitlines()
    assert child.returncode == 5
    assert lines[0] == str(tmp_path)
    assert "A=b c" in lines
    # Its standard input is empty, its errors go where its output goes, and it has 0, 1, 2 and what ls itself opens.
    assert lines[-2:] == ["error", "4"]


def test_a_name_is_free_again_when_its_child_has_ended():
    with ProcessGroup() as group:
        first = group.start("child", ["sh", "-c", "sleep 1000 & echo $!"], stdout=subprocess.PIPE)
        orphan = psutil.Process(int(first.stdout.readline()))
        assert first.wait(timeout=30) == 0
        assert alive(orphan)
        second = group.start("child", ["sleep", "1000"])
        assert not alive(orphan)
        with pytest.raises(ValueError, match=f"process {second.pid} of that name is running"):
            group.start("child", ["sleep", "1000"])


@pytest.mark.parametrize("argv", [["no-such-program"], ["./no-such-program"], ["/no/such/program"]])
def test_a_missing_program_is_named(argv):
    with ProcessGroup() as group, pytest.raises(FileNotFoundError, match=rf"cannot start child: .*{argv[0]}"):
        group.start("child", argv)


def test_a_program_is_found_relative_to_the_childs_folder(tmp_path):
    (tmp_path / "run").write_text("#!/bin/sh\necho hello\n")
    (tmp_path / "run").chmod(0o755)
    with ProcessGroup() as group:
        child = group.start("child", ["./run"], cwd=tmp_path, stdout=subprocess.PIPE)
        assert child.communicate(timeout=30)[0] == b"hello\n"


def test_children_are_started_inside_the_context_only():
    group = ProcessGroup()
    with pytest.raises(RuntimeError, match="only inside `with ProcessGroup"):
        group.start("child", ["sleep", "1000"])
    assert group.stop() is None


def test_without_the_guard_nothing_is_started():
    before = psutil.Process().children()
    with ProcessGroup() as group:
        (guard,) = set(psutil.Process().children()) - set(before)
        guard.kill()
        guard.wait(timeout=20)
        with pytest.raises(RuntimeError, match="while its guard process runs"):
            group.start("child", ["sleep", "1000"])


def test_children_outlive_the_thread_that_started_them():
    with ProcessGroup() as group:
        children = []
        thread = threading.Thread(target=lambda: children.append(group.start("child", ["sleep", "1000"])))
        thread.start()
        thread.join()
        with pytest.raises(subprocess.TimeoutExpired):
            children[0].wait(timeout=0.5)
