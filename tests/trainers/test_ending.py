"""The end of a replica whose program has left threads or processes, and of processes that its program ends."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress

import pytest
from environments import trainer_python
from process_hygiene import started

from kfp_distributed.trainers.runtime.job_description import STORE_FAILED, STORE_UNREACHED

pytestmark = pytest.mark.takes(18)

PROGRAM = """
import atexit, multiprocessing, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from kfp_distributed.trainers.runtime.lifecycle import ending

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


PEER = """
import sys
from kfp_distributed.trainers.runtime.lifecycle import ending

def main():
    ending.end_on_sigterm()
    print("waits", flush=True)
    ending.leave_with(sys.argv[1])
    return 0

ending.run_to_end(main)
"""


@pytest.mark.parametrize(
    "is_told", [False, True], ids=["the leader ends", "SIGTERM, as of the operator of an ended job"]
)
def test_a_peer_that_has_succeeded_leaves_with_its_leader(is_told, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as leader:
        address = f"127.0.0.1:{leader.getsockname()[1]}"
        with started([sys.executable, "-c", PEER, address], stdout=subprocess.PIPE, cwd=tmp_path) as process:
            assert process.stdout.readline() == "waits\n"
            leader.accept()[0].close()
            leader.accept()[0].close()
            assert process.poll() is None
            if is_told:
                process.terminate()
            else:
                leader.close()
            assert process.wait(60) == 0


CHILDREN = """
import asyncio, multiprocessing, os, signal, subprocess, sys, threading, time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from kfp_distributed.trainers.runtime.lifecycle import ending

def write_and_sleep(file):
    os.write(file, b"x")
    time.sleep(1000)

def terminated(start_method):
    process = multiprocessing.get_context(start_method).Process(target=time.sleep, args=(1000,))
    process.start()
    process.terminate()
    process.join()
    return process.exitcode

def of_a_thread():
    codes = []
    thread = threading.Thread(target=lambda: codes.append(terminated("fork")))
    thread.start()
    thread.join()
    return codes[0]

def of_a_pool():
    read, write = os.pipe()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        [pool.apply_async(write_and_sleep, (write,)) for _ in range(2)]
        [os.read(read, 1) for _ in range(2)]
        workers = multiprocessing.active_children()
    [worker.join() for worker in workers]
    return workers[0].exitcode

def of_an_executor():
    executor = ProcessPoolExecutor(1, multiprocessing.get_context("fork"))
    sleeps = executor.submit(time.sleep, 1000)
    [worker] = multiprocessing.active_children()
    worker.terminate()
    try:
        sleeps.result()
    except BrokenProcessPool:
        executor.shutdown()  # Its thread has waited for the worker.
        return worker.exitcode

def of_subprocess():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    child.terminate()
    return child.wait()

def of_a_child_of_a_child():
    child = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(10 - terminated("fork")))
    child.start()
    child.join()
    return 10 - child.exitcode

def none_after_handlers_of_asyncio():
    loop = asyncio.new_event_loop()
    loop.add_signal_handler(signal.SIGUSR1, print)
    loop.remove_signal_handler(signal.SIGUSR1)
    loop.close()
    return 0

def with_its_own_handler():
    signal.signal(signal.SIGTERM, lambda *_: os._exit(5))
    read, write = os.pipe()
    child = multiprocessing.get_context("fork").Process(target=write_and_sleep, args=(write,))
    child.start()
    os.read(read, 1)
    child.terminate()
    child.join()
    return child.exitcode

def of_a_data_loader():
    import torch
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 2
        def __getitem__(self, index):
            if index:
                time.sleep(1000)
            return index
    rows = iter(torch.utils.data.DataLoader(Rows(), num_workers=2, multiprocessing_context="fork"))
    next(rows)
    workers = multiprocessing.active_children()
    workers[1].terminate()
    try:
        next(rows)
    except RuntimeError as error:
        assert "DataLoader worker" in str(error), error
        return workers[1].exitcode

def main():
    ending.end_on_sigterm()
    print(eval(sys.argv[1]), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1000)

ending.run_to_end(main) if __name__ == "__main__" else None
"""


@pytest.mark.parametrize(
    ("child", "code"),
    [
        ("terminated('fork')", -signal.SIGTERM),
        ("terminated('spawn')", -signal.SIGTERM),
        ("of_a_thread()", -signal.SIGTERM),
        ("of_a_pool()", -signal.SIGTERM),
        ("of_an_executor()", -signal.SIGTERM),
        ("of_subprocess()", -signal.SIGTERM),
        ("of_a_child_of_a_child()", -signal.SIGTERM),
        ("of_a_data_loader()", 0),  # PyTorch handles a SIGTERM of the parent so.
        ("with_its_own_handler()", 5),
        ("none_after_handlers_of_asyncio()", 0),
    ],
)
def test_a_child_that_its_program_ends_does_not_end_the_replica(tmp_path, library_archive, child, code):
    """SIGTERM ends the child, as without this library, and only that of the replica itself ends the replica."""
    (tmp_path / "program.py").write_text(CHILDREN)
    python = trainer_python("pytorch") if "loader" in child else sys.executable
    argv = [str(python), str(tmp_path / "program.py"), child]
    output, environment = tmp_path / "output", {**os.environ, "PYTHONPATH": str(library_archive)}
    with (
        output.open("w") as file,
        started(argv, stdout=file, stderr=file, env=environment, cwd=tmp_path, start_new_session=True) as process,
    ):
        try:
            ended = process.wait(120)
        finally:
            with suppress(ProcessLookupError):  # A child that ignores the signal outlives the replica.
                os.killpg(process.pid, signal.SIGKILL)
    own = 5 if "own_handler" in child else 128 + signal.SIGTERM
    assert (output.read_text(), ended) == (f"{int(code)}\n", own)


@pytest.mark.parametrize(
    ("error", "code"),
    [("StoreAway", STORE_UNREACHED), ("StorageError", STORE_FAILED), ("ChecksumMismatch", 1), ("KeyNotFound", 1)],
)
def test_an_error_of_a_thread_ends_the_replica_as_one_of_its_program(tmp_path, error, code):
    program = f"""
from kfp_distributed.storage import errors
from kfp_distributed.trainers.runtime.lifecycle.ending import end_after
end_after(errors.{error}("http://store", "bucket", "part-00002.parquet", "a reason"))
"""
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code
    assert "part-00002.parquet" in done.stderr.splitlines()[-1]
