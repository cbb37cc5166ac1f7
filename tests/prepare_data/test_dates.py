"""Dates and times of a column."""

import datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_distributed.components.prepare_data.columns.dates import (
    ISO,
    are_dates,
    days,
    family_of,
    is_form,
    iso_text,
    microseconds,
    orders_of,
)

NOON = datetime.datetime(2024, 1, 31, 12)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array(["2024-01-31", None, " 1970-01-02 "]), [19753.0, None, 1.0]),
        (pa.array(["2024-01-31T12:00:00", "2024-01-31 18:00"]), [19753.5, 19753.75]),
        (pa.array(["2024-01-31T12:00:00Z", "2024-01-31T14:00:00+02:00", "2024-01-31"]), [19753.5, 19753.5, 19753.0]),
        (pa.array([NOON.date(), None]), [19753.0, None]),
        (pa.array([NOON], pa.timestamp("ns", "Europe/Berlin")), [19753.5]),
        (pa.array([NOON], pa.timestamp("s")), [19753.5]),
    ],
)
def test_days_since_1970(values, expected):
    numbers, unusable = microseconds(values)
    assert (days(numbers).to_pylist(), unusable.tolist()) == (expected, [])


def test_values_that_are_no_dates_are_named():
    numbers, unusable = microseconds(pa.array(["2024-01-31", "soon", None, "2024-13-01"]))
    assert (numbers.is_null().to_pylist(), unusable.tolist()) == ([False, True, True, True], [1, 3])


@pytest.mark.parametrize(
    ("texts", "expected"),
    [(["2024-01-31", "2024-02-01T10:00Z"], True), (["2024-01-31", "x"], False), ([], False), (["20240131"], False)],
)
def test_texts_that_are_dates(texts, expected):
    assert are_dates(pa.array(texts, pa.string())) is expected


SLASHES = ("%d/%m/%Y", "%m/%d/%Y")


@pytest.mark.parametrize(
    ("texts", "family"),
    [
        (["2018-10-15", "2018-1-5 9:30"], (ISO,)),
        (["2018/10/15", "2018/1/05 10:00:00"], ("%Y/%m/%d",)),
        (["2018.10.15"], ("%Y.%m.%d",)),
        (["1960-01", "2024-12"], ("%Y-%m",)),
        (["1960/01"], ("%Y/%m",)),
        (["10/2018", "1/1999"], ("%m/%Y",)),
        (["Oct 2018", "October 2019"], ("%b %Y", "%B %Y")),
        (["2018-10-15 10:00 UTC", "2018-10-15 10:00:00.5+0130"], (ISO,)),
        (["1/5/2019", " 13/12/2019 "], SLASHES),
        (["01/31/2024 1:30 PM"], SLASHES),
        (["15.10.2018", "1.1.2019 23:59:59"], ("%d.%m.%Y", "%m.%d.%Y")),
        (["15-10-2018"], ("%d-%m-%Y", "%m-%d-%Y")),
    ],
)
def test_the_form_of_texts(texts, family):
    found, are_of_it = family_of(pa.array(texts))
    assert (found, are_of_it.to_pylist()) == (family, [True] * len(texts))


@pytest.mark.parametrize("text", ["1.5", "10.2018", "2019", "1/2", "45/45/2019", "1001-01", "2010-13", "1/5/19", "x"])
def test_texts_that_are_no_dates(text):
    assert family_of(pa.array([text]))[0] == ()


def test_a_number_above_12_tells_the_order():
    assert orders_of(pa.array(["1/5/2019", None]), SLASHES) == {}
    assert orders_of(pa.array(["1/5/2019", "13/5/2019"]), SLASHES) == {"%d/%m/%Y": "13/5/2019"}
    assert orders_of(pa.array(["13/5/2019", "5/13/2019"]), SLASHES) == {
        "%d/%m/%Y": "13/5/2019",
        "%m/%d/%Y": "5/13/2019",
    }


@pytest.mark.parametrize(
    ("text", "form", "expected"),
    [
        ("1/5/2019", "%d/%m/%Y", "2019-05-01T00:00:00"),
        ("01/05/2019 09:30", "%m/%d/%Y", "2019-01-05T09:30:00"),
        ("5.1.2019  9:30:15", "%d.%m.%Y", "2019-01-05T09:30:15"),
        ("1/5/2019 12:05 am", "%m/%d/%Y", "2019-01-05T00:05:00"),
        ("1/5/2019 12:05:09PM", "%m/%d/%Y", "2019-01-05T12:05:09"),
        ("1/5/2019 1:05 PM", "%m/%d/%Y", "2019-01-05T13:05:00"),
        ("2019/1/5T23:00:00.5+01:00", "%Y/%m/%d", "2019-01-05T22:00:00.500"),
        ("2019-1-5 1:00Z", ISO, "2019-01-05T01:00:00"),
        ("1960-01", "%Y-%m", "1960-01-01T00:00:00"),
        ("1/1960", "%m/%Y", "1960-01-01T00:00:00"),
        ("2019-01-05 01:00:00 UTC", ISO, "2019-01-05T01:00:00"),
        ("2019-01-05 01:00 GMT", ISO, "2019-01-05T01:00:00"),
        ("5/1/2019 02:00 +0100", "%d/%m/%Y", "2019-01-05T01:00:00"),
        ("5 Jan 2019", "%d %b %Y", "2019-01-05T00:00:00"),
        ("5 Jan 19 13h10", "%d %b %y %Hh%M", "2019-01-05T13:10:00"),
    ],
)
def test_dates_of_a_form(text, form, expected):
    numbers, unusable = microseconds(pa.array([text, None]), form)
    assert numbers.to_pylist() == [microseconds(pa.array([expected]))[0][0].as_py(), None]
    assert not len(unusable)
    assert iso_text(text, form) == expected[:10]


@pytest.mark.parametrize(
    "text", ["2019-05-01", "31/2/2019", "13:00", "1/5/2019 25:00", "1/5/2019 13:00 PM", "5/13/2019"]
)
def test_texts_of_another_form_are_no_dates(text):
    numbers, unusable = microseconds(pa.array([text]), "%d/%m/%Y")
    assert (numbers.to_pylist(), unusable.tolist(), iso_text(text, "%d/%m/%Y")) == ([None], [0], "")


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("%d/%m/%Y", True),
        ("%d.%m.%y %H:%M", True),
        ("%Y", True),
        ("%d/%m/%Y %z", True),
        *(
            (form, True)
            for form in ("%y%j", "%Y %b", "%A %d %B %Y", "%m/%d/%Y %I:%M %p", "%Y-%m-%d %H:%M:%S.%f %Z", "%c")
        ),
        *((form, True) for form in ("%Y-%W-%w", "%a, week %U of %Y", "%G-W%V-%u", "%Y-%m-%d %H:%M:%S.%f %Z")),
        # Texts of several days, of which strptime would read each as one.
        *((form, False) for form in ("%Y-%W", "%U %Y", "%A %Y", "%Y-%d", "%u %Y", "%Y-%m-%d %M %p", "%G-%V")),
        ("%d/%m", False),
        ("", False),
        ("DD/MM/YYYY", False),
        ("%Q", False),
        ("%Y %Y", False),
        ("%", False),
    ],
)
def test_formats_of_strptime(form, expected):
    assert is_form(form) is expected


@given(st.dates(datetime.date(1500, 1, 1), datetime.date(2199, 12, 31)), st.sampled_from("/.-"), st.booleans())
def test_a_date_is_the_same_in_each_form_of_its_family(date, sign, has_zeros):
    width = 2 if has_zeros else 1
    parts = {"%Y": f"{date.year}", "%m": f"{date.month:0{width}}", "%d": f"{date.day:0{width}}"}
    for order in ("%Y %m %d", "%d %m %Y", "%m %d %Y"):
        form = order.replace(" ", sign)
        text = sign.join(parts[part] for part in order.split())
        assert form in family_of(pa.array([text]))[0]
        assert iso_text(text, form) == date.isoformat()


TIMES = ["5/1/2019", "05/01/2019 9:30", "5/1/2019T09:30:15", "5/1/2019  9:30:15 PM", "5/1/2019 9:30:15.5", "31/2/2019"]


@pytest.mark.parametrize(
    ("texts", "form"),
    [
        *[([text, None], "%d/%m/%Y") for text in TIMES],
        (TIMES, "%d/%m/%Y"),
        (["2019.1.5 9:30", "2019.12.31"], "%Y.%m.%d"),
        (["1-31-2019", "01-05-2019 23:59"], "%m-%d-%Y"),
        (["2019-01-05T09:30Z", "2019-01-05 09:30:15+01:00"], ISO),
        (["2019-01-05 09:30", "2019-1-5"], ISO),
        (["0000-01-01", "0001-01-01"], ISO),
        (["0000-01-01", "2019-01-05 9:30 UTC"], ISO),
        (["1/1/0000", "1/1/0001"], "%d/%m/%Y"),
    ],
)
def test_a_date_does_not_depend_on_others(texts, form):
    """Arrow reads the texts if it knows all of them, Python does otherwise."""
    one_by_one = [microseconds(pa.array([text, "soon"], pa.string()), form)[0][0].as_py() for text in texts]
    numbers, unusable = microseconds(pa.array(texts, pa.string()), form)
    assert numbers.to_pylist() == one_by_one
    assert unusable.tolist() == [row for row, text in enumerate(texts) if text and one_by_one[row] is None]
