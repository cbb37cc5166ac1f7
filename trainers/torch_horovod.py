"""The trainer `torch_horovod`: a PyTorch network whose gradients Horovod averages over the ranks of an MPI job."""

import os
from functools import partial
from pathlib import Path
from typing import Literal

import horovod.torch as hvd
import torch

from kfp_distributed.trainers.architecture import has_epochs_left, keep_scales
from kfp_distributed.trainers.best_epoch import choose_epoch
from kfp_distributed.trainers.runtime.cluster import check_size
from kfp_distributed.trainers.runtime.feed import number_of_epochs, read_manifest
from kfp_distributed.trainers.torch_fit import (
    Ranks,
    Training,
    choose_weights,
    follow_checkpoint,
    load_checkpoint,
    restore,
    train_epochs,
)
from kfp_distributed.trainers.torch_network import Network, export_onnx


def torch_horovod(
    train_dir: str,
    validation_dir: str,
    model_dir: str,
    checkpoint_dir: str,
    metrics_dir: str,
    epochs: int | None = None,
    batch_size: int = 32,
    learning_rate: float = 1e-3,
    hidden_units: list[int] = [128],  # noqa: B006 - a literal, so that the signature says it
    seed: int = 0,
    scale_learning_rate: bool = False,
    class_weights: Literal["none", "balanced"] = "none",
    keep: Literal["last", "best"] = "last",
    metric: Literal["", "val_loss", "val_accuracy", "val_rmse", "loss", "accuracy", "rmse"] = "",
    patience: int = 0,
) -> None:
    """Train a fully connected network on all ranks together and save it as ONNX.

    Each rank computes the gradients of its own rows. Horovod averages them, and all ranks apply the average. Only rank
    0 writes checkpoints, metrics and the model. It broadcasts the restored checkpoint to the other ranks.

    Args:
        train_dir: Folder with the manifest of the training dataset and the shards of this rank.
        validation_dir: Folder of the validation dataset; "" for none.
        model_dir: Folder for model.onnx of rank 0.
        checkpoint_dir: Folder for the checkpoints of rank 0, one after each epoch.
        metrics_dir: Folder for training.json of rank 0.
        epochs: Number of passes over all rows, including those of a checkpoint. Default: 10, or as many as 400 updates
            of batch_size rows need, up to 100.
        batch_size: Rows in one update of the weights, over all ranks. The last update of an epoch has the rest.
            Default: 32.
        learning_rate: Learning rate of the Adam optimizer. Default: 0.001.
        hidden_units: Sizes of the hidden layers. Default: [128].
        seed: Seed of the initial weights and of the order of the rows. Default: 0.
        scale_learning_rate: Whether to multiply learning_rate by the number of ranks. Default: false.
        class_weights: Weight of a row in the loss: "none" for 1, or "balanced" for rows / (classes * rows of its
            class), so that all classes count alike. Default: "none".
        keep: Epoch whose weights become the model: "last", or "best" for the best by metric. Default: "last".
        metric: Metric of an epoch by which it is the best, the highest accuracy or the lowest loss or rmse. "" is
            "val_loss". Default: "".
        patience: Number of consecutive epochs without a better metric after which the training ends. 0 trains all
            epochs. Default: 0.
    """
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    check_size(os.environ, size)
    device = _device()
    # All ranks get the checkpoint, so that all end for the same reason if it is refused.
    checkpoint = hvd.broadcast_object({} if rank else load_checkpoint(checkpoint_dir))
    manifest = keep_scales(checkpoint.get("data", ""), read_manifest(train_dir), rank == 0)
    epochs = number_of_epochs(epochs, manifest.rows, batch_size)
    choice = choose_epoch(keep, metric, patience, manifest.label.task, bool(validation_dir))
    torch.manual_seed(seed)
    network = Network(manifest, hidden_units).to(device)
    rate = learning_rate * (size if scale_learning_rate else 1)
    adam = torch.optim.Adam(network.parameters(), rate)
    optimizer = hvd.DistributedOptimizer(adam, network.named_parameters())
    position = restore(checkpoint, network, optimizer, rank == 0)
    hvd.broadcast_parameters(network.state_dict(), 0)
    ranks = Ranks(rank, size, device, partial(hvd.allreduce_, op=hvd.Sum))
    best = follow_checkpoint(checkpoint, choice, position, ranks)
    training = Training(
        train_dir, validation_dir, checkpoint_dir, metrics_dir, manifest, epochs, batch_size, rate, seed, class_weights
    )
    if has_epochs_left(position.epoch, epochs, rank == 0) and not best.has_ended:
        train_epochs(training, network, network, optimizer, ranks, position, best)
    if rank == 0:
        choose_weights(network, best, training)
        export_onnx(network.cpu(), manifest, Path(model_dir, "model.onnx"))


def _device() -> torch.device:
    """Return the GPU of this rank, or the CPU. Each rank of a worker uses a GPU of its own."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device
