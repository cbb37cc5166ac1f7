"""The guard: a small process that ends the sessions registered with it as soon as its parent is gone.

It is run by its path (`python guard.py PARENT_PID`), with the standard library alone. On its standard input come, a
line each, the ids of processes that lead a session of their own. When the parent is gone, or sends the line `end`, it
kills every process of these sessions and all their descendants, and ends.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """One running process, as the operating system's table shows it.

    Attributes:
        parent: The id of the process that started it.
        session: The id of the process that leads its session, or did.
        started: When it was started, in the system's own form; tells a process from a later one with the same id.
    """

    parent: int
    session: int
    started: str


def process_table() -> dict[int, Process]:
    """All running processes of this machine by their id, without those that have ended and wait to be collected."""
    table = {}
    for pid, state, parent, started in _proc_rows() if Path("/proc/self/stat").exists() else _ps_rows():
        with contextlib.suppress(OSError):
            if state[0] not in "ZX":
                table[int(pid)] = Process(int(parent), os.getsid(int(pid)), started)
    return table


def _proc_rows() -> Iterator[Sequence[str]]:
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # The program's name stands in brackets and may hold anything: fields are counted after the last bracket.
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            yield folder.name, fields[0], fields[1], fields[19]


def _ps_rows() -> Iterator[Sequence[str]]:
    with os.popen("ps -Ao pid=,stat=,ppid=,lstart=") as listing:
        yield from (line.split(maxsplit=3) for line in listing)


def family(table: Mapping[int, Process], leaders: Mapping[int, str]) -> set[int]:
    """The ids of all processes in the leaders' sessions, and of all their descendants.

    Args:
        table: The running processes.
        leaders: When each session's leader was started. If another process has its id by now, that one and its session
            are none of ours.
    """
    sessions = {pid for pid, started in leaders.items() if pid not in table or table[pid].started == started}
    members: set[int] = set()
    # A descendant may have left the session, as mpirun's and horovodrun's ranks do.
    while more := {pid for pid, each in table.items() if each.session in sessions or each.parent in members} - members:
        members |= more
    return members


def end_families(leaders: Mapping[int, str], number: signal.Signals, seconds: float) -> dict[int, str]:
    """Send a signal once to each process of the leaders' families, and wait until all have ended.

    Args:
        leaders: When each session's leader was started.
        number: The signal.
        seconds: How long to wait at most. What is left then is left running.

    Returns:
        The leaders and all members seen, to be given to the next call: a member whose parent has ended is found by it.
    """
    known = dict(leaders)
    signalled: set[int] = set()
    deadline = time.monotonic() + seconds
    while members := family(table := process_table(), known):
        known |= {pid: table[pid].started for pid in members}
        for pid in members - signalled:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        signalled |= members
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return known


def start_time(pid: int) -> str:
    """When a process was started; "" if it has ended."""
    table = process_table()
    return table[pid].started if pid in table else ""


def main() -> None:
    """Wait for the parent's end and kill what it leaves behind."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    leaders: dict[int, str] = {}
    lines: list[bytes] = []
    while b"end" not in lines:
        # The input ends with the parent, unless a copy that it forked holds the pipe open: so its life is checked too.
        lines = os.read(0, 65536).split() if select.select([0], [], [], 0.5)[0] else []
        if not lines and os.getppid() != int(sys.argv[1]):
            break
        # A session that has ended is forgotten: its number may come to stand for somebody else's.
        table = process_table()
        sessions = {each.session for each in table.values()}
        leaders = {pid: started for pid, started in leaders.items() if pid in sessions}
        named = [pid for pid in map(int, filter(bytes.isdigit, lines)) if pid > 1]
        leaders |= {pid: table[pid].started if pid in table else "" for pid in named}
    # 10 s, for a process that waits for a disk cannot be killed before that answers.
    end_families(leaders, signal.SIGKILL, 10)


if __name__ == "__main__":
    main()
