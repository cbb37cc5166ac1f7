"""The rows that a worker of parameter servers serves to the graphs of its chief."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from forked_replicas import forked

from kfp_distributed.storage import ChecksumMismatch
from kfp_distributed.storage.dataset import Column, Label, parts_of_rank
from kfp_distributed.trainers.runtime.data_loading.epoch_steps import read_manifest
from kfp_distributed.trainers.runtime.data_loading.rank_part import write_part
from kfp_distributed.trainers.runtime.data_loading.row_feed import open_rows
from kfp_distributed.trainers.runtime.data_loading.served_rows import FIRST, RowOptions, RowRequest, RowServer

OPTIONS = RowOptions(3, "none", 0.0, 1.0)


class Ended(Exception):
    """The process would have ended."""


@pytest.fixture
def serve(digits, tmp_path, monkeypatch):
    """Return a function that makes the server of a worker. The last errors of the servers are in `serve.errors`."""
    monkeypatch.chdir(tmp_path)
    servers, errors = [], []

    def end(error):
        errors.append(error)
        raise Ended

    def make(rank=0, ranks=1, folder=digits.folder / "train"):
        manifest = read_manifest(str(folder))
        servers.append(RowServer(str(folder), manifest, parts_of_rank(manifest, rank, ranks), end))
        return servers[-1]

    make.errors = errors
    yield make
    for server in servers:
        server.close()


def windows_of(folder, rank, ranks, epoch, skipped, count):
    manifest = read_manifest(str(folder))
    with open_rows(str(folder), manifest, parts_of_rank(manifest, rank, ranks), 3) as feed:
        return [window.gather() for window, _ in zip(feed.windows(epoch, skipped), range(count), strict=False)]


def request(epoch=0, skipped=0, **options):
    return RowRequest(OPTIONS._replace(**options), epoch, skipped).to_json().encode()


@pytest.mark.parametrize(("rank", "epoch", "skipped"), [(0, 0, 0), (1, 0, 0), (1, 4, 123), (0, 1, 650)])
def test_the_order_is_that_of_the_stream(serve, digits, rank, epoch, skipped):
    server, text = serve(rank, 2), request(epoch, skipped)
    iteration, first = server.window(text, FIRST)
    served = [first, *(server.window(text, iteration)[1] for _ in range(2))]
    expected = windows_of(digits.folder / "train", rank, 2, epoch, skipped, 3)
    assert all(np.array_equal(one, other) for one, other in zip(served, expected, strict=True))


def test_a_new_iteration_ends_the_one_before_and_keeps_the_cache(serve, digits, capsys):
    server, text = serve(), request()
    one, first = server.window(text, FIRST)
    two, again = server.window(text, FIRST)
    assert np.array_equal(first, again)
    with pytest.raises(StopIteration):
        server.window(text, one)
    (_, expected) = windows_of(digits.folder / "train", 0, 1, 0, 0, 2)
    assert np.array_equal(server.window(text, two)[1], expected), "the iteration before has taken none of its windows"
    assert capsys.readouterr().out.splitlines()[0].startswith("streaming rows from")
    assert serve.errors == []
    server.close()
    threads = [thread for thread in threading.enumerate() if thread.name == "row-stream"]
    for thread in threads:
        thread.join(120)
    assert [thread for thread in threads if thread.is_alive()] == []


def test_a_worker_without_rows_has_records_of_weight_zero(serve):
    server = serve(0, 5000)
    iteration, window = server.window(request(), FIRST)
    assert window.tolist() == server.window(request(), iteration)[1].tolist() == [[0.0] * 66]


def test_numbers_are_scaled_with_the_label_of_the_chief(serve, tmp_path, write_dataset):
    """That of a checkpoint may be another one than that of the dataset."""
    label = Label("price", (), "regression", 1e9, 0.5)
    columns = [Column("number", "number", "float32")]
    arrays = [pa.array(np.arange(7, dtype=np.float32))]
    write_dataset(tmp_path / "dataset", columns, arrays, 1e9 + np.arange(7) / 4, (), [7], label=label)
    server = serve(folder=tmp_path / "dataset")
    for mean, std in ((1e9, 0.5), (1e9 + 1, 2.0)):
        _, window = server.window(request(mean=mean, std=std), FIRST)
        assert sorted(window[:, 1].tolist()) == [(1e9 + row / 4 - mean) / std for row in range(7)]


def test_an_error_of_the_store_ends_the_process(serve, digits, tmp_path):
    folder = tmp_path / "damaged"
    folder.mkdir()
    for file in (digits.folder / "train").iterdir():
        (folder / file.name).write_bytes(file.read_bytes().replace(b"PAR1", b"PAR2"))
    with pytest.raises(Ended):
        serve(folder=folder).window(request(), FIRST)
    assert isinstance(serve.errors[0], ChecksumMismatch)


# A graph that this process builds as a chief would: it knows the request alone.
GRAPH = """
import json, os, sys
import numpy as np
from kfp_distributed.trainers.runtime.data_loading.row_dataset import dataset_of_served_rows
from kfp_distributed.trainers.runtime.data_loading.served_rows import RowOptions, RowRequest, serve_rows

def end(error):
    raise SystemExit(repr(error))

serve_rows(sys.argv[1], end)
rows = []
for epoch, skipped, steps in json.loads(sys.argv[2]):
    dataset = dataset_of_served_rows(RowRequest(RowOptions(3, "none", 0.0, 1.0), epoch, skipped), 64, 13)
    batches = dataset.take(steps).as_numpy_iterator()
    rows.append(np.concatenate([np.column_stack(batch) for batch in batches]).tolist())
print(json.dumps(rows), flush=True)
os._exit(0)
"""


@pytest.mark.takes(5)
def test_a_graph_reads_each_row_once_in_an_epoch_and_resumes(digits, tmp_path):
    folder, part = digits.folder / "train", tmp_path / "train_dir"
    part.mkdir()
    write_part(part, replace(read_manifest(str(folder)), shards_uri=str(folder)), 1, 2)
    # 650 rows are 50 batches of 13: two epochs, and the second one from its third batch on.
    ranges = json.dumps([[0, 0, 100], [1, 26, 48]])
    result = subprocess.run(
        forked(sys.executable, "-c", GRAPH, str(part), ranges),
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_USE_LEGACY_KERAS": "1"},
        cwd=tmp_path,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    whole, rest = json.loads(result.stdout.splitlines()[-1])
    expected = np.concatenate(windows_of(folder, 1, 2, 0, 0, 100))[:1300]
    assert np.array_equal(np.array(whole, np.float32), expected)
    assert sorted(whole[:650]) == sorted(whole[650:])
    assert whole[:650] != whole[650:]
    assert rest == whole[650 + 26 :]
