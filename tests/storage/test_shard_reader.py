"""Row groups of a Parquet shard, read as ranges of an object of a real S3 server and of a local file."""

import re
import uuid
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kfp_distributed.storage import ChecksumMismatch, open_store, sha256_of
from kfp_distributed.storage.dataset import Shard
from kfp_distributed.storage.shard_reader import TAIL_BYTES, ShardReader

pytestmark = pytest.mark.takes(4)

ROWS, GROUP = 200_000, 30_000
NAMES = ["x", "pixels", "kind", "label"]


@pytest.fixture(scope="module")
def table():
    random = np.random.default_rng(0)
    return pa.table(
        {
            "x": pa.array(random.random(ROWS, np.float32), mask=random.random(ROWS) < 0.1),
            "pixels": pa.FixedSizeListArray.from_arrays(pa.array(random.integers(0, 256, 4 * ROWS, np.uint8)), 4),
            "kind": pa.array(random.integers(0, 9, ROWS, np.int32)),
            "label": pa.array(random.random(ROWS)),
        }
    )


@pytest.fixture(params=["folder", "S3"])
def store(request, server, tmp_path):
    if request.param == "folder":
        opened = open_store(str(tmp_path / "store"))
    else:
        opened = open_store(f"s3://test-{uuid.uuid4().hex[:12]}/a dataset", server.credentials())
    opened.make_bucket()
    return opened


@pytest.fixture
def add(store, table, tmp_path):
    """Return a function that writes the table as a shard. Options are those of `write_table`."""

    def write(rows=ROWS, **options):
        file = tmp_path / "shard.parquet"
        options = {"row_group_size": GROUP, "write_page_checksum": True, **options}
        pq.write_table(table.slice(0, rows), file, **options)
        store.upload(file, file.name)
        return Shard(file.name, rows, file.stat().st_size, sha256_of(file))

    return write


@pytest.mark.parametrize("options", [{}, {"write_page_checksum": False}, {"use_dictionary": ["kind"]}], ids=str)
def test_row_groups_are_those_of_the_file(store, table, add, options):
    counts = []
    reader = ShardReader(store, shard := add(**options), counts.append)
    assert reader.group_rows() == (*(GROUP,) * 6, 20_000)
    assert sum(counts) == TAIL_BYTES
    with ThreadPoolExecutor(4) as threads:
        groups = list(threads.map(lambda group: reader.read_group(group, NAMES), range(7)))
    assert pa.concat_tables(groups).equals(table)
    assert sum(counts) - TAIL_BYTES < shard.size, "each row group is read once, and nothing else"
    assert reader.read_group(3, ["label", "x"]).equals(table.select(["label", "x"]).slice(3 * GROUP, GROUP))


def test_a_small_shard_is_one_request(store, table, add):
    counts = []
    reader = ShardReader(store, shard := add(5000, row_group_size=1000), counts.append)
    groups = [reader.read_group(group, NAMES) for group in range(len(reader.group_rows()))]
    assert pa.concat_tables(groups).equals(table.slice(0, 5000))
    assert sum(counts) == shard.size


def test_a_footer_that_is_longer_than_the_first_request(store, table, add):
    counts = []
    reader = ShardReader(store, add(row_group_size=400), counts.append)
    assert reader.group_rows() == (400,) * 500
    assert sum(counts) > 2 * TAIL_BYTES
    assert reader.read_group(499, NAMES).equals(table.slice(ROWS - 400))


def test_a_damaged_page_names_the_shard(store, add):
    shard = add()
    data = bytearray(store.read(shard.path))
    data[len(data) // 2] ^= 1
    store.write(shard.path, bytes(data))
    reader = ShardReader(store, shard)
    with pytest.raises(ChecksumMismatch, match=r"shard\.parquet.* damaged or was replaced: .*CRC") as error:
        [reader.read_group(group, NAMES) for group in range(7)]
    assert (error.value.endpoint, error.value.bucket) == (store.endpoint, store.bucket)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda data: data + b"x", "it has [0-9]+ bytes, and the manifest [0-9]+"),
        (lambda data: data[:-1] + b"2", "it does not end as a Parquet file"),
        (lambda data: data[:-8] + b"\xff\xff\xff\x7f" + data[-4:], "it does not end as a Parquet file"),
        (lambda data: data[:-3000] + bytes(2992) + data[-8:], ""),
    ],
    ids=["size", "magic", "length", "footer"],
)
def test_a_damaged_footer_names_the_shard(store, add, change, cause):
    shard = add()
    store.write(shard.path, change(store.read(shard.path)))
    with pytest.raises(ChecksumMismatch, match=rf"shard\.parquet.* damaged or was replaced: {cause}"):
        ShardReader(store, shard).group_rows()


def test_a_shard_with_other_rows_is_not_that_of_the_manifest(store, add):
    shard = add()
    with pytest.raises(ChecksumMismatch, match="it has 200000 rows, and the manifest 7"):
        ShardReader(store, Shard(shard.path, 7, shard.size, shard.sha256)).group_rows()


def test_missing_columns_are_named(store, add):
    reader = ShardReader(store, add())
    with pytest.raises(ChecksumMismatch, match=re.escape("it has the columns ['x'], expected ['x', 'y']")):
        reader.read_group(0, ["x", "y"])


def test_an_object_that_is_replaced_meanwhile_is_an_error(store, add):
    """Even by a file of the same size."""
    reader = ShardReader(store, shard := add())
    reader.group_rows()
    data = bytearray(store.read(shard.path))
    data[10] ^= 1
    store.write(shard.path, bytes(data))
    with pytest.raises(ChecksumMismatch, match=r"shard\.parquet.* was replaced while it was read"):
        reader.read_group(5, NAMES)


@pytest.mark.parametrize("size", [1000, 2_000_000])
@pytest.mark.parametrize("is_open", [False, True])
def test_a_shard_that_became_shorter_or_longer_was_replaced(store, add, size, is_open):
    shard = add()
    reader = ShardReader(store, shard)
    if is_open:  # The server reports no ETag.
        reader.group_rows()
        reader.etag = ""
    store.write(shard.path, store.read(shard.path)[:size].ljust(size))
    text = (
        rf"shard\.parquet.* was replaced: it has {size} bytes, and the manifest {shard.size}\. Run prepare_data again"
    )
    with pytest.raises(ChecksumMismatch, match=text):
        reader.read_group(6, NAMES)
