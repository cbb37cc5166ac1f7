"""What our PyTorch trainers have in common: the epochs of one of several ranks, and the checkpoint between them."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from kfp_distributed.storage.dataset import DatasetManifest, read_batches, slices_of_rank
from kfp_distributed.storage.files import unfinished_file
from kfp_distributed.trainers.runtime.feed import map_records, read_manifest, steps_of_epoch, write_records
from kfp_distributed.trainers.runtime.job import REPLICA_VARIABLE, TRAINING_METRICS
from kfp_distributed.trainers.runtime.sampling import count_rows
from kfp_distributed.trainers.runtime.sync import record_epoch
from kfp_distributed.trainers.torch_network import Network

_CHECKPOINT = "checkpoint.pt"


class Ranks(NamedTuple):
    """The processes that train together, as one of them sees them.

    Attributes:
        rank: Its number.
        size: How many there are.
        device: The device of this one.
        add: Makes a tensor the sum of what it is in all ranks.
    """

    rank: int
    size: int
    device: torch.device
    add: Callable[[Tensor], object]


def load_checkpoint(folder: str) -> dict[str, Any]:
    """Return the checkpoint that `keep_epoch` has left in a folder; {} where there is none.

    `weights_only` lets the file make tensors and plain values, and run no code.
    """
    file = Path(folder, _CHECKPOINT)
    found: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True) if file.exists() else {}
    return found


def restore(checkpoint: dict[str, Any], network: Network, optimizer: torch.optim.Optimizer) -> int:
    """Put a checkpoint into a network and its optimizer; return how many epochs it has."""
    if not checkpoint:
        return 0
    network.load_state_dict(checkpoint["network"])
    optimizer.load_state_dict({**optimizer.state_dict(), "state": checkpoint["optimizer_state"]})
    return int(checkpoint["epoch"])


def keep_epoch(
    checkpoint_dir: str,
    metrics_dir: str,
    network: Network,
    optimizer: torch.optim.Optimizer,
    epoch: int,
    epochs: int,
    metrics: dict[str, float],
) -> None:
    """Keep what an epoch has come to: for rank 0 alone."""
    with unfinished_file(Path(checkpoint_dir, _CHECKPOINT)) as stream:
        # Without the optimizer's settings: torch 1.13 reads no float with weights_only, and they are parameters anyway.
        optimizer_state = optimizer.state_dict()["state"]
        torch.save({"epoch": epoch, "network": network.state_dict(), "optimizer_state": optimizer_state}, stream)
    replica = os.environ.get(REPLICA_VARIABLE, "worker-0")
    record_epoch(Path(metrics_dir, TRAINING_METRICS), replica, epoch, epochs, metrics)


def batches_of_epochs(
    train_dir: str, manifest: DatasetManifest, ranks: Ranks, batch_size: int, seed: int, epochs: range
) -> Iterator[tuple[int, Iterator[tuple[NDArray[np.float32], int]]]]:
    """Yield each epoch with its batches: records of this rank, and the rows of the step over all ranks.

    Each row comes once in an epoch, in one rank. All ranks have the same number of steps, so none waits for another
    in vain; one that has fewer rows than there are steps has empty batches.
    """
    write_records(Path(train_dir), manifest, slices_of_rank(manifest, ranks.rank, ranks.size))
    records, place = map_records(manifest), f"rank {ranks.rank} of {ranks.size} on {ranks.device}"
    print(f"{place} has {len(records)} rows and goes on after epoch {epochs.start - 1}", flush=True)
    steps = steps_of_epoch(manifest.rows, batch_size, ranks.size, ranks.rank)
    for epoch in epochs:
        order = np.random.default_rng((seed, ranks.rank, epoch)).permutation(len(records))
        yield epoch, ((_counted(records[order[step.part]]), step.rows) for step in steps)


def _counted(records: NDArray[np.float32]) -> NDArray[np.float32]:
    count_rows(len(records))
    return records


def train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    ranks: Ranks,
    batches: Iterator[tuple[NDArray[np.float32], int]],
) -> dict[str, float]:
    """Train on an epoch's batches; return the mean loss and the accuracy over all ranks."""
    totals = torch.zeros(3, dtype=torch.double, device=ranks.device)
    for records, rows_of_step in batches:
        values = torch.from_numpy(records).to(ranks.device)
        labels = values[:, -2].long()
        found = model(values[:, :-2])
        loss = cross_entropy(found, labels, reduction="sum")
        optimizer.zero_grad()
        # Gradients are averaged over the ranks: so each row counts as in a step of one process with all rows.
        (loss * (ranks.size / rows_of_step)).backward()
        optimizer.step()
        totals += _totals(loss, found, labels)
    return _means(totals, ranks)


def has_finite_weights(network: Network) -> bool:
    """Return whether no weight of a network is NaN or infinite."""
    return all(bool(torch.isfinite(weights).all()) for weights in network.parameters())


def score(network: Network, folder: str, ranks: Ranks) -> dict[str, float]:
    """Return val_loss and val_accuracy over a dataset, of which each rank takes a part; nothing where folder is ""."""
    if not folder:
        return {}
    manifest, totals = read_manifest(folder), torch.zeros(3, dtype=torch.double, device=ranks.device)
    with torch.no_grad():
        for inputs, classes in read_batches(Path(folder), manifest, slices_of_rank(manifest, ranks.rank, ranks.size)):
            labels = torch.tensor(classes, device=ranks.device).long()
            found = network(torch.from_numpy(inputs).to(ranks.device))
            totals += _totals(cross_entropy(found, labels, reduction="sum"), found, labels)
    return {f"val_{name}": value for name, value in _means(totals, ranks).items()}


def _totals(loss: Tensor, found: Tensor, labels: Tensor) -> Tensor:
    right = (found.argmax(1) == labels).sum()
    return torch.stack([loss.detach(), right, torch.full_like(right, len(labels))])


def _means(totals: Tensor, ranks: Ranks) -> dict[str, float]:
    ranks.add(totals)
    loss, right, rows = totals.tolist()
    return {"loss": loss / rows, "accuracy": right / rows} if rows else {}
