"""The end of a replica whose program has left threads or processes."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.takes(4)

PROGRAM = """
import atexit, multiprocessing, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from kfp_distributed.trainers.runtime import ending

ending.LEFTOVER_SECONDS = 0.3
atexit.register(lambda: print("exit function", flush=True))

def main():
    forever = {"target": time.sleep, "args": (1000,)}
    for part in sys.argv[1:]:
        if part == "thread":
            threading.Thread(**forever, name="feeder").start()
        elif part == "short-thread":
            threading.Thread(target=time.sleep, args=(0.05,)).start()
        elif part == "pool":
            ThreadPoolExecutor(1, "pool").submit(time.sleep, 1000)
        elif part == "process":
            multiprocessing.Process(**forever, name="loader").start()
        elif part == "daemon":
            multiprocessing.Process(**forever, daemon=True).start()
        elif part == "exit":
            sys.exit("for a reason")
        elif part == "raise":
            raise ValueError("for a reason")
        else:
            return int(part)
    return 0

ending.run_to_end(main)
"""


def leftovers(kind, names):
    return f"the program has ended, but {kind} of it have not within 0.3 s: {names}. They are ended"


@pytest.mark.parametrize(
    ("parts", "lines", "code"),
    [
        ("3", [], 3),
        ("raise", [], 1),
        ("short-thread", [], 0),
        ("daemon", [], 0),
        ("thread", [leftovers("threads", "feeder")], 0),
        ("thread 3", [leftovers("threads", "feeder")], 3),
        ("thread exit", [leftovers("threads", "feeder")], 1),
        ("thread raise", [leftovers("threads", "feeder")], 1),
        ("pool", [leftovers("threads", "pool_0")], 0),
        ("process", [leftovers("processes", "loader")], 0),
        ("thread process 3", [leftovers("threads", "feeder"), leftovers("processes", "loader")], 3),
    ],
)
def test_threads_and_processes_that_outlive_their_program(parts, lines, code):
    argv = [sys.executable, "-c", PROGRAM, *parts.split()]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout.splitlines(), done.returncode) == ([*lines, "exit function"], code)
    assert [line for line in done.stderr.splitlines() if line.endswith("for a reason")] == [
        text for part, text in (("exit", "for a reason"), ("raise", "ValueError: for a reason")) if part in parts
    ]
