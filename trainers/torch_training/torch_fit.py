"""The training that the PyTorch trainers share, whatever averages their gradients."""

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, cycle, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from kfp_distributed.storage.dataset import DatasetManifest, Label, parts_of_rank, read_batches, width
from kfp_distributed.trainers.epochs.best_epoch import choose_epoch
from kfp_distributed.trainers.epochs.divergence import end_if_diverged
from kfp_distributed.trainers.epochs.epoch_follower import EpochFollower
from kfp_distributed.trainers.epochs.position import Position, plan_of_rows
from kfp_distributed.trainers.programs.training_parameters import TrainingParameters
from kfp_distributed.trainers.resumed_network import has_epochs_left, keep_scales
from kfp_distributed.trainers.runtime.checkpoints.folder_uploads import flush
from kfp_distributed.trainers.runtime.data_loading.epoch_steps import (
    Step,
    number_of_epochs,
    read_manifest,
    steps_of_epoch,
)
from kfp_distributed.trainers.runtime.data_loading.row_feed import RowFeed, open_rows
from kfp_distributed.trainers.runtime.data_loading.row_order import order_of_rows
from kfp_distributed.trainers.runtime.data_loading.row_stream import batches as batches_of
from kfp_distributed.trainers.runtime.data_loading.target import metrics_of, scale_labels
from kfp_distributed.trainers.runtime.job_description import REPLICA_VARIABLE, STORE_SECONDS, TRAINING_METRICS
from kfp_distributed.trainers.runtime.lifecycle.termination import EndedEarly, is_ending
from kfp_distributed.trainers.runtime.monitoring.sampling import count_rows
from kfp_distributed.trainers.runtime.outputs.epoch_metrics import record_epoch
from kfp_distributed.trainers.torch_training.torch_network import Network, export_onnx
from kfp_distributed.trainers.torch_training.torch_resume import TorchFollower, restore, save_checkpoint

_ROWS_SECONDS = 240.0
"""Seconds for which a rank waits for rows while the object store is away. Its peers give up after five minutes
(`torch_classifier`). With less than that, the rank ends that has seen the cause."""


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


class Folders(NamedTuple):
    """Local folders of a training: of the datasets, the model, the checkpoints and training.json."""

    train_dir: str
    validation_dir: str
    model_dir: str
    checkpoint_dir: str
    metrics_dir: str


@dataclass(frozen=True)
class Training:
    """Settings of a training.

    Attributes:
        folders: The folders of the trainer.
        manifest: Manifest of the training dataset.
        parameters: The parameters of the trainer.
        epochs: Number of the last epoch.
        learning_rate: Learning rate of the optimizer.
    """

    folders: Folders
    manifest: DatasetManifest
    parameters: TrainingParameters
    epochs: int
    learning_rate: float

    def plan(self, ranks: int) -> str:
        """Return what decides which rows come in which step: the rows, and how they are divided and ordered."""
        order = order_of_rows(width(self.manifest))
        return plan_of_rows(self.manifest, self.parameters.batch_size, ranks, self.parameters.seed, order=order)


def train_network(
    folders: Folders,
    parameters: TrainingParameters,
    checkpoint: dict[str, Any],
    ranks: Ranks,
    distribute_network: Callable[[Network], nn.Module],
    distribute_optimizer: Callable[[Network, torch.optim.Optimizer], torch.optim.Optimizer] = lambda _, plain: plain,
) -> None:
    """Train a network on all ranks together. Rank 0 saves it as ONNX.

    Args:
        folders: The folders.
        parameters: The parameters.
        checkpoint: Result of `load_checkpoint` in rank 0, also in the others.
        ranks: This rank.
        distribute_network: Returns what trains a network, whose gradients are averaged over all ranks. From then on all
            ranks have the weights of rank 0.
        distribute_optimizer: The same for its optimizer, before the checkpoint is restored. Default: the optimizer.
    """
    manifest = keep_scales(checkpoint.get("data", ""), read_manifest(folders.train_dir), ranks.rank == 0)
    epochs = number_of_epochs(parameters.epochs, manifest.rows, parameters.batch_size)
    choice = choose_epoch(parameters, manifest.label.task, bool(folders.validation_dir))
    torch.manual_seed(parameters.seed)
    network, rate = Network(manifest, parameters.hidden_units).to(ranks.device), parameters.rate(ranks.size)
    optimizer = distribute_optimizer(network, torch.optim.Adam(network.parameters(), rate))
    position = restore(checkpoint, network, optimizer, ranks.rank == 0)
    model = distribute_network(network)
    saved, weights = checkpoint.get("best", ""), checkpoint.get("best_weights") or None
    best: TorchFollower = EpochFollower(choice, saved, weights, position.epoch, ranks.rank == 0)
    training = Training(folders, manifest, parameters, epochs, rate)
    if has_epochs_left(position.epoch, epochs, ranks.rank == 0) and not best.has_ended:
        train_epochs(training, network, model, optimizer, ranks, position, best)
    if ranks.rank == 0:
        weights = best.choose_model(Path(folders.metrics_dir, TRAINING_METRICS), epochs)
        if weights is not None:
            network.load_state_dict({**weights, **dict(network.named_buffers())})
        export_onnx(network.cpu(), manifest, Path(folders.model_dir, "model.onnx"))


def train_epochs(
    training: Training,
    network: Network,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    ranks: Ranks,
    position: Position,
    best: TorchFollower,
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
        best: Follower of the epochs. That of rank 0 decides when all ranks end.

    Raises:
        SystemExit: The training has diverged, or a replica must end soon.
    """
    plan, label = training.plan(ranks.size), training.manifest.label

    def end_if_asked(epoch: int, step: int, metrics: Mapping[str, float] = MappingProxyType({})) -> None:
        if is_ending():
            save_checkpoint(
                training.folders.checkpoint_dir, network, optimizer, Position(epoch - 1, step, plan, metrics), best
            )
            flush()
            print(f"saved a checkpoint in epoch {epoch} after step {step}", flush=True)
            raise EndedEarly

    def finish(epoch: _Epoch, metrics: dict[str, float]) -> None:
        end_if_diverged(f"epoch {epoch.number}", metrics["loss"], has_finite_weights(network), training.learning_rate)
        end = partial(end_if_asked, epoch.number, len(epoch.steps), dict(metrics))
        metrics |= _score(network, training.folders.validation_dir, ranks, label, end)
        if ranks.rank == 0:
            best.end_epoch(epoch.number, metrics, lambda: _copy_weights(network))
            save_checkpoint(training.folders.checkpoint_dir, network, optimizer, Position(epoch.number), best)
            replica = os.environ.get(REPLICA_VARIABLE, "worker-0")
            record_epoch(
                Path(training.folders.metrics_dir, TRAINING_METRICS), replica, epoch.number, training.epochs, metrics
            )

    with _open_epochs(training, ranks, position) as epochs:
        for epoch in epochs:
            if position.metrics and epoch.first:
                metrics = dict(position.metrics)
            else:
                metrics = _train_epoch(model, optimizer, ranks, epoch, label, partial(end_if_asked, epoch.number))
            finish(epoch, metrics)
            if best.choice.patience and _is_true_in_rank_0(ranks, best.has_ended):
                break


def _copy_weights(network: Network) -> dict[str, Tensor]:
    return {name: weight.detach().cpu().clone() for name, weight in network.named_parameters()}


def _is_true_in_rank_0(ranks: Ranks, value: bool) -> bool:
    """Return in all ranks the value of rank 0. The metrics of the others may differ by rounding."""
    total = torch.tensor([float(value and ranks.rank == 0)], device=ranks.device)
    ranks.add(total)
    return bool(total.item())


class _Epoch(NamedTuple):
    """An epoch of this rank.

    Attributes:
        number: Its number, from 1.
        steps: All of its steps.
        first: Number of steps that are finished.
        batches: Records of the other steps, [rows of the step in this rank, width + 2].
    """

    number: int
    steps: Sequence[Step]
    first: int
    batches: Iterator[NDArray[np.float32]]

    def remaining(self) -> Iterator[tuple[int, NDArray[np.float32], int]]:
        """Yield the number of each remaining step, from 1, its records, and the number of its rows over all ranks."""
        for number, (step, records) in enumerate(
            zip(self.steps[self.first :], self.batches, strict=True), self.first + 1
        ):
            count_rows(len(records))
            yield number, records, step.rows


@contextmanager
def _open_epochs(training: Training, ranks: Ranks, position: Position) -> Iterator[Iterator[_Epoch]]:
    """Open the remaining epochs.

    Each row comes once in an epoch, in one rank. All ranks have the same number of steps, so that none waits for a rank
    that has finished. A rank may have an empty batch in the last step. The order of the rows depends on the seed, the
    epoch and the number of ranks.
    """
    manifest = training.manifest
    parts = parts_of_rank(manifest, ranks.rank, ranks.size)
    steps = steps_of_epoch(manifest.rows, training.parameters.batch_size, ranks.size, ranks.rank)
    first_step, where = position.resume(training.plan(ranks.size), len(steps))
    name, rows = f"rank {ranks.rank} of {ranks.size} on {ranks.device}", sum(part.rows for part in parts)
    print(f"{name} has {rows} rows and {where}", flush=True)
    wait_seconds = _ROWS_SECONDS if ranks.size > 1 else STORE_SECONDS
    numbers = range(position.epoch + 1, training.epochs + 1)
    with (
        open_rows(
            training.folders.train_dir,
            manifest,
            parts,
            training.parameters.seed,
            training.parameters.class_weights,
            wait_seconds=wait_seconds,
        ) as feed,
        # A training that ends early does not read all epochs.
        closing(_read_epochs(feed, steps, numbers, first_step)) as epochs,
    ):
        yield epochs


def _read_epochs(feed: RowFeed, steps: Sequence[Step], epochs: range, first_step: int) -> Generator[_Epoch, None, None]:
    """Yield epochs. One iterator of the stream reads them all, so that an epoch begins without a pause."""
    skipped = steps[first_step].part.start if first_step < len(steps) else feed.stream.rows
    sizes = [step.part.stop - step.part.start for step in steps]
    windows = feed.windows(epochs.start - 1, skipped, len(epochs))
    with closing(batches_of(windows, chain(sizes[first_step:], cycle(sizes)))) as batches:
        for number in epochs:
            yield _Epoch(number, steps, first_step, islice(batches, len(steps) - first_step))
            first_step = 0


def _train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    ranks: Ranks,
    epoch: _Epoch,
    label: Label,
    after_step: Callable[[int], object],
) -> dict[str, float]:
    """Train the remaining steps of an epoch; return their metrics over all ranks."""
    totals = torch.zeros(3, dtype=torch.double, device=ranks.device)
    for number, records, rows_of_step in epoch.remaining():
        values = torch.from_numpy(records).to(ranks.device)
        labels, weights, outputs = values[:, -2], values[:, -1], model(values[:, :-2])
        loss = (_losses(outputs, labels, label) * weights).sum()
        optimizer.zero_grad()
        # Gradients are averaged over the ranks. With this factor, a row counts as in one process with all rows.
        (loss * (ranks.size / rows_of_step)).backward()
        optimizer.step()
        totals += _totals(loss, outputs, labels)
        if number < len(epoch.steps):  # After the last step, the metrics of the epoch are known first.
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
