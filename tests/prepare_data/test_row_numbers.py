"""IDs and index columns."""

import re

import numpy as np
import pytest
from prepare_data.test_sources import LABELLED, number, parquet, rows_of

from kfp_distributed.components.prepare_data.columns.row_numbers import WholeNumbers
from kfp_distributed.components.prepare_data.pieces.piece_files import Pieces
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.scan.scanner import scan
from kfp_distributed.components.prepare_data.tables.open_source import open_source


def notes_of(path, tmp_path, options=LABELLED):
    return open_source(path, options, tmp_path).notes


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_the_index_of_a_csv_file_is_left_out_if_it_numbers_the_rows(file, tmp_path, name):
    text = f"{name},age,kind\n0,5,a\n1,6,b\n2,7,a\n"
    path = file("data.csv", text)
    assert rows_of(path) == ((number("age"),), {"kind": ["a", "b", "a"], "age": [5, 6, 7]})
    (line,) = notes_of(path, tmp_path)
    assert line.startswith(f"left out column {name!r}")
    assert notes_of(path, tmp_path, Options("kind", drop_columns=(name,))) == ()
    path = file("rows/a.csv", text)
    file("rows/b.csv", text)
    assert rows_of(path.parent)[0] == (number("age"),)
    file("rows/b.csv", text.replace("\n2", "\n5").replace("\n1", "\n4").replace("\n0", "\n3"))
    assert rows_of(path.parent)[0] == (number("age"),)
    file("rows/b.csv", text.replace("\n1", "\n9"))
    assert rows_of(path.parent)[0] == (number(name), number("age"))
    (line,) = notes_of(path.parent, tmp_path)
    assert line.startswith(f"column {name!r}")


def test_the_index_of_a_parquet_file(file, tmp_path):
    path = parquet(file, "a.parquet", age=[5, 6], kind=["a", "b"], __index_level_0__=[0, 1])
    assert rows_of(path)[0] == (number("age"),)
    path = parquet(file, "b.parquet", age=[5, 6], kind=["a", "b"], __index_level_0__=[1, 0])
    assert rows_of(path)[0] == (number("age"), number("__index_level_0__"))
    path = parquet(file, "c.parquet", kind=["a", "b"], __index_level_0__=[0, 1])
    assert rows_of(path)[0] == (number("__index_level_0__"),)


def test_columns_like_ids_are_one_line(file, tmp_path):
    rows = [f"{100 + i},{i * 7 % 20},{-i},{i * 7 % 20},{i * 1.5},{'ab'[i % 2]}" for i in range(20)]
    path = file("data.csv", "number,user_id,down,age,half,kind\n" + "\n".join(rows) + "\n")
    lines = scan(open_source(path, LABELLED, tmp_path), Pieces(tmp_path / ".pieces", 0, 0)).warnings
    assert [re.findall("'(.*?)'", line) for line in lines] == [["number"], ["user_id"], ["down"]]


@pytest.mark.parametrize(
    ("name", "batches", "expected"),
    [
        ("x", [[1, 2], [3, 9]], True),
        ("x", [[1, 2], [2, 9]], False),
        ("x", [[9, 2], [], [1]], True),
        ("x", [[1, 2.5]], False),
        ("id", [[1, np.nan]], False),
        *((name, [[2, 1, 2]], True) for name in ("id", "ID", "userId", "row id", "index", "Customer_ID")),
        *((name, [[2, 1, 2]], False) for name in ("paid", "humid", "PAID", "identity")),
    ],
)
def test_numbers_like_ids(name, batches, expected):
    numbers = WholeNumbers()
    for batch in batches:
        numbers.add(np.array(batch, float))
    assert numbers.is_id(name) is expected
