"""Checkpoints of the PyTorch trainers: saves them, and restores a network and its optimizer from them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from kfp_distributed.storage.files import unfinished_file
from kfp_distributed.trainers.epochs.epoch_follower import EpochFollower
from kfp_distributed.trainers.epochs.position import Position
from kfp_distributed.trainers.resumed_network import (
    Architecture,
    architecture,
    end_if_other_data,
    end_if_other_network,
    end_if_other_program,
)
from kfp_distributed.trainers.torch_training.torch_network import Network

_CHECKPOINT = "checkpoint.pt"

TorchFollower: TypeAlias = EpochFollower[dict[str, Tensor]]
"""Follower of the epochs. Weights are those of a network by name, in the memory of the CPU."""


def load_checkpoint(folder: str) -> dict[str, Any]:
    """Return the checkpoint that `save_checkpoint` saved in a folder; {} if the folder is empty.

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


def save_checkpoint(
    folder: str, network: Network, optimizer: torch.optim.Optimizer, position: Position, best: TorchFollower
) -> None:
    """Save a checkpoint, which `load_checkpoint` loads."""
    with unfinished_file(Path(folder, _CHECKPOINT)) as stream:
        # Without the optimizer's settings: torch 1.13 cannot read a float with weights_only, and they are parameters.
        # So metrics are tensors.
        weights = {"network": network.state_dict(), "optimizer_state": optimizer.state_dict()["state"]}
        metrics = {name: torch.tensor(value, dtype=torch.double) for name, value in position.metrics.items()}
        if best.best:
            weights |= {"best": best.best.to_json(), "best_weights": best.weights or {}}
        torch.save({"data": network.data, **weights, **position._asdict(), "metrics": metrics}, stream)
