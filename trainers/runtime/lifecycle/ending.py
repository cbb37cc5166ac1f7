"""Ends a replica: at SIGTERM, when its step or launcher is lost, with its command, or when its work is done."""

import atexit
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from kfp_distributed.storage.errors import ChecksumMismatch, KeyNotFound, StorageError
from kfp_distributed.trainers.runtime.checkpoints import folder_uploads, sharded_uploads
from kfp_distributed.trainers.runtime.job_description import PREEMPTED, STORE_SECONDS
from kfp_distributed.trainers.runtime.lifecycle.fatal_errors import exit_code, print_error
from kfp_distributed.trainers.runtime.lifecycle.termination import await_leader, grace_seconds
from kfp_distributed.trainers.runtime.monitoring.sampling import store_peak_memory
from kfp_distributed.trainers.runtime.workarounds.cpython_internals import run_exit_functions

LEFTOVER_SECONDS = 10.0
"""Seconds for which threads and child processes may outlive the program. Pools need milliseconds to shut down."""

_FAILED_SECONDS = 5.0
"""Seconds without progress after which a replica that has failed gives up its part of a sharded checkpoint."""

_LEADER_SECONDS = 5.0
"""Seconds without an answer after which the leader has ended: its host is gone."""

_children: list[subprocess.Popen[bytes]] = []
_was_told = threading.Event()
"""Set from SIGTERM on."""

_is_done = threading.Event()
"""Set when the program of this replica has succeeded, and only the end of the leader is awaited."""

_ending = threading.Lock()
"""Held while the process ends after SIGTERM. A command that ends after that does not determine the exit code."""


def end_on_sigterm() -> None:
    """End the process with 143 at SIGTERM, also while the main thread runs C++ code of TensorFlow.

    If the leader of the job saves a checkpoint at such a time, this process ends after it.

    Python runs signal handlers in the main thread between two bytecodes, which may take forever. Therefore a thread
    waits for the byte that the C handler writes. The Python handler writes one too, because an event loop of asyncio
    replaces the file of the C handler. A command receives the signal, and this process ends after it. A fork of this
    process, such as a worker that loads rows, ends at SIGTERM as any process does.
    """
    readable, writable = os.pipe()
    os.set_blocking(writable, False)

    def write_byte(number: int, frame: object) -> None:
        with suppress(BlockingIOError):  # The pipe is full of such bytes.
            os.write(writable, bytes([number]))

    masks = threading.local()

    def block() -> None:
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def restore_defaults() -> None:
        # The program may have set others.
        if signal.getsignal(signal.SIGTERM) is write_byte:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if (current := signal.set_wakeup_fd(-1)) != writable:
            signal.set_wakeup_fd(current)
        unblock()

    signal.signal(signal.SIGTERM, write_byte)
    signal.set_wakeup_fd(writable)
    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=restore_defaults)

    def wait() -> None:
        while os.read(readable, 1)[0] != signal.SIGTERM:
            pass
        _was_told.set()
        await_leader()
        end(0 if _is_done.is_set() else 128 + signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def leave_with(leader: str) -> None:
    """Return when the leader of a TensorFlow cluster has ended. SIGTERM is no failure meanwhile.

    The processes of MultiWorkerMirroredStrategy watch each other until they end. One that saves the model for longer
    than some ten seconds after another one has ended reports that one as crashed, and each that outlives the leader
    reports an error as well.

    Args:
        leader: HOST:PORT at which the leader serves TensorFlow until it ends.
    """
    _is_done.set()
    host, _, port = leader.rpartition(":")
    with suppress(OSError):  # Nobody listens there any more.
        while True:
            socket.create_connection((host, int(port)), _LEADER_SECONDS).close()
            time.sleep(1)


def was_told_to_end() -> bool:
    """Return whether this process has received SIGTERM since `end_on_sigterm`."""
    return _was_told.is_set()


def seconds_to_finish(code: int) -> float:
    """Return for how long a sharded checkpoint that makes no progress delays the end of this replica.

    Args:
        code: Exit code of the replica.
    """
    if code == 0:
        return STORE_SECONDS
    # If the program failed, the ranks that must store their part may have ended.
    return grace_seconds() if code in (PREEMPTED, 128 + signal.SIGTERM) else _FAILED_SECONDS


def end(code: int) -> NoReturn:
    """End the command of this replica, and then the replica."""
    _ending.acquire()
    for child in _children:
        child.terminate()
        try:
            child.wait(grace_seconds())
        except subprocess.TimeoutExpired:
            child.kill()
    try:
        # A restart resumes from the files that were complete by now.
        folder_uploads.flush(by_program=False)
        sharded_uploads.finish(seconds_to_finish(code))
        folder_uploads.delete_snapshots()
        store_peak_memory()
    except Exception:  # noqa: BLE001 - the replica must end, even if no thread can be started
        traceback.print_exc()
    os._exit(code)


def end_after(error: Exception) -> NoReturn:
    """End the replica after an error of a thread, with the exit code and the traceback that its program would have."""
    if isinstance(error, StorageError) and not isinstance(error, KeyNotFound | ChecksumMismatch):
        end(exit_code(error))
    print_error(error)
    end(1)


def run_child(argv: list[str]) -> int:
    """Run the command of this replica; return its exit code, 127 if it cannot be started."""
    try:
        _children.append(subprocess.Popen(argv))
    except OSError as error:
        print(f"the command cannot be started: {error}", flush=True)
        return 127
    code = _children[0].wait()
    with _ending:
        return code if code >= 0 else 128 - code


def run_to_end(main: Callable[[], int]) -> NoReturn:
    """Run the program of this replica and end the process with its exit code, whatever threads it has left.

    Python waits for all threads and child processes of a program. A training whose model is saved must not wait for
    them, nor one that has failed. So the process is ended after `LEFTOVER_SECONDS`. Exit functions, by which Horovod
    and PyTorch leave their peers, run in any case and may take longer: a rank may have to wait until another one has
    saved the model.
    """
    code: int | str | None = 1
    try:
        code = main()
    except SystemExit as error:
        code = error.code
        raise
    except Exception as error:
        if sys.excepthook is not sys.__excepthook__:  # The program prints errors in its own way.
            raise
        print_error(error)
    finally:
        threads_ended = threading.Event()
        # Exit functions run in reverse order, after all threads have ended.
        atexit.register(_end_processes)
        atexit.register(threads_ended.set)
        number = code if isinstance(code, int) else int(code is not None)
        threading.Thread(target=_end_despite_threads, args=(number, threads_ended), daemon=True).start()
    sys.exit(code)


def _end_despite_threads(code: int, threads_ended: threading.Event) -> None:
    if threads_ended.wait(LEFTOVER_SECONDS):
        return
    main = threading.main_thread()
    names = [thread.name for thread in threading.enumerate() if not thread.daemon and thread is not main]
    _print_leftovers("threads", names)
    try:
        run_exit_functions()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _end_processes() -> None:
    """Terminate the processes that the program started with multiprocessing, unless they end by themselves."""
    if multiprocessing := sys.modules.get("multiprocessing"):
        until = time.monotonic() + LEFTOVER_SECONDS
        while (children := multiprocessing.active_children()) and time.monotonic() < until:
            if all(child.daemon for child in children):
                return  # Python terminates them itself.
            time.sleep(0.05)
        _print_leftovers("processes", [child.name for child in children])
        for child in children:
            child.kill()


def _print_leftovers(kind: str, names: list[str]) -> None:
    if names:
        text = f"the program has ended, but {kind} of it have not within {LEFTOVER_SECONDS:g} s: {', '.join(names)}"
        print(f"{text}. They are ended", flush=True)
