"""A rank's rows as a stream from a real S3 server and from a local folder."""

import shutil
import threading
import time
import uuid
from contextlib import closing
from dataclasses import replace
from itertools import islice, repeat

import numpy as np
import pyarrow as pa
import pytest
from faulty_proxy import Fault, faulty_proxy

from kfp_distributed.storage import ChecksumMismatch, embedded_object_store, open_store
from kfp_distributed.storage.dataset import Column, Label, parts_of_rank, read_batches
from kfp_distributed.trainers.runtime.data_loading.epoch_steps import plan_epoch, steps_of_epoch
from kfp_distributed.trainers.runtime.data_loading.row_cache import RowCache
from kfp_distributed.trainers.runtime.data_loading.row_order import OrderSeed, chapters_of_epoch
from kfp_distributed.trainers.runtime.data_loading.row_stream import RowSource, RowStream, batches
from kfp_distributed.trainers.runtime.data_loading.window_ahead import CLOSE_SECONDS

pytestmark = pytest.mark.takes(16)

ROWS, SHARDS = 3000, [700, 50, 1, 1249, 1000]  # Row groups of 100 rows.


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with embedded_object_store(tmp_path_factory.mktemp("objects")) as running:
        yield running


@pytest.fixture(scope="module")
def dataset(tmp_path_factory, write_dataset):
    """The first column has the number of the row. The label is sorted as in a source that is not shuffled."""
    folder, random = tmp_path_factory.mktemp("data") / "dataset", np.random.default_rng(0)
    columns = [
        Column("number", "number", "float32"),
        Column("gaps", "number", "float32"),
        Column("kind", "category", "int32", (), ("a", "b")),
        Column("grey", "tensor", "uint8", (2, 2)),
    ]
    pixels = pa.array(random.integers(0, 256, 4 * ROWS, np.uint8))
    arrays = [
        pa.array(np.arange(ROWS, dtype=np.float32)),
        pa.array(random.random(ROWS, np.float32), mask=random.random(ROWS) < 0.1),
        pa.array(random.integers(0, 3, ROWS, np.int32)),
        pa.FixedSizeListArray.from_arrays(pixels, 4),
    ]
    labels = np.arange(ROWS) * 3 // ROWS
    return folder, write_dataset(folder, columns, arrays, labels, ["a", "b", "c"], SHARDS)


@pytest.fixture
def stream(dataset):
    """Return a function that makes a stream of a rank from the local folder."""

    def make(rank=0, world=1, seed=5, cache=None, store=None, class_weights="none", manifest=None, **options):
        folder, own = dataset
        manifest = manifest or own
        parts = parts_of_rank(manifest, rank, world)
        source = RowSource(store or open_store(str(folder)), manifest, parts, class_weights)
        return RowStream(source, seed, cache, **{"window_rows": 400, **options})

    return make


def rows_of(stream, epoch=0, skipped=0, epochs=1):
    return np.concatenate([window.gather() for window in stream.windows(epoch, skipped, epochs)])


def every_row(folder, manifest, parts):
    return [np.concatenate(arrays) for arrays in zip(*read_batches(folder, manifest, parts), strict=True)]


def numbers_of(records):
    return records[:, 0].astype(int).tolist()


def same(one, other):
    np.testing.assert_array_equal(one, other)
    return True


def row_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("row-")]


@pytest.mark.parametrize("class_weights", ["none", "balanced"])
@pytest.mark.parametrize(("rank", "world"), [(0, 1), (0, 3), (1, 3), (2, 3), (6, 7)])
def test_records_are_the_rows_of_the_rank(dataset, stream, rank, world, class_weights):
    folder, manifest = dataset
    inputs, labels = every_row(folder, manifest, parts_of_rank(manifest, rank, world))
    records = rows_of(stream(rank, world, class_weights=class_weights))
    assert numbers_of(records) != sorted(numbers_of(records))
    weights = {"none": np.ones(3), "balanced": ROWS / 3 / np.array(manifest.class_counts)}[class_weights][labels]
    assert same(records[np.argsort(records[:, 0])], np.column_stack([inputs, labels, weights]).astype(np.float32))


def test_numbers_to_predict_are_scaled_in_double_precision(tmp_path, write_dataset):
    """A float32 number of 1e9 would be rounded to a multiple of 64."""
    values = 1e9 + np.arange(50) / 4
    label = Label("price", (), "regression", 1e9, 0.5)
    columns = [Column("number", "number", "float32")]
    arrays = [pa.array(np.arange(50, dtype=np.float32))]
    manifest = write_dataset(tmp_path / "dataset", columns, arrays, values, (), [20, 30], label=label)
    parts = parts_of_rank(manifest, 0, 1)
    records = rows_of(RowStream(RowSource(open_store(str(tmp_path / "dataset")), manifest, parts), 0))
    assert records[np.argsort(records[:, 0])].tolist() == [[row, row / 2, 1] for row in range(50)]


@pytest.mark.parametrize("kind", ["folder", "S3"])
def test_the_order_depends_on_the_seed_and_the_epoch_alone(dataset, stream, server, tmp_path, kind):
    folder, store = dataset[0], None
    if kind == "S3":
        store = open_store(f"s3://test-{uuid.uuid4().hex[:12]}/data", server.credentials())
        store.make_bucket()
        store.upload_folder(folder)
    whole = [rows_of(stream(1, 3), epoch) for epoch in range(3)]
    assert len({str(numbers_of(records)) for records in whole}) == 3
    assert len({str(sorted(numbers_of(records))) for records in whole}) == 1
    for readers in (1, 2, 5):
        for limit in (0, 20_000, 10**9):
            cache = RowCache(tmp_path, limit, 0)
            own = stream(1, 3, cache=cache, store=store, readers=readers)
            assert same(rows_of(own, epochs=3), np.concatenate(whole))
            assert same(rows_of(own, 2), whole[2])
            cache.close()
    assert numbers_of(rows_of(stream(1, 3, seed=6))) != numbers_of(whole[0])
    assert [*tmp_path.iterdir()] == []


def test_the_ranks_have_all_rows_once(stream):
    of_ranks = [numbers_of(rows_of(stream(rank, 4))) for rank in range(4)]
    assert sorted(number for of_rank in of_ranks for number in of_rank) == list(range(ROWS))
    assert {len(of_rank) for of_rank in of_ranks} == {ROWS // 4}


def test_a_resumed_epoch_repeats_nothing_and_skips_nothing(stream):
    whole = rows_of(stream(1, 3, records=1010), 4, epochs=2)
    assert len(whole) == 2020
    assert np.count_nonzero(whole[:, -1] == 0) == 20
    for skipped in (*range(0, 1011, 7), 999, 1000, 1001, 1009, 1010):
        assert same(rows_of(stream(1, 3, records=1010), 4, skipped, epochs=2), whole[skipped:])


def test_rows_that_are_skipped_are_not_fetched(dataset, stream):
    counts = []
    rows_of(stream(on_bytes=counts.append), skipped=ROWS - 1)
    whole = sum(shard.size for shard in dataset[1].shards)
    assert sum(counts) < whole / 2
    counts.clear()
    rows_of(stream(on_bytes=counts.append))
    assert sum(counts) == whole, "these small shards are read with one request each"


def test_a_cached_epoch_fetches_nothing(dataset, stream, tmp_path):
    counts, cache = [], RowCache(tmp_path, 10**9, 0)
    own = stream(cache=cache, on_bytes=counts.append)
    rows_of(own)
    assert sum(counts) == sum(shard.size for shard in dataset[1].shards)
    counts.clear()
    rows_of(own, 1, epochs=5)
    assert counts == []
    assert cache.stored_bytes == (ROWS + 1) * 9 * 4, "the rows, and one that fills up epochs"
    cache.close()


def test_batches_are_cut_across_windows(stream):
    plan = plan_epoch(ROWS, 256)
    own = stream(records=plan.records)
    found = list(islice(batches(own.windows(epochs=None), repeat(plan.batch)), 2 * plan.steps))
    assert {batch.shape for batch in found} == {(plan.batch, 9)}
    assert same(np.concatenate(found), rows_of(own, epochs=2))
    own = stream(2, 7)
    sizes = [step.part.stop - step.part.start for step in steps_of_epoch(ROWS, 100, 7, 2)]
    found = list(batches(own.windows(), [*sizes, 0]))
    assert [len(batch) for batch in found] == [*sizes, 0]
    assert same(np.concatenate(found), rows_of(own))
    assert [len(batch) for batch in batches(own.windows(), repeat(400))] == [400, sum(sizes) - 400]


def test_a_rank_without_rows_has_a_record_of_weight_zero(stream):
    own = stream(0, 4000)
    assert rows_of(own).tolist() == [[0.0] * 9]
    assert [batch.shape for batch in batches(own.windows(), [0, 0])] == [(0, 9), (0, 9)]


def test_a_sorted_label_is_mixed(tmp_path, write_dataset):
    """A source that is sorted by its label, in shards as `prepare_data` writes them: random samples in random order."""
    rows, classes = np.random.default_rng(0).permutation(20_000), 5
    columns, arrays = [Column("number", "number", "float32")], [pa.array(rows, pa.float32())]
    shards, labels = [9000, 9000, 2000], rows * classes // len(rows)
    manifest = write_dataset(tmp_path / "dataset", columns, arrays, labels, list("abcde"), shards)
    source = RowSource(open_store(str(tmp_path / "dataset")), manifest, parts_of_rank(manifest, 0, 2))
    orders = [rows_of(RowStream(source, 0, window_rows=2000), epoch) for epoch in range(2)]
    for records in orders:
        # Batches of 100 rows have the classes as random ones have: chi-square with 100 * 4 degrees of freedom.
        counts = [np.bincount(batch, minlength=classes) for batch in records[:, 1].astype(int).reshape(-1, 100)]
        assert 300 < ((np.array(counts) - 20) ** 2 / 20).sum() < 520
        # Neighbours are as far from each other as any two rows: a third of the range.
        assert abs(np.abs(np.diff(records[:, 0])).mean() - len(rows) / 3) < 200
    # Rows that were neighbours are far from each other in the next epoch, though those of a shard stay together.
    places = np.argsort(orders[1][:, 0])[np.argsort(np.argsort(orders[0][:, 0]))]
    assert np.abs(np.diff(places)).mean() > len(places) / 6
    assert np.count_nonzero(np.abs(np.diff(places)) == 1) < 20


def test_windows_mix_shards_that_are_sorted(stream):
    """Shards of the first format of datasets keep parts of the order of the source. A window mixes its row groups."""
    for window in stream(window_rows=1500).windows():
        numbers = window.gather()[:, 0]
        pairs = np.abs(numbers[:, None] - numbers).mean()
        assert abs(np.abs(np.diff(numbers)).mean() / pairs - 1) < 0.15 or len(numbers) < 300


def test_a_damaged_shard_is_an_error_of_the_consumer(dataset, stream, tmp_path):
    folder, manifest = dataset
    store = open_store(str(tmp_path))
    store.copy(open_store(str(folder)), manifest.shards[0].path, manifest.shards[0].path)
    for shard in manifest.shards[1:]:
        store.write(shard.path, bytes(shard.size))
    with pytest.raises(ChecksumMismatch, match=r"part-0000[1-4]\.parquet.*Run prepare_data again"):
        rows_of(stream(store=store))
    assert row_threads() == []


@pytest.mark.parametrize("cached", [False, True])
def test_a_shard_that_is_replaced_between_two_epochs_is_an_error(dataset, stream, tmp_path, cached):
    """Even by a file of the same size, whose rows would be mixed with cached ones."""
    folder, manifest = dataset
    shutil.copytree(folder, tmp_path / "copy")
    cache = RowCache(tmp_path / "cache", 20_000 if cached else 0)  # Less than the rows.
    rows = stream(store=open_store(str(tmp_path / "copy")), cache=cache)
    rows_of(rows)
    file = tmp_path / "copy" / manifest.shards[4].path
    shutil.copy(file, tmp_path / "new")
    (tmp_path / "new").replace(file)
    with pytest.raises(ChecksumMismatch, match=r"part-00004\.parquet.*was replaced"):
        rows_of(rows, epoch=1)
    cache.close()


def test_an_iterator_that_is_closed_leaves_no_thread_and_no_file(stream, tmp_path):
    cache = RowCache(tmp_path, 10**9, 0)
    own = stream(cache=cache)
    for taken in range(4):
        with closing(own.windows(epochs=None)) as windows:
            assert len(list(islice(windows, taken))) == taken
            assert not taken or "row-stream" in row_threads()
        assert row_threads() == []
    cut = batches(own.windows(epochs=None), repeat(7))
    next(cut)
    cut.close()
    assert row_threads() == []
    cache.close()
    assert [*tmp_path.iterdir()] == []


def test_a_read_that_hangs_does_not_delay_the_close(dataset, stream, server):
    """The end of a replica must not wait for a store that does not answer."""
    folder, manifest = dataset
    bucket = f"s3://test-{uuid.uuid4().hex[:12]}"
    store = open_store(f"{bucket}/data", server.credentials())
    store.make_bucket()
    store.upload_folder(folder)
    rows = [part.rows for part in parts_of_rank(manifest, 0, 1)]
    *_, last = chapters_of_epoch(rows, 400, OrderSeed(5, 0))
    is_asked, goes_on, is_answered = threading.Event(), threading.Event(), threading.Event()

    def hang():
        is_asked.set()
        goes_on.wait(300)
        is_answered.set()

    with faulty_proxy(server.endpoint) as proxy:
        proxy.faults = [Fault(manifest.shards[last.parts[-1]].path, before=hang)]
        proxied = replace(server.credentials(), endpoint=proxy.url.removeprefix("http://"))
        windows, taken = stream(store=open_store(f"{bucket}/data", proxied)).windows(), 0
        while taken < last.start:
            taken += len(next(windows))
        assert is_asked.wait(120)
        begin = time.monotonic()
        windows.close()
        assert time.monotonic() - begin >= CLOSE_SECONDS
        assert not is_answered.is_set()
        assert "row-stream" in row_threads(), "the read still hangs"
        goes_on.set()
        for thread in threading.enumerate():
            if thread.name.startswith("row-"):
                thread.join(120)
    assert row_threads() == []


def test_an_error_of_the_callback_is_raised_in_the_consumer(stream):
    def fail(count):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        rows_of(stream(on_bytes=fail))
    assert row_threads() == []


def test_a_dataset_without_a_label_is_refused(stream, dataset):
    manifest = replace(dataset[1], label=Label("", task="none"), class_counts=())
    with pytest.raises(ValueError, match="the dataset has no label"):
        stream(manifest=manifest)


def test_the_first_batch_needs_a_fraction_of_a_large_dataset(tmp_path, write_dataset):
    """It needs a footer and an eighth of a window of 64 MiB, rounded up to row groups."""
    rows, width = 25_000, 1200
    values = np.random.default_rng(0).random((rows, width), np.float32)
    arrays = [pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), width)]
    columns = [Column("series", "tensor", "float32", (width,))]
    folder = tmp_path / "dataset"
    manifest = write_dataset(folder, columns, arrays, np.zeros(rows, int), ["a"], [rows // 2] * 2)
    assert sum(shard.size for shard in manifest.shards) > 100e6
    counts = []
    source = RowSource(open_store(str(folder)), manifest, parts_of_rank(manifest, 0, 1))
    with closing(batches(RowStream(source, 0, on_bytes=counts.append).windows(), repeat(256))) as found:
        assert next(found).shape == (256, width + 2)
    # Those of the second window may have begun to arrive.
    assert 2**23 < sum(counts) < 3 * 2**23 + 2**21
