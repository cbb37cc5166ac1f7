"""Numbers that become equal as 32-bit floats."""

import re

import numpy as np
import pytest
from prepare_data.test_sources import LABELLED, parquet

from kfp_distributed.components.prepare_data.data_warnings import duplicate_warnings
from kfp_distributed.components.prepare_data.duplicates import Duplicates
from kfp_distributed.components.prepare_data.precision import Precision
from kfp_distributed.components.prepare_data.sources import open_source
from kfp_distributed.components.prepare_data.split import scan


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
    scanned = scan(open_source(file("data.csv", text), LABELLED, tmp_path))
    *_, line = scanned.warnings
    assert len(scanned.warnings) == 1 + ("" in values)
    assert re.findall(r"\d+(?:\.\d+)?", line.removeprefix("column 'x'").replace("32-bit", "")) == [*pair, stored]
    assert scanned.collapsed == ("x",)


def test_collapsed_numbers_of_parquet_are_found_in_any_batch(file, tmp_path):
    rows = 300_000
    numbers = np.arange(rows, dtype=np.int64) + 2**24 - rows + 100_000
    path = parquet(file, "data.parquet", kind=["a", "b"] * (rows // 2), x=numbers, y=np.arange(rows, dtype=np.int64))
    assert scan(open_source(path, LABELLED, tmp_path)).collapsed == ("x",)


@pytest.mark.parametrize(
    "numbers",
    [
        np.random.default_rng(0).random(4096),
        np.array([0.1 + 0.2, 0.3, 1.5]),
        np.array([1.1, np.nan, 1.1, np.nan]),
        np.arange(1000) + 2.0**24 - 1000,
        np.empty(0),
    ],
    ids=["random", "rounding", "equal", "exact", "none"],
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
