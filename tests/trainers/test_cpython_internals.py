"""The reason for workarounds/cpython_internals.py: Python runs exit functions only after all threads."""

import atexit
import subprocess
import sys
import threading

import pytest

pytestmark = pytest.mark.of_libraries

PROGRAM = """
import atexit, os, sys, threading, time
from kfp_distributed.trainers.runtime.workarounds.cpython_internals import run_exit_functions

atexit.register(lambda: print("exit function", flush=True))
threading.Thread(target=time.sleep, args=(1000,)).start()
print("end", flush=True)
if sys.argv[1] == "early":
    threading.Timer(0.5, lambda: (run_exit_functions(), os._exit(0))).start()
"""


def start(when):
    return subprocess.Popen([sys.executable, "-c", PROGRAM, when], stdout=subprocess.PIPE, text=True)


def test_exit_functions_wait_for_threads():
    with start("late") as process:
        try:
            assert process.stdout.readline() == "end\n"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(3)
        finally:
            process.kill()
        assert process.stdout.read() == ""


def test_exit_functions_run_despite_a_thread():
    with start("early") as process:
        assert process.communicate(timeout=120)[0] == "end\nexit function\n"
        assert process.returncode == 0


def test_python_has_no_public_function_for_it():
    assert [name for name in dir(atexit) if not name.startswith("_")] == ["register", "unregister"]
    event = threading.Event()
    thread = threading.Thread(target=event.wait)
    thread.start()
    try:
        with pytest.raises(RuntimeError, match="daemon status of active thread"):
            thread.daemon = True
    finally:
        event.set()
        thread.join()
