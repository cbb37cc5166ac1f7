"""Imports a framework once, and forks the replicas or steps of tests.

`python server.py DESCRIPTOR PID MODULE...` imports the modules, and takes clients of the listening socket DESCRIPTOR
until the process PID has ended. A client sends the arguments of a Python, its environment, its working directory and
its standard streams. The forked process runs the program of the arguments with them. The server answers with its
process ID, and at its end with its exit code. A process stops when its client ends. The server kills it with all its
descendants.
"""

import atexit
import contextlib
import faulthandler
import fcntl
import gc
import importlib.util
import json
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from io import BufferedReader, BufferedWriter, FileIO, TextIOWrapper
from pathlib import Path
from types import ModuleType
from typing import TextIO

from kfp_distributed.processes import guard

REQUEST_SECONDS = 5
"""How long the server waits for the next part of a request. Other clients wait meanwhile."""


def import_frameworks(modules: Sequence[str]) -> None:
    """Import what modules of this library import, but for the library: a fork imports its own, and has its own state.

    A Python has the frameworks of some of the modules.
    """
    gc.disable()  # Nearly all that is imported stays.
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    gc.enable()
    for module in [name for name in sys.modules if name.startswith("kfp_distributed")]:
        del sys.modules[module]
    # The folder of this file and PYTHONPATH. A fork has its own in place of them.
    for folder in (str(Path(__file__).parent), *os.environ["PYTHONPATH"].split(os.pathsep)[-1:]):
        sys.path.remove(folder)


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
        server = os.getpid()
        try:
            return self._serve()
        finally:
            if os.getpid() == server:
                kill(*self._clients)

    def _serve(self) -> tuple[dict, list[int]] | None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == self._owner:
                    return None
                if key.fileobj == self._ended:
                    os.read(self._ended, 4096)
                    self._collect()
                elif key.fileobj != self._listener:
                    self._end_fork(key.fileobj, key.data)
                elif request := self._accept():
                    return request

    def _accept(self) -> tuple[dict, list[int]] | None:
        client, _ = self._listener.accept()
        data, streams = read_request(client)
        if not data:
            client.close()
        elif pid := os.fork():
            self._clients[pid] = client
            self._selector.register(client, selectors.EVENT_READ, pid)
            # The kernel stops the fork when its client ends, before anybody can learn of that end.
            fcntl.fcntl(client, fcntl.F_SETOWN, pid)
            fcntl.fcntl(client, fcntl.F_SETSIG, signal.SIGSTOP)
            fcntl.fcntl(client, fcntl.F_SETFL, fcntl.fcntl(client, fcntl.F_GETFL) | os.O_ASYNC)
            with contextlib.suppress(OSError):  # Killed meanwhile. The selection returns the end of its socket.
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
        # The shell that started the server in the background lets it ignore the signal.
        signal.signal(signal.SIGINT, signal.default_int_handler)
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

    def _end_fork(self, client: socket.socket, pid: int) -> None:
        """Kill a process whose client has ended. A client sends nothing."""
        if self._clients.get(pid) is not client:  # It has ended at the same time, and its socket is closed.
            return
        self._selector.unregister(client)
        kill(pid)


def read_request(client: socket.socket) -> tuple[bytes, list[int]]:
    """Return a request and its streams. The request is empty if the client does not send all of it.

    It may have been killed, or be stopped. Then it runs its command line when it continues.
    """
    streams: list[int] = []
    client.settimeout(REQUEST_SECONDS)
    try:
        size, streams, _, _ = socket.recv_fds(client, 8, 3)
        data = b""
        while len(data) < int.from_bytes(size, "big") and (part := client.recv(1 << 20)):
            data += part
    except OSError:
        return b"", streams
    client.settimeout(None)
    return data if len(data) == int.from_bytes(size, "big") else b"", streams


def kill(*leaders: int) -> None:
    """Kill forked processes and all their descendants.

    They are stopped until their descendants have been found by their parents.
    """
    for leader in leaders:
        os.kill(leader, signal.SIGSTOP)
    guard.end_families({leader: guard.start_time(leader) for leader in leaders}, signal.SIGKILL, 10)
    for leader in leaders:  # It may have been stopped before it had a session, by which it is found.
        os.kill(leader, signal.SIGKILL)


def run(request: dict, streams: list[int]) -> None:
    """Run the program that the request's command line would have run in a new process."""
    os.setsid()
    os.chdir(request["folder"])
    known = [*os.environ["TESTS_FORKED_REPLICAS_NAMES"].split(), "TESTS_FORKED_REPLICAS_NAMES"]
    of_python = {name: value for name, value in os.environ.items() if name not in known}
    os.environ.clear()
    os.environ.update({**request["environment"], **of_python})
    # Steps import less of kfp than others.
    if "_KFP_RUNTIME" not in os.environ and not request["arguments"][0].endswith("/ephemeral_component.py"):
        for module in [name for name in sys.modules if name.partition(".")[0] == "kfp"]:
            del sys.modules[module]
    # torchrun starts its ranks with PYTHON_EXEC.
    sys.executable = os.environ["PYTHON_EXEC"] = request["python"]
    if request["arguments"][0] == "-u":
        os.environ["PYTHONUNBUFFERED"] = request["arguments"].pop(0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = TextIOWrapper(BufferedReader(FileIO(0, closefd=False)), "utf-8")
    sys.stdout = sys.__stdout__ = output(1, "strict")
    sys.stderr = sys.__stderr__ = output(2, "backslashreplace")
    if "PYTHONFAULTHANDLER" in os.environ:
        faulthandler.enable()
    option, *arguments = (
        request["arguments"] if request["arguments"][0] in ("-m", "-c") else ("", *request["arguments"])
    )
    sys.argv[:] = arguments
    first = {"-m": request["folder"], "-c": "", "": str(Path(arguments[0]).parent)}[option]
    added = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), os.environ.get("TESTS_FORKED_REPLICAS_SITE")]
    added = [folder for folder in added if folder]
    sys.path[:] = [first, *added, *sys.path]
    for number, folder in enumerate(added):
        if (file := Path(folder, "sitecustomize.py")).exists():
            import_file(f"sitecustomize_{number}", file)
    # What the server's modules have found once may be another in this environment.
    tempfile.tempdir = None
    random.seed()
    sys.modules["numpy"].random.seed()
    if option == "-c":
        sys.argv[0], main_module = "-c", ModuleType("__main__")
        sys.modules["__main__"] = main_module
        exec(compile(arguments[0], "<string>", "exec"), vars(main_module))
    elif option:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(arguments[0], run_name="__main__")


def import_file(name: str, file: Path) -> None:
    """Import a file as a module of another name."""
    spec = importlib.util.spec_from_file_location(name, file)
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


def output(number: int, errors: str) -> TextIO:
    """Open a standard output as Python does. Those of the server may be of another kind of file."""
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    raw, lines = FileIO(number, "wb", closefd=False), number == 2 or os.isatty(number)
    return TextIOWrapper(
        raw if unbuffered else BufferedWriter(raw), "utf-8", errors, line_buffering=lines, write_through=unbuffered
    )


def end_quickly(codes: Sequence[int]) -> None:
    """End a fork with its exit code, without the second in which Python deletes the modules of TensorFlow."""
    if codes:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(codes[0])


def main() -> None:
    """Serve, and run a program in each forked process."""
    codes: list[int] = []
    # The first exit function runs last, after the threads have ended.
    atexit.register(end_quickly, codes)
    listener = socket.socket(fileno=int(sys.argv[1]))
    import_frameworks(sys.argv[3:])
    gc.freeze()  # A fork need not search what has been imported for garbage.
    if request := Server(listener, int(sys.argv[2])).next_request():
        try:
            run(*request)
        except SystemExit as end:
            codes.append(int(bool(end.code)) if end.code is None or isinstance(end.code, str) else end.code & 0xFF)
            raise
        except BaseException:
            codes.append(1)
            raise
        codes.append(0)


if __name__ == "__main__":
    main()
