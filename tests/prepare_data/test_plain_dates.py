"""Numbers that may be dates without a day or a year: they are named where the column leaves no doubt."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kfp_distributed.components.prepare_data.csv_format import parse_csv_format

OPTIONS = {"validation_fraction": 0, "test_fraction": 0, "shards": 1}
YEARS_AND_MONTHS = [f"{year}{month:02}" for year in range(1990, 2010) for month in range(1, 13)]
POINTS = [f"{text[:4]}.{text[4:]}" for text in YEARS_AND_MONTHS]
UNPADDED = [f"{year}.{int(month)}" for year, month in (text.split(".") for text in POINTS)]
DAYS = [f"{day}.{month:02}" for month in range(1, 13) for day in range(1, 29)]


@pytest.fixture
def write(file):
    """Write a column of numbers in a format."""

    def write_numbers(kind, values):
        if kind == "csv":
            return file("data.csv", "x,label\n" + "".join(f"{v},{'ab'[i % 2]}\n" for i, v in enumerate(values)))
        numbers = [json.loads(value) for value in values]
        rows = [{"x": number, "label": "ab"[i % 2]} for i, number in enumerate(numbers)]
        if kind == "jsonl":
            return file("data.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        source = file(f"data.{kind}", "")
        if kind == "npz":
            np.savez(source, x=np.array(numbers), label=np.array([row["label"] for row in rows]))
        else:
            pq.write_table(pa.Table.from_pylist(rows), source)
        return source

    return write_numbers


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "npz"])
@pytest.mark.parametrize(
    ("values", "line"),
    [
        (YEARS_AND_MONTHS, """199001, which may be dates. If they are, set columns to {'x': "date %Y%m"}\n"""),
        (
            POINTS,
            """1990.01, which may be dates. If they are, set columns to {'x': "date %Y.%m"}, and write October as """
            "2018.10\n",
        ),
        (DAYS, "13.01, which may be dates. If they are, write them with their year in the source\n"),
        (
            UNPADDED,
            "1990.11, which may be dates. If they are, write them as 1990-11 in the source, because October is the "
            "same number as January\n",
        ),
    ],
    ids=["199001", "1990.01", "29.06", "1990.1"],
)
@pytest.mark.usefixtures("small")
def test_numbers_that_may_be_months_or_days_are_named(write, run, capsys, kind, values, line):
    for number, rows in enumerate((values, values[::-1], values * 20)):
        run(write(kind, rows), f"out-{number}", **OPTIONS)
        assert f"column 'x' has numbers such as {line}" in capsys.readouterr().out


@pytest.mark.parametrize(("values", "form"), [(YEARS_AND_MONTHS, "%Y%m"), (POINTS, "%Y.%m")])
def test_the_advice_about_months_works(write, run, values, form):
    column = run(write("csv", values), columns={"x": f"date {form}"}, **OPTIONS)["train"].columns[0]
    assert column.source_type == f"date {form}"


@pytest.mark.parametrize(
    "values",
    [
        ["200101", "200212", "200311"],
        ["199013", "199001", "199002"],
        ["2018.1", "2018.11", "2018.12"],
        ["2018.05", "2019.5", "2020.01"],
        ["29.06", "30.07"],
        [f"1.{i:02}" for i in range(1, 13)],
        [*DAYS, "31.13"],
        [*DAYS, "5"],
        [f"2018.{quarter}" for quarter in range(1, 5)],
        [*UNPADDED, "2018.13"],
        [text for text in UNPADDED if len(text) == 6],
    ],
    ids=[
        "also 20-01-01",
        "no month",
        "no zero",
        "a fraction",
        "few",
        "no day",
        "no month after the day",
        "whole",
        "quarters",
        "13",
        "tenths",
    ],
)
def test_numbers_that_may_be_something_else_have_no_line(write, run, capsys, values):
    run(write("csv", values * 10), **OPTIONS)
    assert "may be dates" not in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_texts_of_years_and_months_are_named(file, run, capsys, kind):
    rows = [{"day": text, "x": f"{i},5", "label": "ab"[i % 2]} for i, text in enumerate(POINTS)]
    lines = ["day;x;label\n", *(";".join(row.values()) + "\n" for row in rows)]
    source = file(f"data.{kind}", "".join(lines if kind == "csv" else [json.dumps(row) + "\n" for row in rows]))
    german = {"csv_format": parse_csv_format({"decimal": ","})} if kind == "csv" else {"drop_columns": ("x",)}
    options = {**german, **OPTIONS}
    run(source, **options)
    assert (
        "column 'day' may have years and months, such as '1990.01', and becomes a category. If it has, set its kind in "
        "columns to 'date %Y.%m' (1990-01-01)\n"
    ) in capsys.readouterr().out
    train = run(source, "dates", columns={"day": "date %Y.%m"}, **options)["train"]
    assert train.columns[0].source_type == "date %Y.%m"


def test_times_whose_numbers_have_another_order_are_named(file, run, capsys):
    """Days without a year, and months without a zero. Months with a zero have the order of their numbers."""
    options = {"time_column": "at", "validation_fraction": 0, "shards": 1}
    named = {
        "days": "13.01, and the rows have their order. If they are days and months, write them with their year",
        "unpadded": "1990.11, and the rows have their order. If they are years and months, write them as 1990-11",
    }
    columns = {"days": DAYS, "months": YEARS_AND_MONTHS, "points": POINTS, "unpadded": UNPADDED}
    for name, values in columns.items():
        rows = "".join(f"{value},{i % 7},{'ab'[i % 2]}\n" for i, value in enumerate(values))
        run(file(f"{name}.csv", "at,x,label\n" + rows), name, **options)
        output = capsys.readouterr().out
        assert [key for key, line in named.items() if f"time_column 'at' has numbers such as {line}" in output] == [
            key for key in named if key == name
        ]


def test_numbers_with_decimal_commas_may_be_months(file, run, capsys):
    rows = "".join(f"{text};{'ab'[i % 2]}\n" for i, text in enumerate(text.replace(".", ",") for text in POINTS))
    run(file("data.csv", "x;label\n" + rows), csv_format=parse_csv_format({"decimal": ","}), **OPTIONS)
    assert "numbers such as 1990.01, which may be dates" in capsys.readouterr().out
