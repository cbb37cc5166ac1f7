import os
import signal
import subprocess
import sys
import time

import pytest

from kfp_distributed.processes import guard
from kfp_distributed.processes.guard import Process, family, process_table

# Process 10 has two sessions (20, 30). 22 is a descendant of 20 in another session. 40 is unrelated.
TABLE = {
    1: Process(0, 1, "a"),
    10: Process(1, 10, "b"),
    20: Process(10, 20, "c"),
    21: Process(20, 20, "d"),
    22: Process(21, 22, "e"),
    23: Process(22, 22, "f"),
    30: Process(10, 30, "g"),
    31: Process(1, 30, "h"),
    40: Process(1, 40, "i"),
}
WITHOUT_LEADER = {pid: process for pid, process in TABLE.items() if pid != 30}


@pytest.mark.parametrize(
    ("table", "leaders", "expected"),
    [
        (TABLE, {}, set()),
        (TABLE, {20: "c"}, {20, 21, 22, 23}),
        (TABLE, {20: "c", 30: "g"}, {20, 21, 22, 23, 30, 31}),
        pytest.param(WITHOUT_LEADER, {30: "g"}, {31}, id="leader ended, orphan of its session runs"),
        pytest.param(TABLE, {40: "earlier"}, set(), id="process ID reused"),
        pytest.param(TABLE, {99: "z"}, set(), id="all ended"),
    ],
)
def test_family(table, leaders, expected):
    assert family(table, leaders) == expected


def test_process_table_contains_this_process():
    table = process_table()
    assert (table[os.getpid()].parent, table[os.getpid()].session) == (os.getppid(), os.getsid(0))


OWNER = """
import sys
from kfp_distributed.processes import ProcessGroup
with ProcessGroup(folder=sys.argv[1]) as group:
    group.start("child", ["sleep", "1000"])
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("is_killed", [True, False])
def test_guard_deletes_the_folder_of_a_killed_parent_alone(tmp_path, is_killed):
    for name in ("own/deep", "other"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "own" / "link").symlink_to(tmp_path / "other")
    argv = [sys.executable, "-c", OWNER, str(tmp_path / "own")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        parent.stdout.readline()
        if is_killed:
            parent.kill()
    deadline = time.monotonic() + 120
    while is_killed and (tmp_path / "own").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    # A parent that leaves the context deletes its folder itself, or keeps it.
    assert sorted(path.name for path in tmp_path.iterdir()) == (["other"] if is_killed else ["other", "own"])


@pytest.mark.parametrize("lines", [["{0}\n{1}\nend\n"], ["{0}\n", "{1}\n", "end\n"], ["end\n"]])
def test_guard_kills_only_the_registered_processes(lines):
    children = [subprocess.Popen(["sleep", "1000"], start_new_session=True) for _ in range(3)]
    registered = children[:2] if len("".join(lines)) > 4 else []
    argv = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid())]
    try:
        with subprocess.Popen(argv, stdin=subprocess.PIPE, text=True) as guard_process:
            for line in lines:
                guard_process.stdin.write(line.format(*(child.pid for child in children)))
                guard_process.stdin.flush()
        assert guard_process.returncode == 0
        assert [child.wait(timeout=120) for child in registered] == [-signal.SIGKILL] * len(registered)
        assert [child.poll() for child in children[len(registered) :]] == [None] * (3 - len(registered))
    finally:
        for child in children:
            child.kill()
            child.wait()
