"""Imports a framework once, and forks the replicas of tests.

`python server.py DESCRIPTOR PID` takes clients of the listening socket DESCRIPTOR until the process PID has ended. A
client sends its environment, its working directory and its standard streams. The forked process runs the program of a
replica with them, like `python -m kfp_distributed.trainers.runtime.entry`. The server answers with its process ID, and
at its end with its exit code. It kills a replica whose client has ended, with all its descendants.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import threading

from kfp_distributed.processes import guard

ENTRY = "kfp_distributed.trainers.runtime.entry"
_TRAINERS = ("keras_classifier", "keras_horovod", "torch_classifier", "torch_horovod")


def import_frameworks() -> None:
    """Import what the trainers import, but for this library: a replica imports its own, and has a state of its own.

    A Python has the frameworks of some of the trainers.
    """
    # Read when the modules are imported. A replica sets both before.
    os.environ.update(TF_USE_LEGACY_KERAS="1", TF_CPP_MIN_LOG_LEVEL="2")
    for module in (ENTRY, *(f"kfp_distributed.trainers.{name}" for name in _TRAINERS)):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    for module in [name for name in sys.modules if name.startswith("kfp_distributed")]:
        del sys.modules[module]
    # The folder of this file and PYTHONPATH. A replica has its own in place of them.
    del sys.path[:2]


class Server:
    """Forks a process for each request, in the main thread: a fork has no other threads."""

    def __init__(self, listener: socket.socket, owner: int) -> None:
        """Create a server that ends with the process `owner`."""
        self._listener = listener
        self._owner = os.pidfd_open(owner)
        self._selector = selectors.DefaultSelector()
        self._clients: dict[int, socket.socket] = {}
        # SIGCHLD writes a byte into the pipe, which ends the selection.
        self._ended, writable = os.pipe()
        os.set_blocking(writable, False)
        signal.set_wakeup_fd(writable)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for source in (self._owner, self._ended, listener):
            self._selector.register(source, selectors.EVENT_READ)

    def next_request(self) -> tuple[dict, list[int]] | None:
        """Serve until the owner has ended, which is None. In a forked process, return its request and its streams."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == self._owner:
                    for pid in self._clients:
                        kill(pid)
                    return None
                if key.fileobj == self._ended:
                    os.read(self._ended, 4096)
                    self._collect()
                elif key.fileobj != self._listener:
                    self._end_replica(key.fileobj, key.data)
                elif request := self._accept():
                    return request

    def _accept(self) -> tuple[dict, list[int]] | None:
        client, _ = self._listener.accept()
        data, streams, _, _ = socket.recv_fds(client, 8, 3)
        if len(data) < 8:  # Killed before it has sent its request.
            client.close()
            return None
        size, data = int.from_bytes(data, "big"), b""
        while len(data) < size and (part := client.recv(size - len(data))):
            data += part
        if len(data) < size:
            client.close()
        elif pid := os.fork():
            self._clients[pid] = client
            self._selector.register(client, selectors.EVENT_READ, pid)
            client.sendall(pid.to_bytes(8, "big"))
        else:
            self._leave(client)
            return json.loads(data), streams
        for stream in streams:
            os.close(stream)
        return None

    def _leave(self, client: socket.socket) -> None:
        """Close what belongs to the server, in a forked process."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for open_socket in (client, self._listener, *self._clients.values()):
            open_socket.close()
        self._selector.close()
        os.close(self._owner)

    def _collect(self) -> None:
        for pid in list(self._clients):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                client = self._clients.pop(pid)
                with contextlib.suppress(KeyError):  # Its client has ended before.
                    self._selector.unregister(client)
                with contextlib.suppress(OSError):
                    client.sendall(os.waitstatus_to_exitcode(status).to_bytes(8, "big", signed=True))
                client.close()

    def _end_replica(self, client: socket.socket, pid: int) -> None:
        """Kill a replica whose client has ended. A client sends nothing."""
        self._selector.unregister(client)
        kill(pid)


def kill(leader: int) -> None:
    """Kill a replica and all its descendants."""
    guard.end_families({leader: guard.start_time(leader)}, signal.SIGKILL, 10)


def become_replica(request: dict, streams: list[int]) -> None:
    """Turn this process into one that the request's command line would have started."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[:] = [ENTRY]
    added = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [request["folder"], *filter(None, added), *sys.path]
    random.seed()
    sys.modules["numpy"].random.seed()


def main() -> None:
    """Serve, and run the program of a replica in each forked process."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    import_frameworks()
    gc.freeze()  # A replica need not search what has been imported for garbage.
    if request := Server(listener, int(sys.argv[2])).next_request():
        become_replica(*request)
        try:
            runpy.run_module(ENTRY, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            exit_quickly(end.code)


def exit_quickly(code: object) -> None:
    """End this process as Python would, but without the second in which it deletes the modules of TensorFlow."""
    if code is None or isinstance(code, int):
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit((code or 0) & 0xFF)
    sys.exit(code)


if __name__ == "__main__":
    main()
