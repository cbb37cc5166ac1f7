"""Gaps, declared columns, formats of CSV files, and rows that cannot be used."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kfp_distributed.components.prepare_data.csv_format import CsvFormat, parse_csv_format
from kfp_distributed.components.prepare_data.tables.text_parts import blocks
from kfp_distributed.storage.dataset import read_batches

ALL_FOR_TRAINING = {"shards": 1, "validation_fraction": 0, "test_fraction": 0}


def inputs_of(folder, manifest):
    return np.concatenate([inputs for inputs, _ in read_batches(folder, manifest)])


def test_gaps_become_the_median_of_the_training_rows(file, run, tmp_path):
    generator = np.random.default_rng(0)
    x = generator.exponential(size=1000).round(3)
    x[::9] = np.nan
    lines = [f"{'' if np.isnan(value) else value},{i},{'ab'[i % 2]}" for i, value in enumerate(x)]
    manifests = run(file("data.csv", "x,i,label\n" + "\n".join(lines) + "\n"))
    column, train = manifests["train"].columns[0], inputs_of(tmp_path / "out" / "train", manifests["train"])
    of_training = x[train[:, 1].astype(int)]
    assert column.fill == pytest.approx(np.nanmedian(of_training), rel=1e-6)
    expected = np.where(np.isnan(of_training), column.fill, of_training)
    np.testing.assert_allclose(train[:, 0], expected, rtol=1e-6)
    assert (column.mean, column.std) == (pytest.approx(expected.mean()), pytest.approx(expected.std()))
    test = inputs_of(tmp_path / "out" / "test", manifests["test"])
    of_test = x[test[:, 1].astype(int)]
    np.testing.assert_allclose(test[:, 0], np.where(np.isnan(of_test), column.fill, of_test), rtol=1e-6)
    assert manifests["train"].columns[1].fill is None


GAPS = "x,town,label\n" + "1,Ulm,a\n,Bern,b\n3,,a\n4,Ulm,b\n" * 5


def test_what_becomes_of_gaps(file, run, tmp_path, capsys):
    source = file("data.csv", GAPS)
    kept = run(source, "keep", missing="keep", **ALL_FOR_TRAINING)["train"]
    assert (kept.rows, kept.columns[0].fill) == (20, None)
    assert np.isnan(inputs_of(tmp_path / "keep" / "train", kept)[:, 0]).sum() == 5
    dropped = run(source, "drop", missing="drop", **ALL_FOR_TRAINING)["train"]
    assert (dropped.rows, dropped.columns[1].vocabulary) == (10, ("Ulm",))
    assert "left out 10 rows in which a value is missing" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"rows 3, 7, 11, 15, 19 of data.csv: 'x' is missing: fill it in") as error:
        run(source, missing="refuse", **ALL_FOR_TRAINING)
    assert "these are 10 rows that cannot be used" in str(error.value)


def test_the_first_twenty_bad_rows_are_reported_at_once(file, run):
    text = "x,label\n" + "".join(f"{'?' if i % 5 == 2 else i},{'ab'[i % 2]}\n" for i in range(200))
    with pytest.raises(ValueError, match="x' is '\\?', which is no number") as error:
        run(file("data.csv", text))
    problem, last = str(error.value).splitlines()
    assert problem.startswith(f"rows {', '.join(str(4 + 5 * row) for row in range(20))} of data.csv: 'x' is '?', which")
    assert last.startswith("these are the first 20 rows that cannot be used: correct them, or set on_bad_row")


def test_bad_rows_are_left_out_and_counted(file, run, tmp_path, capsys):
    text = "x,label\n" + "1,a\n2,b\n" * 20 + "two,a\n1,2,3\n,\ninf,a\n9,b\n"
    manifests = run(file("data.csv", text), on_bad_row="skip", **ALL_FOR_TRAINING)
    assert manifests["train"].rows == 41
    columns = "'x': 2, whole rows: 1, 'label': 1"
    line = f"left out 4 rows that cannot be used ({columns}), such as row 42 of data.csv: 'x' is 'two'"
    assert line in capsys.readouterr().out
    assert "left out 4 rows that cannot be used" in (tmp_path / "out" / "overview.html").read_text()


def test_declared_columns(file, run, tmp_path):
    text = "zip,day,size,vector,label\n" + '1,2024-01-31,5,"[1, 2.5]",a\n02,,?,,b\n' * 10
    columns = {"zip": "category", "day": "date", "size": "number", "vector": "list<float>"}
    csv_format = CsvFormat(missing=("?",))
    train = run(file("data.csv", text), columns=columns, csv_format=csv_format, **ALL_FOR_TRAINING)["train"]
    assert [(column.kind, column.source_type, column.vocabulary) for column in train.columns] == [
        ("category", "", ("02", "1")),
        ("number", "date", ()),
        ("number", "", ()),
        ("kept", "", ()),
    ]
    rows = pq.read_table(tmp_path / "out" / "train" / "part-00000.parquet").to_pylist()
    assert {(row["zip"], row["day"], row["size"], str(row["vector"])) for row in rows} == {
        (2, 19753.0, 5.0, "[1.0, 2.5]"),
        (1, 19753.0, 5.0, "None"),
    }
    with pytest.raises(ValueError, match=r"row 2 of data.csv: 'vector' is 'x', which is no list"):
        run(file("data.csv", "vector,label\nx,a\n"), columns={"vector": "list<float>"})
    with pytest.raises(ValueError, match=r"there is no column 'zap' in data.csv"):
        run(file("data.csv", text), columns={"zap": "number"})


def test_integer_codes_of_parquet_as_categories(run, tmp_path):
    table = pa.table({"code": pa.array([3.0, None, 11.0, 3.0] * 5), "label": ["a", "b"] * 10})
    pq.write_table(table, tmp_path / "data.parquet")
    train = run(tmp_path / "data.parquet", columns={"code": "category"}, **ALL_FOR_TRAINING)["train"]
    assert train.columns[0].vocabulary == ("11", "3")


@pytest.mark.parametrize(
    ("csv_format", "content"),
    [
        (CsvFormat(separator=";", decimal=","), "x;town;label\n1,5;Ülm;a\n2;Bern;b\n".encode()),
        (CsvFormat(separator="\t", encoding="latin-1"), "x\ttown\tlabel\n1.5\tÜlm\ta\n2\tBern\tb\n".encode("latin-1")),
        (CsvFormat(encoding="utf-16"), "x,town,label\r\n1.5,Ülm,a\r\n2,Bern,b\r\n".encode("utf-16")),
        (CsvFormat(), "\ufeffx,town,label\n1.5,Ülm,a\n2,Bern,b".encode()),
        (CsvFormat(), gzip.compress("x,town,label\n1.5,Ülm,a\n2,Bern,b\n".encode())),
        (CsvFormat(), pa.compress("x,town,label\n1.5,Ülm,a\n2,Bern,b\n".encode(), "zstd", asbytes=True)),
    ],
    ids=["semicolons", "tabs", "UTF-16", "byte order mark", "gzip", "zstd"],
)
def test_formats_of_csv_files(file, run, tmp_path, csv_format, content):
    ending = ".csv.gz" if content.startswith(b"\x1f\x8b") else ".csv"
    options = {"csv_format": csv_format, "task": "regression", "label_column": "x"}
    manifest = run(file(f"data{ending}", content), **options, **ALL_FOR_TRAINING)["train"]
    rows = pq.read_table(tmp_path / "out" / "train" / "part-00000.parquet").to_pylist()
    town = manifest.columns[0].vocabulary
    assert sorted((row["x"], town[row["town"] - 1]) for row in rows) == [(1.5, "Ülm"), (2.0, "Bern")]


def test_a_csv_file_without_a_header(file, run):
    source = file("data.csv", "1,x,a\n2,y,b\n" * 10)
    manifest = run(source, csv_format=CsvFormat(header=False), label_column="column_3")["train"]
    assert [column.name for column in manifest.columns] == ["column_1", "column_2"]
    assert sum(manifest.class_counts) == 16


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"seperator": ";"},
            "csv_format has the key 'seperator': allowed are separator, decimal, encoding, head",
        ),
        ({"separator": "ab"}, "csv_format: separator is 'ab': it must be one character"),
        ({"decimal": "'"}, 'decimal is "\'": it must be'),
        ({"encoding": "utf-88"}, "encoding is 'utf-88': it must be one that Python knows"),
        ({"header": "no"}, "header is 'no': it must be true or false"),
        ({"missing": "?"}, "missing is '\\?': it must be a list of texts"),
        ({"separator": ",", "decimal": ","}, "separator and decimal are both ','"),
    ],
)
def test_a_wrong_format_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        parse_csv_format(values)


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_blocks_end_with_rows(size):
    class Stream:
        rest = b'a,"b\nc"\n"d ""\n",e\n\nf,g'

        def read(self, count):
            part, self.rest = self.rest[:count], self.rest[count:]
            return part

    parts = [*blocks(Stream(), 3, size)]
    assert b"".join(parts) == Stream.rest
    rows = [b'a,"b\nc"\n', b'"d ""\n",e\n', b"\n", b"f,g"]
    ends = np.cumsum([len(row) for row in rows]).tolist()
    assert {*np.cumsum([len(part) for part in parts]).tolist()} <= {*ends}
