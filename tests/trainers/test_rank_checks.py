"""The GPUs and the network of the ranks of a language model, and how an update is divided among them."""

import os
import re
import subprocess
from functools import partial

import pytest
from environments import environment
from forked_replicas import forked

from kfp_distributed.storage import open_store
from kfp_distributed.trainers.language_training.update_order import update_order
from kfp_distributed.trainers.programs.language_parameters import micro_batches
from kfp_distributed.trainers.runtime.checkpoints.stored_checkpoints import save_checkpoint

pytestmark = pytest.mark.takes(10)

GPUS = """
import os, sys
import torch
from kfp_distributed.storage import open_store
from kfp_distributed.trainers.language_model import language_model
from kfp_distributed.trainers.language_training.rank_checks import check_gpus, check_quantization
from kfp_distributed.trainers.runtime.lifecycle.rejection import RestoredCheckpoint
check_gpus({})
for count, gpus, ranks in ((1, 2, 2), (1, 0, 2), (4, 4, 1)):
    torch.cuda.device_count = lambda: count
    try:
        check_gpus({"KFP_DISTRIBUTED_GPUS": str(gpus), "LOCAL_WORLD_SIZE": str(ranks)})
    except ValueError as error:
        print(error)
torch.cuda.device_count = lambda: 0
for has_gpu in (False, True):
    torch.cuda.is_available = lambda: has_gpu
    try:
        check_quantization()
    except ValueError as error:
        print(error)
torch.cuda.is_available = lambda: False
os.environ["KFP_DISTRIBUTED_GPUS"] = "4"
try:
    language_model(*[sys.argv[1]] * 5, None)
except ValueError as error:
    print(RestoredCheckpoint(*[open_store(sys.argv[1])] * 2, "00000002", stores=True).reject(), error)
"""
ALONE = """
import sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
from kfp_distributed.trainers.language_training.rank_checks import check_ranks
from kfp_distributed.trainers.runtime.lifecycle.fatal_errors import is_lost_peer
from kfp_distributed.trainers.runtime.workarounds.torch_internals import let_cpus_shard
rank = int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
check_ranks(torch.device("cpu"))
print("answered", flush=True)
torch.cpu.Stream.record_event = None  # As in PyTorch 2.7, whose Gloo also adds.
try:
    let_cpus_shard()
except ValueError as error:
    print(error, flush=True)

def fail(*_, **__):
    raise dist.DistBackendError("NCCL communicator was aborted on rank 0")

if rank:
    time.sleep(600)
for seconds in (0.5, 60):
    try:
        check_ranks(torch.device("cpu"), seconds)
    except RuntimeError as error:
        print(is_lost_peer(error), error)
    dist.all_reduce = fail
"""


def test_missing_gpus_and_ranks_that_do_not_answer_are_named(tmp_path, library_archive):
    variables = {**os.environ, "PYTHONPATH": str(library_archive)}
    run = partial(subprocess.Popen, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    program = [*forked(environment("torch2"), "-c", ALONE, tmp_path / "store")]
    with run([*program, "1"]) as other:
        with run([*program, "0"]) as first:
            output, error = first.communicate()
        other.kill()
    first, adds, late, lost = output.splitlines()
    assert first == "answered", error
    assert re.match(
        r'sharding is "fsdp", and PyTorch 2\.6\S* adds gradients on CPUs in place of averaging them: ', adds
    )
    assert late.startswith(
        "False rank 0 of 2 had no answer of all others within 0.5 s over gloo: network policies must"
    )
    assert re.fullmatch("True rank 0 of 2 had no answer of all others .* NCCL communicator was aborted on rank 0", lost)
    store = open_store(str(tmp_path / "checkpoints"))
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "weights").write_text(folder)
        save_checkpoint(store, tmp_path / folder)
    program = forked(environment("torch2"), "-c", GPUS, tmp_path / "checkpoints")
    done = subprocess.run(program, check=False, env=variables, capture_output=True, text=True)
    part, few, idle, no_gpu, no_package, none = done.stdout.splitlines()
    assert no_gpu.startswith('method is "qlora", which needs a GPU with CUDA, and PyTorch finds none: ')
    assert no_package.startswith('method is "qlora", which needs bitsandbytes, and the image has none: ')
    assert part.startswith("worker_gpus is 2, but PyTorch finds 1 GPUs; parts of a GPU, such as gpu_resource of MIG")
    assert few.startswith("slots_per_worker is 2, but PyTorch finds 1 GPUs")
    assert idle == "3 of 4 GPUs are not used, because each rank uses one"
    assert re.match(r"False worker_gpus is 4, but PyTorch finds 0 GPUs; PyTorch .* is built without CUDA: use", none)


@pytest.mark.parametrize(
    ("arguments", "plan"),
    [
        ((32, 0, 1), (8, 4)),
        ((32, 0, 4), (8, 1)),
        ((36, 0, 2), (6, 3)),
        ((14, 0, 2), (7, 1)),
        ((26, 0, 2), (1, 13)),
        ((32, 2, 4), (2, 4)),
    ],
)
def test_how_an_update_is_divided(arguments, plan):
    assert micro_batches(*arguments) == plan


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        ((32, 0, 3), "among 3 ranks; the nearest values are 30 and 33"),
        ((4, 3, 2), "rows at once; the nearest values are 6"),
    ],
)
def test_an_update_that_cannot_be_divided_is_refused(arguments, nearest):
    with pytest.raises(ValueError, match=nearest):
        micro_batches(*arguments)


def test_the_order_of_the_rows_depends_on_seed_and_epoch_and_has_each_row():
    orders = [update_order(10, 4, seed, epoch).tolist() for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    assert len({*map(tuple, orders)}) == 3
    for order in orders:
        assert len(order) == 12
        assert sorted(order[:10]) == [*range(10)]
        assert order[10:] == order[:2]
