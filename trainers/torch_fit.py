"""Functions that the PyTorch trainers share: the epochs of a rank, and checkpoints."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from kfp_distributed.storage.dataset import DatasetManifest, parts_of_rank, read_batches
from kfp_distributed.storage.files import unfinished_file
from kfp_distributed.trainers.architecture import (
    Architecture,
    architecture,
    end_if_other_data,
    end_if_other_network,
    end_if_other_program,
)
from kfp_distributed.trainers.runtime.feed import map_records, read_manifest, steps_of_epoch, write_records
from kfp_distributed.trainers.runtime.job import REPLICA_VARIABLE, TRAINING_METRICS
from kfp_distributed.trainers.runtime.sampling import count_rows
from kfp_distributed.trainers.runtime.sync import record_epoch
from kfp_distributed.trainers.torch_network import Network

_CHECKPOINT = "checkpoint.pt"


class Ranks(NamedTuple):
    """One of the processes that train together.

    Attributes:
        rank: Number of this process, from 0.
        size: Number of processes.
        device: Device of this process.
        add: Sums a tensor over all ranks, in place.
    """

    rank: int
    size: int
    device: torch.device
    add: Callable[[Tensor], object]


def load_checkpoint(folder: str) -> dict[str, Any]:
    """Return the checkpoint that `keep_epoch` saved in a folder; {} if the folder is empty.

    With `weights_only`, the file can contain tensors and plain values, but no code. If the folder has only files of
    another program, the result is their names, {"files": [...]}, which `restore` refuses on all ranks.
    """
    file = Path(folder, _CHECKPOINT)
    if not file.exists():
        files = sorted(path.name for path in Path(folder).glob("*"))
        return {"files": files} if files else {}
    checkpoint: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return checkpoint


def restore(checkpoint: dict[str, Any], network: Network, optimizer: torch.optim.Optimizer, leads: bool) -> int:
    """Load a checkpoint into a network and its optimizer. Every rank calls it with the same checkpoint.

    The mean and standard deviation, with which the network scales numbers, remain those of the training dataset.

    Args:
        checkpoint: Result of `load_checkpoint`.
        network: Network to restore.
        optimizer: Its optimizer.
        leads: Whether this rank prints how the data of the checkpoint differs.

    Returns:
        Number of finished epochs in the checkpoint.

    Raises:
        SystemExit: The checkpoint is of another network, of other columns or classes, or of another program.
    """
    if not checkpoint:
        return 0
    end_if_other_program(checkpoint.get("files", []))
    saved = checkpoint.get("network", {})
    end_if_other_network(_architecture(saved), _architecture(network.state_dict()))
    if (line := end_if_other_data(checkpoint.get("data", ""), network.data)) and leads:
        print(line, flush=True)
    network.load_state_dict({**saved, **dict(network.named_buffers())})
    optimizer.load_state_dict({**optimizer.state_dict(), "state": checkpoint["optimizer_state"]})
    return int(checkpoint["epoch"])


def _architecture(weights: Mapping[str, Tensor]) -> Architecture | None:
    shapes = {name: tuple(weight.shape) for name, weight in weights.items() if name.endswith(".weight")}
    embeddings = [shape for name, shape in shapes.items() if name.startswith("embeddings.")]
    return architecture(embeddings, [shape[::-1] for name, shape in shapes.items() if name.startswith("layers.")])


def keep_epoch(
    checkpoint_dir: str,
    metrics_dir: str,
    network: Network,
    optimizer: torch.optim.Optimizer,
    epoch: int,
    epochs: int,
    metrics: dict[str, float],
) -> None:
    """Save the checkpoint and the metrics of an epoch. Only rank 0 calls it.

    Args:
        checkpoint_dir: Folder of the checkpoint.
        metrics_dir: Folder of training.json.
        network: Network to save.
        optimizer: Optimizer whose state is saved.
        epoch: Number of the epoch, from 1.
        epochs: Number of the last epoch.
        metrics: Metrics of the epoch.
    """
    with unfinished_file(Path(checkpoint_dir, _CHECKPOINT)) as stream:
        # Without the optimizer's settings: torch 1.13 cannot read a float with weights_only, and they are parameters.
        optimizer_state = optimizer.state_dict()["state"]
        weights = {"network": network.state_dict(), "optimizer_state": optimizer_state}
        torch.save({"epoch": epoch, "data": network.data, **weights}, stream)
    replica = os.environ.get(REPLICA_VARIABLE, "worker-0")
    record_epoch(Path(metrics_dir, TRAINING_METRICS), replica, epoch, epochs, metrics)


def batches_of_epochs(
    train_dir: str, manifest: DatasetManifest, ranks: Ranks, batch_size: int, seed: int, epochs: range
) -> Iterator[tuple[int, Iterator[tuple[NDArray[np.float32], int]]]]:
    """Yield each epoch with its batches: the records of this rank, and the number of rows of the step over all ranks.

    Each row comes once in an epoch, in one rank. All ranks have the same number of steps, so that none waits for a rank
    that has finished. A rank may have an empty batch in the last step.

    Args:
        train_dir: Folder of the training dataset.
        manifest: Manifest of this dataset.
        ranks: This rank.
        batch_size: Rows of a step over all ranks. The last step has the rest.
        seed: Seed of the order of the rows.
        epochs: Numbers of the epochs.
    """
    write_records(Path(train_dir), manifest, parts_of_rank(manifest, ranks.rank, ranks.size))
    records, name = map_records(manifest), f"rank {ranks.rank} of {ranks.size} on {ranks.device}"
    print(f"{name} has {len(records)} rows and continues after epoch {epochs.start - 1}", flush=True)
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
    """Train on the batches of an epoch; return the mean loss and the accuracy over all ranks."""
    totals = torch.zeros(3, dtype=torch.double, device=ranks.device)
    for records, rows_of_step in batches:
        values = torch.from_numpy(records).to(ranks.device)
        labels = values[:, -2].long()
        logits = model(values[:, :-2])
        loss = cross_entropy(logits, labels, reduction="sum")
        optimizer.zero_grad()
        # Gradients are averaged over the ranks. With this factor, a row counts as in one process with all rows.
        (loss * (ranks.size / rows_of_step)).backward()
        optimizer.step()
        totals += _totals(loss, logits, labels)
    return _means(totals, ranks)


def has_finite_weights(network: Network) -> bool:
    """Return whether no weight of a network is NaN or infinite."""
    return all(bool(torch.isfinite(weights).all()) for weights in network.parameters())


def score(network: Network, folder: str, ranks: Ranks) -> dict[str, float]:
    """Return val_loss and val_accuracy over a dataset. Each rank scores a part of it.

    Args:
        network: Network to score.
        folder: Folder of the dataset. If it is "", the result is {}.
        ranks: This rank.
    """
    if not folder:
        return {}
    manifest, totals = read_manifest(folder), torch.zeros(3, dtype=torch.double, device=ranks.device)
    with torch.no_grad():
        for inputs, classes in read_batches(Path(folder), manifest, parts_of_rank(manifest, ranks.rank, ranks.size)):
            labels = torch.tensor(classes, device=ranks.device).long()
            logits = network(torch.from_numpy(inputs).to(ranks.device))
            totals += _totals(cross_entropy(logits, labels, reduction="sum"), logits, labels)
    return {f"val_{name}": value for name, value in _means(totals, ranks).items()}


def _totals(loss: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """Return the loss, the number of correct predictions, and the number of rows of a batch."""
    correct = (logits.argmax(1) == labels).sum()
    return torch.stack([loss.detach(), correct, torch.full_like(correct, len(labels))])


def _means(totals: Tensor, ranks: Ranks) -> dict[str, float]:
    ranks.add(totals)
    loss, correct, rows = totals.tolist()
    return {"loss": loss / rows, "accuracy": correct / rows} if rows else {}
