"""The stream of rows for training functions."""

import json
import os
import subprocess
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from environments import trainer_python
from forked_replicas import forked

from kfp_distributed.storage import open_store
from kfp_distributed.storage.dataset import DATASET_MANIFEST, Column, DatasetManifest, read_batches
from kfp_distributed.trainers import train_specification
from kfp_distributed.trainers.rows import rows


@pytest.fixture(scope="module")
def prices(tmp_path_factory):
    """A dataset of 1,000 numbers to predict that 32-bit floats do not distinguish, in three shards."""
    import pyarrow.parquet as pq

    from kfp_distributed.storage.dataset import Label, Shard
    from kfp_distributed.storage.files import sha256_of

    folder = tmp_path_factory.mktemp("prices")
    shards, begin = [], 0
    for number, count in enumerate((300, 500, 200)):
        values = np.arange(begin, begin + count)
        table = {"x": pa.array(values, pa.float32()), "price": pa.array(1.7e9 + values / 16, pa.float64())}
        file = folder / f"part-{number}.parquet"
        pq.write_table(pa.table(table), file, row_group_size=64)
        shards.append(Shard(file.name, count, file.stat().st_size, sha256_of(file)))
        begin += count
    label = Label("price", task="regression", mean=1.7e9, std=10.0)
    manifest = DatasetManifest(
        "train", (Column("x", "number", "float32"),), label, tuple(shards), (), 0, "prices", True
    )
    (folder / DATASET_MANIFEST).write_text(manifest.to_json())
    return folder


def order(folder, *arguments, **options):
    return np.concatenate([inputs[:, 0] for inputs, _ in rows(folder, *arguments, **options)]).astype(int).tolist()


def test_each_epoch_has_every_row_once_in_an_order_of_its_own(prices):
    orders = [order(prices, 64, seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert [sorted(numbers) for numbers in orders] == [list(range(1000))] * 4
    assert len({tuple(numbers) for numbers in orders}) == 4
    assert order(prices, 7, 1, 1) == orders[3], "whatever the batch"


def test_labels_are_exact(prices):
    for inputs, labels in rows(prices, 100):
        assert (inputs.dtype, labels.dtype, inputs.shape) == (np.float32, np.float64, (100, 1))
        np.testing.assert_array_equal(labels, 1.7e9 + inputs[:, 0].astype(np.float64) / 16)


def test_classes_are_indices(digits):
    folder = digits.folder / "train"
    manifest = DatasetManifest.from_json((folder / DATASET_MANIFEST).read_text())
    batches, stored = list(rows(folder, 256)), list(read_batches(folder, manifest))
    assert [len(labels) for _, labels in batches] == [256] * 5 + [20]
    found, expected = (
        sorted(np.column_stack([np.concatenate(columns) for columns in zip(*pairs, strict=True)]).tolist())
        for pairs in (batches, stored)
    )
    assert batches[0][1].dtype == np.int32
    assert found == expected


@pytest.mark.parametrize("skipped", [0, 1, 63, 64, 500, 999, 1000])
def test_a_resumed_epoch_repeats_and_skips_nothing(prices, skipped):
    whole = order(prices, 64, 3, 2)
    resumed = [int(number) for inputs, _ in rows(prices, 10, 3, 2, skipped=skipped) for number in inputs[:, 0]]
    assert resumed == whole[skipped:]


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        ({"batch_size": 0}, "batch_size is 0; allowed is a whole number of 1 or more"),
        ({"batch_size": 64.0}, "batch_size is 64.0; allowed is a whole number of 1 or more"),
        ({"batch_size": "64"}, "batch_size is '64'; allowed is a whole number of 1 or more"),
        ({"batch_size": 1, "skipped": 1.5}, "skipped is 1.5; allowed is a whole number of 0 or more"),
        ({"batch_size": 1, "seed": -1}, "seed is -1; allowed is a whole number of 0 or more"),
        ({"batch_size": 1, "epoch": -1}, "epoch is -1; allowed is a whole number of 0 or more"),
        ({"batch_size": 1, "skipped": 1001}, "skipped is 1001; allowed is 0 to 1000, the rows of this rank"),
    ],
)
def test_wrong_arguments(prices, arguments, cause):
    with pytest.raises(ValueError, match=cause):
        next(rows(prices, **arguments))


def test_rows_of_a_store_have_the_order_of_local_ones(prices, object_store, tmp_path, monkeypatch):
    for name, value in object_store.environment().items():
        monkeypatch.setenv(name, value)
    store, manifest = (
        open_store("s3://bucket/shards"),
        DatasetManifest.from_json((prices / DATASET_MANIFEST).read_text()),
    )
    for shard in manifest.shards:
        store.upload(prices / shard.path, shard.path)
    (tmp_path / "train").mkdir()
    stored = replace(manifest, shards_uri="s3://bucket/shards")
    (tmp_path / "train" / DATASET_MANIFEST).write_text(stored.to_json())
    assert order(tmp_path / "train", 64, 5, 1) == order(prices, 64, 5, 1)


def note_streamed_rows(train_dir, model_dir, notes: str):
    import json
    import os
    import time
    from pathlib import Path

    from kfp_distributed.trainers.rows import rows

    name = os.environ["KFP_DISTRIBUTED_REPLICA"]
    epochs = [
        [row for inputs, _ in rows(train_dir, 100, seed=3, epoch=epoch) for row in inputs.astype(int).tolist()]
        for epoch in range(2)
    ]
    files = sorted(file.name for file in Path(train_dir).iterdir())
    Path(notes, name).write_text(json.dumps({"files": files, "epochs": epochs}))
    # The job ends with its leader, so that waits for the others.
    while name == "worker-0" and len(list(Path(notes).glob("worker-*"))) < 3:
        time.sleep(0.05)
    Path(model_dir, "model").touch()


def test_a_function_streams_the_rows_of_its_rank(make_replicas, digits, object_store, tmp_path):
    """The dataset is in the object store. Nothing of it is downloaded before the function begins."""
    store, notes = open_store("s3://bucket/train", object_store.credentials()), tmp_path / "notes"
    store.upload_folder(digits.folder / "train")
    notes.mkdir()
    specification = train_specification(note_streamed_rows, rows="stream")
    replicas = make_replicas(
        specification, {"notes": str(notes)}, {"worker": 3}, digits, environment=object_store.environment()
    )
    replicas.job = replace(replicas.job, train_uri="s3://bucket/train")
    replicas.start_all()
    assert [replicas.wait(name) for name in replicas.names()] == [0, 0, 0], replicas.text("worker-0")
    noted = [json.loads((notes / name).read_text()) for name in replicas.names()]
    assert {tuple(note["files"]) for note in noted} == {("dataset.json", "part.json")}
    folder = digits.folder / "train"
    manifest = DatasetManifest.from_json((folder / DATASET_MANIFEST).read_text())
    every = sorted(row for inputs, _ in read_batches(folder, manifest) for row in inputs.astype(int).tolist())
    for epoch in range(2):
        assert [len(note["epochs"][epoch]) for note in noted] == [433, 433, 434]
        assert sorted(row for note in noted for row in note["epochs"][epoch]) == every
    assert noted[0]["epochs"][0] != noted[0]["epochs"][1]
    assert "streaming rows from s3://bucket/train in shuffle windows" in replicas.text("worker-0")


TORCH_PROGRAM = """
import json, sys
from torch.utils.data import DataLoader
from kfp_distributed.trainers.torch_rows import RowDataset

folder, found = sys.argv[1], {}
numbers = lambda batches: [int(number) for inputs, labels in batches for number in inputs[:, 0]]
dataset = RowDataset(folder, 64, seed=1)
found["epochs"] = [numbers(DataLoader(dataset, batch_size=None)) for _ in range(2)]
dataset, start = RowDataset(folder, 64, seed=1), []
for inputs, labels in dataset:
    start += inputs[:, 0].int().tolist()
    if len(start) > 300:
        break
found["state"], resumed = dataset.state_dict(), RowDataset(folder, 32, seed=1)
resumed.load_state_dict(json.loads(json.dumps(found["state"])))
found["resumed"] = [start + numbers(resumed), numbers(resumed)]
try:
    numbers(DataLoader(RowDataset(folder, 64), batch_size=None, num_workers=3))
except ValueError as error:
    found["workers"] = str(error)
print(json.dumps(found))
"""


def test_dataset_of_pytorch_continues_where_a_checkpoint_was_taken(prices, library_archive):
    command = forked(trainer_python("pytorch"), "-c", TORCH_PROGRAM, prices)
    environment = {**os.environ, "PYTHONPATH": str(library_archive)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["epochs"] == [order(prices, 64, 1, epoch) for epoch in (0, 1)]
    assert found["state"] == {"epoch": 0, "rows": 320}
    assert found["resumed"] == found["epochs"], "the rest of the epoch, and the next one"
    assert "the DataLoader has num_workers=3; allowed is 0" in found["workers"], "each epoch would have the same order"


def test_a_dataset_that_is_prepared_again_in_the_same_folder_is_read_anew(prices, tmp_path):
    manifest = DatasetManifest.from_json((prices / DATASET_MANIFEST).read_text())
    for count in (2, 1):
        for shard in manifest.shards[:count]:
            (tmp_path / shard.path).write_bytes((prices / shard.path).read_bytes())
        (tmp_path / DATASET_MANIFEST).write_text(replace(manifest, shards=manifest.shards[:count]).to_json())
        assert len(order(tmp_path, 64)) == sum(shard.rows for shard in manifest.shards[:count])
