"""Parquet files that are written at the same time."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kfp_distributed.components.prepare_data import shard_files
from kfp_distributed.components.prepare_data.shard_files import ShardFiles


def write(folder, files=3, rows=1000, batch=100):
    targets = np.random.default_rng(0).integers(0, files - 1, rows).astype(np.uint16)  # The last file gets no row.
    paths = [folder / f"{file}.parquet" for file in range(files)]
    with ShardFiles(paths, ["code"]) as shards:
        for begin in range(0, rows, batch):
            order = begin + np.argsort(targets[begin : begin + batch], kind="stable")
            rows = pa.record_batch({"x": pa.array(order, pa.float32()), "code": pa.array([1] * batch)})
            shards.add(rows, targets[order])
    return paths, targets


@pytest.mark.parametrize("name", ["GROUP_BYTES", "PENDING_BYTES"])
def test_each_file_has_its_rows_in_their_order_whatever_the_size_of_row_groups(tmp_path, monkeypatch, name):
    monkeypatch.setattr(shard_files, name, 2000)
    paths, targets = write(tmp_path)
    assert [path.exists() for path in paths] == [True, True, False]
    for file in (0, 1):
        assert pq.read_table(paths[file])["x"].to_pylist() == np.flatnonzero(targets == file).tolist()
        assert pq.ParquetFile(paths[file]).num_row_groups > 1


def test_repeated_values_are_written_once_and_numbers_without_a_dictionary(tmp_path):
    paths, _ = write(tmp_path)
    columns = [pq.ParquetFile(paths[0]).metadata.row_group(0).column(index) for index in (0, 1)]
    assert [column.has_dictionary_page for column in columns] == [False, True]


def test_row_groups_of_images_are_as_large_as_those_of_floats(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (10_000, 1000), np.uint8)
    images = pa.FixedSizeListArray.from_arrays(pa.array(pixels.reshape(-1)), 1000)
    with ShardFiles([tmp_path / "a.parquet"], []) as shards:
        shards.add(pa.record_batch({"image": images}), np.zeros(len(images), np.uint16))
    file = pq.ParquetFile(tmp_path / "a.parquet")
    sizes = [file.metadata.row_group(index).total_byte_size for index in range(file.num_row_groups)]
    # Parquet stores a pixel in 4 bytes before the compression.
    assert max(sizes) < 1.3 * shard_files.GROUP_BYTES
    assert file.read()["image"].combine_chunks().flatten().to_numpy().tobytes() == pixels.tobytes()
