"""Which columns of a table are numbers and which are texts."""

import re
from datetime import timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prepare_data.test_sources import category, number, opened, parquet, rows_of

from kfp_distributed.components.prepare_data.tables import csv_files

# Bytes of more than the first batch of a CSV file.
MANY = 2**18


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(csv_files, "BLOCK_BYTES", 2**16)


def notes_of(path):
    return opened(path)[0].notes


@pytest.mark.parametrize("first", ["02134", "12134"], ids=["in the first row", "in a later row"])
def test_numbers_with_leading_zeros_are_texts(file, tmp_path, first):
    path = file("data.csv", f"zip,age,kind\n{first},7,a\n,8,b\n02134,0,c\n")
    assert rows_of(path) == (
        (category("zip"), number("age")),
        {"kind": ["a", "b", "c"], "zip": [first, None, "02134"], "age": [7, 8, 0]},
    )
    (line,) = notes_of(path)
    assert line.startswith("column 'zip' has numbers with leading zeros, such as '02134'")


def test_leading_zeros_after_the_first_batch_and_in_a_later_file_make_texts(file, tmp_path):
    file("rows/a.csv", "zip,age,code,kind\n" + "12134,1,7,a\n" * (MANY // 6) + "02134,2,7,a\n")
    folder = file("rows/b.csv", "zip,age,code,kind\n1,2,007,b\n").parent
    columns, rows = rows_of(folder)
    assert columns == (category("zip"), number("age"), category("code"))
    assert (rows["zip"][0], rows["zip"][-2:], rows["code"][-2:]) == ("12134", ["02134", "1"], ["7", "007"])
    assert [line.split("'")[1::2] for line in notes_of(folder)] == [["zip", "02134"], ["code", "007"]]


@pytest.mark.parametrize("values", ["0.5,00.7", "-1,-02", "1.5,02", "0,10", "0,0", "1e3,01"])
def test_quantities_are_numbers(file, tmp_path, values):
    path = file("data.csv", "x,kind\n" + "".join(f"{value},a\n" for value in values.split(",")))
    assert rows_of(path)[1]["x"] == pytest.approx([float(value) for value in values.split(",")])
    assert notes_of(path) == ()


def test_a_text_column_whose_first_values_are_missing_is_text(file):
    text = "town,note,nothing,kind\n" + ",,,a\n" * (MANY // 2)
    columns, rows = rows_of(file("data.csv", text + "Ulm,,,b\n"))
    assert columns == (category("town"), number("note"), number("nothing"))
    assert (rows["town"][0], rows["town"][-1]) == (None, "Ulm")
    file("rows/a.csv", text)
    folder = file("rows/b.csv", "note,nothing,town,kind\nx,,7.5,b\n").parent
    assert rows_of(folder)[0] == (number("town"), category("note"), number("nothing"))


def test_a_parquet_column_without_values_has_the_kind_of_a_later_file(file):
    parquet(file, "rows/a.parquet", kind=["a"], town=[None], size=[None], nothing=[None])
    folder = parquet(file, "rows/b.parquet", kind=["b"], town=["Ulm"], size=[1.5], nothing=[None]).parent
    assert rows_of(folder) == (
        (category("town"), number("size"), number("nothing")),
        {"kind": ["a", "b"], "town": [None, "Ulm"], "size": [None, 1.5], "nothing": [None, None]},
    )


@pytest.mark.parametrize(
    ("values", "kind", "advice"),
    [
        (
            [[1.5]],
            pa.list_(pa.float64()),
            """keep the column for a function of your own: columns={'c': "list<float>"}""",
        ),
        ([[1]], pa.large_list(pa.int32()), """columns={'c': "list<int>"}"""),
        ([[1, 2]], pa.list_(pa.int32(), 2), """columns={'c': "list<int>"}"""),
        ([["a"]], pa.list_(pa.string()), """columns={'c': "list<text>"}"""),
        ([[[1.5]]], pa.list_(pa.list_(pa.float64())), 'or keep all columns for a function of your own (task="none")'),
        ([{"a": 1}], pa.struct({"a": pa.int64()}), "Write its parts into columns of their own, leave the column out"),
        ([timedelta(1)], pa.duration("s"), "Write it as a number, such as of seconds, leave the column out"),
    ],
)
def test_the_advice_for_a_column_of_another_type_can_be_followed(tmp_path, run, values, kind, advice):
    pq.write_table(pa.table({"c": pa.array(values * 40, kind), "label": ["a", "b"] * 20}), tmp_path / "data.parquet")
    with pytest.raises(ValueError, match=f"column 'c' is of type .*{re.escape(advice)}"):
        run(tmp_path / "data.parquet")
    if match := re.search('"(list<.*>)"', advice):
        (column,) = run(tmp_path / "data.parquet", columns={"c": match[1]})["train"].columns
        assert column.kind == "kept"
