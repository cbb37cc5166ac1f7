"""Train a network whose layers are on two replicas, which exchange activations and gradients.

This is model parallelism with plain PyTorch, to start a program of your own from. Pass
`train_specification(two_stage_classifier)` to `train`, with a master and a worker:
`{"distribution_type": "PyTorch", "number_of_workers": 1}`.
"""


def two_stage_classifier(
    train_dir: str,
    validation_dir: str,
    model_dir: str,
    checkpoint_dir: str,
    metrics_dir: str,
    epochs: int = 10,
    batch_size: int = 64,
    micro_batches: int = 4,
    learning_rate: float = 1e-3,
    hidden_units: list[int] = [128, 64],  # noqa: B006 - the step reads literal defaults from the signature
    first_stage_layers: int = 1,
    seed: int = 0,
) -> None:
    """Train a fully connected network in two stages, and save it as ONNX.

    Rank 0 has all inputs and the first layers. Rank 1 has all labels and the other layers. In each step rank 0 sends
    the activations of each micro-batch, and then rank 1 sends their gradients back. Training resumes after the last
    epoch in rank 0's checkpoint_dir.

    Args:
        train_dir: Training rows of this rank. Rank 0 needs the inputs of rank 1, and rank 1 the labels of rank 0.
        validation_dir: Validation dataset, which may be empty; "" for none.
        model_dir: Folder for model.onnx, in rank 0.
        checkpoint_dir: Folder for epoch-NUMBER/stage-0.pt and stage-1.pt, in rank 0.
        metrics_dir: Folder for training.json, in rank 0.
        epochs: Number of passes over the rows.
        batch_size: Rows of one update.
        micro_batches: Number of parts of a batch. More parts keep both ranks busy.
        learning_rate: Learning rate of Adam in each stage.
        hidden_units: Sizes of the hidden layers of both stages.
        first_stage_layers: Number of hidden layers in rank 0.
        seed: Seed of the initial weights and of the order of the rows.
    """
    import ctypes
    import itertools
    import os
    import shutil
    from collections.abc import Iterator
    from datetime import timedelta
    from pathlib import Path

    import numpy as np
    import torch
    import torch.distributed as dist
    from torch import Tensor, nn
    from torch.nn.functional import cross_entropy

    from kfp_distributed.storage.dataset import DatasetManifest, mean_and_std, read_batches, width
    from kfp_distributed.trainers.sync import record_epoch
    from kfp_distributed.trainers.torch_export import export_onnx

    # A rank that waits longer for the other one fails, and both restart. The other one may also start this much later.
    dist.init_process_group("gloo", timeout=timedelta(minutes=10))
    # Keeps the process group alive until exit: Gloo's destructor can deadlock on the GIL (PyTorch 1.13).
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    if dist.get_world_size() != 2:
        raise ValueError(f"{dist.get_world_size()} ranks; allowed: 2. Set number_of_workers to 1")
    if not 0 < first_stage_layers <= len(hidden_units):
        raise ValueError(f"{first_stage_layers=}; allowed: 1 to {len(hidden_units)}, the number of hidden_units")

    def manifest_of(folder: str) -> DatasetManifest:
        return DatasetManifest.from_json(Path(folder, "dataset.json").read_text())

    manifest = manifest_of(train_dir)
    has_validation = bool(validation_dir and manifest_of(validation_dir).rows)
    zeros = torch.zeros(3, dtype=torch.double)  # Sum of losses, correct rows, rows.
    cut = hidden_units[first_stage_layers - 1]

    class Scaling(nn.Module):  # type: ignore[misc]  # torch is not installed when types are checked
        """Flatten a row and scale it by mean and standard deviation. A missing number becomes the mean."""

        def __init__(self) -> None:
            super().__init__()
            for name, values in zip(("mean", "std"), mean_and_std(manifest), strict=True):
                self.register_buffer(name, torch.tensor(values))

        def forward(self, inputs: Tensor) -> Tensor:
            scaled = (inputs.flatten(1) - self.mean) / self.std
            return torch.where(torch.isnan(scaled), torch.zeros_like(scaled), scaled)

    def make_stage(number: int) -> nn.Sequential:
        """Return the layers of one stage. The seed makes the initial weights the same in both ranks."""
        torch.manual_seed(seed + number)
        sizes = (
            hidden_units[first_stage_layers - 1 :] if number else [width(manifest), *hidden_units[:first_stage_layers]]
        )
        layers: list[nn.Module] = [] if number else [Scaling()]
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        if number:
            layers.append(nn.Linear(sizes[-1], len(manifest.label.classes)))
        return nn.Sequential(*layers)

    def read(folder: str) -> tuple[Tensor, Tensor]:
        """Return the inputs and the labels of a dataset."""
        batches = read_batches(Path(folder), manifest_of(folder))
        inputs, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
        return torch.from_numpy(inputs), torch.from_numpy(labels).long()

    def swap_rows() -> Tensor:
        """Return the inputs of all rows in rank 0, and the labels of all rows in rank 1, in the same order."""
        inputs, labels = read(train_dir)
        rows = [torch.zeros(1, dtype=torch.long) for _ in range(2)]
        dist.all_gather(rows, torch.tensor([len(labels)]))
        to_send, own = (labels, inputs) if rank == 0 else (inputs, labels)
        received = torch.empty(int(rows[other]), *own.shape[1:], dtype=own.dtype)
        request = dist.isend(to_send, other)
        dist.recv(received, other)
        request.wait()
        return torch.cat([own, received] if rank == 0 else [received, own])

    def run_step(batch: Tensor, train: bool) -> Tensor:
        """Run a batch forward and, in training, backward with one update; return loss, correct rows and rows.

        All micro-batches go forward first, then all gradients come back.
        """
        parts, rows = batch.tensor_split(min(micro_batches, len(batch))), len(batch)
        totals, requests, results = zeros.clone(), [], []
        for part in parts:
            if rank == 0:
                results.append(stage(part))
                requests.append((message := results[-1].detach(), dist.isend(message, other)))
                continue
            activations = torch.empty(len(part), cut)
            dist.recv(activations, other)
            logits = stage(activations.requires_grad_(train))
            loss = cross_entropy(logits, part, reduction="sum")
            results.append((loss / rows, activations))
            totals += torch.stack([loss.detach(), (logits.argmax(1) == part).sum(), torch.tensor(len(part))])
        for result in results if train else []:
            if rank == 0:
                gradient = torch.empty_like(result)
                dist.recv(gradient, other)
                result.backward(gradient)
            else:
                loss, activations = result
                loss.backward()
                requests.append((activations.grad, dist.isend(activations.grad, other)))
        for _, request in requests:
            request.wait()
        if train:
            optimizer.step()
            optimizer.zero_grad()
        return totals

    def batches_of(rows: Tensor, order: Tensor) -> Iterator[Tensor]:
        return (rows[part] for part in order.split(batch_size))

    def measure(totals: Tensor) -> dict[str, float]:
        """Return the mean loss and the accuracy, which rank 1 sends to rank 0."""
        dist.broadcast(totals, 1)
        loss, correct, rows = totals.tolist()
        return {"loss": loss / rows, "accuracy": correct / rows} if rows else {}

    def move_file(file: Path, source: int) -> None:
        """Copy a file from one rank to the other in pieces of 1 MiB, so that no rank holds both stages in memory."""
        length = torch.tensor([file.stat().st_size if rank == source else 0])
        dist.broadcast(length, source)
        with file.open("rb" if rank == source else "wb") as stream:
            for start in range(0, int(length), 2**20):
                size = min(2**20, int(length) - start)
                if rank == source:
                    dist.send(torch.frombuffer(bytearray(stream.read(size)), dtype=torch.uint8), other)
                else:
                    chunk = torch.empty(size, dtype=torch.uint8)
                    dist.recv(chunk, other)
                    stream.write(chunk.numpy().tobytes())

    def save(epoch: int) -> None:
        """Save both stages to rank 0's checkpoint_dir, atomically."""
        fresh = Path("fresh")
        fresh.mkdir(exist_ok=True)
        # Leaves out the optimizer's settings: torch 1.13 cannot load floats with weights_only.
        state = {"network": stage.state_dict(), "optimizer_state": optimizer.state_dict()["state"]}
        torch.save(state, fresh / f"stage-{rank}.pt")
        move_file(fresh / "stage-1.pt", source=1)
        if rank == 0:
            previous = list(Path(checkpoint_dir).iterdir())
            fresh.rename(Path(checkpoint_dir, f"epoch-{epoch:06d}"))
            for folder in previous:
                shutil.rmtree(folder)

    def restore() -> int:
        """Load rank 0's newest checkpoint, and return its epoch; 0 for none."""
        checkpoints = sorted(Path(checkpoint_dir).glob("epoch-*")) if rank == 0 else []
        epoch = torch.tensor([int(checkpoints[-1].name[6:]) if checkpoints else 0])
        dist.broadcast(epoch, 0)
        if epoch:
            folder = checkpoints[-1] if checkpoints else Path()
            move_file(folder / "stage-1.pt", source=0)
            state = torch.load(folder / f"stage-{rank}.pt", weights_only=True)
            stage.load_state_dict(state["network"])
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state["optimizer_state"]})
        return int(epoch)

    def export() -> None:
        """Save the model from "features" to "probabilities". Only now rank 0 has both stages in memory."""
        second = make_stage(1)
        state = torch.load(Path(checkpoint_dir, f"epoch-{epochs:06d}", "stage-1.pt"), weights_only=True)
        second.load_state_dict(state["network"])
        export_onnx(nn.Sequential(stage, second), manifest, Path(model_dir, "model.onnx"))

    stage = make_stage(rank)
    optimizer = torch.optim.Adam(stage.parameters(), learning_rate)
    last_epoch, rows = restore(), swap_rows()
    parameters = sum(tensor.numel() for tensor in stage.parameters())
    print(f"stage {rank} of 2 has {parameters} parameters and {len(rows)} {('inputs', 'labels')[rank]}", flush=True)
    for epoch in range(last_epoch + 1, epochs + 1):
        # The order is the same in both ranks.
        order = torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(len(rows)))
        metrics = measure(sum((run_step(batch, train=True) for batch in batches_of(rows, order)), zeros))
        if has_validation:
            scored = read(validation_dir)[rank]
            with torch.no_grad():
                batches = batches_of(scored, torch.arange(len(scored)))
                totals = sum((run_step(batch, train=False) for batch in batches), zeros)
            metrics |= {f"val_{name}": value for name, value in measure(totals).items()}
        save(epoch)
        if rank == 0:
            replica = os.environ.get("KFP_DISTRIBUTED_REPLICA", "master-0")
            record_epoch(Path(metrics_dir, "training.json"), replica, epoch, epochs, metrics)
    if rank == 0:
        export()
