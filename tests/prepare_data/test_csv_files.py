"""Errors of CSV files: they name the column, the row and what to do."""

import re

import pytest

from kfp_distributed.components.prepare_data.csv_format import CsvFormat, line_above_rows, parse_csv_format
from kfp_distributed.components.prepare_data.pieces.piece_files import Pieces
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.scan.scanner import scan
from kfp_distributed.components.prepare_data.tables.open_source import open_source

LABELLED = Options(label_column="kind")
LONG = "".join(f"{i},a\n" for i in range(300_000))


@pytest.mark.takes(3)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "data.csv cannot be read: it is empty: it needs a header and rows"),
        ("age,kind\n", "data.csv cannot be read: it has no rows"),
        ("age,kind", "data.csv cannot be read: it has no rows"),
        ("age,kind\n1,a\n\n2\n", "row 3 of data.csv has 1 values and the header has 2: put"),
        (
            "# of May\nage,kind\n1,a\n",
            "rows 2, 3 of data.csv: each has 2 values and the header has 1: remove all lines above",
        ),
        ("age,kind\n1,a\n2,b,c\n", "row 3 of data.csv has 3 values and the header has 2"),
        ('age,kind,x\n1,"a\nb",1\n2,b\n', "row 3 of data.csv has 2 values and the header has 3"),
        ("age,kind\n" + LONG + "1,2,3\n", "row 300002 of data.csv has 3 values and the header has 2"),
        (
            "age,kind\n1,a\n2,b\nthree,c\n",
            "row 4 of data.csv: 'age' is 'three', which is no number, .* drop_columns",
        ),
        ("id,kind,age\nx,a,1\nx,b,1\nx,a,two\n", "row 4 of data.csv: 'age' is 'two', which is no number"),
        ("age,kind\n" + LONG + "three,c\n", "row 300002 of data.csv: 'age' is 'three', which is no number"),
        ("age,kind\n" + LONG + "3,\n", "row 300002 of data.csv: 'kind' is missing"),
        ("age,kind\n1,a\n2,\n", "row 3 of data.csv: 'kind' is missing"),
        ("age,kind\n1,a\ninf,b\n", "row 3 of data.csv: 'age' is infinite or too large"),
        ("age,kind\n1,a\n1e39,b\n", "row 3 of data.csv: 'age' is infinite or too large"),
        (b"town,kind\nUlm,a\nZ\xfcrich,b\n", "row 3 of data.csv: 'town' is not UTF-8: name its encoding in csv_format"),
        (
            "town,kind\n" + "".join(f"t{i},a\n" for i in range(1001)),
            "column 'town' has more than 1000 different values, of the form 'a9': .*drop_columns",
        ),
        (
            "age,kind\n" + "".join(f"1,k{i}\n" for i in range(65_537)),
            "'kind' has more than 65,536 .*of the form 'a9': name another label_column",
        ),
        (("age,kind\n1,a\n").encode("utf-16"), "data.csv cannot be read: it is UTF-16 text .* name its encoding"),
        (("age,kind\n1,a\n").encode("utf-16-le"), "it is UTF-16 text"),
        ("gr\xf6\xdfe,kind\n1,a\n".encode("latin-1"), "its header is not UTF-8: name its encoding"),
        (b"\x1f\x8b\x08\0rest", "data.csv cannot be read: Truncated compressed stream"),
        (b"PK\x03\x04rest", "it is a ZIP archive or an Excel workbook"),
        (b"PAR1\x15\x04", "it is a Parquet file: name it .parquet"),
        ("<!DOCTYPE html><p>Not found", "it is a web page or XML"),
        ("% Iris\n%\n@RELATION iris\n@DATA\n1,a\n", "it is ARFF: replace the lines up to @data"),
        ('[{"age": 1, "kind": "a"}]', "it is JSON"),
        ("\n\n", "it is empty"),
        ("age kind\n1 a\n", "its header is one column 'age kind': separate the columns by ','"),
        ("age,kind\n1,a\n3\0,b\n5,c\n", r"row 3 of data.csv: 'age' is '3\\x00', which is no number"),
        ('age,kind\n1,a\n"2,b\n' + "3,c\n" * 2**24, "a row is too long: close each quote"),
        (
            "age,kind\n" + "".join(f"1,{i % 9}\n" for i in range(30)) + "1,77\n",
            "has 10 different numbers, 1 of them in one row only .such as 77.: .* set task to .regression",
        ),
        (f"age,kind\n1,{'x' * 140_000}\n2\n", "row 3 of data.csv has 1 values and the header has 2"),
    ],
)
def test_an_unusable_csv_file_is_refused_with_column_and_row(file, text, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        scan(open_source(file("data.csv", text), LABELLED, tmp_path), Pieces(tmp_path / ".pieces", 0, 0))


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "ascii"])
def test_an_encoding_that_contradicts_the_byte_order_mark_of_utf_8_is_refused(file, encoding, tmp_path):
    source = file("data.csv", "Größe,label\n1,a\n2,b\n".encode("utf-8-sig"))

    with pytest.raises(ValueError, match=f"mark of UTF-8, but csv_format has the encoding '{encoding}': leave encod"):
        open_source(source, Options(csv_format=CsvFormat(encoding=encoding)), tmp_path)


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16-be"])
def test_an_encoding_that_contradicts_the_byte_order_mark_of_utf_16_is_refused(file, encoding, tmp_path):
    source = file("data.csv", "Größe,label\n1,a\n2,b\n".encode("utf-16"))

    with pytest.raises(ValueError, match=r'it begins with the byte order mark of UTF-16, .*: set encoding to "utf-16"'):
        open_source(source, Options(csv_format=CsvFormat(encoding=encoding)), tmp_path)


@pytest.mark.parametrize(("written", "read"), [("utf-8-sig", "utf-8-sig"), ("utf-16", "utf-16-le"), ("utf-32",) * 2])
def test_an_encoding_that_fits_the_byte_order_mark_is_read_without_it(file, written, read, tmp_path):
    source = file("data.csv", "Größe,label\n1,a\n2,b\n".encode(written))

    opened = open_source(source, Options(csv_format=CsvFormat(encoding=read)), tmp_path)

    assert [column.name for column in opened.columns] == ["Größe"]


MANY = "".join(f"{i},{i},a\n" for i in range(9))


@pytest.mark.parametrize(
    ("options", "text", "message"),
    [
        ({}, MANY + "?,1,a\n", """set csv_format to {"missing": ["?"]} if it means a missing value"""),
        ({}, MANY + "unknown,1,a\n", """set columns to {'m': "category"} if the column has texts"""),
        (
            {"csv_format": CsvFormat(missing=("-",))},
            MANY + "?,1,a\n",
            """set csv_format to {"missing": ["-", "?"]} if it""",
        ),
        ({"task": "regression"}, MANY, "'label' is 'a', which is no number, but numbers are predicted: correct it, le"),
        ({"columns": {"m": "number"}}, "x,1,a\n" * 9, "which is no number, but columns declares numbers: correct it"),
        ({"time_column": "t"}, MANY + "1,x,a\n", "but the column is the time_column and has numbers: correct it ("),
        (
            {"time_column": "t", "columns": {"t": "date"}},
            "1,1 Januar 2024,a\n",
            "no date of the form 2024-01-31 or 2024-01-31T12:00:00Z: correct it, or name its form, a format of strp",
        ),
        (
            {"time_column": "t"},
            "1,1 Januar 2024,a\n",
            "no date of the form 2024-01-31 or 2024-01-31T12:00:00Z: correct it, or name its form, a format of strp",
        ),
    ],
)
def test_the_advice_for_a_wrong_value_fits_its_column(file, options, text, message, run):
    with pytest.raises(ValueError, match=re.escape(message)):
        run(file("data.csv", "m,t,label\n" + text), **options)


def test_a_value_with_digits_is_not_advised_as_a_missing_value(file, run):
    with pytest.raises(ValueError, match="'m' is '12 kg', which is no number") as error:
        run(file("data.csv", "m,t,label\n" + MANY + "12 kg,1,a\n"))
    assert "csv_format" not in str(error.value)


@pytest.mark.parametrize(
    ("csv_format", "text", "advice"),
    [
        ({"separator": "\t"}, "x,label\n1,a\n", 'set csv_format to {"separator": ","}'),
        (
            {"separator": ";", "decimal": ","},
            "x,label\n1,a\n",
            'set csv_format to {"separator": ",", "decimal": "."}',
        ),
        ({"separator": ","}, "x\tlabel\n1\ta\n", 'set csv_format to {"separator": "\\t"}'),
        (
            {"separator": ","},
            "x;label\n1;a\n",
            'set csv_format to {"separator": ";"}, with "decimal": "," for numbers like 1,5',
        ),
    ],
)
def test_the_advised_separator_can_be_set(file, csv_format, text, advice, run):
    with pytest.raises(ValueError, match=re.escape(advice) + "$"):
        run(file("data.csv", text), csv_format=parse_csv_format(csv_format))


# The texts of data.md, which are those of read_csv of pandas 2.
MISSING_TEXTS = (
    "`NA`, `N/A`, `n/a`, `<NA>`, `#N/A`, `#N/A N/A`, `#NA`, `NaN`, `nan`, `-NaN`, `-nan`, `NULL`, `null`, `None`, "
    "`1.#IND`, `-1.#IND`, `1.#QNAN`, `-1.#QNAN`"
)


def test_texts_that_pandas_takes_for_missing_values_are_missing(file, tmp_path):
    texts = re.findall("`([^`]+)`", MISSING_TEXTS)
    rows = "".join(f'"{text}",1,a\n' for text in (*texts, "NO"))
    (_, batch), *_ = open_source(file("data.csv", "town,x,label\n" + rows), Options(), tmp_path).batches()
    assert batch.rows["town"].to_pylist() == [None] * 18 + ["NO"]


@pytest.mark.parametrize("wrong", ["", "oops,1,a\n"])
def test_what_a_number_is_does_not_depend_on_other_rows(file, run, wrong):
    """A block with a wrong row is read in another way."""
    spelled = ["NAN", "-nan", "nan(ab)", "+1.5", ".5", "5.", "1E2", "inf"]
    text = "x,time,label\n" + "".join(f"{spelled[row % 8]},{row},{'ab'[row % 2]}\n" for row in range(80)) + wrong
    source = file("data.csv", text.replace(",7,", ",0x7,"))
    options = {"columns": {"x": "number"}, "time_column": "time", "missing": "keep"}
    manifests = run(source, on_bad_row="skip", csv_format=parse_csv_format({"usual_missing": False}), **options)
    assert sum(manifest.rows for manifest in manifests.values()) == 79 - 9, "no hexadecimal and no infinite numbers"


@pytest.mark.parametrize("name", ["a.csv", "z.csv"])
def test_files_of_no_byte_beside_others_are_left_out(file, run, capsys, name):
    for number in range(2):
        file(f"data/part-{number}.csv", "x,label\n" + "".join(f"{i},{i % 2}\n" for i in range(20)))
    file(f"data/{name}", "")
    manifests = run(file("data/b.csv", "").parent)
    assert sum(manifest.rows for manifest in manifests.values()) == 40
    assert "left out 2 files of 0 bytes, as Spark writes them" in capsys.readouterr().out


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("x;y;label\n1;2;u\n2;3;v\n", ["other.csv: the columns are separated by ';', as its first rows show"]),
        ("x\ty\tlabel\n1,5\t2\tu\n2,5\t3\tv\n", ["other.csv: numbers have decimal commas, as its first rows show"]),
        ("x, y, label\n1, 2, u\n2, 3, v\n", ["other.csv: blanks around values are left out, because one follows"]),
    ],
)
def test_what_is_found_for_the_file_of_a_split_has_a_line(file, run, capsys, split, text, lines):
    source = file("data.csv", "x,y,label\n" + "1,2,u\n2,3,v\n" * 20)
    run(source, sources={split: str(file("other.csv", text))})
    log = capsys.readouterr().out
    assert [log.count(f"warning: {split}_source: {line}") for line in lines] == [1] * len(lines)


@pytest.mark.parametrize("title", ["|1x3 Cross validator", "# version 2; of the tool, final", "# made by a tool"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("role", ["source", "second file", "validation", "test"])
def test_a_line_above_the_names_of_any_file_is_to_be_removed(file, run, title, separator, role):
    rows = ("x,y,label\n" + "1,2,u\n2,3,v\n" * 20).replace(",", separator)
    title = title.replace(separator, "")
    source, other = file("data/a.csv", rows), file("data/b.csv", f"{title}\n{rows}")
    sources = {role: str(other)} if role in ("validation", "test") else {}
    with pytest.raises(ValueError, match=r"b\.csv.*: remove (the line if it is a comment|all lines above)") as error:
        run({"source": other, "second file": source.parent}.get(role, source), sources=sources)
    assert "separated by" not in str(error.value)
    if re.search("[|;,]", title):
        assert f"its first line {title!r} does not have the columns of the lines below it" in str(error.value)


@pytest.mark.parametrize(
    ("start", "line"), [(b"", ""), (b"\n", ""), (b"a title\n1,2\n3,4\n", "a title"), (b"a,b\n1,2\n", "")]
)
def test_a_line_above_the_names_has_no_separator_that_the_rows_have(start, line):
    assert line_above_rows(start, CsvFormat()) == line
