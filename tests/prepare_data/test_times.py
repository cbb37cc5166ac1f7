"""Splits by time: numbers are compared with all their digits."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_distributed.components.prepare_data.columns.split_times import time_keys, time_text, time_type
from kfp_distributed.components.prepare_data.split.decided_splits import split_times
from kfp_distributed.components.prepare_data.tables import csv_files
from kfp_distributed.storage.dataset import read_batches

pytestmark = pytest.mark.takes(13)

# Nanoseconds, of which 64-bit floats have every 256th only.
START = 1_700_000_000_000_000_000
ROWS = 200
ORDER = np.random.default_rng(0).permutation(ROWS)


@pytest.fixture
def newest(run, tmp_path):
    """Run the step with a time column: newest(source) -> x of the test rows, which numbers the rows by time."""

    def run_step(source, **options):
        manifests = run(source, time_column="t", validation_fraction=0, **options)
        batches = read_batches(tmp_path / "out" / "test", manifests["test"])
        return sorted(np.concatenate([inputs[:, 0] for inputs, _ in batches]).astype(int).tolist())

    return run_step


def rows(start=START):
    return [{"x": int(i), "t": start + int(i), "label": "ab"[i % 2]} for i in ORDER]


def csv_text(values):
    return "x,t,label\n" + "".join(f"{row['x']},{row['t']},{row['label']}\n" for row in values)


@pytest.mark.parametrize("start", [START, -START])
@pytest.mark.parametrize("is_input", [False, True])
@pytest.mark.parametrize("name", ["data.csv", "data.jsonl", "data.parquet"])
def test_close_integers_are_different_times(file, newest, name, is_input, start):
    values = rows(start)
    text = csv_text(values) if name.endswith("csv") else "".join(json.dumps(row) + "\n" for row in values)
    source = file(name, text)
    if name.endswith("parquet"):
        pq.write_table(pa.Table.from_pylist(values), source)
    assert newest(source, columns={"t": "number"} if is_input else {}) == [*range(180, 200)]


@pytest.mark.parametrize("kind", [np.int64, np.uint64])
def test_close_integers_of_arrays_are_different_times(newest, tmp_path, kind):
    start = START if kind is np.int64 else 2**64 - ROWS
    times = np.array([start + int(i) for i in ORDER], kind)
    np.savez(tmp_path / "data.npz", x=ORDER.astype(np.int32), t=times, label=ORDER % 2)
    assert newest(tmp_path / "data.npz") == [*range(180, 200)]


@pytest.mark.parametrize("value", ["250.5", "1e3", str(10**19)])
def test_a_later_number_that_is_no_integer_makes_all_times_floats(file, newest, monkeypatch, value):
    monkeypatch.setattr(csv_files, "FIRST_BLOCK_BYTES", 100)
    values = [*rows(0), {"x": 200, "t": value, "label": "a"}]
    assert newest(file("data.csv", csv_text(values))) == [*range(181, 201)]


def test_times_with_leading_zeros_and_spaces_are_integers(file, newest):
    values = [row | {"t": f" {row['t']:05}"} for row in rows(0)]
    assert newest(file("data.csv", csv_text(values))) == [*range(180, 200)]


def test_a_text_among_integer_times_is_a_wrong_row(file, newest):
    values = [*rows(), {"x": 200, "t": "soon", "label": "a"}]
    source = file("data.csv", csv_text(values))
    with pytest.raises(ValueError, match=r"row 202 of data.csv: 't' is 'soon', which is no number"):
        newest(source)
    assert newest(source, on_bad_row="skip") == [*range(180, 200)]


def test_files_with_integers_and_floats_have_one_order_of_times(newest, tmp_path):
    (tmp_path / "data").mkdir()
    table = pa.Table.from_pylist(rows(0))
    pq.write_table(table.slice(0, 100), tmp_path / "data" / "a.parquet")
    floats = table.slice(100).set_column(1, "t", table["t"].slice(100).cast(pa.float64()))
    pq.write_table(floats, tmp_path / "data" / "b.parquet")
    assert newest(tmp_path / "data") == [*range(180, 200)]


def test_files_with_numbers_and_dates_of_one_column_are_refused(newest, tmp_path):
    (tmp_path / "data").mkdir()
    table = pa.Table.from_pylist(rows(0))
    pq.write_table(table.slice(0, 100), tmp_path / "data" / "a.parquet")
    dates = table.slice(100).set_column(1, "t", table["t"].slice(100).cast(pa.timestamp("us")))
    pq.write_table(dates, tmp_path / "data" / "b.parquet")
    with pytest.raises(
        ValueError, match=r"a\.parquet cannot be read: column 't' has values of type int64, where dates"
    ):
        newest(tmp_path / "data")


@pytest.mark.parametrize(("validation", "test"), [(0.1, 0.1), (0, 0.1), (0.1, 0)])
def test_a_fraction_of_less_than_one_row_is_named(file, run, validation, test):
    source = file("data.csv", "x,t,label\n1,1,a\n2,2,b\n3,3,a\n")
    split = "validation" if validation else "test"
    with pytest.raises(ValueError, match=rf"{split}_fraction 0.1 of 3 rows is less than one row: set it in split to 0"):
        run(source, time_column="t", validation_fraction=validation, test_fraction=test, task="none", label_column="")


def test_the_latest_time_that_there_can_be_is_no_test_row_without_a_test():
    times = np.array([0, 1, 2**63 - 1, 2**63 - 1])
    assert split_times(lambda function: [function(times)], 0.5, 0.0, "t").of(times).tolist() == [1, 1, 2, 2]


def test_close_nanoseconds_are_different_times(newest, tmp_path):
    table = pa.Table.from_pylist(rows())
    pq.write_table(table.set_column(1, "t", table["t"].cast(pa.timestamp("ns"))), tmp_path / "data.parquet")
    assert newest(tmp_path / "data.parquet") == [*range(180, 200)]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (pa.array([-3]), "-3"),
        (pa.array([2**64 - 1], pa.uint64()), str(2**64 - 1)),
        (pa.array([-2.5]), "-2.5"),
        (pa.array([2], pa.float16()), "2"),
        (pa.array([1_700_000_000_000_000_001], pa.timestamp("ns", "Europe/Berlin")), "2023-11-14 22:13:20+00:00"),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_a_key_as_the_text_of_its_time(values, text):
    kind = time_type([values.type])
    assert time_text(time_keys(values, kind)[0].as_py(), kind) == text


@given(st.lists(st.floats(allow_nan=False), min_size=2), st.lists(st.integers(0, 2**64 - 1), min_size=2))
def test_keys_are_in_the_order_of_the_times(floats, integers):
    for values in (pa.array(floats), pa.array(integers, pa.uint64())):
        keys = time_keys(values, time_type([values.type])).to_pylist()
        ordered = [value for _, value in sorted(zip(keys, values.to_pylist(), strict=True))]
        assert ordered == sorted(values.to_pylist())


@pytest.mark.parametrize("value", [-(2**63), -(2**63) - 1, 2**63 - 1, 2**63])
def test_integers_of_64_bits_in_texts(value):
    assert csv_files.numbers_are_integers(pa.array([str(value), "soon", None])) == (-(2**63) <= value < 2**63)


ISO_DAYS = [f"{2018 + i // 12}-{i % 12 + 1:02}-05" for i in range(ROWS)]
TIMES = {
    "whole numbers": [20190101 + i for i in range(ROWS)],
    "fractions": [i + 0.5 for i in range(ROWS)],
    "ISO texts": ISO_DAYS,
    "microseconds": pa.array(ISO_DAYS).cast(pa.timestamp("us")),
    "nanoseconds": pa.array(ISO_DAYS).cast(pa.timestamp("ns")),
}
FORMATS = {
    **dict.fromkeys(["whole numbers", "fractions", "ISO texts"], ("csv", "jsonl", "parquet")),
    **dict.fromkeys(["microseconds", "nanoseconds"], ("parquet",)),
}
NUMBERS = ("whole numbers", "fractions")


@pytest.fixture
def times_file(file):
    """Write rows with some times: times_file("name", "jsonl", times) -> its path."""

    def write(name, ending, times):
        table = pa.table({"x": [*range(len(times))], "t": times, "label": ["ab"[i % 2] for i in range(len(times))]})
        path = file(f"{name}.{ending}", csv_text(table.to_pylist()) if ending == "csv" else "")
        if ending == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
        elif ending == "parquet":
            pq.write_table(table, path)
        return path

    return write


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize(
    ("kind", "ending", "other", "other_ending"),
    [
        (kind, ending, other, other_ending)
        for kind, endings in FORMATS.items()
        for other, others in FORMATS.items()
        if (kind in NUMBERS) != (other in NUMBERS)
        for ending, other_ending in [(endings[0], others[-1]), (endings[-1], others[0])]
    ],
)
def test_numbers_in_one_source_and_dates_in_another_are_refused(
    run, times_file, split, kind, ending, other, other_ending
):
    source = times_file("data", ending, TIMES[kind])
    sources = {split: str(times_file("other", other_ending, TIMES[other]))}
    parts = ("source", f"{split}_source") if kind in NUMBERS else (f"{split}_source", "source")
    expected = "time_column 't' has numbers in {}, but dates or texts in {}: write the times of all".format(*parts)
    fractions = dict.fromkeys(["validation_fraction", "test_fraction"], 0)
    with pytest.raises(ValueError, match=expected):
        run(source, sources=sources, time_column="t", **fractions)


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        ("whole numbers", "fractions"),
        ("fractions", "whole numbers"),
        ("ISO texts", "nanoseconds"),
        ("nanoseconds", "microseconds"),
        ("microseconds", "nanoseconds"),
    ],
)
@pytest.mark.parametrize("is_later", [False, True])
def test_times_of_other_types_in_two_sources_have_one_order(run, times_file, capsys, kind, other, is_later):
    """Integers and floats, and microseconds and nanoseconds, are compared in one type."""
    middle = ROWS // 2
    early, late = slice(0, middle), slice(middle, ROWS)
    times = {name: TIMES[name] for name in (kind, other)}
    if kind in NUMBERS:
        times = {"whole numbers": [*range(ROWS)], "fractions": [i + 0.5 for i in range(ROWS)]}
    source = times_file("data", "parquet", times[kind][early if is_later else late])
    sources = {"test": str(times_file("test", "parquet", times[other][late if is_later else early]))}
    run(source, sources=sources, time_column="t", validation_fraction=0)
    assert ("before the last training row" in capsys.readouterr().out) != is_later
