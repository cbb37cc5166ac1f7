"""The defects of PyTorch for which workarounds/torch_internals.py exists, in the PyTorch of the image."""

import os
import subprocess

import pytest
from environments import trainer_python
from process_hygiene import started

from kfp_distributed.trainers.runtime.workarounds.torch_internals import TORCHRUN as VARIABLES

pytestmark = [pytest.mark.takes(40), pytest.mark.of_libraries]

# The destructor of the reducer of DistributedDataParallel destroys the process group and holds the interpreter lock.
# The operation ends only when the other rank joins it, which needs the lock.
PROGRAM = """
import sys, threading, time
from datetime import timedelta
import torch
import torch.distributed as dist
from kfp_distributed.trainers.runtime.workarounds.torch_internals import never_destroy

store, groups = dist.HashStore(), {}

def start(function):
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread

def join(rank):
    groups[rank] = dist.ProcessGroupGloo(store, rank, 2, timedelta(minutes=5))

threads = [start(lambda rank=rank: join(rank)) for rank in range(2)]
[thread.join() for thread in threads]
if sys.argv[1] == "kept":
    never_destroy(groups[0])
reducers = [dist.Reducer([torch.ones(1, requires_grad=True)], [[0]], [1 << 20], groups[0])]
groups.pop(0).allreduce([torch.ones(1)])

def reduce():
    time.sleep(1)  # By then, the destructor waits for the operation.
    groups[1].allreduce([torch.ones(1)]).wait()
    print("reduced", flush=True)

thread = start(reduce)
print("destroying", flush=True)
reducers.clear()
thread.join()
"""


@pytest.fixture
def run(library_archive):
    def run_one(*arguments, **environment):
        return subprocess.run(
            [trainer_python("pytorch"), *arguments],
            env={**os.environ, "PYTHONPATH": str(library_archive), **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run_one


def test_a_process_group_that_is_destroyed_by_its_reducer_never_ends(library_archive):
    command = [trainer_python("pytorch"), "-c", PROGRAM, "destroyed"]
    environment = {**os.environ, "PYTHONPATH": str(library_archive)}
    with started(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == "destroying\n"
        # The other rank sends its part after one second. A group that is kept ends then.
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(15)
        process.kill()
        assert process.stdout.read() == ""


def test_a_process_group_that_is_never_destroyed(run):
    assert run("-c", PROGRAM, "kept").stdout == "destroying\nreduced\n"


TORCHRUN = ("-m", "torch.distributed.run", "--nproc_per_node=2", "--no_python", "true")


def test_torchrun_fails_without_redirected_output(run):
    result = run(*TORCHRUN)
    assert result.returncode == 1
    assert "'NoneType' object has no attribute 'get'" in result.stderr


def test_torchrun_with_redirected_output(run, tmp_path):
    assert run(*TORCHRUN, **VARIABLES | {"PET_LOG_DIR": str(tmp_path)}).returncode == 0
