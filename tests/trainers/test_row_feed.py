"""How the built-in trainers read their rows: the log, the cache, tf.data, and real replicas."""

import re
import shutil
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from faster_retries import FASTER, SPEED
from faulty_proxy import Fault, faulty_proxy
from held_training import HELD, hold

from kfp_distributed.storage import ChecksumMismatch
from kfp_distributed.storage.dataset import parts_of_rank
from kfp_distributed.trainers.runtime.data_loading.epoch_steps import read_manifest
from kfp_distributed.trainers.runtime.data_loading.row_dataset import dataset_of_rows
from kfp_distributed.trainers.runtime.data_loading.row_feed import CACHE_VARIABLE, cache_bytes, open_rows
from kfp_distributed.trainers.runtime.job_description import STORE_AWAY

pytestmark = pytest.mark.takes(71)

KERAS = {"trainer": "keras_classifier"}


@pytest.fixture
def train(digits, tmp_path, monkeypatch):
    """The folder of the training rows. The process is in another one."""
    monkeypatch.chdir(tmp_path)
    return digits.folder / "train"


def opened(folder, **options):
    manifest = read_manifest(str(folder))
    return open_rows(str(folder), manifest, parts_of_rank(manifest, 0, 1), 3, **options)


def row_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("row-")]


def wait_for_no_threads():
    until = time.monotonic() + 120
    while row_threads() and time.monotonic() < until:
        time.sleep(0.01)
    assert row_threads() == []


def test_the_log_says_how_rows_are_read(train, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, "3")
    with opened(train) as feed:
        assert sum(map(len, feed.windows(0, 0, 2))) == 2600
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        f"streaming rows from {train} in shuffle windows of 100,000 rows; up to 3 MiB are cached in "
        f"{tmp_path / 'row-cache'}"
    )
    assert re.fullmatch(r"received the first 1,300 rows after 0\.1 MiB and \d\.\d s", lines[1])
    assert lines[2:] == []
    assert [*(tmp_path / "row-cache").iterdir()] == [], "the file of the cache has no name"


def test_the_log_says_that_the_cache_is_full(train, capsys, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, "1")
    # Each of 16 ranks of the replica has 64 KiB of it: less than 300 records of 66 numbers.
    monkeypatch.setenv("HOROVOD_RANK", "0")
    monkeypatch.setenv("HOROVOD_SIZE", "16")
    monkeypatch.setenv("HOROVOD_LOCAL_SIZE", "16")
    with opened(train) as feed:
        assert sum(map(len, feed.windows(0, 0, 3))) == 3900
    text = capsys.readouterr().out
    assert text.count("the cache of rows is full (0 MiB): the other rows are read from the store in each epoch") == 1


def test_the_cache_can_be_turned_off(train, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, "0")
    with opened(train) as feed:
        assert sum(map(len, feed.windows(0, 0, 3))) == 3900
    assert "100,000 rows; without a cache" in capsys.readouterr().out
    assert not (tmp_path / "row-cache").exists()


def test_the_ranks_of_a_replica_share_its_cache():
    assert cache_bytes({}) == 512 << 20
    assert cache_bytes({CACHE_VARIABLE: ""}) == 512 << 20
    ranks = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    assert cache_bytes({CACHE_VARIABLE: "100", **ranks}) == 25 << 20


@pytest.mark.parametrize("text", ["-1", "1.5", "2Gi", "²"])
def test_an_invalid_size_of_the_cache_is_refused(text):
    with pytest.raises(ValueError, match=f"{CACHE_VARIABLE}='{text}': it must be the size .* such as 512; 0 turns"):
        cache_bytes({CACHE_VARIABLE: text})


@pytest.mark.parametrize("skipped", [0, 130, 1300])
def test_tensorflow_gets_the_records_of_the_stream(train, skipped):
    with opened(train, records=1330) as feed:
        expected = np.concatenate([window.gather() for window in feed.windows(2, skipped, 2)])
        batches = dataset_of_rows(feed, 64, 10, 2, skipped).take(len(expected) // 10).as_numpy_iterator()
        found = np.concatenate([np.column_stack(batch) for batch in batches])
        np.testing.assert_array_equal(found, expected)


def test_an_iterator_that_tensorflow_keeps_leaves_no_thread(train):
    with opened(train) as feed:
        first = iter(dataset_of_rows(feed, 64, 10))
        next(first)
        assert "row-stream" in row_threads()
        second = iter(dataset_of_rows(feed, 64, 10))
        next(second)
        assert len(row_threads()) <= 5, "the first iterator has ended"
    wait_for_no_threads()
    del first, second


def test_the_error_of_the_stream_replaces_that_of_tensorflow(train, tmp_path):
    shutil.copytree(train, tmp_path / "damaged")
    for file in (tmp_path / "damaged").glob("*.parquet"):
        file.write_bytes(bytes(file.stat().st_size))
    with (
        pytest.raises(ChecksumMismatch, match="the shard is damaged or was replaced"),
        opened(tmp_path / "damaged") as feed,
    ):
        next(iter(dataset_of_rows(feed, 64, 10)))
    wait_for_no_threads()


@pytest.fixture
def stored(make_replicas, digits, tmp_path, object_store):
    """Return a function that makes replicas whose datasets are in the store behind a proxy, and the proxy."""
    (tmp_path / "faster").mkdir()
    (tmp_path / "faster" / "sitecustomize.py").write_text(FASTER)
    with faulty_proxy(object_store.endpoint) as proxy:

        def make(parameters, roles, train=digits.folder / "train", **variables):
            shutil.copytree(train, tmp_path / "objects" / "bucket" / "data" / "train")
            shutil.copytree(digits.folder / "validation", tmp_path / "objects" / "bucket" / "data" / "validation")
            environment = object_store.environment() | {
                "AWS_ENDPOINT_URL": proxy.url,
                "AWS_ENDPOINT_URL_S3": proxy.url,
                "PYTHONPATH": str(tmp_path / "faster"),
                **variables,
            }
            replicas = make_replicas(KERAS, parameters, roles, digits, "s3://bucket/run", environment)
            replicas.job = replace(replicas.job, train_uri="s3://bucket/data/train", validation_uri="")
            replicas.start_all()
            return replicas

        yield make, proxy


def test_a_training_waits_for_the_rows_of_an_epoch(stored, shards_in_groups):
    """Without a cache, each epoch reads them. The store is away for five minutes of the second or third epoch."""
    make, proxy = stored

    def begin():
        proxy.faults = [Fault("", times=10**9, reset=True)]
        threading.Timer(300 / SPEED, proxy.faults.clear).start()

    options = {"train": shards_in_groups, CACHE_VARIABLE: "0"}
    replicas = make({"epochs": 4, "batch_size": 512}, {"worker": 1}, **options)
    replicas.wait_for("worker-0", "epoch 1/4")
    proxy.faults = [Fault("GET /bucket/data/train/part", before=begin, reset=True)]
    assert replicas.wait("worker-0") == 0, replicas.text("worker-0")
    assert replicas.epochs("worker-0") == [1, 2, 3, 4]
    assert proxy.faults == []


def test_a_worker_of_parameter_servers_ends_if_the_store_stays_away_and_continues_after_a_restart(
    stored, shards_in_groups, monkeypatch, tmp_path
):
    make, proxy = stored
    options = {"train": shards_in_groups, CACHE_VARIABLE: "0"}
    # Ten steps of an epoch. The store goes away in the second one.
    released = hold(monkeypatch, tmp_path, 14)
    replicas = make({"epochs": 5, "batch_size": 2000}, {"chief": 1, "ps": 1, "worker": 1}, **options)
    replicas.wait_for("chief-0", HELD)
    proxy.faults = [Fault("GET /bucket/data/train/part", times=10**9, reset=True)]
    released.touch()
    assert replicas.wait("worker-0") == STORE_AWAY, replicas.text("worker-0")
    proxy.faults.clear()
    assert replicas.epochs("chief-0")[-1] < 5
    replicas.start("worker-0")
    assert replicas.wait("chief-0") == 0, replicas.text("chief-0")
    assert replicas.epochs("chief-0") == [1, 2, 3, 4, 5], "the chief has not started again"


def test_a_shard_that_is_replaced_ends_a_training(stored, shards_in_groups, tmp_path):
    make, _ = stored
    options = {"train": shards_in_groups, CACHE_VARIABLE: "0"}
    replicas = make({"epochs": 500, "batch_size": 4000}, {"worker": 1}, **options)
    replicas.wait_for("worker-0", "epoch 2/500")
    for file in (tmp_path / "objects" / "bucket" / "data" / "train").glob("*.parquet"):
        other = file.with_suffix(".new")
        other.write_bytes(bytes(file.stat().st_size))
        other.replace(file)
    assert replicas.wait("worker-0") == 1, replicas.text("worker-0")
    text = replicas.text("worker-0")
    # The server may say that the object is another one, or the rows are read from the new one.
    advice = "(Start again, and write new data under another key|Run prepare_data again)"
    assert re.search(rf"ChecksumMismatch: .*/train/part-0000\d\.parquet.*{advice}", text, re.DOTALL)
    assert "the next start gets checkpoint" not in text, "the checkpoint is not at fault"
