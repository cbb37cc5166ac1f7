"""A network whose layers live on two replicas: each rank has only its own, and trains with the other by messages.

Model parallelism with PyTorch alone, as a start for a program of your own: `train_specification(two_stage_classifier)`
sends this one function to a PyTorch job with `"number_of_workers": 1`, that is a master and a worker.
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
    hidden_units: list[int] = [128, 64],  # noqa: B006 - a literal, so that the signature says it
    first_stage_layers: int = 1,
    seed: int = 0,
) -> None:
    """Train a fully connected network in two stages, and save it as ONNX.

    Rank 0 has all inputs and the first layers, rank 1 all labels and the other layers. In each step rank 0 sends the
    activations of one micro-batch after the other, and rank 1 then sends their gradients back. Rank 0 goes on after
    the last epoch that it has in checkpoint_dir.

    Args:
        train_dir: The training rows of this rank: each sends the other what that one has to know of them.
        validation_dir: The validation dataset; "" where there is none. It may have no rows.
        model_dir: Gets model.onnx, of rank 0.
        checkpoint_dir: Gets epoch-NUMBER/stage-0.pt and stage-1.pt, of rank 0.
        metrics_dir: Gets training.json, of rank 0.
        epochs: How often all rows are seen.
        batch_size: Rows of one update of the weights.
        micro_batches: Into how many parts a batch is cut, so that both ranks have something to do.
        learning_rate: Of the Adam optimizer of each stage.
        hidden_units: Sizes of the hidden layers of both stages.
        first_stage_layers: How many of the hidden layers are rank 0's.
        seed: For the first weights and the order of the rows.
    """
    import ctypes
    import itertools
    import math
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

    from kfp_distributed.storage.dataset import DatasetManifest, read_batches, width
    from kfp_distributed.trainers.sync import record_epoch
    from kfp_distributed.trainers.torch_network import export_onnx

    # A rank that hears nothing of the other gives it up then, and both start again. The other may come this much later.
    dist.init_process_group("gloo", timeout=timedelta(minutes=10))
    # It outlives the process: gloo's destructor may wait for ever for Python's lock, which it holds (PyTorch 1.13).
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    if dist.get_world_size() != 2:
        raise ValueError(f"{dist.get_world_size()} ranks, where this needs 2: number_of_workers has to be 1")
    if not 0 < first_stage_layers <= len(hidden_units):
        raise ValueError(f"{first_stage_layers=}; allowed: 1 to {len(hidden_units)}, the number of hidden_units")

    def manifest_of(folder: str) -> DatasetManifest:
        return DatasetManifest.from_json(Path(folder, "dataset.json").read_text())

    manifest = manifest_of(train_dir)
    has_validation = bool(validation_dir and manifest_of(validation_dir).rows)
    zeros = torch.zeros(3, dtype=torch.double)  # Of the loss, the right answers and the rows.
    cut = hidden_units[first_stage_layers - 1]

    class Scaling(nn.Module):  # type: ignore[misc]  # torch is not there when types are checked
        """Flatten a row, and scale it with the manifest's mean and standard deviation; what is missing is the mean."""

        def __init__(self) -> None:
            super().__init__()
            values = np.array([[column.mean, column.std] for column in manifest.columns], np.float32)
            mean, std = np.repeat(values, [math.prod(column.shape) for column in manifest.columns], 0).T
            self.register_buffer("mean", torch.tensor(mean))
            self.register_buffer("std", torch.tensor(std))

        def forward(self, inputs: Tensor) -> Tensor:
            scaled = (inputs.flatten(1) - self.mean) / self.std
            return torch.where(torch.isnan(scaled), torch.zeros_like(scaled), scaled)

    def make_stage(number: int) -> nn.Sequential:
        """Return the layers of one stage, with the same first weights wherever it is made."""
        torch.manual_seed(seed + number)
        sizes = (
            hidden_units[first_stage_layers - 1 :] if number else [width(manifest), *hidden_units[:first_stage_layers]]
        )
        layers: list[nn.Module] = [] if number else [Scaling()]
        for before, after in itertools.pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU()]
        if number:
            layers.append(nn.Linear(sizes[-1], len(manifest.label.classes)))
        return nn.Sequential(*layers)

    def read(folder: str) -> tuple[Tensor, Tensor]:
        """Return the inputs and the labels of a dataset."""
        batches = read_batches(Path(folder), manifest_of(folder))
        inputs, labels = (np.concatenate(part) for part in zip(*batches, strict=True))
        return torch.from_numpy(inputs), torch.from_numpy(labels).long()

    def swap_rows() -> Tensor:
        """Return the inputs of all rows in rank 0, the labels of all rows in rank 1, both in the same order."""
        inputs, labels = read(train_dir)
        rows = [torch.zeros(1, dtype=torch.long) for _ in range(2)]
        dist.all_gather(rows, torch.tensor([len(labels)]))
        given, kept = (labels, inputs) if rank == 0 else (inputs, labels)
        taken = torch.empty(int(rows[other]), *kept.shape[1:], dtype=kept.dtype)
        sending = dist.isend(given, other)
        dist.recv(taken, other)
        sending.wait()
        return torch.cat([kept, taken] if rank == 0 else [taken, kept])

    def run_step(batch: Tensor, train: bool) -> Tensor:
        """Take a batch forward and, in training, backward and through one update; return loss, right ones, rows.

        The pipeline fills and drains: all micro-batches go forward, then all gradients come back.
        """
        parts, rows = batch.tensor_split(min(micro_batches, len(batch))), len(batch)
        totals, sent, done = zeros.clone(), [], []
        for part in parts:
            if rank == 0:
                done.append(stage(part))
                sent.append((message := done[-1].detach(), dist.isend(message, other)))
                continue
            activations = torch.empty(len(part), cut)
            dist.recv(activations, other)
            found = stage(activations.requires_grad_(train))
            loss = cross_entropy(found, part, reduction="sum")
            done.append((loss / rows, activations))
            totals += torch.stack([loss.detach(), (found.argmax(1) == part).sum(), torch.tensor(len(part))])
        for result in done if train else []:
            if rank == 0:
                gradient = torch.empty_like(result)
                dist.recv(gradient, other)
                result.backward(gradient)
            else:
                loss, activations = result
                loss.backward()
                sent.append((activations.grad, dist.isend(activations.grad, other)))
        for _, sending in sent:
            sending.wait()
        if train:
            optimizer.step()
            optimizer.zero_grad()
        return totals

    def batches_of(rows: Tensor, order: Tensor) -> Iterator[Tensor]:
        return (rows[part] for part in order.split(batch_size))

    def measure(totals: Tensor) -> dict[str, float]:
        """Return, in rank 0, the mean loss and the accuracy, which rank 1 knows."""
        dist.broadcast(totals, 1)
        loss, right, rows = totals.tolist()
        return {"loss": loss / rows, "accuracy": right / rows} if rows else {}

    def move_file(file: Path, source: int) -> None:
        """Copy a file from one rank to the other, a megabyte at a time: a stage need not fit beside the other one."""
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
        """Put both stages into rank 0's checkpoint_dir, where they appear at once or not at all."""
        fresh = Path("fresh")
        fresh.mkdir(exist_ok=True)
        # Without the optimizer's settings: torch 1.13 reads no float with weights_only, and they are parameters anyway.
        state = {"network": stage.state_dict(), "optimizer_state": optimizer.state_dict()["state"]}
        torch.save(state, fresh / f"stage-{rank}.pt")
        move_file(fresh / "stage-1.pt", source=1)
        if rank == 0:
            old = list(Path(checkpoint_dir).iterdir())
            fresh.rename(Path(checkpoint_dir, f"epoch-{epoch:06d}"))
            for folder in old:
                shutil.rmtree(folder)

    def restore() -> int:
        """Go on from rank 0's newest checkpoint; return how many epochs it has."""
        kept = sorted(Path(checkpoint_dir).glob("epoch-*")) if rank == 0 else []
        epoch = torch.tensor([int(kept[-1].name[6:]) if kept else 0])
        dist.broadcast(epoch, 0)
        if epoch:
            folder = kept[-1] if kept else Path()
            move_file(folder / "stage-1.pt", source=0)
            state = torch.load(folder / f"stage-{rank}.pt", weights_only=True)
            stage.load_state_dict(state["network"])
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state["optimizer_state"]})
        return int(epoch)

    def export() -> None:
        """Write the model from "features" to "probabilities": the one moment at which rank 0 has both stages."""
        second = make_stage(1)
        state = torch.load(Path(checkpoint_dir, f"epoch-{epochs:06d}", "stage-1.pt"), weights_only=True)
        second.load_state_dict(state["network"])
        export_onnx(nn.Sequential(stage, second), manifest, Path(model_dir, "model.onnx"))

    stage = make_stage(rank)
    optimizer = torch.optim.Adam(stage.parameters(), learning_rate)
    done, rows = restore(), swap_rows()
    parameters = sum(each.numel() for each in stage.parameters())
    print(f"stage {rank} of 2 has {parameters} parameters and {len(rows)} {('inputs', 'labels')[rank]}", flush=True)
    for epoch in range(done + 1, epochs + 1):
        # Both ranks draw the same order.
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
