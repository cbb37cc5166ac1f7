"""Classify texts with PyTorch's DistributedDataParallel: words, embeddings, their mean, and a layer for the classes.

Pass `train_specification(text_classification)` to `train`, with a distribution_specification of type PyTorch. The
master trains as well, so one worker makes two ranks: `{"distribution_type": "PyTorch", "number_of_workers": 1}`. On a
cluster, also name an image with PyTorch: `train_specification(text_classification,
image="registry.example.com/team/pytorch:TAG")`.

`prepare_data` keeps the texts with `columns={"message": "text"}`. `evaluate` cannot score the model, because its inputs
are texts, and `evaluate` passes numbers. So the function scores the validation dataset after each epoch, and writes the
metrics val_loss and val_accuracy, which the report of `train` shows.

Run `make environments` and `python make_messages_csv.py` once, and then `python text_classification.py` to train on
this machine. The file `fine_tuning.py` fine-tunes a language model on the same texts.
"""

from kfp import dsl

from kfp_distributed.components import prepare_data, train
from kfp_distributed.pipelines.local_run import local_run
from kfp_distributed.trainers import train_specification


def text_classification(
    train_dir: str,
    validation_dir: str,
    model_dir: str,
    checkpoint_dir: str,
    metrics_dir: str,
    text_column: str,
    epochs: int = 6,
    batch_size: int = 32,
    learning_rate: float = 1e-2,
    vocabulary_size: int = 20_000,
    embedding_size: int = 32,
    seed: int = 0,
) -> None:
    """Train a classifier of texts synchronously, and save its weights and its vocabulary.

    Each rank computes the gradients of its own rows, and DistributedDataParallel averages them. Training resumes after
    the last epoch in checkpoint_dir. Only rank 0 saves checkpoints, metrics and the model.

    The model is two files: model.pt has the weights, and vocabulary.json the words and the classes in the order of
    their indices. The index 0 stands for every other word.

    Args:
        train_dir: Training rows of this rank, which fit into its memory. Each row has a text and a class.
        validation_dir: Validation dataset, which may be empty; "" for none. Each rank scores a part of its rows.
        model_dir: Folder for the model, in rank 0.
        checkpoint_dir: Folder for a checkpoint after each epoch, in rank 0.
        metrics_dir: Folder for training.json, in rank 0.
        text_column: Name of the column with the texts.
        epochs: Number of passes over the rows, including those of a checkpoint.
        batch_size: Rows of one update, over all ranks.
        learning_rate: Learning rate of Adam.
        vocabulary_size: Largest number of words. The most frequent ones of the training rows of all ranks are used.
        embedding_size: Size of the vector of a word.
        seed: Seed of the initial weights and of the order of the rows.
    """
    import ctypes
    import json
    import os
    import re
    from collections import Counter
    from collections.abc import Iterator, Sequence
    from datetime import timedelta
    from pathlib import Path

    import numpy as np
    import pyarrow.parquet as pq
    import torch
    import torch.distributed as dist
    from torch import Tensor, nn
    from torch.nn.functional import cross_entropy

    from kfp_distributed.storage.dataset import DatasetManifest
    from kfp_distributed.storage.files import unfinished_file
    from kfp_distributed.trainers.sync import record_epoch

    # Without WORLD_SIZE there is one process. A rank that does not answer for five minutes ends the others.
    alone = {} if "WORLD_SIZE" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("gloo", timeout=timedelta(minutes=5), **alone)
    # Keeps the process group alive until exit: Gloo's destructor can deadlock on the GIL (PyTorch 1.13).
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def read(folder: str) -> tuple[list[list[str]], Tensor]:
        """Return the words of each text of a dataset, and the classes."""
        manifest = DatasetManifest.from_json(Path(folder, "dataset.json").read_text())
        texts: list[str | None] = []
        labels: list[int] = []
        for shard in manifest.shards:
            table = pq.read_table(Path(folder, shard.path), columns=[text_column, manifest.label.name])
            texts += table[text_column].to_pylist()
            labels += table[manifest.label.name].to_pylist()
        words = [re.findall(r"\w+", (text or "").lower()) for text in texts]
        return words, torch.tensor(labels, dtype=torch.long)

    def make_vocabulary(rows: list[list[str]]) -> list[str]:
        """Return the most frequent words in the rows of all ranks: the same list, in the same order, in each rank."""
        counts: list[Counter[str]] = [Counter()] * ranks
        dist.all_gather_object(counts, Counter(word for words in rows for word in words))
        total = sum(counts, Counter())
        return sorted(total, key=lambda word: (-total[word], word))[:vocabulary_size]

    def encode(rows: list[list[str]]) -> list[Tensor]:
        """Return the indices of the words of each row. A row without words has the index 0."""
        return [torch.tensor([index.get(word, 0) for word in words] or [0]) for words in rows]

    class Network(nn.Module):  # type: ignore[misc]  # torch is not installed when types are checked
        """Return the logits of each text: one linear layer on the mean of the vectors of its words."""

        def __init__(self, words: int, classes: int) -> None:
            super().__init__()
            self.embeddings = nn.EmbeddingBag(words + 1, embedding_size, mode="mean")
            self.output = nn.Linear(embedding_size, classes)

        def forward(self, words: Tensor, starts: Tensor) -> Tensor:
            return self.output(self.embeddings(words, starts))

    def losses(model: nn.Module, rows: Sequence[int], texts: list[Tensor], labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean loss of some rows, and the sums of loss, correct rows and rows."""
        lengths = [0, *(len(texts[row]) for row in rows)]
        logits = model(torch.cat([texts[row] for row in rows]), torch.tensor(lengths[:-1]).cumsum(0))
        of_rows, correct = cross_entropy(logits, labels[rows], reduction="none"), logits.argmax(1) == labels[rows]
        sums = torch.stack([of_rows.detach().sum(), correct.sum(), torch.tensor(len(rows))])
        return of_rows.mean(), sums.double()

    def mean_over_ranks(sums: Tensor) -> dict[str, float]:
        dist.all_reduce(sums)
        loss, correct, rows = sums.tolist()
        return {"loss": loss / rows, "accuracy": correct / rows} if rows else {}

    def batches(epoch: int) -> Iterator[list[int]]:
        """Yield the rows of each update of this rank. All ranks have the same number of updates."""
        order = np.random.default_rng((seed, rank, epoch)).permutation(len(labels))
        for part in np.array_split(order, int(steps)):
            yield part.tolist()

    def save(epoch: int) -> None:
        """Save a checkpoint. A crash leaves the previous one."""
        # Without the optimizer's settings: torch 1.13 cannot load floats with weights_only.
        state = {"epoch": epoch, "network": network.state_dict(), "optimizer": optimizer.state_dict()["state"]}
        with unfinished_file(newest) as stream:
            torch.save({**state, "vocabulary": vocabulary}, stream)

    manifest = DatasetManifest.from_json(Path(train_dir, "dataset.json").read_text())
    newest = Path(checkpoint_dir, "checkpoint.pt")
    # All ranks continue with the checkpoint of rank 0.
    checkpoint = [torch.load(newest, weights_only=True) if rank == 0 and newest.exists() else {}]
    dist.broadcast_object_list(checkpoint)
    done = checkpoint[0].get("epoch", 0)

    texts, labels = read(train_dir)  # Not divided again: these are the rows of this rank.
    vocabulary = checkpoint[0].get("vocabulary") or make_vocabulary(texts)
    index = {word: number for number, word in enumerate(vocabulary, 1)}
    encoded = encode(texts)
    torch.manual_seed(seed)
    network = Network(len(vocabulary), len(manifest.label.classes))
    optimizer = torch.optim.Adam(network.parameters(), learning_rate)
    if done:
        network.load_state_dict(checkpoint[0]["network"])
        optimizer.load_state_dict({**optimizer.state_dict(), "state": checkpoint[0]["optimizer"]})
    model = nn.parallel.DistributedDataParallel(network)
    steps = torch.tensor(max(1, len(labels) // max(1, batch_size // ranks)))
    dist.all_reduce(steps, dist.ReduceOp.MIN)
    print(
        f"rank {rank} of {ranks} has {len(labels)} rows; {len(vocabulary)} words; {done} of {epochs} epochs are done",
        flush=True,
    )

    scored, scored_labels = read(validation_dir) if validation_dir else ([], torch.empty(0, dtype=torch.long))
    scored_texts = encode(scored)
    for epoch in range(done + 1, epochs + 1):
        sums = torch.zeros(3, dtype=torch.double)
        for rows in batches(epoch):
            loss, sums_of_batch = losses(model, rows, encoded, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sums += sums_of_batch
        metrics = mean_over_ranks(sums)
        sums.zero_()
        with torch.no_grad():
            for start in range(rank, len(scored), ranks * batch_size):
                rows = list(range(start, min(start + ranks * batch_size, len(scored)), ranks))
                sums += losses(network, rows, scored_texts, scored_labels)[1]
        metrics |= {f"val_{name}": value for name, value in mean_over_ranks(sums).items()}
        if rank == 0:
            save(epoch)
            replica = os.environ.get("KFP_DISTRIBUTED_REPLICA", "master-0")
            record_epoch(Path(metrics_dir, "training.json"), replica, epoch, epochs, metrics)
    if rank == 0:
        torch.save(network.state_dict(), Path(model_dir, "model.pt"))
        words_and_classes = {"words": vocabulary, "classes": manifest.label.classes}
        Path(model_dir, "vocabulary.json").write_text(json.dumps(words_and_classes))


@dsl.pipeline
def classify_messages(source: str, workers: int = 1, epochs: int = 6) -> None:
    """Train on texts with a master and several workers. The report of `train` shows the accuracy on other texts."""
    data = prepare_data(
        source=source,
        label_column="team",
        columns={"message": "text"},
        split={"validation_fraction": 0.25, "test_fraction": 0},
    )
    train(
        train_dataset=data.outputs["train_dataset"],
        validation_dataset=data.outputs["validation_dataset"],
        train_specification=train_specification(text_classification),
        train_parameters={"text_column": "message", "epochs": epochs},
        distribution_specification={"distribution_type": "PyTorch", "number_of_workers": workers},
    )


if __name__ == "__main__":
    with local_run("text-classification-run"):
        classify_messages(source="messages.csv")
