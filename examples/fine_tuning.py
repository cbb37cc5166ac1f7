"""Fine-tune a model of Hugging Face transformers with PyTorch's DistributedDataParallel, to classify texts.

Pass `train_specification(fine_tuning, packages=PACKAGES)` to `train`, with a distribution_specification of type
PyTorch. The master trains as well, so one worker makes two ranks:
`{"distribution_type": "PyTorch", "number_of_workers": 1}`.

The model is read from a folder that every replica can read, and nothing is downloaded. On a cluster, this is a folder
of the image, or of a volume: `"volumes": [{"name": "models", "path": "/mnt/models", "read_only": True}]`. There, also
name an image with PyTorch: `train_specification(fine_tuning, packages=PACKAGES,
image="registry.example.com/team/pytorch:TAG")`.

`prepare_data` keeps the texts with `columns={"message": "text"}`. `evaluate` cannot score the model, because its inputs
are texts, and `evaluate` passes numbers. So the function scores the validation dataset after each epoch, and writes the
metrics val_loss and val_accuracy, which the report of `train` shows.

To train on this machine with a tiny model, run `make environments`, `python make_messages_csv.py` and
`~/.cache/kfp-distributed/transformers/bin/python make_tiny_bert.py messages.csv tiny-bert` once, and then
`python fine_tuning.py tiny-bert`.
"""

import sys
from pathlib import Path

from kfp import dsl

from kfp_distributed.components import prepare_data, train
from kfp_distributed.pipelines.local_run import local_run
from kfp_distributed.trainers import train_specification

PACKAGES = ["transformers==4.44.2", "numpy<2"]
"""For PyTorch 1.13, as in images/pytorch. pip installs the packages beside those of the image, with all that they need:
without the second one, NumPy 2 would hide the NumPy of the image, which PyTorch 1.13 needs."""


def fine_tuning(
    train_dir: str,
    validation_dir: str,
    model_dir: str,
    checkpoint_dir: str,
    metrics_dir: str,
    pretrained: str,
    text_column: str,
    epochs: int = 3,
    batch_size: int = 32,
    learning_rate: float = 5e-5,
    weight_decay: float = 0.01,
    max_length: int = 128,
    seed: int = 0,
) -> None:
    """Fine-tune a transformer with a new layer for the classes, and save it with its tokenizer.

    Each rank computes the gradients of its own rows, and DistributedDataParallel averages them. Training resumes after
    the last epoch in checkpoint_dir. Only rank 0 saves checkpoints, metrics and the model. `pipeline("text-
    classification", model=FOLDER)` of transformers loads the model.

    Args:
        train_dir: Training rows of this rank. Each row has a text and a class.
        validation_dir: Validation dataset, which may be empty; "" for none. Each rank scores a part of its rows.
        model_dir: Folder for the model as `save_pretrained` writes it, in rank 0.
        checkpoint_dir: Folder for a checkpoint after each epoch, in rank 0.
        metrics_dir: Folder for training.json, in rank 0.
        pretrained: Folder with config.json, the weights and the tokenizer, as `save_pretrained` writes them.
        text_column: Name of the column with the texts.
        epochs: Number of passes over the rows, including those of a checkpoint.
        batch_size: Rows of one update, over all ranks.
        learning_rate: Learning rate of AdamW in the first update. It falls to 0 in a line until the last one.
        weight_decay: Weight decay of AdamW.
        max_length: Largest number of pieces of a text. The rest of a text is not used.
        seed: Seed of the new layer, of dropout and of the order of the rows.
    """
    import ctypes
    import os
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import timedelta
    from pathlib import Path

    import numpy as np
    import pyarrow.parquet as pq
    import torch
    import torch.distributed as dist
    from torch import Tensor
    from torch.nn.parallel import DistributedDataParallel
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from kfp_distributed.storage.dataset import DatasetManifest
    from kfp_distributed.storage.files import unfinished_file
    from kfp_distributed.trainers.sync import record_epoch

    if not Path(pretrained, "config.json").exists():
        raise ValueError(
            f"{pretrained=} is not a folder with config.json in this replica; save a model there with "
            "save_pretrained, and name the full path of the folder"
        )

    on_gpu, local_rank = torch.cuda.is_available(), int(os.environ.get("LOCAL_RANK", 0))
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    # Without WORLD_SIZE there is one process. A rank that does not answer for ten minutes ends the others.
    alone = {} if "WORLD_SIZE" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(minutes=10), **alone)
    # Keeps the process group alive until exit: Gloo's destructor can deadlock on the GIL (PyTorch 1.13).
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def read(folder: str) -> tuple[list[str], Tensor]:
        """Return the texts of a dataset, and the classes."""
        manifest = DatasetManifest.from_json(Path(folder, "dataset.json").read_text())
        texts: list[str] = []
        labels: list[int] = []
        for shard in manifest.shards:
            table = pq.read_table(Path(folder, shard.path), columns=[text_column, manifest.label.name])
            texts += (text or "" for text in table[text_column].to_pylist())
            labels += table[manifest.label.name].to_pylist()
        return texts, torch.tensor(labels, dtype=torch.long)

    def losses(model: torch.nn.Module, rows: Sequence[int], texts: list[str], labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean loss of some rows, and the sums of loss, correct rows and rows."""
        batch = [texts[row] for row in rows]
        inputs = tokenizer(batch, padding=True, truncation=True, max_length=max_length, return_tensors="pt")
        classes = labels[rows].to(device)
        outputs = model(**inputs.to(device), labels=classes)
        correct = (outputs.logits.argmax(1) == classes).sum()
        sums = torch.stack([outputs.loss.detach() * len(rows), correct, torch.full_like(correct, len(rows))])
        return outputs.loss, sums.double()

    def measure(sums_of_batches: Iterable[Tensor]) -> dict[str, float]:
        """Return the mean loss and the accuracy over the batches of all ranks."""
        sums = sum(sums_of_batches, torch.zeros(3, dtype=torch.double, device=device))
        dist.all_reduce(sums)
        loss, correct, rows = sums.tolist()
        return {"loss": loss / rows, "accuracy": correct / rows} if rows else {}

    def train_epoch(epoch: int) -> Iterator[Tensor]:
        """Train on each row of this rank, and yield the sums of each batch."""
        model.train()
        order = np.random.default_rng((seed, rank, epoch)).permutation(len(labels))
        for step, rows in enumerate(np.array_split(order, int(steps)), (epoch - 1) * int(steps)):
            optimizer.param_groups[0]["lr"] = learning_rate * (1 - step / (epochs * int(steps)))
            loss, sums = losses(model, rows.tolist(), texts, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield sums

    @torch.no_grad()
    def score() -> Iterator[Tensor]:
        """Score each validation row in one of the ranks, and yield the sums of each batch."""
        network.eval()
        own = range(rank, len(scored_texts), ranks)
        for start in range(0, len(own), batch_size):
            yield losses(network, own[start : start + batch_size], scored_texts, scored_labels)[1]

    def save(epoch: int) -> None:
        """Save a checkpoint. A crash leaves the previous one."""
        # Without the optimizer's settings: torch 1.13 cannot load floats with weights_only.
        state = {"epoch": epoch, "network": network.state_dict(), "optimizer": optimizer.state_dict()["state"]}
        with unfinished_file(newest) as stream:
            torch.save(state, stream)

    manifest = DatasetManifest.from_json(Path(train_dir, "dataset.json").read_text())
    names = dict(enumerate(manifest.label.classes))
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(pretrained, local_files_only=True)
    network = AutoModelForSequenceClassification.from_pretrained(
        pretrained,
        num_labels=len(names),
        id2label=names,
        label2id={name: number for number, name in names.items()},
        local_files_only=True,
    ).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), learning_rate, weight_decay=weight_decay)

    newest = Path(checkpoint_dir, "checkpoint.pt")
    checkpoint = torch.load(newest, "cpu", weights_only=True) if rank == 0 and newest.exists() else {}
    if checkpoint:
        network.load_state_dict(checkpoint["network"])
    # All ranks continue with the optimizer of rank 0, and DistributedDataParallel sends them its weights.
    state = [checkpoint.get("epoch", 0), checkpoint.get("optimizer")]
    dist.broadcast_object_list(state)
    done = state[0]
    if done:
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state[1]})
    model = DistributedDataParallel(network)
    torch.manual_seed(seed + rank + ranks * done)  # Each rank drops other units.

    texts, labels = read(train_dir)  # Not divided again: these are the rows of this rank.
    scored_texts, scored_labels = read(validation_dir) if validation_dir else ([], torch.empty(0))
    steps = torch.tensor(max(1, len(labels) // max(1, batch_size // ranks)), device=device)
    dist.all_reduce(steps, dist.ReduceOp.MIN)  # All ranks must have the same number.
    print(f"rank {rank} of {ranks} has {len(labels)} rows; {done} of {epochs} epochs are done", flush=True)
    for epoch in range(done + 1, epochs + 1):
        metrics = measure(train_epoch(epoch))
        metrics |= {f"val_{name}": value for name, value in measure(score()).items()}
        if rank == 0:
            save(epoch)
            replica = os.environ.get("KFP_DISTRIBUTED_REPLICA", "master-0")
            record_epoch(Path(metrics_dir, "training.json"), replica, epoch, epochs, metrics)
    if rank == 0:
        network.save_pretrained(model_dir)
        tokenizer.save_pretrained(model_dir)


@dsl.pipeline
def fine_tune_on_messages(
    source: str, pretrained: str, workers: int = 1, epochs: int = 8, learning_rate: float = 1e-3
) -> None:
    """Fine-tune with a master and several workers. The report of `train` shows the accuracy on other texts.

    Args:
        source: Address of the texts.
        pretrained: Folder of the model in the replicas.
        workers: Number of workers.
        epochs: Number of passes over the texts. A model with pre-trained weights needs 2 to 4.
        learning_rate: Learning rate. A model with pre-trained weights needs some 5e-5.
    """
    data = prepare_data(
        source=source,
        label_column="team",
        columns={"message": "text"},
        split={"validation_fraction": 0.25, "test_fraction": 0},
    )
    train(
        train_dataset=data.outputs["train_dataset"],
        validation_dataset=data.outputs["validation_dataset"],
        train_specification=train_specification(fine_tuning, packages=PACKAGES),
        train_parameters={
            "pretrained": pretrained,
            "text_column": "message",
            "epochs": epochs,
            "learning_rate": learning_rate,
        },
        distribution_specification={"distribution_type": "PyTorch", "number_of_workers": workers},
    )


if __name__ == "__main__":
    with local_run("fine-tuning-run"):
        fine_tune_on_messages(source="messages.csv", pretrained=str(Path(sys.argv[1]).resolve()))
