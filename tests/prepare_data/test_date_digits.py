"""Dates that are numbers, which lose zeros: they are read as they were written, or refused."""

import datetime
import itertools
import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_distributed.components.prepare_data.columns.dates import digits, microseconds

DATES = st.dates(datetime.date(1000, 1, 1), datetime.date(2199, 12, 31))
WHOLE = ["%Y", "%Y%m", "%Y%j", "%Y%m%d", "%y%m%d", "%d%m%Y", "%m%d%Y", "%d%m%y", "%m%Y", "%j%Y", "%j%y"]
WITH_POINTS = ["%m.%Y", "%j.%Y", "%d.%Y%m", "%d.%m%Y", "%Y.%m", "%Y.%j", "%Y.%m%d", "%Y%m.%d", "%y.%m", "%d%m.%Y"]
FORMS = st.sampled_from(WHOLE + WITH_POINTS)


def date_of(text, form):
    """The date of a text; None if it is refused."""
    (moment,) = microseconds(pa.array([text]), form)[0].cast(pa.timestamp("us")).to_pylist()
    return moment and moment.date()


def strptime(text, form):
    try:
        return datetime.datetime.strptime(text, form).date()
    except ValueError:
        return None


@given(DATES, FORMS)
def test_a_date_with_all_digits_is_that_of_strptime(date, form):
    text = date.strftime(form)
    assert date_of(text, form) == strptime(text, form)


@given(DATES, FORMS)
def test_a_date_that_lost_zeros_as_a_number_is_the_same_or_refused(date, form):
    text = date.strftime(form)
    expected = strptime(text, form)
    number = str(float(text)).removesuffix(".0")
    assert date_of(number, form) in (expected, None)
    assert date_of(f"{float(text)}", form) == date_of(number, form)
    if "." not in form:
        assert date_of(number, form) == expected


@given(st.decimals(0, 10**8, places=4, allow_nan=False), FORMS)
def test_no_digit_is_invented(number, form):
    """Of all numbers, those that are dates have the digits of these, but for zeros at their ends."""
    text = str(float(number)).removesuffix(".0")
    date = date_of(text, form)
    if date:
        parts = {"%Y": f"{date.year:04}", "%y": f"{date.year % 100:02}", "%m": f"{date.month:02}"}
        parts |= {"%d": f"{date.day:02}", "%j": date.strftime("%j")}
        written = re.sub("%.", lambda part: parts[part[0]], form)
        # A month or day of one digit at the end, after the year, may be written so.
        unpadded = re.sub("%.", lambda part: parts[part[0]].lstrip("0"), form)
        assert text in (unpadded, written) or float(text) == float(written)
        assert "%Y" not in form or parts["%Y"].rstrip("0") in text
        assert "%Y" not in form or f"{date.year}"[:3] in text


@pytest.mark.parametrize(
    ("form", "text", "date"),
    [
        ("%d%m%Y", "1012018", "2018-01-01"),
        ("%d%m%Y", "3032018.0", "2018-03-03"),
        ("%m%d%Y", "2112018", "2018-02-11"),
        ("%d%m%y", "10118", "2018-01-01"),
        ("%y%m%d", "180212.00", "2018-02-12"),
        ("%y%m%d", "101", "2000-01-01"),
        ("%Y%m%d", "20181016.0", "2018-10-16"),
        ("%m.%Y", "1.2018", "2018-01-01"),
        ("%m.%Y", "10.202", "2020-10-01"),
        ("%Y.%m", "2018.10", "2018-10-01"),
        ("%j%Y", "12018", "2018-01-01"),
        ("%Y%j", "20181", "2018-01-01"),
        ("%Y%j", "2020366", "2020-12-31"),
        ("%Y-%j", "2018-1", "2018-01-01"),
        ("%Y%m", "20181", "2018-01-01"),
        ("%d%m%Y", "1012018 09:30", "2018-01-01"),
        ("%d%m%Y%H", "101201809", "2018-01-01"),
        ("%Y%m%d%H%M%S.%f", "20180101093015.5", "2018-01-01"),
        ("%Y%m%d%H%M%S.%f", "20180101093015", "2018-01-01"),
        ("%Y%m%d%H%M%S%f", "20180101093015500", "2018-01-01"),
    ],
)
def test_zeros_that_a_number_has_lost_are_those_of_its_date(form, text, date):
    assert f"{date_of(text, form)}" == date


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("%Y.%m", "2018.1"),
        ("%Y.%m", "2018.100"),
        ("%Y.%j", "2018.1"),
        ("%Y%m.%d", "201801.1"),
        ("%Y%m%d", "2018111"),
        ("%Y%m%d", "20181016.5"),
        ("%d%m%Y", "101201"),
        ("%d%m%Y", "112018"),
        ("%m.%Y", "1.5"),
        ("%m.%Y", "10"),
        ("%j.%Y", "201.1"),
        ("%d.%m%Y", "1.12018"),
        ("%Y", "18"),
        ("%Y", "18.0"),
        ("%d%m%Y", "-1012018"),
        ("%Y%j", "2018366"),
        ("%Y-%j", "2018-366"),
        ("%j %y", "366 18"),
    ],
)
def test_numbers_that_may_be_several_dates_or_none_are_refused(form, text):
    assert date_of(text, form) is None


def test_other_texts_stay():
    assert (digits("5 May", "%d%m%Y"), digits("5.1", "%d %b %Y"), digits("5", "%d.%m.%Y")) == ("5 May", "5.1", "5")


@pytest.mark.parametrize("form", ["%Y%j", "%j%Y", "%j.%Y", "%Y-%j", "%Y-%j %H:%M"])
@pytest.mark.parametrize(("year", "days"), [(2018, 365), (2020, 366), (1900, 365), (2000, 366)])
def test_a_year_has_no_day_behind_its_last_one(year, days, form):
    """strptime reads day 366 of a year with 365 days as the first day of the next year."""

    def text(day):
        parts = {"%Y": f"{year}", "%j": f"{day:03}", "%H": "12", "%M": "30"}
        return re.sub("%.", lambda part: parts[part[0]], form)

    assert date_of(text(days), form) == datetime.date(year, 12, 31)
    assert date_of(text(days + 1), form) is None


WEEKS = ["%Y-%W-%w", "%Y-%U-%w", "%G-%V-%u", "%G-W%V-%u", "%W/%w/%Y", "%y %U %w", "%a %W %Y", "%Y-%W-%w %H:%M"]


@pytest.mark.parametrize("form", WEEKS)
def test_a_year_has_no_week_before_its_first_one_or_behind_its_last_one(form):
    """strptime reads week 53 of a year with 52 weeks as the first week of the next year."""
    first = datetime.datetime(2018, 1, 1, 12, 30, tzinfo=datetime.UTC)
    days = [first + datetime.timedelta(number) for number in range(-7, 4 * 366)]
    dates = {day.strftime(form): day.date() for day in days}
    for year, week, weekday in itertools.product(range(2018, 2022), range(54), range(7)):
        parts = {"%Y": f"{year}", "%G": f"{year}", "%y": f"{year}"[2:], "%H": "12", "%M": "30"}
        parts |= dict.fromkeys(("%W", "%U", "%V"), f"{week:02}")
        parts |= {"%w": f"{weekday}", "%u": f"{weekday + 1}", "%a": datetime.date(2018, 1, weekday + 1).strftime("%a")}
        text = re.sub("%.", lambda part, parts=parts: parts[part[0]], form)
        assert date_of(text, form) == dates.get(text), text
