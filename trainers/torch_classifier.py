"""The trainer `torch_classifier`: a PyTorch network trained with DistributedDataParallel."""

import os
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from kfp_distributed.trainers.architecture import has_epochs_left, keep_scales
from kfp_distributed.trainers.best_epoch import choose_epoch
from kfp_distributed.trainers.runtime.feed import number_of_epochs, read_manifest
from kfp_distributed.trainers.runtime.torch_internals import never_destroy
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

_LONGEST_WAIT = timedelta(minutes=5)
"""Timeout of one collective operation. Rank 0 may spend four minutes of it on storing a checkpoint while the object
store does not answer. Gloo's default is half an hour, which it would also wait for a lost machine, or for a peer whose
end it missed because the peer died during an exchange (one in fifty with Debian's PyTorch 1.13)."""


def torch_classifier(
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
    """Train a fully connected network and save it as ONNX.

    With RANK and WORLD_SIZE, several processes average their gradients, over NCCL if there are GPUs, else over Gloo.
    Without them, one process trains. The training continues after the last epoch that rank 0 has in checkpoint_dir.

    Args:
        train_dir: Folder with the manifest of the training dataset and the shards of this process.
        validation_dir: Folder of the validation dataset; "" for none.
        model_dir: Folder for model.onnx of rank 0.
        checkpoint_dir: Folder for the checkpoints of rank 0, one after each epoch.
        metrics_dir: Folder for training.json of rank 0.
        epochs: Number of passes over all rows, including those of a checkpoint. Default: 10, or as many as 400 updates
            of batch_size rows need, up to 100.
        batch_size: Rows in one update of the weights, over all processes. The last update of an epoch has the rest.
            Default: 32.
        learning_rate: Learning rate of the Adam optimizer. Default: 0.001.
        hidden_units: Sizes of the hidden layers. Default: [128].
        seed: Seed of the initial weights and of the order of the rows. Default: 0.
        scale_learning_rate: Whether to multiply learning_rate by the number of processes. Default: false.
        class_weights: Weight of a row in the loss: "none" for 1, or "balanced" for rows / (classes * rows of its
            class), so that all classes count alike. Default: "none".
        keep: Epoch whose weights become the model: "last", or "best" for the best by metric. Default: "last".
        metric: Metric of an epoch by which it is the best, the highest accuracy or the lowest loss or rmse. "" is
            "val_loss". Default: "".
        patience: Number of consecutive epochs without a better metric after which the training ends. 0 trains all
            epochs. Default: 0.
    """
    device, group = _join()
    ranks = Ranks(dist.get_rank(), dist.get_world_size(), device, partial(dist.all_reduce, group=group))
    checkpoint = [{} if ranks.rank else load_checkpoint(checkpoint_dir)]
    dist.broadcast_object_list(checkpoint, group=group)
    manifest = keep_scales(checkpoint[0].get("data", ""), read_manifest(train_dir), ranks.rank == 0)
    epochs = number_of_epochs(epochs, manifest.rows, batch_size)
    choice = choose_epoch(keep, metric, patience, manifest.label.task, bool(validation_dir))
    torch.manual_seed(seed)
    network = Network(manifest, hidden_units).to(device)
    rate = learning_rate * (ranks.size if scale_learning_rate else 1)
    optimizer = torch.optim.Adam(network.parameters(), rate)
    position = restore(checkpoint[0], network, optimizer, ranks.rank == 0)
    best = follow_checkpoint(checkpoint[0], choice, position, ranks)
    # From here on, all ranks have the weights of rank 0. The buffers never change.
    model = DistributedDataParallel(network, process_group=group, broadcast_buffers=False)
    training = Training(
        train_dir, validation_dir, checkpoint_dir, metrics_dir, manifest, epochs, batch_size, rate, seed, class_weights
    )
    if has_epochs_left(position.epoch, epochs, ranks.rank == 0) and not best.has_ended:
        train_epochs(training, network, model, optimizer, ranks, position, best)
    if ranks.rank == 0:
        choose_weights(network, best, training)
        export_onnx(network.cpu(), manifest, Path(model_dir, "model.onnx"))


def _join() -> tuple[torch.device, dist.ProcessGroup]:
    """Join the other ranks; return the device of this rank and the process group for its exchanges."""
    on_gpu, local_rank = torch.cuda.is_available(), int(os.environ.get("LOCAL_RANK", 0))
    if on_gpu:
        torch.cuda.set_device(local_rank)
    alone = {} if "WORLD_SIZE" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("nccl" if on_gpu else "gloo", **alone)
    # A separate group, because the default group has the longer timeout that the start of the other ranks may need.
    group = dist.new_group(timeout=_LONGEST_WAIT)
    for process_group in (dist.group.WORLD, group):
        never_destroy(process_group)
    return torch.device("cuda", local_rank) if on_gpu else torch.device("cpu"), group
