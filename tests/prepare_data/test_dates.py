"""Dates and times of a column."""

import datetime

import pyarrow as pa
import pytest

from kfp_distributed.components.prepare_data.dates import are_dates, days, microseconds

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
