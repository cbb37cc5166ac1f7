"""Functions that the PyTorch trainers share: the epochs of a rank, and checkpoints."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from kfp_distributed.storage.dataset import DatasetManifest, Label, parts_of_rank, read_batches
from kfp_distributed.storage.files import unfinished_file
from kfp_distributed.trainers.architecture import (
    Architecture,
    architecture,
    end_if_other_data,
    end_if_other_network,
    end_if_other_program,
)
from kfp_distributed.trainers.divergence import end_if_diverged
from kfp_distributed.trainers.position import Position, plan_of_rows
from kfp_distributed.trainers.runtime.epoch_metrics import record_epoch
from kfp_distributed.trainers.runtime.feed import Step, map_records, read_manifest, steps_of_epoch, write_records
from kfp_distributed.trainers.runtime.folder_uploads import flush
from kfp_distributed.trainers.runtime.job_description import REPLICA_VARIABLE, TRAINING_METRICS
from kfp_distributed.trainers.runtime.sampling import count_rows
from kfp_distributed.trainers.runtime.target import metrics_of, scale_labels
from kfp_distributed.trainers.runtime.termination import EndedEarly, is_ending
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


@dataclass(frozen=True)
class Training:
    """Settings of a training, as the trainers have them.

    Attributes:
        train_dir: Folder of the training dataset.
        validation_dir: Folder of the validation dataset; "" for none.
        checkpoint_dir: Folder of the checkpoint.
        metrics_dir: Folder of training.json.
        manifest: Manifest of the training dataset.
        epochs: Number of the last epoch.
        batch_size: Rows of a step over all ranks. The last step of an epoch has the rest.
        learning_rate: Learning rate of the optimizer.
        seed: Seed of the order of the rows.
        class_weights: See `weights_of_classes`.
    """

    train_dir: str
    validation_dir: str
    checkpoint_dir: str
    metrics_dir: str
    manifest: DatasetManifest
    epochs: int
    batch_size: int
    learning_rate: float
    seed: int
    class_weights: str

    def plan(self, ranks: int) -> str:
        """Return what decides which rows come in which step: the rows, and how they are divided and ordered."""
        return plan_of_rows(self.manifest, self.batch_size, ranks, self.seed)


def load_checkpoint(folder: str) -> dict[str, Any]:
    """Return the checkpoint that `train_epochs` saved in a folder; {} if the folder is empty.

    With `weights_only`, the file can contain tensors and plain values, but no code. If the folder has only files of
    another program, the result is their names, {"files": [...]}, which `restore` refuses on all ranks.
    """
    file = Path(folder, _CHECKPOINT)
    if not file.exists():
        files = sorted(path.name for path in Path(folder).glob("*"))
        return {"files": files} if files else {}
    checkpoint: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return checkpoint


def restore(checkpoint: dict[str, Any], network: Network, optimizer: torch.optim.Optimizer, leads: bool) -> Position:
    """Load a checkpoint into a network and its optimizer. Every rank calls it with the same checkpoint.

    The mean and standard deviation, with which the network scales numbers, remain those of the training dataset.

    Args:
        checkpoint: Result of `load_checkpoint`.
        network: Network to restore.
        optimizer: Its optimizer.
        leads: Whether this rank prints how the data of the checkpoint differs.

    Returns:
        Where the training continues.

    Raises:
        SystemExit: The checkpoint is of another network, of other columns or classes, or of another program.
    """
    if not checkpoint:
        return Position()
    end_if_other_program(checkpoint.get("files", []))
    saved = checkpoint.get("network", {})
    end_if_other_network(_architecture(saved), _architecture(network.state_dict()))
    if (line := end_if_other_data(checkpoint.get("data", ""), network.data)) and leads:
        print(line, flush=True)
    network.load_state_dict({**saved, **dict(network.named_buffers())})
    optimizer.load_state_dict({**optimizer.state_dict(), "state": checkpoint["optimizer_state"]})
    metrics = {name: float(value) for name, value in checkpoint.get("metrics", {}).items()}
    return Position(int(checkpoint["epoch"]), checkpoint.get("step", 0), checkpoint.get("plan", ""), metrics)


def _architecture(weights: Mapping[str, Tensor]) -> Architecture | None:
    shapes = {name: tuple(weight.shape) for name, weight in weights.items() if name.endswith(".weight")}
    embeddings = [shape for name, shape in shapes.items() if name.startswith("embeddings.")]
    return architecture(embeddings, [shape[::-1] for name, shape in shapes.items() if name.startswith("layers.")])


def train_epochs(
    training: Training,
    network: Network,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    ranks: Ranks,
    position: Position,
) -> None:
    """Train the remaining epochs. Rank 0 saves a checkpoint and the metrics of each epoch.

    If a replica must end soon, rank 0 saves a checkpoint after the current step and ends.

    Args:
        training: Settings.
        network: Network that is saved and scored.
        model: The network as it is trained, for example inside DistributedDataParallel.
        optimizer: Optimizer of the network.
        ranks: This rank.
        position: Where the training continues.

    Raises:
        SystemExit: The training has diverged, or a replica must end soon.
    """
    plan, label = training.plan(ranks.size), training.manifest.label

    def end_if_asked(epoch: int, step: int, metrics: Mapping[str, float] = MappingProxyType({})) -> None:
        if is_ending():
            _save(training.checkpoint_dir, network, optimizer, Position(epoch - 1, step, plan, metrics))
            flush()
            print(f"saved a checkpoint in epoch {epoch} after step {step}", flush=True)
            raise EndedEarly

    for epoch, first_step, batches in _batches_of_epochs(training, ranks, position):
        if position.metrics and first_step:
            metrics, position = dict(position.metrics), Position()
        else:
            metrics = _train_epoch(model, optimizer, ranks, batches, label, partial(end_if_asked, epoch))
        end_if_diverged(epoch, metrics["loss"], has_finite_weights(network), training.learning_rate)
        trained = dict(metrics)
        metrics |= _score(
            network, training.validation_dir, ranks, label, partial(end_if_asked, epoch, len(batches.steps), trained)
        )
        if ranks.rank == 0:
            _save(training.checkpoint_dir, network, optimizer, Position(epoch))
            replica = os.environ.get(REPLICA_VARIABLE, "worker-0")
            record_epoch(Path(training.metrics_dir, TRAINING_METRICS), replica, epoch, training.epochs, metrics)


def _save(folder: str, network: Network, optimizer: torch.optim.Optimizer, position: Position) -> None:
    with unfinished_file(Path(folder, _CHECKPOINT)) as stream:
        # Without the optimizer's settings: torch 1.13 cannot read a float with weights_only, and they are parameters.
        # So metrics are tensors.
        weights = {"network": network.state_dict(), "optimizer_state": optimizer.state_dict()["state"]}
        metrics = {name: torch.tensor(value, dtype=torch.double) for name, value in position.metrics.items()}
        torch.save({"data": network.data, **weights, **position._asdict(), "metrics": metrics}, stream)


def _batches_of_epochs(training: Training, ranks: Ranks, position: Position) -> Iterator[tuple[int, int, "_Batches"]]:
    """Yield each remaining epoch, the number of its steps that are finished, and the batches of all its steps.

    Each row comes once in an epoch, in one rank. All ranks have the same number of steps, so that none waits for a rank
    that has finished. A rank may have an empty batch in the last step. The order of the rows depends on the seed, the
    rank and the epoch.
    """
    manifest = training.manifest
    parts = parts_of_rank(manifest, ranks.rank, ranks.size)
    write_records(Path(training.train_dir), manifest, parts, class_weights=training.class_weights)
    records, name = map_records(manifest), f"rank {ranks.rank} of {ranks.size} on {ranks.device}"
    steps = steps_of_epoch(manifest.rows, training.batch_size, ranks.size, ranks.rank)
    first_step, where = position.resume(training.plan(ranks.size), len(steps))
    print(f"{name} has {len(records)} rows and {where}", flush=True)
    for epoch in range(position.epoch + 1, training.epochs + 1):
        order = np.random.default_rng((training.seed, ranks.rank, epoch)).permutation(len(records))
        yield epoch, first_step, _Batches(records, order, steps, first_step)
        first_step = 0


class _Batches(NamedTuple):
    """The batches of an epoch for this rank.

    Attributes:
        records: All records of the rank.
        order: Their order in this epoch.
        steps: All steps of an epoch.
        first: Number of steps that are finished.
    """

    records: NDArray[np.float32]
    order: NDArray[np.int64]
    steps: Sequence[Step]
    first: int

    def remaining(self) -> Iterator[tuple[int, NDArray[np.float32], int]]:
        """Yield the number of each remaining step, from 1, its records, and the number of its rows over all ranks."""
        for number, step in enumerate(self.steps[self.first :], self.first + 1):
            records = self.records[self.order[step.part]]
            count_rows(len(records))
            yield number, records, step.rows


def _train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    ranks: Ranks,
    batches: _Batches,
    label: Label,
    after_step: Callable[[int], object],
) -> dict[str, float]:
    """Train the remaining steps of an epoch; return their metrics over all ranks."""
    totals = torch.zeros(3, dtype=torch.double, device=ranks.device)
    for number, records, rows_of_step in batches.remaining():
        values = torch.from_numpy(records).to(ranks.device)
        labels, weights, outputs = values[:, -2], values[:, -1], model(values[:, :-2])
        loss = (_losses(outputs, labels, label) * weights).sum()
        optimizer.zero_grad()
        # Gradients are averaged over the ranks. With this factor, a row counts as in one process with all rows.
        (loss * (ranks.size / rows_of_step)).backward()
        optimizer.step()
        totals += _totals(loss, outputs, labels)
        if number < len(batches.steps):  # After the last step, the metrics of the epoch are known first.
            after_step(number)
    return _means(totals, ranks, label)


def has_finite_weights(network: Network) -> bool:
    """Return whether no weight of a network is NaN or infinite."""
    return all(bool(torch.isfinite(weights).all()) for weights in network.parameters())


def _score(
    network: Network, folder: str, ranks: Ranks, label: Label, after_batch: Callable[[], object]
) -> dict[str, float]:
    """Return val_loss, and val_accuracy or val_rmse, over a dataset. Each rank scores a part of it.

    Args:
        network: Network to score.
        folder: Folder of the dataset. If it is "", the result is {}.
        ranks: This rank.
        label: Label of the training dataset.
        after_batch: Callback after each batch.
    """
    if not folder:
        return {}
    manifest, totals = read_manifest(folder), torch.zeros(3, dtype=torch.double, device=ranks.device)
    with torch.no_grad():
        for inputs, values in read_batches(Path(folder), manifest, parts_of_rank(manifest, ranks.rank, ranks.size)):
            labels = torch.tensor(scale_labels(values, label), device=ranks.device)
            outputs = network(torch.from_numpy(inputs).to(ranks.device))
            totals += _totals(_losses(outputs, labels, label).sum(), outputs, labels)
            after_batch()
    return {f"val_{name}": value for name, value in _means(totals, ranks, label).items()}


def _losses(outputs: Tensor, labels: Tensor, label: Label) -> Tensor:
    """Return the loss of each row: the squared error of a number, or the cross entropy of a class."""
    if label.task == "regression":
        return (outputs[:, 0] - labels) ** 2
    return cross_entropy(outputs, labels.long(), reduction="none")


def _totals(loss: Tensor, outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the loss, the number of correct predictions of a class, and the number of rows of a batch."""
    correct = (outputs.argmax(1) == labels).sum()
    return torch.stack([loss.detach(), correct, torch.full_like(correct, len(labels))])


def _means(totals: Tensor, ranks: Ranks, label: Label) -> dict[str, float]:
    ranks.add(totals)
    loss, correct, rows = totals.tolist()
    return metrics_of(loss / rows, correct / rows, label) if rows else {}
