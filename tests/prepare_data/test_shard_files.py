"""Parquet files that are written at the same time."""

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from kfp_distributed.components.prepare_data.writing import shard_files
from kfp_distributed.components.prepare_data.writing.shard_files import (
    GROUP_BYTES,
    PENDING_BYTES,
    ShardFiles,
    group_bytes,
    write_shard,
)


def write(folder, files=3, rows=1000, batch=100, size=GROUP_BYTES):
    targets = np.random.default_rng(0).integers(0, files - 1, rows).astype(np.uint16)  # The last file gets no row.
    paths = [folder / f"{file}.parquet" for file in range(files)]
    with ShardFiles(paths, ["code"], size) as shards:
        for begin in range(0, rows, batch):
            order = begin + np.argsort(targets[begin : begin + batch], kind="stable")
            rows = pa.record_batch({"x": pa.array(order, pa.float32()), "code": pa.array([1] * batch)})
            shards.add(rows, targets[order])
    return paths, targets


@pytest.mark.parametrize("is_large", [False, True])
def test_each_file_has_its_rows_in_their_order_whatever_the_size_of_row_groups(tmp_path, monkeypatch, is_large):
    monkeypatch.setattr(shard_files, "GROUP_BYTES", 2000)
    paths, targets = write(tmp_path, size=PENDING_BYTES if is_large else 1000)
    assert [path.exists() for path in paths] == [True, True, False]
    for file in (0, 1):
        assert pq.read_table(paths[file])["x"].to_pylist() == np.flatnonzero(targets == file).tolist()
        assert pq.ParquetFile(paths[file]).num_row_groups > 1


def test_repeated_values_are_written_once_and_numbers_without_a_dictionary(tmp_path):
    paths, _ = write(tmp_path)
    columns = [pq.ParquetFile(paths[0]).metadata.row_group(0).column(index) for index in (0, 1)]
    assert [column.has_dictionary_page for column in columns] == [False, True]


def test_a_damaged_page_is_found_without_the_checksum_of_the_file(tmp_path):
    paths, _ = write(tmp_path)
    data = bytearray(paths[0].read_bytes())
    data[100] ^= 1
    paths[0].write_bytes(data)
    with pytest.raises(OSError, match="CRC checksum verification failed"):
        pq.ParquetFile(paths[0], page_checksum_verification=True).read()


def test_row_groups_of_images_are_as_large_as_those_of_floats(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (10_000, 1000), np.uint8)
    images = pa.FixedSizeListArray.from_arrays(pa.array(pixels.reshape(-1)), 1000)
    with ShardFiles([tmp_path / "a.parquet"], [], GROUP_BYTES) as shards:
        shards.add(pa.record_batch({"image": images}), np.zeros(len(images), np.uint16))
    file = pq.ParquetFile(tmp_path / "a.parquet")
    sizes = [file.metadata.row_group(index).total_byte_size for index in range(file.num_row_groups)]
    # Parquet stores a pixel in 4 bytes before the compression.
    assert max(sizes) < 1.3 * shard_files.GROUP_BYTES
    assert file.read()["image"].combine_chunks().flatten().to_numpy().tobytes() == pixels.tobytes()


@pytest.mark.parametrize(("files", "size"), [(0, 2**23), (3, 2**23), (8, 2**23), (64, 2**20), (514, 2**17)])
def test_files_that_are_written_at_once_wait_for_a_bounded_number_of_rows(files, size):
    assert group_bytes(files) == size
    assert files * size < 1.01 * PENDING_BYTES


ODD_COLUMNS = {
    "text": pa.array(["a", None, "bc", "", "d\u00e9f"] * 40),
    "number": pa.array([None, 1.5, 2.5, None, 0.0] * 40, pa.float32()),
    "full": pa.array([0, 1, 2, 3, 4] * 40, pa.int64()),
    "flag": pa.array([True, None, False, True, True] * 40),
    "list": pa.array([[1, None], [], None, [2], [3, 4, 5]] * 40),
    "fixed": pa.array([[1, 2], [3, 4], [5, 6], [7, 8], [9, 0]] * 40, pa.list_(pa.uint8(), 2)),
    "nested": pa.array([{"a": [1]}, {"a": None}, None, {"a": []}, {"a": [2, 3]}] * 40),
}


def test_a_file_that_is_written_by_itself_from_sent_rows_has_the_same_bytes(tmp_path):
    rows = pa.record_batch(ODD_COLUMNS)
    targets = np.random.default_rng(0).integers(0, 4, 200)
    paths = [tmp_path / f"{file}.parquet" for file in range(4)]
    alone = [tmp_path / f"alone-{file}.parquet" for file in range(4)]
    parts = [[] for _ in paths]
    with ShardFiles(paths, ["text"], 600) as shards:
        for begin in range(0, 200, 40):
            order = begin + np.argsort(targets[begin : begin + 40], kind="stable")
            shards.add(rows.take(pa.array(order)), targets[order])
            for file, part in enumerate(parts):
                part.append(rows.take(pa.array(order[targets[order] == file])))
    for file in (2, 0, 3, 1):
        received = [pickle.loads(pickle.dumps(part)) for part in parts[file] if part.num_rows]
        write_shard(alone[file], received, ["text"], 600)
        assert alone[file].read_bytes() == paths[file].read_bytes()
        assert pq.ParquetFile(alone[file]).num_row_groups > 1
        assert (
            pq.read_table(alone[file]).to_pylist() == rows.take(pa.array(np.flatnonzero(targets == file))).to_pylist()
        )


def test_row_groups_depend_on_the_values_alone(tmp_path):
    """Not on bits that mark no missing value, nor on the values around a slice."""
    rows = pa.record_batch(ODD_COLUMNS)
    sliced = rows.filter(pc.is_valid(rows["number"]))
    parts = [sliced[begin : begin + 7] for begin in range(0, 119, 7)]
    copies = [pa.RecordBatch.from_pylist(part.to_pylist(), part.schema) for part in parts]
    for size in range(1000, 2000, 8):
        for name, of_file in (("slices", parts), ("copies", copies)):
            write_shard(tmp_path / name, of_file, ["text"], size)
        groups = [pq.ParquetFile(tmp_path / name).metadata for name in ("slices", "copies")]
        first, second = ([found.row_group(i).num_rows for i in range(found.num_row_groups)] for found in groups)
        assert first == second
