"""Ends a replica: at SIGTERM, when its step or launcher is lost, or with its command."""

import os
import signal
import subprocess
import threading
import traceback
from typing import NoReturn

from kfp_distributed.trainers.runtime import sync
from kfp_distributed.trainers.runtime.launcher import CHILD_SECONDS
from kfp_distributed.trainers.runtime.sampling import store_peak_memory

_children: list[subprocess.Popen[bytes]] = []
_ending = threading.Lock()
"""Held from SIGTERM on. A command that ends after that does not determine the exit code."""


def end_on_sigterm() -> None:
    """End the process with 143 at SIGTERM, also while the main thread runs C++ code of TensorFlow.

    Python runs signal handlers in the main thread between two bytecodes, which may take forever. Therefore a thread
    waits for the byte that the C handler writes. A command receives the signal, and this process ends after it.
    """
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.set_wakeup_fd(writable)

    def wait() -> None:
        while os.read(readable, 1)[0] != signal.SIGTERM:
            pass
        end(128 + signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def end(code: int) -> NoReturn:
    """End the command of this replica, and then the replica."""
    _ending.acquire()
    for child in _children:
        child.terminate()
        try:
            child.wait(CHILD_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
    try:
        # A restart resumes from the files that were complete by now.
        sync.flush(at_rest=True)
        store_peak_memory()
    except Exception:  # noqa: BLE001 - the replica must end, even if no thread can be started
        traceback.print_exc()
    os._exit(code)


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
