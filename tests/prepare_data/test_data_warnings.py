"""Warnings about the data."""

import html
import json
import re
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kfp_distributed.components.prepare_data.csv_format import parse_csv_format
from kfp_distributed.components.prepare_data.report.data_warnings import (
    ColumnCounts,
    column_warnings,
    duplicate_warnings,
    leakage_warnings,
    text_form,
)
from kfp_distributed.components.prepare_data.report.duplicates import Duplicates
from kfp_distributed.components.prepare_data.report.leakage import Predictor

DAYS = Counter({f"2024-01-{day:02}": 1 for day in range(1, 21)})


def warnings_of(counts, rows=20):
    return column_warnings({"x": counts}, rows)


@pytest.mark.parametrize(
    ("counts", "beginning", "advice"),
    [
        (ColumnCounts("number", 12), "column 'x' has no value in 12 of 1,000 rows: they become NaN", "drop_columns"),
        (ColumnCounts("tensor", 1), "column 'x' has no value in 1 of 1,000 rows: they become NaN", "replace NaN"),
        (
            ColumnCounts("category", 400, Counter(a=300, b=300)),
            "column 'x' has no value in 400 of 1,000 rows: they become index 0",
            "No action is needed",
        ),
        (ColumnCounts("number", 1000), "column 'x' has no value in any of 1,000 rows", "name it in drop_columns"),
        (
            ColumnCounts("category", 0, DAYS),
            "column 'x' has 20 different texts in 20 rows, of the form '9999-99-99'",
            "Name it in drop_columns",
        ),
        (
            ColumnCounts("category", 0, Counter({"1,5": 500, "2,5": 499, "high": 1})),
            "column 'x' has numbers in text form, such as '1,5', and becomes a category of 3 values",
            "plain numbers (1.5)",
        ),
        (
            ColumnCounts("category", 0, Counter({"1,5": 500, "12": 500})),
            "column 'x' has numbers in text form, such as '1,5'",
            'csv_format to {"decimal": ","}',
        ),
        (
            ColumnCounts("category", 0, Counter({"1.5": 500, "12": 500})),
            "column 'x' has numbers in text form, such as '1.5'",
            """set columns to {'x': "number"}""",
        ),
        (
            ColumnCounts("category", 0, Counter({"\u22121.5": 500, "2": 500})),
            "column 'x' has numbers in text form, such as '\u22121.5'",
            "plain numbers (1.5)",
        ),
        (
            ColumnCounts("number", 0, lowest=3, highest=3),
            "column 'x' has the same value in all 1,000 rows: a model learns nothing",
            "drop_columns",
        ),
        (
            ColumnCounts("category", 0, Counter(a=1000)),
            "column 'x' has the same value in all 1,000 rows: a model learns nothing",
            "drop_columns",
        ),
        (ColumnCounts("tensor", 0, lowest=0, highest=0), "column 'x' has the same value in all 1,000", "drop_columns"),
        (
            ColumnCounts("number", lowest=-(2**24) - 2, highest=1),
            "column 'x' has numbers above 16,777,216",
            "Subtract an offset",
        ),
        (
            ColumnCounts("tensor", lowest=-3e38, highest=1),
            "column 'x' has the number -3e+38, near the end of the range of 32-bit floats (3.4e+38)",
            "divide it by a constant in the source",
        ),
    ],
    ids=[
        "number", "tensor", "category", "empty", "dates", "decimal commas", "commas alone",
        "numbers of Parquet", "minus signs", "constant number", "constant category",
        "constant tensor", "large", "near the end",
    ],
)  # fmt: skip
def test_a_problem_of_a_column_is_one_line(counts, beginning, advice):
    (line,) = warnings_of(counts, 1000)
    assert line.startswith(beginning)
    assert advice in line
    assert "\n" not in line


@pytest.mark.parametrize(
    "counts",
    [
        ColumnCounts("number", lowest=0, highest=2**24),
        ColumnCounts("category", 0, Counter(a=500, b=500)),
        ColumnCounts("number", lowest=0, highest=1),
        ColumnCounts("category", 0, Counter({f"town {i}": 3 for i in range(300)})),
        ColumnCounts("category", 0, Counter("abcdefghi")),
        ColumnCounts("category", 0, Counter({"high": 501, "12": 499})),
        ColumnCounts("category"),
    ],
    ids=["large numbers", "categories", "numbers", "many categories", "a small file", "a few numbers", "no rows"],
)
def test_a_usual_column_has_no_warning(counts):
    assert warnings_of(counts, 1000) == []


THOUSANDS = " \u00a0\u2007\u2009\u202f"
"""Blanks that separate thousands, such as the narrow no-break space of French numbers."""


@pytest.mark.parametrize(
    "value",
    ["1,5", "12 kg", " 7", "-3.25", "1.234,56", "1,234.5", "1 000", "€ 5", "$5", "5€", "17%", "36 months"]
    + [f"-1{blank}234{blank}567,5{blank}€" for blank in THOUSANDS],
)
def test_numbers_in_text_form(value):
    assert "has numbers in text form" in warnings_of(ColumnCounts("category", 0, Counter({value: 9, "high": 8})))[0]


@pytest.mark.parametrize(
    "value", ["31.01.2024", "2024-01-31", "10:30", "A17", "10.0.0.1", "1-2", "kg", "", "12 kg, wet", "007"]
)
def test_texts_that_are_not_numbers(value):
    assert warnings_of(ColumnCounts("category", 0, Counter({value: 9, "high": 8}))) == []


def test_a_constant_column_with_missing_values():
    gaps, constant = warnings_of(ColumnCounts("number", 5, lowest=3, highest=3))
    assert "has no value in 5 of 20 rows" in gaps
    assert "has the same value in all 15 rows that have one" in constant
    (gaps,) = warnings_of(ColumnCounts("category", 5, Counter(a=15)))
    assert "has no value in 5 of 20 rows" in gaps


def test_columns_that_predict_the_label_alone():
    (line,) = leakage_warnings([Predictor("leak", 0.951, 0.5), Predictor("x", 0.94, 0.5)])
    assert line.startswith("column 'leak' alone predicts the label of 95.1% of the rows; ")
    assert "50.0%" in line
    assert "drop_columns" in line
    lines = leakage_warnings([Predictor(f"x{i}", 1.0, 0.5) for i in range(30)])
    assert (len(lines), lines[-1]) == (11, "… and 20 more such columns")


def test_duplicates_between_splits():
    pairs = [Duplicates("validation", "train", 0, 0.0), Duplicates("test", "train", 1200, 0.1234)]
    (line,) = duplicate_warnings(pairs)
    assert line.startswith(
        "12.3% of the rows of the test split (1,200) have the same inputs as rows of the train split"
    )
    (line,) = duplicate_warnings([Duplicates("test", "train", 7, 0.1, is_exact=False)])
    assert line.startswith("10.0% of the rows of the test split (about 7) have")


def test_the_number_of_warnings_is_bounded():
    lines = column_warnings({f"c{i}": ColumnCounts("number", 1) for i in range(3000)}, 9)
    assert (len(lines), lines[-1]) == (51, "… and 2950 more such lines")


def test_the_form_of_a_text_has_none_of_its_letters_and_digits():
    assert text_form("Mrs. Ada Lovelace, 10.12.1815, Marylebone") == "aaa. aaa aaaaaaaa, 99.99.9999,"


def test_warnings_are_logged_and_shown_in_the_overview(run, file, tmp_path, capsys):
    # The first 40 rows occur twice, and "code" is the label in capital letters.
    rows = [
        f'{"" if i < 12 else i},2024-01-{i % 28 + 1:02}-{i},"{i % 5},5",{"AB"[i % 2]},1,{"ab"[i % 2]}'
        for i in range(100)
    ]
    text = "age,day,price,code,version,label\n" + "\n".join(rows + rows[:40]) + "\n"
    run(file("data.csv", text), shards=1, validation_fraction=0)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    beginnings = [
        "warning: column 'age' has no value in 24 of 140 rows: ",
        "warning: column 'day' has 100 different texts in 140 rows, of the form '9999-99-99-9' ",
        "warning: column 'price' has numbers in text form, such as '0,5', ",
        "warning: column 'version' has the same value in all 140 rows: ",
        "warning: column 'code' alone predicts the label of 100.0% of the rows; ",
        "warning: 57.1% of the rows of the test split (8) ",
        "warning: column 'day' has 6 values in no training row, such as '2024-01-",
    ]
    assert [line[: len(beginning)] for line, beginning in zip(lines, beginnings, strict=True)] == beginnings
    page = html.unescape((tmp_path / "out" / "overview.html").read_text())
    assert all(f"<li>{line.removeprefix('warning: ')}" in page for line in lines)


def test_codes_and_declared_categories_are_not_called_quantities(file, run, capsys):
    rows = "".join(f"0{2000 + i % 9},{30000 + i % 9},{'ab'[i % 2]}\n{10000 + i % 9},1,a\n" for i in range(40))
    run(file("data.csv", "zip,code,label\n" + rows), columns={"code": "category"})
    log = capsys.readouterr().out
    assert "'zip' has numbers with leading zeros" in log
    assert "in text form" not in log


def test_dates_are_no_ids_and_times_of_a_day_get_advice_for_dates(file, run, capsys):
    rows = "".join(f"2024-{1 + i // 28:02}-{1 + i % 28:02},2024-01-01T00:{i:02}:00Z,{'ab'[i % 2]}\n" for i in range(60))
    run(file("data.csv", "day,time,label\n" + rows))
    log = capsys.readouterr().out
    assert "looks like an ID" not in log
    assert "column 'time' has different times that become equal" in log
    assert "write it into a column of its own" in log
    assert "Subtract an offset" not in log


WITHOUT_POINTS = (
    "write them in the source without points, which may separate thousands, because the decimals are commas"
)
WITH_COMMAS = "write them in the source with decimal commas, because the decimals are commas"


@pytest.mark.parametrize(
    ("values", "other", "csv_format", "advice"),
    [
        (("1.234", "12.345"), "0,5", {}, WITHOUT_POINTS),
        (("1.23456", "12.3"), "1,25", {"decimal": ","}, WITH_COMMAS),
        (
            ("1.234", "12.345"),
            "7",
            {"decimal": ","},
            r'.*\. If no number of the source has a decimal comma, set decimal .* "\."',
        ),
        (("1,5 kg", "2,5 kg"), "0,5", {}, r"write them in the source as plain numbers \(1,5\)"),
    ],
)
def test_the_advice_for_numbers_beside_decimal_commas_works(file, run, capsys, values, other, csv_format, advice):
    def kind(values, csv_format):
        rows = "".join(f"{values[i % 2]};{other};{'ab'[i % 2]}\n" for i in range(60))
        manifests = run(file("data.csv", "x;y;label\n" + rows), csv_format=parse_csv_format(csv_format))
        return [column.kind for column in manifests["train"].columns]

    assert kind(values, csv_format) == ["category", "number"]
    assert re.search(f"If they are quantities, {advice}", capsys.readouterr().out)
    if other == "7":
        assert kind(values, {"decimal": "."}) == ["number", "number"]
    else:
        point = "," if advice == WITH_COMMAS else ""
        plain = [value.replace(".", point).removesuffix(" kg") for value in values]
        assert kind(plain, {}) == ["number", "number"]


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_the_advice_for_numbers_that_are_texts_works(file, run, tmp_path, capsys, ending):
    rows = [{"x": ("1.5", "12")[i % 2], "label": "ab"[i % 2]} for i in range(60)]
    source = file(f"data.{ending}", "".join(json.dumps(row) + "\n" for row in rows))
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), source)
    run(source)
    assert """If they are quantities, set columns to {'x': "number"}\n""" in capsys.readouterr().out
    assert run(source, columns={"x": "number"})["train"].columns[0].kind == "number"
