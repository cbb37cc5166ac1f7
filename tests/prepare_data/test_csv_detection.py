"""How a CSV file is written is found by its first rows, where csv_format does not say it."""

import csv
import random
import re
from io import StringIO

import pyarrow as pa
import pytest

from kfp_distributed.components.prepare_data.csv_format import COMMAS, CsvFormat, Separation, parse_csv_format
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.sources.read_rows import MAXIMUM_LINES
from kfp_distributed.components.prepare_data.tables import csv_files
from kfp_distributed.components.prepare_data.tables.csv_detection import check_header, detect_format
from kfp_distributed.components.prepare_data.tables.csv_quotes import check_quotes, last_row_end, without_blanks
from kfp_distributed.components.prepare_data.tables.csv_table import CsvTable
from kfp_distributed.storage.dataset import read_batches

pytestmark = pytest.mark.takes(3)

ALL_FOR_TRAINING = {"validation_fraction": 0, "test_fraction": 0, "shards": 1}


@pytest.mark.parametrize(
    ("text", "options", "found"),
    [
        ("a,b\n1,2\n", {}, {}),
        ("a;b\n1;2\n", {}, {"separator": ";"}),
        ("a;b\n1,5;2\n", {}, {"separator": ";", "decimal": ","}),
        ("1,5;2,5\n1,5;2,5\n", {}, {"separator": ";", "decimal": ","}),
        ("a;b\n1.5;2,5\n", {}, {"separator": ";"}),
        ("a;b\n1,5;2\n", {"decimal": "."}, {"separator": ";"}),
        ("a;b\n1,5;2\n", {"decimal": ","}, {}),
        ("a\tb\n1\tx y\n", {}, {"separator": "\t"}),
        ('a|b\n1|"x|y"\n', {}, {"separator": "|"}),
        ("a,b\n1;2\n", {}, {}),
        ("id,from;to,label\n1,a;b,0\n2,c;d,1\n", {}, {}),
        ("1,a|b,0\n2,c|d,1\n", {}, {}),
        ("a;b\n1;2\n", {"separator": ","}, {}),
        ("a b\n1 2\n", {}, {}),
        ("id\nA|0\nA|1\nB|0\n", {}, {}),
        ("Austin, TX;1;a\nAustin, TX;2;b\n", {}, {"separator": ";"}),
        ("city, state;n\nAustin, TX;2\n", {}, {"separator": ";"}),
        ("lat,lon\tn\n1.5,2.5\t3\n", {}, {"separator": "\t"}),
        ("Length, m;n\n0,5;1\n1,5;2\n", {}, {"separator": ";", "decimal": ","}),
        ("Temp, C;Length, m\n0,5;1,5\n", {}, {"separator": ";", "decimal": ","}),
        ("ham\tGo until, ok\nspam\tFree, now\n", {}, {"separator": "\t"}),
        ("ham\tGo until, ok\nspam\tFree, now, or, never\n", {}, {"separator": "\t"}),
        ("Jan 1, 2018|3|a\nJan 2, 2018|4|b\n", {}, {"separator": "|"}),
        ("Sales 2020\na;b\n1;2\n3;4\n", {}, {"separator": ";"}),
        ("a;b\n1,100;2\n0,5;3\n", {}, {"separator": ";", "decimal": ","}),
        ("a;b\n1,100;0.5\n", {}, {"separator": ";"}),
        ("a\tb\n" + "\t" * 500_000 + "\n", {}, {"separator": "\t"}),
        ("a, b\n1, 2\n3,\n", {}, {"blanks": "skip"}),
        ("a,b\n1, 2\n3, 4\n", {}, {"blanks": "skip"}),
        ("a,b\n1, 2\n3,4\n", {}, {}),
        ('a,b\n1, "x,y"\n', {}, {}),
        ("|1x3 Cross validator\n" + "1, a\n2, b\n" * 3, {}, {"separator": ",", "blanks": "skip"}),
        ("a;b\n1,5E-02;2\n", {}, {"separator": ";", "decimal": ","}),
        ("a\tb\n1,5\tx y\n", {}, {"separator": "\t", "decimal": ","}),
        ("a,b\r\n1,2\r\n", {}, {}),
        ("", {}, {}),
        ("a", {}, {}),
    ],
)
def test_the_format_of_the_first_rows(text, options, found):
    given = parse_csv_format(options)
    csv_format, lines = detect_format(text.encode(), given, may_be_blanks=False)
    expected = {**{key: getattr(given, key) for key in ("separator", "decimal")}, **found}
    assert {key: getattr(csv_format, key) for key in expected} == expected
    assert bool(lines) == bool(found)


def test_commas_that_may_separate_thousands_are_asked_about(file, run):
    source = file("data.csv", "x;label\n" + "".join(f"1,{row + 100};{'ab'[row % 2]}\n" for row in range(40)))
    with pytest.raises(
        ValueError, match=re.escape("numbers such as 1,100: if commas are decimal ones, set csv_format")
    ):
        run(source)
    means = [
        run(source, decimal, csv_format=parse_csv_format({"decimal": decimal}), **ALL_FOR_TRAINING)["train"].columns[0]
        for decimal in (",", ".")
    ]
    assert (means[0].kind, round(means[0].mean, 4), means[1].kind) == ("number", 1.1195, "category")


def test_a_part_that_has_a_header_alone_tells_nothing(file, run):
    file("data/0.csv", "x;label\n")
    source = file("data/1.csv", "x;label\n" + "0,5;a\n1,5;b\n" * 9).parent
    assert run(source, **ALL_FOR_TRAINING)["train"].columns[0].mean == 1
    file("data/1.csv", "x;label\n")
    with pytest.raises(ValueError, match="it has no rows"):
        run(source)


@pytest.mark.parametrize("text", [" 1.5   2\t3\n  4  5 6 \n", "1 2 3\n4 5 6\n"])
def test_blanks_separate_the_columns_of_other_files(text):
    csv_format, _ = detect_format(text.encode(), CsvFormat(), may_be_blanks=True)
    assert (csv_format.separator, csv_format.blanks) == ("\t", "separate")
    assert without_blanks(text.encode(), csv_format.separation).rstrip() in (b"1.5\t2\t3\n4\t5\t6", b"1\t2\t3\n4\t5\t6")


def test_one_tab_among_blanks_separates_as_they_do(file, run):
    row = '18.0   8   307.0      130.0      3504.      12.0   70  1\t"chevrolet chevelle malibu"\n'
    rows = "".join(row.replace("18.0", f"{i}.5").replace("  8 ", f"  {i % 3} ") for i in range(10, 40))
    for name, options in (("auto-mpg.data", {"header": False}), ("auto.csv", {"header": False, "separator": " "})):
        options = {"csv_format": parse_csv_format(options), "label_column": "column_1", **ALL_FOR_TRAINING}
        train = run(file(name, rows), f"{name}-out", **options)["train"]
        assert (train.label.task, len(train.columns)) == ("regression", 8)
        assert train.columns[-1].vocabulary == ("chevrolet chevelle malibu",)


def test_blanks_within_quotes_stay():
    rows = b' 1 ,  x y , " z, ""q"" ",\r\n 2,,\n'
    assert without_blanks(rows, Separation(blanks="skip")) == b'1,x y," z, ""q"" ",\r\n2,,\n'
    assert without_blanks(b' 1  "x  y"\n2 z\n', Separation("\t", "separate")) == b'1\t"x  y"\n2\tz\n'


@pytest.mark.parametrize("first", [40, 100_000])
def test_stray_quotes_and_line_ends_within_quotes_after_blanks(file, run, monkeypatch, first):
    """Also where a block ends within a value."""
    monkeypatch.setattr(csv_files, "FIRST_BLOCK_BYTES", first)
    monkeypatch.setattr(csv_files, "BLOCK_BYTES", first)
    parts = ('5" nail', '"a,\n b"', "bolt")
    rows = "".join(f"{i}, {parts[i % 3]}, {'ab'[i % 2]}\n" for i in range(60))
    train = run(file("data.csv", "x, part, label\n" + rows), **ALL_FOR_TRAINING)["train"]
    assert (train.rows, train.label.classes) == (60, ("a", "b"))
    assert train.columns[1].vocabulary == ('5" nail', "a,\n b", "bolt")


@pytest.mark.parametrize("blanks", ["", "skip"])
def test_quotes_are_those_of_python(blanks):
    """Also where some are stray, doubled, or after blanks."""
    generator, separation = random.Random(1), Separation(blanks=blanks)

    def rows_of(text):
        rows = csv.reader(StringIO(text), skipinitialspace=bool(blanks))
        found = [[value.strip(" ") for value in row] for row in rows]
        return [row for row in found if row not in ([], [""])]

    for _ in range(5_000):
        text = "".join(generator.choices('ab ",\n', [3, 1, 2, 4, 2, 1], k=generator.randrange(1, 24))).lstrip("\n")
        assert rows_of(without_blanks(text.encode(), separation).decode()) == rows_of(text), text
        end = last_row_end(text.encode(), separation)
        assert rows_of(text[:end]) + rows_of(text[end:]) == rows_of(text), text


def columns(*rows):
    return pa.record_batch({f"column_{i}": pa.array(values) for i, values in enumerate(zip(*rows, strict=True))})


PEOPLE = [
    ("39", "State-gov", "<=50K"),
    ("50", "Private", ">50K"),
    ("38", "Private", "<=50K"),
    ("39", "State-gov", ">50K"),
]
NUMBERS = [("14.23", "1.71", "1"), ("13.2", "1.78", "1"), ("13.16", "2.36", "2")]
YEARS = [("Ulm", "1.5", "2", "3"), ("Bonn", "4", "5", "6"), ("Berlin", "7", "8", "9")]


@pytest.mark.parametrize(
    ("rows", "is_data"),
    [
        (PEOPLE, True),
        (NUMBERS, True),
        ([("p", "x"), ("e", "x"), ("p", "y"), ("p", "x")], True),
        ([("5.0", "a"), ("5", "b"), ("6", "a")], True),
        *[([(sign, "3.5", "12"), ("8", "5.5", "34"), ("9", "6.5", "2")], True) for sign in ("?", "-", ".", "--")],
        ([("#", "size", "12"), ("8", "5.5", "34"), ("9", "6.5", "2")], False),
        ([("age", "sector", "pay"), *PEOPLE], False),
        ([("39", "sector", "pay"), *PEOPLE], False),
        ([("town", "1990", "1991", "1992"), *YEARS], False),
        ([("town", "400", "402.5", "405"), *YEARS], False),
        ([("0", "1", "2"), *NUMBERS], False),
        ([("1", "2", "3"), ("1", "2", "3"), ("3", "1", "2")], False),
        ([("2", "4", "9"), *[("2", "4", "9"), ("4", "9", "2")] * 2], True),
        ([("3", "2", "1"), ("5", "5", "7"), ("6", "6", "8")], True),
        ([("0.1", "0.2", "0.4"), ("0.7", "0.9", "0.3")], True),
        ([("1", "2", "4", "8", "9", "12"), *[("5", "5", "5", "5", "5", "5")] * 3], False),
        ([("country", "2019", "2021"), ("Chad", "1.5", "2"), ("Peru", "4", "5")], False),
        ([("country", "2019"), ("Chad", "1.5"), ("Peru", "4")], False),
        ([("review", "0", "1"), ("good", "1.5", "2"), ("bad", "4", "5")], False),
        ([("name", "note"), ("Ann", "hello"), ("Bob", "bye")], False),
        ([("", "x"), ("0", "1"), ("1", "2")], False),
        ([(None, "3"), (None, "4")], True),
        ([("1", "2")], False),
        ([("2024-01-31", "Ann"), ("2024-02-01", "Bob"), ("2024-02-02", "Eve")], True),
        ([("15.10.2018", "Ann"), ("1.11.2018", "Bob")], True),
        ([("day", "2024-01-31"), ("2024-02-01", "7"), ("2024-02-02", "8")], False),
        ([("5/1/19", "1.5"), ("5/2/19", "2"), ("5/2/19", "3")], True),
        ([("9:30", "1.5"), ("10:45", "2"), ("9:45", "2")], True),
        ([("5%", "1.5"), ("12%", "2"), ("12%", "2")], True),
        ([("rate", "kind"), ("12%", "b"), ("12%", "b")], False),
        ([("x1", "code"), ("a5", "b"), ("b17", "b")], False),
        ([("term", "definition"), ("word", "a unit"), ("term", "a word"), ("noun", "a name")], False),
    ],
)
def test_a_first_row_that_looks_like_data_is_refused(rows, is_data):
    batch = columns(*rows)
    if not is_data:
        check_header(batch)
        return
    with pytest.raises(ValueError, match=re.escape('set csv_format to {"header": false}')):
        check_header(batch)


def test_a_file_without_a_header_loses_no_row(file, run):
    source = file("adult.csv", "39, Private, <=50K\n" + "50, Private, >50K\n38, State, <=50K\n" * 10)
    with pytest.raises(ValueError, match=re.escape("adult.csv cannot be read: its first row looks like data and not")):
        run(source, label_column="<=50K")
    names = file("named.csv", "age,sector,pay\n" + source.read_text())
    with pytest.raises(ValueError, match=re.escape('its first row has the names of columns: "age", "sector", "pay"')):
        run(names, csv_format=parse_csv_format({"header": False}), label_column="column_3")
    for header, rows in ((False, 21), (True, 20)):
        label = "<=50K" if header else "column_3"
        options = {"csv_format": parse_csv_format({"header": header}), "label_column": label}
        train = run(source, **options, **ALL_FOR_TRAINING)["train"]
        assert (train.rows, train.label.classes) == (rows, ("<=50K", ">50K"))


def test_decimal_commas_above_decimal_commas_are_no_names(file, run):
    rows = "12,5;9,25;a\n13,75;8,5;b\n" * 10
    with pytest.raises(ValueError, match="its first row looks like data"):
        run(file("german.csv", "11,5;9,75;a\n" + rows))
    run(file("german.csv", "size;weight;label\n" + rows))


def test_a_line_for_excel_is_refused(file, run):
    with pytest.raises(ValueError, match="'sep=;' tells Excel the separator and has no names: remove the line"):
        run(file("excel.csv", "sep=;\nx;label\n" + "1;a\n2;b\n" * 9))
    with pytest.raises(ValueError, match=r"remove the line\Z"):
        run(file("excel.csv", "sep=;\nx;label\n1;a\n2;b\n"), csv_format=parse_csv_format({"separator": ";"}))


def test_the_files_of_a_source_have_one_separator(file, run):
    file("data/a.csv", "x;label\n1;a\n2;b\n")
    second = file("data/b.csv", "x,label\n1,a\n2,b\n")
    with pytest.raises(
        ValueError, match=r"b\.csv cannot be read: its columns are separated by ',', and those of the f"
    ):
        run(second.parent)


def test_tabs_separate_columns_of_values_with_equally_many_words(file, run):
    text = "patient id\tvisit\tlabel\n" + "P 3\t12\ta\nP 4\t13\tb\n" * 9
    train = run(file("visits.txt", text), **ALL_FOR_TRAINING)["train"]
    assert [column.name for column in train.columns] == ["patient id", "visit"]


def test_a_header_that_occurs_again_is_refused(file, run):
    source = file("joined.csv", "x,label\n" + "1,a\n2,b\n" * 9 + "x,label\n" + "1,a\n2,b\n" * 9)
    with pytest.raises(ValueError, match=r"row 20 of joined.csv has the names of the columns again: remove the row"):
        run(source, csv_format=parse_csv_format({"header": True}))


def test_blanks_separate_no_columns_of_tabs(file, run):
    source = file("messages.tsv", "kind\ttext\n" + "ham\tgo now\nspam\tfree now\n" * 9)
    assert run(source, label_column="kind")["train"].columns[0].vocabulary == ("free now", "go now")


def test_the_names_of_columns_may_be_numbers(file, run, capsys):
    run(file("data.csv", "0,50,100\n" + "1,53,107\n5,60,120\n" * 9), label_column="0")
    line = 'data.csv: the first row is taken for the names of the columns: "0", "50", "100". If it is data, set csv_f'
    assert line in capsys.readouterr().out


def test_lines_above_the_names_are_no_names(file, run):
    source = file("excel.csv", "Sales report,,\nx,y,label\n" + "1,2,a\n3,4,b\n" * 9)
    with pytest.raises(ValueError, match=r"the column '' occurs 2 times .* Remove all lines above the names"):
        run(source, label_column="")


def test_a_number_with_a_comma_names_decimal(file, run):
    source = file("data.csv", 'x,label\n"1,5",a\n' + "1,a\n2,b\n" * 9)
    with pytest.raises(ValueError, match=re.escape('set csv_format to {"decimal": ","} if all numbers have')):
        run(source)


def test_a_word_in_most_rows_of_numbers_is_named(file, run, capsys):
    rows = "".join(f"{'?' if row % 5 < 3 else row},{'ab'[row % 2]}\n" for row in range(40))
    line = """column 'x' has numbers and the text '?', which most of its first rows have, and becomes a category"""
    for missing, is_named in ((), True), (("?",), False):
        run(file("data.csv", "x,label\n" + rows), csv_format=parse_csv_format({"missing": missing}))
        assert (line in capsys.readouterr().out) == is_named


def test_utf8_that_is_read_in_another_encoding_is_named(file, run, capsys):
    text, line = "town,label\nKöln,a\nUlm,b\n" * 1 + "Köln,a\nUlm,b\n" * 10, "it is UTF-8, so that 'ö' is read as"
    for encoding, is_named in (("utf-8", True), ("cp1252", False), ("shift_jis", False)):
        written = text.replace("ö", "日") if encoding == "shift_jis" else text
        reading = "cp1252" if encoding == "utf-8" else encoding
        source = file(f"{encoding}.csv", written.encode(encoding))
        run(source, encoding, csv_format=parse_csv_format({"encoding": reading}))
        assert (line in capsys.readouterr().out) == is_named
    run(file("euro.csv", text.replace("ö", "€").encode("cp1252")), csv_format=parse_csv_format({"encoding": "latin-1"}))
    assert "it has control characters such as '\\x80': set the encoding in csv_format to" in capsys.readouterr().out
    source = file("towns.csv", "town,label\n" + "Łódź,a\nUlm,b\n" * 9)
    run(source, "towns", csv_format=parse_csv_format({"encoding": "latin-1"}))
    assert "leave the encoding 'latin-1' out" in capsys.readouterr().out
    file("folder/a.csv", "town,label\n".encode("cp1252") + "Köln,a\nUlm,b\n".encode("cp1252") * 9)
    second = file("folder/b.csv", "town,label\n" + "Köln,a\nUlm,b\n" * 9)
    run(second.parent, "folder-out", csv_format=parse_csv_format({"encoding": "cp1252"}))
    assert "b.csv: it is UTF-8, so that 'ö' is read as" in capsys.readouterr().out
    for number in range(60):
        file(f"many/{number}.csv", "town,label\n" + "Köln,a\nUlm,b\n")
    run(second.parents[1] / "many", "many-out", csv_format=parse_csv_format({"encoding": "cp1252"}))
    found = capsys.readouterr().out
    assert found.count("it is UTF-8, so that") == MAXIMUM_LINES
    assert f"{60 - MAXIMUM_LINES} more such lines" in found


@pytest.mark.parametrize(("encoding", "opened"), [("utf-8", 1), ("UTF8", 1), ("utf-16", 1), ("latin-1", 2)])
def test_only_files_that_may_be_read_wrong_are_read_to_find_it(file, monkeypatch, encoding, opened):
    """The other files are opened where the names of their columns are read, those of a store side by side."""
    for name in "abc":
        source = file(f"data/{name}.csv", "town,label\nKöln,a\nUlm,b\n".encode(encoding))
    files, reads = sorted(source.parent.iterdir()), []
    opener = csv_files.opened_csv
    monkeypatch.setattr(csv_files, "opened_csv", lambda file, *more: [reads.append(file), opener(file, *more)][1])
    table = CsvTable(Options(csv_format=parse_csv_format({"encoding": encoding})), files)
    assert {*reads} == {files[0]}, "the first file shows how all are written"
    reads.clear()
    for path in files:
        table.names(path)
    assert reads == [path for path in files for _ in range(opened)]


def test_usual_texts_for_missing_values_can_be_values(file, run):
    source = file("data.csv", "country,x,label\n" + "NA,1,None\nDE,,B\n,2,None\nDE, ,B\n" * 9)
    train = run(source, csv_format=parse_csv_format({"usual_missing": False}), **ALL_FOR_TRAINING)["train"]
    assert (train.columns[0].vocabulary, train.label.classes, train.rows) == (("DE", "NA"), ("B", "None"), 36)
    assert train.columns[1].mean == 1.5
    with pytest.raises(ValueError, match=r"unless usual_missing of csv_format is false"):
        run(source)


@pytest.mark.parametrize("blank", ["\u00a0", "\u2009", "\x0b"])
def test_other_blanks_around_numbers_are_left_out(file, run, tmp_path, blank):
    text = "x,label\n" + "".join(f"{i}.5{blank if i == 20 else ''},{i}\n" for i in range(40))
    train = run(file("data.csv", text), task="regression", **ALL_FOR_TRAINING)["train"]
    assert (train.rows, train.columns[0].kind, train.columns[0].mean) == (40, "number", 20)


def test_a_column_at_the_end_without_a_name_stays_if_it_has_values(file, run):
    source = file("data.csv", "x,label,\n" + "1,a,5\n2,b,7\n" * 9)
    assert [column.name for column in run(source)["train"].columns] == ["x", ""]


def test_columns_at_the_end_without_a_name_are_left_out(file, run, capsys):
    text = "a;b;label;;\n" + "1;2;x;;\n3;4;y;;\n" * 20
    train = run(file("air.csv", text), **ALL_FOR_TRAINING)["train"]
    assert [column.name for column in train.columns] == ["a", "b"]
    assert "air.csv: left out 2 columns at the end of the rows without a name" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"has 3 values and the header has 2: .*, remove a separator at the end of"):
        run(file("ends.csv", "a,label\n" + "1,x,\n3,y,\n" * 20))


@pytest.mark.parametrize(
    ("numbers", "is_named"),
    [
        (("987", "1.234", "12.345", "83.019"), True),
        (("1.234", "2.345", "3.456"), True),
        (("987", "0.234", "0.345", "0.456"), False),
        (("987", "1.5", "1.234", "2.345"), False),
    ],
)
def test_points_that_may_separate_thousands_are_named(file, run, capsys, numbers, is_named):
    rows = "".join(f"town {i};{numbers[i % len(numbers)]};{'ab'[i % 2]}\n" for i in range(40))
    run(file("towns.csv", "town;people;label\n" + rows), **ALL_FOR_TRAINING)
    assert ("points or commas separate thousands" in capsys.readouterr().out) == is_named


def test_numbers_to_predict_may_have_points_that_separate_thousands(file, run, capsys):
    rows = "".join(f"{row},{['987', '1.234', '12.345', '83.019'][row % 4]}\n" for row in range(40))
    run(file("towns.csv", "x,people\n" + rows), label_column="people")
    assert "column 'people' has numbers such as 1.234 beside whole numbers" in capsys.readouterr().out


def test_the_row_names_of_r_are_no_input(file, run):
    rows = "".join(f'"{i}",{i % 7},"{"ab"[i % 2]}"\n' for i in range(1, 41))
    train = run(file("r.csv", '"","x","label"\n' + rows), **ALL_FOR_TRAINING)["train"]
    assert [column.name for column in train.columns] == ["x"]


@pytest.mark.parametrize("blanks", [" ", " " * 200])
def test_a_cell_of_blanks_is_empty(file, run, capsys, blanks):
    rows = "".join(f"{i}.5,{'ab'[i % 2]},{'yn'[i % 2]}\n" for i in range(40))
    train = run(file("telco.csv", f"charges,town,label\n{rows}{blanks},{blanks},y\n"), **ALL_FOR_TRAINING)["train"]
    assert [column.kind for column in train.columns] == ["number", "category"]
    assert train.columns[1].vocabulary == ("a", "b")
    assert capsys.readouterr().out.count("has no value in 1 of 41 rows") == 2


def test_a_missing_label_may_be_a_missing_header(file, run):
    with pytest.raises(ValueError, match=re.escape('If the file has no header, set csv_format to {"header": false}')):
        run(file("data.csv", "x,y\n1,a\n2,b\n"))
    for text, csv_format in (("x,y\n1,a\n2,b\n", {"header": True}), ("x,Label\n1,a\n2,b\n", {})):
        with pytest.raises(ValueError, match="there is no column 'label'") as error:
            run(file("data.csv", text), csv_format=parse_csv_format(csv_format))
        assert "header" not in str(error.value)


SAME = [("x", "town", "label"), *[("1.5", "Ulm", "a"), ("2", "New York", "b"), ("2", "?", "b")] * 10]


def text_of(separator, end="\n"):
    return end.join(separator.join(row) for row in SAME)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("data.tsv", text_of("\t")),
        ("data.data", text_of(", ")),
        ("data.txt", text_of(";").replace("1.5", "1,5")),
        ("data.csv", text_of(",", "\r")),
        ("data.csv", text_of(" ,  ", "\r\n")),
        ("data.txt", "\n".join("   ".join(row).replace("New York", '"New York"') for row in SAME)),
    ],
)
@pytest.mark.parametrize("in_parts", [False, True])
def test_the_same_rows_in_another_format(file, run, tmp_path, capsys, name, text, in_parts, request):
    if in_parts:
        request.getfixturevalue("small")
    options = {"csv_format": parse_csv_format({"missing": ["?"]}), **ALL_FOR_TRAINING}
    sources = [file("0/data.csv", text_of(",")), file(f"1/{name}", text)]
    manifests = [run(source, f"out-{number}", **options)["train"] for number, source in enumerate(sources)]
    assert manifests[0].columns == manifests[1].columns
    assert manifests[0].columns[1].vocabulary == ("New York", "Ulm")
    rows = [
        [inputs.tolist() for inputs, _ in read_batches(tmp_path / f"out-{i}" / "train", manifests[i])] for i in (0, 1)
    ]
    assert sorted(rows[0][0], key=str) == sorted(rows[1][0], key=str)
    assert "csv_format" not in capsys.readouterr().out


def test_a_missing_text_that_no_value_is_is_named(file, run, tmp_path, capsys):
    text = 'x,town,label\n1, ?,a\n-,"n.a.",b\n' * 1 + "2,Ulm,a\n3,Ulm,b\n" * 10
    run(file("data.csv", text), csv_format=parse_csv_format({"missing": ["?", "-", "n.a.", "n"]}))
    line = 'csv_format: "missing" has ["n"], which no value is'
    assert line in capsys.readouterr().out
    assert line.replace('"', "&quot;") in (tmp_path / "out" / "overview.html").read_text().replace("&#34;", "&quot;")


def test_a_missing_text_of_one_source_is_used(file, run, capsys):
    main, other = (file(f"{number}.csv", "x,label\n" + f"1,a\n{text},b\n" * 10) for number, text in enumerate("?-"))
    run(main, sources={"test": str(other)}, csv_format=parse_csv_format({"missing": ["?", "-", "/"]}), test_fraction=0)
    assert 'has ["/"], which no value is' in capsys.readouterr().out


def test_a_point_is_no_decimal_where_commas_are(file, run):
    rows = "".join(f"{i}.10.2018;{i},5;1.{i}0;{'ab'[i % 2]}\n" for i in range(10, 29))
    train = run(file("german.csv", "day;price;amount;label\n" + rows), **ALL_FOR_TRAINING)["train"]
    assert [(column.kind, column.source_type) for column in train.columns] == [
        ("number", "date %d.%m.%Y"),
        ("number", ""),
        ("category", ""),
    ]
    rows += "12.10.2018;1.5;1.100;a\n"
    with pytest.raises(ValueError, match=r"row 21 of german.csv: 'price' is '1.5', which is no number"):
        run(file("german.csv", "day;price;amount;label\n" + rows))


def test_codes_are_classes(file, run):
    rows = "".join(f"{i},{i % 150:03}\n" for i in range(450))
    train = run(file("data.csv", "x,label\n" + rows), **ALL_FOR_TRAINING)["train"]
    assert (train.label.task, train.label.classes[:2]) == ("classification", ("000", "001"))


@pytest.mark.parametrize("policy", ["refuse", "skip"])
@pytest.mark.parametrize(
    ("rows", "row"),
    [
        ('1,"two\n' + "3,x\n" * 30 + '4,"four"\n' + "5,x\n" * 9, 2),
        ("1,x\n\n" + '1,"two ""quoted""\n' + "3,x\n" * 30, 3),
        ('"1\n2",x\n"3\n' + "3,x\n" * 30 + '4,""\n', 3),
    ],
)
def test_rows_that_an_open_quote_takes_are_no_single_row(file, run, policy, rows, row):
    with pytest.raises(ValueError, match=rf"row {row} has a value of several lines, .*, whose quote is not closed"):
        run(file("data.csv", "x,label\n" + rows), on_bad_row=policy)


@pytest.mark.parametrize(
    "text", ['1,"a\nb"\n', '1,"a ""b""\nc"\r\n2,x', '5" nail,6\n7,"8"\n', '"a\nb",1', '"a\nb" ,1\n2,x', '1,"two']
)
def test_closed_quotes_and_those_of_one_line_are_fine(text):
    check_quotes(text.encode(), COMMAS, 1)
