"""Nanoseconds as Python objects, whether or not pandas is installed."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kfp_distributed.components.prepare_data.columns.python_values import python_values
from kfp_distributed.components.prepare_data.report.duplicates import row_hashes

TIME = 1_700_000_000_000_000_001
TEXT = "2023-11-14 22:13:20.000000001"
TIMES = pa.array([TIME, None], pa.timestamp("ns"))
LATE = pa.array([400_000_000_000_000_000, None]).cast(pa.timestamp("us"))
ENTRIES = pa.array([[TIME], [None], None], pa.list_(pa.int64()))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (TIMES, [TEXT, None]),
        (pa.array([7], pa.duration("ns")), ["7"]),
        (pa.array([7], pa.time64("ns")), ["00:00:00.000000007"]),
        (ENTRIES.cast(pa.list_(pa.timestamp("ns"))), [[TEXT], [None], None]),
        (ENTRIES.cast(pa.large_list(pa.timestamp("ns"))), [[TEXT], [None], None]),
        (pa.array([[TIME]], pa.list_(pa.timestamp("ns"), 1)), [[TEXT]]),
        (pa.array([[[TIME]]], pa.list_(pa.list_(pa.timestamp("ns")))), [[[TEXT]]]),
        (pa.StructArray.from_arrays([TIMES], ["a"]), [{"a": TEXT}, {"a": None}]),
        (pa.array([[("a", TIME)]], pa.map_(pa.string(), pa.timestamp("ns"))), [[("a", TEXT)]]),
        (pa.array([[1.5]]), [[1.5]]),
        (LATE, ["14645-06-30 15:06:40.000000", None]),
        (pa.StructArray.from_arrays([LATE], ["a"]), [{"a": "14645-06-30 15:06:40.000000"}, {"a": None}]),
        (pa.array([10**7], pa.int32()).cast(pa.date32()), ["29349-01-26"]),
        (pa.array([[10**17]], pa.list_(pa.duration("s"))), [["100000000000000000"]]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_nanoseconds_become_texts(values, expected):
    assert python_values(values) == expected


def test_a_time_is_the_same_beside_years_that_python_does_not_have():
    usual = pa.array([0, None]).cast(pa.timestamp("us"))
    values = pa.concat_arrays([usual, LATE, usual])
    assert python_values(values) == [*python_values(usual), *python_values(LATE), *python_values(usual)]


def test_nanoseconds_in_lists_have_different_hashes():
    values = pa.array([[TIME], [TIME + 1], [TIME]], pa.list_(pa.timestamp("ns")))
    hashes = row_hashes([], [values]).tolist()
    assert hashes[0] == hashes[2] != hashes[1]


NESTED = {
    "struct": lambda times: pa.StructArray.from_arrays([times], ["a"]),
    "list": lambda times: pa.ListArray.from_arrays(range(len(times) + 1), times),
    "map": lambda times: pa.MapArray.from_arrays(range(len(times) + 1), ["a"] * len(times), times),
    "struct of lists": lambda times: pa.StructArray.from_arrays([NESTED["list"](times)], ["a"]),
}


@pytest.mark.parametrize("nest", NESTED.values(), ids=[*NESTED])
@pytest.mark.parametrize(
    "kind",
    [pa.timestamp("us"), pa.timestamp("s", "UTC"), pa.date32(), pa.date64(), pa.duration("s"), pa.time32("s")],
    ids=str,
)
def test_nested_times_of_any_year_have_different_hashes(nest, kind):
    numbers = [7, 400 if kind == pa.time32("s") else 2 * 10**9 if kind == pa.date32() else 2 * 10**17, 7]
    times = pa.array(numbers, pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)
    hashes = row_hashes([], [nest(times)]).tolist()
    assert hashes[0] == hashes[2] != hashes[1]
    assert row_hashes([], [nest(times[:1])]).tolist() == hashes[:1]


def test_structs_with_years_beyond_9999_are_kept(run, tmp_path):
    times = pa.array([400_000_000_000_000_000 + row for row in range(40)]).cast(pa.timestamp("us"))
    table = pa.table({"a": pa.StructArray.from_arrays([times], ["day"]), "b": times, "x": range(40)})
    pq.write_table(table, tmp_path / "data.parquet")
    manifests = run(tmp_path / "data.parquet", task="none", label_column="", shards=1)
    assert sum(manifest.rows for manifest in manifests.values()) == 40
    assert "14645-06-30 15:06:40.0000" in (tmp_path / "out" / "overview.html").read_text()


def test_lists_of_nanoseconds_are_kept(run, tmp_path):
    lists = pa.array([[TIME + i, None] for i in range(40)], pa.list_(pa.timestamp("ns")))
    table = pa.table({"times": lists, "x": range(40)})
    pq.write_table(table, tmp_path / "data.parquet")
    manifests = run(tmp_path / "data.parquet", task="none", label_column="", shards=1)
    files = [tmp_path / "out" / split / "part-00000.parquet" for split in manifests]
    rows = pa.concat_tables(map(pq.read_table, files)).sort_by("x")
    assert python_values(rows["times"].combine_chunks()) == python_values(lists)
    assert "2023-11-14 22:13:20.0000000" in (tmp_path / "out" / "overview.html").read_text()


def test_lists_of_nanoseconds_that_do_not_fit_are_wrong_rows(run, tmp_path):
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"x": pa.array([[1]], pa.list_(pa.timestamp("us")))}), tmp_path / "data" / "a.parquet")
    pq.write_table(pa.table({"x": pa.array([[TIME]], pa.list_(pa.timestamp("ns")))}), tmp_path / "data" / "b.parquet")
    with pytest.raises(ValueError, match=r"row 1 of b\.parquet: 'x' is \['2023-11-14 22:13:20\.000000001'\]"):
        run(tmp_path / "data", task="none", label_column="", shards=1, validation_fraction=0, test_fraction=0)
