"""The trainer `torch_classifier`: a PyTorch network for classes, trained by all ranks of a job together."""

import ctypes
import os
from collections.abc import Iterator, Sequence
from inspect import signature
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from kfp_distributed.storage.dataset import DatasetManifest, input_shape, read_batches, slices_of_rank
from kfp_distributed.storage.files import unfinished_file
from kfp_distributed.trainers.feed import (
    categories,
    map_records,
    read_manifest,
    scaling,
    steps_of_epoch,
    write_records,
)
from kfp_distributed.trainers.job import REPLICA_VARIABLE, TRAINING_METRICS
from kfp_distributed.trainers.sync import record_epoch


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
    """
    if min(epochs, batch_size, learning_rate, *hidden_units) <= 0:
        raise ValueError(f"{epochs=}, {batch_size=}, {learning_rate=}, {hidden_units=}: each must be more than 0")
    torch.manual_seed(seed)
    manifest, file = read_manifest(train_dir), Path(checkpoint_dir, "checkpoint.pt")
    device = _join()
    network = Network(manifest, hidden_units).to(device)
    optimizer = torch.optim.Adam(network.parameters(), learning_rate)
    done = _restore(file, network, optimizer)
    # All weights are rank 0's from here on.
    model = DistributedDataParallel(network)
    rank, world = dist.get_rank(), dist.get_world_size()
    write_records(Path(train_dir), manifest, slices_of_rank(manifest, rank, world))
    records = map_records(manifest)
    print(f"rank {rank} of {world} on {device} has {len(records)} rows and goes on after epoch {done}", flush=True)
    steps = steps_of_epoch(manifest.rows, batch_size, world, rank)
    for epoch in range(done + 1, epochs + 1):
        order = np.random.default_rng((seed, rank, epoch)).permutation(len(records))
        batches = ((records[order[step.part]], step.rows) for step in steps)
        metrics = _train(model, optimizer, batches, device)
        if validation_dir:
            metrics |= {f"val_{name}": value for name, value in _score(network, Path(validation_dir), device).items()}
        if rank == 0:
            with unfinished_file(file) as stream:
                state = {"epoch": epoch, "network": network.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, stream)
            replica = os.environ.get(REPLICA_VARIABLE, "worker-0")
            record_epoch(Path(metrics_dir, TRAINING_METRICS), replica, epoch, epochs, metrics)
    if rank == 0:
        export_onnx(network.cpu(), manifest, Path(model_dir, "model.onnx"))


class Network(nn.Module):  # type: ignore[misc]  # torch is not there when types are checked
    """From raw inputs, float32 [n, width] as `read_batches` yields them, to a logit for each class.

    What the inputs need happens inside: numbers are scaled with the manifest's mean and standard deviation, a missing
    one counts as the mean, categories are embedded.
    """

    def __init__(self, manifest: DatasetManifest, hidden_units: Sequence[int]) -> None:
        super().__init__()
        for name, values in zip(("mean", "std", "scale"), scaling(manifest), strict=True):
            self.register_buffer(name, torch.tensor(values))
        kinds = categories(manifest)
        self.places = list(kinds)
        self.embeddings = nn.ModuleList(nn.Embedding(count, min(count, 16)) for count in kinds.values())
        sizes = [len(self.mean) + sum(each.embedding_dim for each in self.embeddings), *hidden_units]
        hidden = [layer for size in zip(sizes, hidden_units, strict=False) for layer in (nn.Linear(*size), nn.ReLU())]
        self.layers = nn.Sequential(*hidden, nn.Linear(sizes[-1], len(manifest.label.classes)))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits [n, classes]."""
        scaled = (inputs - self.mean) / self.std * self.scale
        parts = [torch.where(torch.isnan(scaled), torch.zeros_like(scaled), scaled)]
        parts += [embed(inputs[:, place].long()) for place, embed in zip(self.places, self.embeddings, strict=True)]
        return self.layers(torch.cat(parts, 1))


def _join() -> torch.device:
    """Join the other ranks, and return the device of this one."""
    on_gpu, local_rank = torch.cuda.is_available(), int(os.environ.get("LOCAL_RANK", 0))
    if on_gpu:
        torch.cuda.set_device(local_rank)
    alone = {} if "WORLD_SIZE" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("nccl" if on_gpu else "gloo", **alone)
    # It outlives the process: gloo's destructor waits for a thread, which may be waiting for Python's lock that the
    # destructor holds (PyTorch 1.13).
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))
    return torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")


def _restore(file: Path, network: Network, optimizer: torch.optim.Optimizer) -> int:
    """Load what rank 0 has of a checkpoint into all ranks; return how many epochs it has."""
    is_there = dist.get_rank() == 0 and file.exists()
    found = [torch.load(file, map_location="cpu") if is_there else {}]
    dist.broadcast_object_list(found)
    if not found[0]:
        return 0
    network.load_state_dict(found[0]["network"])
    optimizer.load_state_dict(found[0]["optimizer"])
    return int(found[0]["epoch"])


def _train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterator[tuple[NDArray[np.float32], int]],
    device: torch.device,
) -> dict[str, float]:
    """Train on an epoch's batches; return the mean loss and the accuracy over all ranks."""
    totals = torch.zeros(3, dtype=torch.double, device=device)
    for records, rows_of_step in batches:
        values = torch.from_numpy(records).to(device)
        labels = values[:, -2].long()
        found = model(values[:, :-2])
        loss = cross_entropy(found, labels, reduction="sum")
        optimizer.zero_grad()
        # Gradients are averaged over the ranks: so each row counts as in a step of one process with all rows.
        (loss * (dist.get_world_size() / rows_of_step)).backward()
        optimizer.step()
        totals += _totals(loss, found, labels)
    return _means(totals)


def _score(network: Network, folder: Path, device: torch.device) -> dict[str, float]:
    """Return the mean loss and the accuracy over a dataset, of which each rank takes a part."""
    manifest, totals = read_manifest(str(folder)), torch.zeros(3, dtype=torch.double, device=device)
    part = slices_of_rank(manifest, dist.get_rank(), dist.get_world_size())
    with torch.no_grad():
        for inputs, classes in read_batches(folder, manifest, part):
            labels = torch.tensor(classes, device=device).long()
            found = network(torch.from_numpy(inputs).to(device))
            totals += _totals(cross_entropy(found, labels, reduction="sum"), found, labels)
    return _means(totals)


def _totals(loss: Tensor, found: Tensor, labels: Tensor) -> Tensor:
    right = (found.argmax(1) == labels).sum()
    return torch.stack([loss.detach(), right, torch.full_like(right, len(labels))])


def _means(totals: Tensor) -> dict[str, float]:
    dist.all_reduce(totals)
    loss, right, rows = totals.tolist()
    return {"loss": loss / rows, "accuracy": right / rows} if rows else {}


def export_onnx(network: Network, manifest: DatasetManifest, file: Path) -> None:
    """Write a model from "features" float32 [n, *input_shape] to "probabilities" float32 [n, classes]."""
    serve = nn.Sequential(nn.Flatten(), network, nn.Softmax(1)).eval()
    # Later versions have another exporter, which needs further packages.
    exporter = {"dynamo": False} if "dynamo" in signature(torch.onnx.export).parameters else {}
    torch.onnx.export(
        serve,
        torch.zeros(1, *input_shape(manifest)),
        str(file),
        input_names=["features"],
        output_names=["probabilities"],
        dynamic_axes={"features": {0: "n"}, "probabilities": {0: "n"}},
        opset_version=13,
        **exporter,
    )
