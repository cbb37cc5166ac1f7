"""Dates in other forms than ISO: they are read as the same dates in ISO form, or the user is asked."""

import datetime
import json
import re
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kfp_distributed.components.prepare_data.csv_format import CsvFormat
from kfp_distributed.components.prepare_data.preparation_options import parse_options
from kfp_distributed.components.prepare_data.tables import csv_files, json_table, schema_table

pytestmark = pytest.mark.takes(5)

DAYS = [datetime.date(2018, 1, 1) + datetime.timedelta(days) for days in range(0, 4000, 40)]
FORMS = ("%Y/%m/%d", "%Y.%m.%d", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%m.%d.%Y", "%d-%m-%Y", "%m-%d-%Y")
NAMED_MONTHS = ("%d-%b-%Y", "%d %B %Y", "%b %d %Y", "%d%b%Y")
MAY = (datetime.date(2019, 5, 1) - datetime.date(1970, 1, 1)).days
AMBIGUOUS = "at,x,label\n" + "1/5/2019,1,a\n2/6/2019,2,b\n" * 20


def written(day, form, *, has_zeros=True):
    text = day.strftime(form)
    return text if has_zeros else re.sub(r"\b0", "", text)


def rows_of(texts):
    return [{"at": text, "x": row / 8, "label": "ab"[row % 2]} for row, text in enumerate(texts)]


def source_of(file, ending, texts, name="data"):
    rows = rows_of(texts)
    if ending == "jsonl":
        return file(f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    if ending == "csv":
        lines = [",".join("" if value is None else str(value) for value in row.values()) for row in rows]
        return file(f"{name}.csv", "\n".join(["at,x,label", *lines]) + "\n")
    path = file(f"{name}.{ending}", "")
    arrays = {key: [row[key] for row in rows] for key in rows[0]}
    if ending == "npz":
        np.savez(path, **arrays)
    else:
        pq.write_table(pa.table(arrays), path)
    return path


def rows_in(folder):
    """The rows of the shards of all splits."""
    return {
        path.parent.name + path.name: pq.read_table(path).to_pylist() for path in sorted(folder.glob("*/*.parquet"))
    }


def column(manifests):
    return manifests["train"].columns[0]


@pytest.mark.parametrize("has_zeros", [True, False])
@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_rows_are_the_same_in_each_form(ending, has_zeros, file, run, tmp_path, capsys):
    run(source_of(file, ending, [f"{day}" for day in DAYS], "iso"), "iso")
    expected = rows_in(tmp_path / "iso")
    for number, form in enumerate(FORMS + NAMED_MONTHS):
        texts = [written(day, form, has_zeros=has_zeros) for day in DAYS]
        manifests = run(source_of(file, ending, texts, f"data{number}"), f"out{number}")
        assert rows_in(tmp_path / f"out{number}") == expected
        assert (column(manifests).kind, column(manifests).source_type) == ("number", f"date {form}")
        output = capsys.readouterr().out
        assert f"column 'at' has dates of the form {form}, such as {texts[0]!r} = 2018-01-01: they become" in output
        assert "free text" not in output


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "npz"])
def test_a_declared_column_is_read_in_the_form_of_its_texts(ending, file, run, tmp_path, capsys):
    run(source_of(file, "csv", [f"{day}" for day in DAYS], "iso"), "iso")
    for number, (kind, form) in enumerate([("date", "%d/%m/%Y"), ("date %d %b %Y", "%d %b %Y")]):
        texts = [written(day, form) for day in DAYS]
        source = source_of(file, ending, texts, f"data{number}")
        manifests = run(source, f"out{number}", columns={"at": kind})
        assert rows_in(tmp_path / f"out{number}") == rows_in(tmp_path / "iso")
        assert column(manifests).source_type == f"date {form}"
        line = f"column 'at' has dates of the form {form}, such as '01/01/2018' = 2018-01-01. If they are"
        assert (line in capsys.readouterr().out) == (kind == "date")


@pytest.mark.parametrize("form", ["%Y-%m", "%Y/%m", "%m/%Y", "%m-%Y", "%b %Y", "%B-%Y", "%Y %b"])
def test_a_month_is_its_first_day(form, file, run, tmp_path):
    months = [datetime.date(1949 + row // 12, row % 12 + 1, 1) for row in range(100)]
    run(source_of(file, "csv", [f"{day}" for day in months], "iso"), "iso")
    manifests = run(source_of(file, "csv", [written(day, form) for day in months]))
    assert rows_in(tmp_path / "out") == rows_in(tmp_path / "iso")
    assert column(manifests).source_type == f"date {form}"


def test_times_of_day(file, run, tmp_path):
    times = [datetime.datetime(2018, 1, 1, 0, 30) + datetime.timedelta(hours=37 * hours) for hours in range(100)]
    run(source_of(file, "csv", [f"{time}" for time in times], "iso"), "iso")
    for number, form in enumerate(["%d/%m/%Y %H:%M:%S", "%m/%d/%Y %I:%M %p", "%Y/%m/%d %H:%M"]):
        manifests = run(
            source_of(file, "csv", [written(time, form) for time in times], f"data{number}"), f"out{number}"
        )
        assert rows_in(tmp_path / f"out{number}") == rows_in(tmp_path / "iso")
        assert column(manifests).source_type == f"date {form[:8]}"


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "npz"])
def test_a_late_row_tells_the_order(ending, file, run, monkeypatch):
    monkeypatch.setattr(csv_files, "FIRST_BLOCK_BYTES", 2**10)
    monkeypatch.setattr(csv_files, "BLOCK_BYTES", 2**10)
    monkeypatch.setattr(json_table, "FIRST_BYTES", 2**10)
    monkeypatch.setattr(schema_table, "BATCH_BYTES", 2**10)
    texts = ["1/5/2019", "2/6/2019"] * 200
    columns = {} if ending in ("csv", "jsonl") else {"at": "date"}
    for name, late, form in (("a", "12/13/2019", "%m/%d/%Y"), ("b", "13/12/2019", "%d/%m/%Y")):
        manifests = run(source_of(file, ending, [*texts, late], name), name, columns=columns)
        assert column(manifests).source_type == f"date {form}"
    with pytest.raises(
        ValueError, match=r"column 'at' has '13/1/2019', whose day is first, and '1/13/2019', whose mon"
    ):
        run(source_of(file, ending, [*texts, "1/13/2019", "13/1/2019"]), columns=columns)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "npz"])
def test_the_user_is_asked_for_an_open_order(ending, file, run, tmp_path):
    source = source_of(file, ending, [None if ending == "csv" else "3/3/2019", "1/5/2019", "2/6/2019", "6/6/2019"] * 10)
    columns = {} if ending in ("csv", "jsonl") else {"at": "date"}
    with pytest.raises(ValueError, match="column 'at' has dates such as") as error:
        run(source, columns=columns)
    assert str(error.value) == (
        "column 'at' has dates such as '1/5/2019', which is 2019-05-01 (%d/%m/%Y) or 2019-01-05 (%m/%d/%Y): no row "
        """tells which. Set columns to {'at': "date %d/%m/%Y"} or {'at': "date %m/%d/%Y"}, {'at': "category"}, name """
        "it in drop_columns, or write ISO dates"
    )
    manifests = run(source, columns={"at": "date %m/%d/%Y"})
    assert column(manifests).source_type == "date %m/%d/%Y"
    assert column(run(source, columns={"at": "category"})).kind == "category"


def test_with_points_the_day_is_first(file, run):
    assert column(run(source_of(file, "csv", ["1.5.2019", "2.6.2019"] * 20))).source_type == "date %d.%m.%Y"


def test_a_value_of_another_form_is_a_wrong_row(file, run):
    late = "13/1/2019,1,a\n14/1/2019,2,b\n" * 50_000
    source = file("data.csv", f"at,x,label\n{late}1/13/2019,1,a\nsoon,2,b\n")
    with pytest.raises(ValueError, match="these are 2 rows") as error:
        run(source)
    assert (
        "row 100002 of data.csv: 'at' is '1/13/2019', which is no date of the form %d/%m/%Y, such as 31/01/2024: "
        "correct it, or leave it empty" in str(error.value)
    )


@pytest.mark.parametrize(
    ("ending", "advice"),
    [
        ("csv", """csv_format to {"missing": ["?", "unknown"]} if it means a missing value"""),
        ("jsonl", "write null"),
    ],
)
def test_a_word_among_dates_is_named(ending, advice, file, run, capsys):
    source = source_of(file, ending, [*(written(day, "%d.%m.%Y") for day in DAYS), "unknown"])
    formats = {"csv_format": CsvFormat(missing=("?",))}
    assert column(run(source, **formats)).kind == "category"
    output = capsys.readouterr().out
    assert "column 'at' has dates in most of its first rows, but also 'unknown', and becomes a category. To" in output
    assert advice in output
    formats = {"csv_format": CsvFormat(missing=("?", "unknown")), "on_bad_row": "skip", "columns": {"at": "date"}}
    assert column(run(source, **formats)).source_type == "date %d.%m.%Y"


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "npz"])
@pytest.mark.parametrize("form", ["%d/%m/%Y", "%d.%m.%Y %H:%M"])
def test_the_newest_rows_by_dates_of_a_form(form, ending, file, run, tmp_path):
    run(source_of(file, "csv", [f"{day}" for day in DAYS], "iso"), "iso", time_column="at")
    run(source_of(file, ending, [written(day, form) for day in DAYS]), time_column="at")
    assert rows_in(tmp_path / "out") == rows_in(tmp_path / "iso")


def test_the_form_of_a_time_column_is_that_of_the_main_source(file, run):
    test = file("test.csv", "at,x,label\n1/5/2019,1,a\n")
    source = source_of(file, "csv", [written(day, "%d/%m/%Y") for day in DAYS])
    manifests = run(source, sources={"test": str(test)}, time_column="at")
    assert manifests["test"].rows == 1
    with pytest.raises(ValueError, match=r'"date %m/%d/%Y"}, which makes it an input, or write ISO dates'):
        run(file("data.csv", AMBIGUOUS), time_column="at")


def test_other_rows_are_read_in_the_form_of_the_training_rows(file, run, tmp_path):
    source = source_of(file, "csv", [written(day, "%d/%m/%Y") for day in DAYS])
    few = file("few.csv", "at,x,label\n1/5/2019,1,a\n")
    manifests = run(source, sources={"validation": str(few)})
    assert [row["at"] for row in rows_in(tmp_path / "out")["validationpart-00000.parquet"]] == [MAY]
    options = {"validation_fraction": 0, "test_fraction": 1}
    assert run(few, "like", like=manifests["train"], **options)["test"].columns == manifests["train"].columns
    assert [row["at"] for row in rows_in(tmp_path / "like")["testpart-00000.parquet"]] == [MAY]
    with pytest.raises(ValueError, match=r"'at' is '1/13/2019', which is no date of the form %d/%m/%Y"):
        run(file("other.csv", "at,x,label\n1/13/2019,1,a\n"), like=manifests["train"], **options)


def test_kept_texts_stay_as_they_are_written(file, run):
    options = {"task": "none", "label_column": ""}
    assert column(run(file("data.csv", AMBIGUOUS), **options)).dtype == "string"
    assert column(run(file("iso.csv", "at,x\n" + "2019-05-01,1\n" * 20), **options)).dtype == "timestamp[us]"
    assert column(run(file("data.csv", AMBIGUOUS), columns={"at": "date %d/%m/%Y"}, **options)).kind == "number"


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_may_tells_nothing_about_the_length_of_the_names_of_months(ending, file, run, monkeypatch):
    monkeypatch.setattr(csv_files, "FIRST_BLOCK_BYTES", 2**10)
    monkeypatch.setattr(csv_files, "BLOCK_BYTES", 2**10)
    monkeypatch.setattr(json_table, "FIRST_BYTES", 2**10)
    may = ["5 May 2018", "16  May 2018"] * 200
    for name, late, form in (("a", "1 June 2018", "%d %B %Y"), ("b", "1 Jun 2018", "%d %b %Y")):
        assert column(run(source_of(file, ending, [*may, late], name), name)).source_type == f"date {form}"
    assert column(run(source_of(file, ending, may, "may"), "may")).source_type == "date %d %b %Y"
    assert column(run(source_of(file, ending, [*may, "1 June 2018", "1 Jul 2018"], "c"), "c")).kind == "category"


@pytest.mark.parametrize("options", [{"time_column": "at"}, {"columns": {"at": "date"}}])
def test_dates_that_the_user_needs_with_years_of_two_digits_are_refused(options, file, run):
    source = source_of(file, "csv", [*(written(day, "%d-%b-%y") for day in DAYS), ""])
    message = "column 'at' has dates whose years have two digits, such as '01-Jan-18': set its kind in columns to 'date"
    with pytest.raises(ValueError, match=re.escape(message)):
        run(source, **options)


@pytest.mark.parametrize(
    ("form", "kinds"),
    [
        ("%d-%b-%y", "'date %d-%b-%y' (2018-01-01)"),
        ("%d/%m/%y", "'date %d/%m/%y' (2018-01-01)"),
        ("%y-%m-%d", "'date %d-%m-%y' (2001-01-18) or 'date %y-%m-%d' (2018-01-01)"),
    ],
)
def test_years_of_two_digits_are_named(form, kinds, file, run, tmp_path, capsys):
    source = source_of(file, "csv", [written(day, form) for day in DAYS])
    assert column(run(source)).kind == "category"
    text = written(DAYS[0], form)
    assert (
        f"column 'at' may have dates whose years have two digits, such as {text!r}, and becomes a category. If it has, "
        f"set its kind in columns to {kinds}"
    ) in capsys.readouterr().out
    run(source, "out", columns={"at": f"date {form}"})
    run(source_of(file, "csv", [f"{day}" for day in DAYS], "iso"), "iso")
    assert rows_in(tmp_path / "out") == rows_in(tmp_path / "iso")


def test_seasons_are_no_months(file, run):
    text = "at,x,label\n" + "".join(f"20{5 + i % 7:02}-{6 + i % 7:02},{i},{'ab'[i % 2]}\n" for i in range(40))
    assert column(run(file("data.csv", text))).kind == "category"


def test_the_order_does_not_matter_where_both_readings_are_equal(file, run):
    text = "at,x,label\n" + "".join(f"{1 + i % 3}/{1 + i % 3}/{1990 + i},{i},{'ab'[i % 2]}\n" for i in range(20))
    assert column(run(file("data.csv", text))).source_type == "date %d/%m/%Y"


@pytest.mark.parametrize("kind", ["date %d/%m", "date DD/MM/YYYY", "date %Q", "date %Y %Y"])
def test_wrong_formats_are_refused(kind):
    with pytest.raises(ValueError, match=f"columns: the kind of 'at' is '{kind}': after date must be a format of Pyth"):
        parse_options(
            label_column="label",
            validation_fraction=0,
            test_fraction=0,
            shards=1,
            seed=0,
            image_size="",
            drop_columns=(),
            columns={"at": kind},
        )


NUMBERS = ["csv", "jsonl", "parquet", "npz"]


@pytest.mark.parametrize("ending", NUMBERS)
def test_whole_numbers_in_the_order_of_days_are_named(file, run, capsys, ending):
    texts = [day.strftime("%d%m%Y") for day in DAYS]
    source = source_of(file, ending, texts if ending == "csv" else [*map(int, texts)])
    line = "time_column 'at' has numbers such as 01012018, and the rows have their order. If they are dates, set"
    for columns, is_named in (({"at": "number"}, False), ({"at": "date %d%m%Y"}, False), ({}, True)):
        run(source, str(columns), time_column="at", columns=columns)
        assert (line in capsys.readouterr().out) == is_named, columns


@pytest.mark.parametrize("ending", NUMBERS)
def test_whole_numbers_that_may_be_dates_are_named(file, run, capsys, ending):
    numbers = [int(day.strftime("%Y%m%d")) for day in DAYS]
    source = source_of(file, ending, numbers)
    line = """column 'at' has numbers such as 20180101, which may be dates. If they are, set columns to"""
    assert column(run(source, "numbers")).source_type == ""
    assert line in capsys.readouterr().out
    assert column(run(source, columns={"at": "date %Y%m%d"})).source_type == "date %Y%m%d"
    assert line not in capsys.readouterr().out
    assert column(run(source_of(file, ending, [*numbers[:-1], 20181315]), "codes")).source_type == ""
    assert line not in capsys.readouterr().out


@pytest.mark.parametrize("ending", NUMBERS)
@pytest.mark.parametrize(("form", "shown"), [("%m.%Y", "01.2018"), ("%m%Y", "012018")])
def test_numbers_that_may_be_months_are_named(file, run, capsys, form, shown, ending):
    texts = [month.strftime(form) for month in DAYS]
    kind = float if "." in form else int
    source = source_of(file, ending, texts if ending == "csv" else [*map(kind, texts)])
    run(source, "numbers", time_column="at")
    line = (
        f"time_column 'at' has numbers such as {shown}, and the rows have their order. If they are dates, set its kind"
    )
    printed = capsys.readouterr().out
    assert line in printed
    assert f"'date {form}' (2018-01-01)" in printed
    run(source, "dates", time_column="at", columns={"at": f"date {form}"})
    assert "which may be dates" not in capsys.readouterr().out
    run(source, "input")
    assert ("column 'at' has numbers such as 01.2018, which may be dates" in capsys.readouterr().out) == ("." in form)


@pytest.mark.parametrize("ending", NUMBERS)
@pytest.mark.parametrize(
    ("form", "numbers", "expected"),
    [
        ("%d%m%Y", [1012018, 28122018], ["2018-01-01", "2018-12-28"]),
        ("%d%m%Y", [1012018.0, 28122018.0], ["2018-01-01", "2018-12-28"]),
        ("%Y%m%d", [20181016.5, 20181016.0], None),
        ("%Y%m%d%H", [2018101605, 2018101623], ["2018-10-16 05:00", "2018-10-16 23:00"]),
        ("%d%m%Y%H", [16102018, 110201805], None),
        ("%m.%Y", [1.2018, 10.202], ["2018-01-01", "2020-10-01"]),
        ("%m.%Y", [10.20184, 10.2018], None),
        ("%Y.%m", [2018.02, 2018.12], ["2018-02-01", "2018-12-01"]),
        ("%Y.%m", [2018.1, 2018.02], None),
        ("%Y.%m", [2018.013, 2018.02], None),
        ("%Y", [18, 2019], None),
        ("%Y%j", [20181, 2018364], ["2018-01-01", "2018-12-30"]),
    ],
)
def test_a_number_is_the_same_date_in_all_formats(file, run, tmp_path, ending, form, numbers, expected):
    """A number that is no date, or may be two, is a wrong row with the same text in all formats."""
    source = source_of(file, ending, numbers * 10)
    options = {"columns": {"at": f"date {form}"}, "task": "classification"}
    if expected is None:
        with pytest.raises(ValueError, match=rf"'at' is '{numbers[0]}', which is no date of the form {form}, such as"):
            run(source, **options)
        return
    run(source, **options)
    moments = pa.array(expected).cast(pa.timestamp("us")).cast(pa.int64()).to_numpy() / 86_400e6
    assert {row["at"] for rows in rows_in(tmp_path / "out").values() for row in rows} == {*np.float32(moments).tolist()}


@pytest.mark.parametrize("use", ["input", "time", "group"])
@pytest.mark.parametrize(
    ("kind", "form"),
    [
        (pa.decimal128(8), "%Y%m%d"),
        (pa.decimal128(10, 2), "%d%m%Y"),
        (pa.decimal256(40), "%Y%m%d"),
        (pa.decimal128(6, 4), "%m.%Y"),
    ],
)
def test_decimals_are_dates_of_their_form(file, run, tmp_path, capsys, kind, form, use):
    source, days = file("data.parquet", ""), [day for day in DAYS if day.year != 2020]
    rows = rows_of([Decimal(day.strftime(form)) for day in days])
    schema = pa.schema({"at": kind, "x": pa.float64(), "label": pa.string()})
    pq.write_table(pa.Table.from_pylist(rows, schema), source)
    options = {} if use == "input" else {f"{use}_column": "at"}
    run(source, "numbers", **options)
    is_named = form != "%d%m%Y" if use == "input" else form != "%Y%m%d" and use == "time"
    assert (f"date {form}" in capsys.readouterr().out) == is_named
    assert column(run(source, columns={"at": f"date {form}"}, **options)).source_type == f"date {form}"
    expected = {(day if "%d" in form else day.replace(day=1)).isoformat() for day in days}
    moments = {row["at"] for rows in rows_in(tmp_path / "out").values() for row in rows}
    assert {f"{datetime.date(1970, 1, 1) + datetime.timedelta(moment)}" for moment in moments} == expected


def test_floats_of_32_bits_that_may_be_another_day_are_refused(file, run):
    source = file("data.parquet", "")
    values = pa.array([20181015, 20181017] * 10).cast(pa.float32(), safe=False)
    pq.write_table(pa.table({"at": values, "label": ["a", "b"] * 10}), source)
    with pytest.raises(ValueError, match=r"'at' is 20181016.0, read as a float, in which different whole numbers of"):
        run(source, columns={"at": "date %Y%m%d"})


def test_other_numbers_are_not_named_as_dates(file, run, capsys):
    numbers = {"price": 4.25, "count": 20181, "large": 2**62, "third": 1 / 3, "negative": -20180101, "year": 2018}
    rows = [{**numbers, "label": "ab"[row % 2], "row": row} for row in range(60)]
    run(file("data.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))
    assert "may be dates" not in capsys.readouterr().out
