"""The trainer `torch_classifier`: a PyTorch network for classes, trained by all ranks of a job together."""

import ctypes
import os
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from kfp_distributed.trainers.divergence import end_if_diverged
from kfp_distributed.trainers.runtime.feed import read_manifest
from kfp_distributed.trainers.torch_fit import (
    Ranks,
    batches_of_epochs,
    has_finite_weights,
    keep_epoch,
    load_checkpoint,
    restore,
    score,
    train_epoch,
)
from kfp_distributed.trainers.torch_network import Network, export_onnx

_LONGEST_WAIT = timedelta(minutes=5)
"""For the other ranks in one exchange: rank 0 stores a checkpoint meanwhile, and may try for four minutes to reach a
store that does not answer. Gloo by itself would wait for half an hour, also for a peer whose machine is gone, or whose
end it has missed, as it may where one dies in the middle of an exchange (Debian's, for PyTorch 1.13: one in fifty)."""


def torch_classifier(
    train_dir: str,
    validation_dir: str,
    model_dir: str,
    checkpoint_dir: str,
    metrics_dir: str,
    epochs: int = 10,
    batch_size: int = 32,
    learning_rate: float = 1e-3,
    hidden_units: list[int] = [128],  # noqa: B006 - a literal, so that the signature says it
    seed: int = 0,
    scale_learning_rate: bool = False,
) -> None:
    """Train a fully connected network and save it as ONNX.

    With RANK and WORLD_SIZE it is one of several processes that average their gradients, by nccl where there are GPUs,
    else by gloo; without them it is alone. Goes on after the last epoch that rank 0 has in checkpoint_dir.

    Args:
        train_dir: The training dataset's manifest and the shards of this process.
        validation_dir: The validation dataset; "" where there is none.
        model_dir: Gets model.onnx, of rank 0.
        checkpoint_dir: Gets a checkpoint after each epoch, of rank 0.
        metrics_dir: Gets training.json, of rank 0.
        epochs: How often all rows are seen.
        batch_size: Rows of one update of the weights, over all processes.
        learning_rate: Of the Adam optimizer.
        hidden_units: Sizes of the hidden layers.
        seed: For the first weights and the order of the rows.
        scale_learning_rate: Whether to multiply learning_rate by the number of processes.
    """
    torch.manual_seed(seed)
    manifest, (device, group) = read_manifest(train_dir), _join()
    network = Network(manifest, hidden_units).to(device)
    ranks = Ranks(dist.get_rank(), dist.get_world_size(), device, partial(dist.all_reduce, group=group))
    rate = learning_rate * (ranks.size if scale_learning_rate else 1)
    optimizer = torch.optim.Adam(network.parameters(), rate)
    checkpoint = [{} if ranks.rank else load_checkpoint(checkpoint_dir)]
    dist.broadcast_object_list(checkpoint, group=group)
    done = restore(checkpoint[0], network, optimizer)
    # All weights are rank 0's from here on; the buffers never change.
    model = DistributedDataParallel(network, process_group=group, broadcast_buffers=False)
    rest = range(done + 1, epochs + 1)
    for epoch, batches in batches_of_epochs(train_dir, manifest, ranks, batch_size, seed, rest):
        metrics = train_epoch(model, optimizer, ranks, batches)
        end_if_diverged(epoch, metrics["loss"], has_finite_weights(network), rate)
        metrics |= score(network, validation_dir, ranks)
        if ranks.rank == 0:
            keep_epoch(checkpoint_dir, metrics_dir, network, optimizer, epoch, epochs, metrics)
    if ranks.rank == 0:
        export_onnx(network.cpu(), manifest, Path(model_dir, "model.onnx"))


def _join() -> tuple[torch.device, dist.ProcessGroup]:
    """Join the other ranks; return the device of this one, and what it exchanges with them through."""
    on_gpu, local_rank = torch.cuda.is_available(), int(os.environ.get("LOCAL_RANK", 0))
    if on_gpu:
        torch.cuda.set_device(local_rank)
    alone = {} if "WORLD_SIZE" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("nccl" if on_gpu else "gloo", **alone)
    # A group of its own: to come the others may take longer.
    group = dist.new_group(timeout=_LONGEST_WAIT)
    for each in (dist.group.WORLD, group):
        # It outlives the process: gloo's destructor waits for a thread, which may be waiting for Python's lock that the
        # destructor holds (PyTorch 1.13).
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))
    return torch.device("cuda", local_rank) if on_gpu else torch.device("cpu"), group
