"""Stands for a process that a server forks: `python -I -S client.py SOCKET PYTHON ARGUMENT...`.

It passes signals on, with SIGSTOP in place of SIGTSTP, which a session of its own ignores. It ends as the fork ends. If
it is killed, the fork stops at once, and the server kills it. If the server has failed, it runs the command line.
"""

import contextlib
import json
import os
import signal
import socket
import sys

_PASSED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGABRT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
    signal.SIGCONT,
)


def main() -> None:
    """Have a process forked and wait for its end."""
    server = socket.socket(socket.AF_UNIX)
    content = {"arguments": sys.argv[3:], "environment": dict(os.environ), "folder": os.path.realpath(".")}
    content["python"] = f"{sys.argv[1]}.bin/python"
    request = json.dumps(content).encode()
    try:
        server.connect(sys.argv[1])
        socket.send_fds(server, [len(request).to_bytes(8, "big")], [0, 1, 2])
        server.sendall(request)
        pid = int.from_bytes(server.recv(8, socket.MSG_WAITALL), "big")
    except OSError:
        pid = 0
    if not pid:
        os.execvp(sys.argv[2], sys.argv[2:])
    for number in _PASSED:
        signal.signal(number, lambda number, frame: _kill(pid, number))
    answer = server.recv(8, socket.MSG_WAITALL)
    code = int.from_bytes(answer, "big", signed=True) if answer else -signal.SIGKILL
    if code < 0:
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # It has ended, and the server is about to say so.
        os.kill(pid, signal.SIGSTOP if number == signal.SIGTSTP else number)


if __name__ == "__main__":
    main()
