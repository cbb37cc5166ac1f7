"""The guard: a small process that kills the registered sessions when its parent process ends.

Run it by its path (`python guard.py PARENT_PID [FOLDER]`). It needs only the standard library. It reads the process IDs
of session leaders from its standard input, one on each line. When the parent has ended, or has sent the line `end`, the
guard kills all processes of these sessions and all their descendants, and exits. If the parent has ended without the
line `end`, the guard also deletes FOLDER, which the parent can no longer delete.
"""

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """A running process in the operating system's process table.

    Attributes:
        parent: ID of the parent process.
        session: ID of the session, which is the process ID of its first leader.
        started: Start time in the system's format. It distinguishes processes that reuse a process ID.
    """

    parent: int
    session: int
    started: str


def process_table() -> dict[int, Process]:
    """Return all running processes of this machine by process ID, without zombies."""
    table = {}
    for pid, state, parent, started in _proc_rows() if Path("/proc/self/stat").exists() else _ps_rows():
        with contextlib.suppress(OSError):
            if state[0] not in "ZX":
                table[int(pid)] = Process(int(parent), os.getsid(int(pid)), started)
    return table


def _proc_rows() -> Iterator[Sequence[str]]:
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # The program's name is in parentheses and may contain any character, so split after the last one.
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            yield folder.name, fields[0], fields[1], fields[19]


def _ps_rows() -> Iterator[Sequence[str]]:
    with os.popen("ps -Ao pid=,stat=,ppid=,lstart=") as listing:
        yield from (line.split(maxsplit=3) for line in listing)


def family(table: Mapping[int, Process], leaders: Mapping[int, str]) -> set[int]:
    """Return the IDs of all processes in the leaders' sessions, and of all their descendants.

    Args:
        table: The running processes.
        leaders: Start time of each session leader by process ID. If another process has the ID now, that process and
            its session are ignored.
    """
    sessions = {pid for pid, started in leaders.items() if pid not in table or table[pid].started == started}
    members: set[int] = set()
    # Descendants may be in other sessions, such as the ranks of mpirun and horovodrun.
    while (
        new := {pid for pid, process in table.items() if process.session in sessions or process.parent in members}
        - members
    ):
        members |= new
    return members


def end_families(leaders: Mapping[int, str], number: signal.Signals, seconds: float) -> dict[int, str]:
    """Send a signal once to each process of the leaders' families, and wait until all have ended.

    Args:
        leaders: Start time of each session leader by process ID.
        number: The signal.
        seconds: Timeout in seconds. Processes that run after the timeout are left running.

    Returns:
        Start times of the leaders and of all their family members. Pass them to the next call, so that it also finds
        members whose parents have ended.
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
    """Return the start time of a process, or "" if it has ended."""
    table = process_table()
    return table[pid].started if pid in table else ""


def main() -> None:
    """Wait until the parent ends, and kill the registered sessions."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    leaders: dict[int, str] = {}
    lines: list[bytes] = []
    while b"end" not in lines:
        # The input ends when the parent ends, unless a forked copy of the parent keeps the pipe open. So the parent
        # process ID is checked too.
        lines = os.read(0, 65536).split() if select.select([0], [], [], 0.5)[0] else []
        if not lines and os.getppid() != int(sys.argv[1]):
            break
        # Remove sessions that have ended, because other processes may reuse their IDs.
        table = process_table()
        sessions = {process.session for process in table.values()}
        leaders = {pid: started for pid, started in leaders.items() if pid in sessions}
        registered = [pid for pid in map(int, filter(bytes.isdigit, lines)) if pid > 1]
        leaders |= {pid: table[pid].started if pid in table else "" for pid in registered}
    # 10 s, because a process that waits for a disk ends only after the disk has answered.
    end_families(leaders, signal.SIGKILL, 10)
    if b"end" not in lines and len(sys.argv) > 2:
        shutil.rmtree(sys.argv[2], ignore_errors=True)


if __name__ == "__main__":
    main()
