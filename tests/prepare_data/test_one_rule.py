"""What is a date or a list is so in every format."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kfp_distributed.components.prepare_data.columns.dates import iso_text, microseconds

OPTIONS = {"validation_fraction": 0, "test_fraction": 0, "shards": 1}
FORMATS = ("csv", "jsonl", "parquet", "npz")


@pytest.fixture
def write(file):
    """Write a column of values in a format."""

    def write_values(kind, name, values):
        rows = [{name: value, "x": i / 2, "label": "ab"[i % 2]} for i, value in enumerate(values)]
        source = file(f"data.{kind}", "".join(json.dumps(row) + "\n" for row in rows))
        if kind == "csv":
            lines = [f'"{row[name]}",{row["x"]},{row["label"]}\n' for row in rows]
            source.write_text("".join([f"{name},x,label\n", *lines]))
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), source)
        if kind == "npz":
            np.savez(source, **{key: np.array([row[key] for row in rows]) for key in (name, "x", "label")})
        return source

    return write_values


@pytest.mark.parametrize("value", ["20181015", 20181015, "20181015T120000", "2018-W42-1"])
@pytest.mark.parametrize("kind", FORMATS)
def test_digits_without_a_form_are_no_date(write, run, kind, value):
    """Python reads them as ISO dates, so that texts were dates, and numbers were refused."""
    values = ["2018-10-14", value] * 20 if isinstance(value, str) else [value, value + 1] * 20
    message = f"'{value}', which is no date of the form 2024-01-31|, where dates and times or their texts are needed"
    with pytest.raises(ValueError, match=message):
        run(write(kind, "d", values), columns={"d": "date"}, **OPTIONS)


@pytest.mark.parametrize("kind", FORMATS)
def test_digits_with_their_form_are_dates(write, run, kind):
    column = run(write(kind, "d", ["20181015", "20181016"] * 20), columns={"d": "date %Y%m%d"}, **OPTIONS)["train"]
    assert column.columns[0].source_type == "date %Y%m%d"


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("15 Sept 2018", "%d %b %Y"),
        ("15-SEPT-2018", "%d-%b-%Y"),
        ("Sept 15, 2018", "%b %d, %Y"),
        ("15Sept2018", "%d%b%Y"),
        ("15 sept 2018 12:30", "%d %b %Y %H:%M"),
        ("15 September 2018", "%d %B %Y"),
    ],
)
def test_september_has_a_short_name_of_four_letters(text, form):
    assert iso_text(text, form) == "2018-09-15"
    assert not len(microseconds(pa.array([text]), form)[1])


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("texts", [["15 Sept 2018", "16 Oct 2018"], ["15 Sept 2018", "16 Sept 2018"], ["Sept 2018"]])
def test_a_column_with_sept_has_dates(write, run, kind, texts):
    column = run(write(kind, "d", texts * 20), **OPTIONS)["train"].columns[0]
    assert column.source_type == f"date {'%d ' * (texts[0][0] == '1')}%b %Y"


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("number", [1e300, -1e39])
def test_a_number_that_a_list_of_floats_does_not_hold_is_refused(write, run, kind, number):
    source = write(kind, "v", [[1.5, 2.0], [1.5, number]] * 10)
    with pytest.raises(ValueError, match=r"rows \d.*'v' is .*(list<item: float>|no list of numbers of up to 3.4e38)"):
        run(source, columns={"v": "list<float>"}, **OPTIONS)
