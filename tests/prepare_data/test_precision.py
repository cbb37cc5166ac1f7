"""Numbers that become equal as 32-bit floats."""

import re

import numpy as np
import pytest
from prepare_data.test_sources import LABELLED, parquet

from kfp_distributed.components.prepare_data.pieces.piece_files import Pieces
from kfp_distributed.components.prepare_data.report.data_warnings import duplicate_warnings
from kfp_distributed.components.prepare_data.report.duplicates import Duplicates
from kfp_distributed.components.prepare_data.report.precision import Precision
from kfp_distributed.components.prepare_data.scan.scanner import scan
from kfp_distributed.components.prepare_data.tables.open_source import open_source
from kfp_distributed.storage.dataset import read_batches

pytestmark = pytest.mark.takes(2)


@pytest.mark.parametrize(
    ("values", "pair", "stored"),
    [
        (["1000000.001", "1000000.002", "0"], ("1000000.001", "1000000.002"), "1000000"),
        (["1000000.001", "1000000.002", "1000000.003"], ("1000000.001", "1000000.002"), "1000000"),
        (["20000000", "20000001", "", "20000002"], ("20000000", "20000001"), "20000000"),
        (["0.50000001", "0.50000002", "7"], ("0.50000001", "0.50000002"), "0.5"),
    ],
)
def test_collapsed_numbers_are_one_line(file, tmp_path, values, pair, stored):
    text = "x,kind\n" + "".join(f"{value},{kind}\n" for value in values for kind in "ab")
    scanned = scan(open_source(file("data.csv", text), LABELLED, tmp_path), Pieces(tmp_path / ".pieces", 0, 0))
    *_, line = scanned.warnings
    assert len(scanned.warnings) == 1 + ("" in values)
    assert re.findall(r"\d+(?:\.\d+)?", line.removeprefix("column 'x'").replace("32-bit", "")) == [*pair, stored]
    assert scanned.collapsed == ("x",)


def test_collapsed_numbers_of_parquet_are_found_in_any_batch(file, tmp_path):
    rows = 300_000
    numbers = np.arange(rows, dtype=np.int64) + 2**24 - rows + 100_000
    path = parquet(file, "data.parquet", kind=["a", "b"] * (rows // 2), x=numbers, y=np.arange(rows, dtype=np.int64))
    assert scan(open_source(path, LABELLED, tmp_path), Pieces(tmp_path / ".pieces", 0, 0)).collapsed == ("x",)


@pytest.mark.parametrize(
    "numbers",
    [
        np.random.default_rng(0).random(4096),
        np.array([0.1 + 0.2, 0.3, 1.5]),
        np.array([1.1, np.nan, 1.1, np.nan]),
        np.arange(1000) + 2.0**24 - 1000,
        np.empty(0),
        np.random.default_rng(0).random((400, 30)),
        np.array([[np.nan, 1.0], [0.5, 1.0 + 1e-15]]),
        # Equal as 32-bit floats, but in different elements.
        np.array([[2.0**24, 2.0**24 + 1.0], [0.0, 0.0]]),
        np.empty((0, 3)),
    ],
    ids=["random", "rounding", "equal", "exact", "none", "matrix", "NaN", "elements", "no rows"],
)
def test_usual_numbers_do_not_collapse(numbers):
    precision = Precision()
    precision.add(numbers)
    assert precision.collapses() is None


def test_the_advice_about_duplicates_names_the_collapsed_columns():
    duplicates = [Duplicates("test", "train", 7, 0.1)]
    (plain,) = duplicate_warnings(duplicates)
    (line,) = duplicate_warnings(duplicates, ["a", "b", "c", "d", "e"])
    assert re.findall(r"'(\w)'", line) == ["a", "b", "c", "d"]
    assert ("Remove duplicates" in plain, "Remove duplicates" in line) == (True, False)


def test_rows_that_differ_in_collapsed_numbers_are_not_called_duplicates(run, file, capsys):
    rows = "".join(f"{1_000_000 + index / 1000},{'ab'[index % 2]}\n" for index in range(40))
    manifest = run(file("data.csv", "x,label\n" + rows), shards=1)["train"]
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    assert (manifest.columns[0].dtype, manifest.rows) == ("float32", 32)
    assert ["'x'" in line for line in lines] == [True] * 4
    assert not any("Remove duplicates" in line for line in lines)


@pytest.mark.parametrize("dtype", ["float64", "longdouble", "int64", "uint32"])
@pytest.mark.parametrize("shape", [(40,), (10, 4)])
def test_an_element_of_a_tensor_that_collapses_is_named(run, tmp_path, capsys, dtype, shape):
    index, is_whole = np.arange(200), "int" in dtype
    numbers = np.random.default_rng(1).integers(0, 100, (200, *shape)).astype(dtype)
    last = (slice(None), *(size - 1 for size in shape))
    numbers[last] = 2_000_000_000 + index if is_whole else 1_000_000 + index / 1000
    np.savez(tmp_path / "rows.npz", x=numbers, label=index % 2)
    column = run(tmp_path / "rows.npz", shards=1)["train"].columns[0]
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: "))
    pair = "2000000000 and 2000000001" if is_whole else "1000000 and 1000000.001"
    assert (column.dtype, column.shape) == ("float32", shape)
    assert f"column 'x' has different numbers that become equal as 32-bit floats: {pair} become" in line


def test_rows_of_a_matrix_that_differ_in_collapsed_numbers_are_not_called_duplicates(run, tmp_path, capsys):
    index = np.arange(100)
    np.savez(tmp_path / "rows.npz", x=np.c_[1e8 + index / 1000, index % 3], label=index % 2)
    run(tmp_path / "rows.npz", shards=1)
    text = capsys.readouterr().out
    assert "become equal as 32-bit floats" in text
    assert "Remove duplicates" not in text


def test_elements_of_tensors_keep_their_nearest_32_bit_floats(run, tmp_path):
    numbers = np.random.default_rng(2).normal(size=(50, 6)) * 10.0 ** np.arange(-20, 28, 8)
    np.savez(tmp_path / "rows.npz", x=numbers, label=np.arange(50) % 2)
    manifest = run(tmp_path / "rows.npz", shards=1, validation_fraction=0.0, test_fraction=0.0)["train"]
    stored = np.concatenate([inputs for inputs, _ in read_batches(tmp_path / "out" / "train", manifest)])
    assert np.array_equal(np.sort(stored, axis=0), np.sort(numbers.astype(np.float32), axis=0))
