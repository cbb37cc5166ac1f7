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
