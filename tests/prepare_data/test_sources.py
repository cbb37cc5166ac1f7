"""Reading of CSV, Parquet and NumPy files."""

import re
import tempfile
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_digits

from kfp_distributed.components.prepare_data.pieces.piece_files import Pieces
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.scan.scanner import scan
from kfp_distributed.components.prepare_data.sources.read_rows import ReadAgain, RejectedRows
from kfp_distributed.components.prepare_data.tables.open_source import open_source
from kfp_distributed.storage.dataset import Column, Label

LABELLED = Options(label_column="kind")


def opened(path, options=LABELLED):
    """A source and its batches."""
    codes = {}
    while True:
        source = open_source(path, options, Path(tempfile.mkdtemp(dir=path and path.parent)), codes)
        try:
            rejected = RejectedRows()
            batches = [rows.rows for _, rows in source.batches(rejected)]
            rejected.check()
            return source, batches
        except ReadAgain as found:
            codes |= found.codes


def rows_of(path, options=LABELLED):
    """The columns of a source and its rows as lists of values, label first."""
    source, batches = opened(path, options)
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    return source.columns, pa.concat_tables(tables).to_pydict() if tables else {}


def number(name):
    return Column(name, "number", "float32")


def category(name):
    return Column(name, "category", "int32")


@pytest.mark.parametrize(
    ("text", "columns", "rows"),
    [
        (
            "age,kind,town\n1,a,Ulm\n2.5,b,Bern\n",
            (number("age"), category("town")),
            {"kind": ["a", "b"], "age": [1.0, 2.5], "town": ["Ulm", "Bern"]},
        ),
        ("\ufeffage,kind\r\n1,a\r\n\r\n2,b", (number("age"),), {"kind": ["a", "b"], "age": [1, 2]}),
        ("age,kind\n 1 ,a\n+2,b\n,c\n", (number("age"),), {"kind": ["a", "b", "c"], "age": [1, 2, None]}),
        ("age,kind\nNA,a\n,b\nnan,c\n", (number("age"),), {"kind": ["a", "b", "c"], "age": [None] * 3}),
        (
            'town,kind\n"a ""b"",\nc",1\nnull,2\n',
            (category("town"),),
            {"kind": ["1", "2"], "town": ['a "b",\nc', None]},
        ),
        ("ok,kind\ntrue,1.0\nfalse,2\n", (category("ok"),), {"kind": ["1.0", "2"], "ok": ["true", "false"]}),
        (
            "day,kind\n2024-01-31,007\n,-7.00\n",
            (Column("day", "number", "float32", source_type="date"),),
            {"kind": ["007", "-7.00"], "day": [19753.0, None]},
        ),
    ],
)
def test_csv(file, text, columns, rows):
    assert rows_of(file("data.csv", text)) == (columns, rows)


def test_columns_can_be_dropped(file):
    path = file("data.csv", "id,age,kind\nx,4,a\n")
    assert rows_of(path, Options("kind", drop_columns=("id",))) == ((number("age"),), {"kind": ["a"], "age": [4]})


@pytest.mark.parametrize(
    ("header", "options", "message"),
    [
        (
            "a,Kind",
            Options("kind"),
            r"'kind', .*: there is no column 'kind' \(do you mean 'Kind'\?\) in data.csv; it has \['a', 'Kind'\]",
        ),
        (
            "age,kind",
            Options("kind", drop_columns=("agee",)),
            r"there is no column 'agee' \(do you mean 'age'\?\) in .*; it has \['age', 'kind'\]",
        ),
        ("a,kind,a", Options("kind"), r"the column 'a' occurs 2 times in .*; it has \['a', 'kind', 'a'\]"),
        ("kind", Options("kind"), r"there is no other column in .*; it has \['kind'\]"),
    ],
)
def test_columns_that_do_not_match_the_options_are_refused(file, tmp_path, header, options, message):
    with pytest.raises(ValueError, match=message):
        open_source(file("data.csv", header + "\n" + re.sub("[A-Za-z]+", "1", header)), options, tmp_path)


def test_csv_files_of_a_folder_may_have_their_columns_in_any_order(file):
    file("rows/b.csv", "kind,age\nb,2\n")
    file("rows/.hidden.csv", "nothing")
    folder = file("rows/a.csv", "age,kind\n1,a\n").parent
    assert rows_of(folder) == ((number("age"),), {"kind": ["a", "b"], "age": [1, 2]})


def test_inconsistent_files_of_a_folder_are_named(file, tmp_path):
    folder = file("rows/a.csv", "age,kind\n1,a\n").parent
    file("rows/b.csv", "size,kind\n1,a\n")
    with pytest.raises(
        ValueError,
        match=r"b.csv cannot be read: it has no column 'age', which a.csv has; it has \['size', 'kind'\]",
    ):
        scan(open_source(folder, LABELLED, tmp_path), Pieces(tmp_path / ".pieces", 0, 0))
    file("rows/c.parquet", "")
    with pytest.raises(ValueError, match=r"source rows has .csv, .parquet: it must be"):
        open_source(folder, LABELLED, tmp_path)
    file("rows/more/d.csv", "age,kind\n1,a\n")
    with pytest.raises(ValueError, match=r"source rows has .csv, .parquet, folders: it must be"):
        open_source(folder, LABELLED, tmp_path)


def parquet(file, name, **columns):
    path = file(name, "")
    pq.write_table(pa.table(columns), path)
    return path


def test_parquet(file):
    path = parquet(
        file,
        "data.parquet",
        kind=pa.array([1.0, 2.0]),
        age=pa.array([1, None], pa.int16()),
        ratio=pa.array([float("nan"), 0.5]),
        ok=pa.array([True, False]),
        town=pa.array(["Ulm", None]).dictionary_encode(),
        code=pa.array(["7", "08"]),
        big=pa.array([2**40 + 1, 2**53 + 1]),
        price=pa.array([Decimal("1.5"), None]),
        nothing=pa.nulls(2),
    )
    columns, rows = rows_of(path)
    assert columns == (
        *(number(name) for name in ("age", "ratio")),
        *(category(name) for name in ("ok", "town", "code")),
        *(number(name) for name in ("big", "price", "nothing")),
    )
    assert np.isnan(rows["ratio"][0])
    assert rows | {"ratio": 0} == {
        "kind": ["1", "2"],
        "age": [1, None],
        "ratio": 0,
        "ok": ["true", "false"],
        "town": ["Ulm", None],
        "code": ["7", "08"],
        "big": [2**40 + 1, 2**53],
        "price": [1.5, None],
        "nothing": [None, None],
    }


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"kind": ["a"], "words": [["x"]]},
            "data.parquet cannot be read: column 'words' is of type list.*: allowed are",
        ),
        (
            {"kind": ["a"], "point": [{"x": 1}]},
            "column 'point' is of type struct<x: int64>: allowed are .*drop_columns",
        ),
        ({"kind": ["a"], "took": [timedelta(1)]}, r"column 'took' is of type duration.us.: allowed are"),
        ({"kind": [["a"]], "age": [1]}, "data.parquet cannot be read: column 'kind' is of type list"),
        ({"kind": ["a"], "code": [b"\xff"]}, "column 'code' has bytes that are not UTF-8: write texts"),
        ({"kind": [b"\xff"], "age": [1]}, "column 'kind' has bytes that are not UTF-8: write texts"),
        ({"kind": ["a", None], "age": [1, 2]}, "row 2 of data.parquet: 'kind' is missing"),
        ({"kind": [1.0, float("nan")], "age": [1, 2]}, "row 2 of data.parquet: 'kind' is missing"),
        ({"kind": ["a", "b"], "ratio": [1.0, float("inf")]}, "row 2 of data.parquet: 'ratio' is infinite"),
    ],
)
def test_an_unusable_parquet_file_is_refused(file, columns, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        scan(
            open_source(parquet(file, "data.parquet", **columns), LABELLED, tmp_path),
            Pieces(tmp_path / ".pieces", 0, 0),
        )


def test_a_parquet_file_without_columns_is_refused(file, tmp_path):
    with pytest.raises(ValueError, match=r"data\.parquet cannot be read: it has no rows"):
        open_source(parquet(file, "data.parquet"), LABELLED, tmp_path)


def test_a_duplicate_parquet_column_is_named(file, tmp_path):
    path = file("data.parquet", "")
    pq.write_table(pa.table([["a"], [1], [2]], names=["kind", "age", "age"]), path)
    with pytest.raises(ValueError, match=r"the column 'age' occurs 2 times in data.parquet"):
        open_source(path, LABELLED, tmp_path)


def test_inconsistent_or_damaged_parquet_files_are_named(file, tmp_path):
    folder = parquet(file, "rows/a.parquet", kind=["a"], age=[1]).parent
    damaged = parquet(file, "rows/b.parquet", kind=["a"], age=["old"])
    with pytest.raises(
        ValueError, match=r"b\.parquet cannot be read: column 'age' has 'old', but numbers in the first file"
    ):
        scan(open_source(folder, LABELLED, tmp_path), Pieces(tmp_path / ".pieces", 0, 0))
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"b\.parquet cannot be read"):
        scan(open_source(folder, LABELLED, tmp_path), Pieces(tmp_path / ".pieces", 0, 0))
    parquet(file, "rows/b.parquet", kind=["a"], size=[1])
    with pytest.raises(ValueError, match=r"b\.parquet cannot be read: .*age"):
        scan(open_source(folder, LABELLED, tmp_path), Pieces(tmp_path / ".pieces", 0, 0))


def test_a_file_without_an_ending_is_refused(file, tmp_path):
    with pytest.raises(ValueError, match="source download has no ending: it must be"):
        open_source(file("download", "x,kind\n1,a\n"), LABELLED, tmp_path)


def test_tables_in_subfolders_are_refused(file, tmp_path):
    folder = file("rows/a/1.csv", "age,kind\n1,a\n").parents[1]
    with pytest.raises(ValueError, match=r"source rows has folders: it must be .* in one folder"):
        open_source(folder, LABELLED, tmp_path)


@pytest.mark.parametrize("name", ["data.xls", "folder/notes.md"])
def test_unsupported_files_are_refused_with_the_supported_formats(file, name, tmp_path):
    path = file(name, "x")
    with pytest.raises(ValueError, match=r"\.csv|CSV"):
        open_source(path if name == "data.xls" else path.parent, LABELLED, tmp_path)


def test_digits():
    columns, rows = rows_of(None)
    assert columns == (Column("image", "tensor", "uint8", (8, 8, 1)),)
    digits = load_digits()
    assert rows == {"kind": [str(label) for label in digits.target], "image": digits.data.astype(int).tolist()}


def test_a_scan_has_the_vocabularies_and_the_class_counts(file, tmp_path):
    scanned = scan(
        open_source(file("data.csv", "town,kind\nUlm,b\nBern,a\n,b\nUlm,a\n"), LABELLED, tmp_path),
        Pieces(tmp_path / ".pieces", 0, 0),
    )
    assert scanned[:6] == (
        (Column("town", "category", "int32", vocabulary=("Bern", "Ulm")),),
        Label("kind", ("a", "b")),
        (2, 2),
        {"town": 1},
        scanned.warnings,
        (),
    )
    (warning,) = scanned.warnings
    assert warning.startswith("column 'town' has no value in 1 of 4 rows: ")


def test_a_tensor_has_no_declared_kind(run):
    with pytest.raises(ValueError, match=r"columns declares 'image' as 'text', but it is a tensor of .*: take it out"):
        run("digits", columns={"image": "text"})


def test_a_size_of_images_without_images_is_named(file, run, capsys):
    run(file("data.csv", "x,label\n" + "1,a\n2,b\n" * 20), image_size=(32, 16))
    assert "image_size is '32x16', and has no effect: no input of data.csv is an image" in capsys.readouterr().out
