"""The trainer `torch_horovod`: a PyTorch network for classes, trained by Horovod's all-reduce among ranks of MPI."""

import os
from functools import partial
from pathlib import Path

import horovod.torch as hvd
import torch

from kfp_distributed.trainers.divergence import end_if_diverged
from kfp_distributed.trainers.runtime.cluster import check_size
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


def torch_horovod(
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
    """Train a fully connected network on all ranks together and save it as ONNX.

    Each rank computes the gradients of its own rows, Horovod averages them, and all apply the same. Rank 0 alone
    keeps checkpoints and metrics and saves the model; what it goes on from reaches the others by broadcast.

    Args:
        train_dir: The training dataset's manifest and the shards of this rank.
        validation_dir: The validation dataset; "" where there is none.
        model_dir: Gets model.onnx, of rank 0.
        checkpoint_dir: Gets a checkpoint after each epoch, of rank 0.
        metrics_dir: Gets training.json, of rank 0.
        epochs: How often all rows are seen.
        batch_size: Rows of one update of the weights, over all ranks.
        learning_rate: Of the Adam optimizer.
        hidden_units: Sizes of the hidden layers.
        seed: For the first weights and the order of the rows.
        scale_learning_rate: Whether to multiply learning_rate by the number of ranks.
    """
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    check_size(os.environ, size)
    torch.manual_seed(seed)
    manifest, device = read_manifest(train_dir), _device()
    network = Network(manifest, hidden_units).to(device)
    rate = learning_rate * (size if scale_learning_rate else 1)
    adam = torch.optim.Adam(network.parameters(), rate)
    optimizer = hvd.DistributedOptimizer(adam, network.named_parameters())
    rest = range(_resume(checkpoint_dir, network, optimizer) + 1, epochs + 1)
    ranks = Ranks(rank, size, device, partial(hvd.allreduce_, op=hvd.Sum))
    # These are the rows of this rank alone: a DistributedSampler would take a part of them once more.
    for epoch, batches in batches_of_epochs(train_dir, manifest, ranks, batch_size, seed, rest):
        metrics = train_epoch(network, optimizer, ranks, batches)
        end_if_diverged(epoch, metrics["loss"], has_finite_weights(network), rate)
        metrics |= score(network, validation_dir, ranks)
        if rank == 0:
            keep_epoch(checkpoint_dir, metrics_dir, network, optimizer, epoch, epochs, metrics)
    if rank == 0:
        export_onnx(network.cpu(), manifest, Path(model_dir, "model.onnx"))


def _device() -> torch.device:
    """The GPU of this rank, one for each rank of a worker, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _resume(folder: str, network: Network, optimizer: torch.optim.Optimizer) -> int:
    """Make all ranks what rank 0 is, with its checkpoint where there is one; return how many epochs that has."""
    done = restore({} if hvd.rank() else load_checkpoint(folder), network, optimizer)
    done = int(hvd.broadcast_object(done))
    hvd.broadcast_parameters(network.state_dict(), 0)
    if done:  # Of an optimizer that has no state yet it would count a step.
        hvd.broadcast_optimizer_state(optimizer, 0)
    return done
