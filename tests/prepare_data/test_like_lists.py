"""Lists in a dataset of like, whose entries each format names differently."""

import datetime
import decimal
import json

import pyarrow as pa
import pytest
from language_tables import FORMATS, ROWS, splits, write, write_table

from kfp_distributed.components.prepare_data.columns.column_kinds import cast_kept

pytestmark = pytest.mark.takes(8)

VALUES = {
    "floats": [0.5, 2.25],
    "whole numbers": [1, 2],
    "texts": ["a", "b"],
    "booleans": [True, False],
    "lists": [[0.5], [1.0, 2.5]],
}
OPTIONS = {"label_column": "", "validation_fraction": 0, "test_fraction": 0}


@pytest.mark.parametrize("second", FORMATS)
@pytest.mark.parametrize("first", ["jsonl", "parquet", "arrow"])
@pytest.mark.parametrize("name", VALUES)
def test_each_format_has_the_lists_of_a_dataset_of_another(name, first, second, run, tmp_path):
    rows = [{"x": i, "v": VALUES[name]} for i in ROWS]
    like = run(write(rows, tmp_path / f"first.{first}"), "first", task="none", **OPTIONS)["train"]
    manifests = run(write(rows, tmp_path / f"second.{second}"), like=like, **OPTIONS)
    found = splits(tmp_path, manifests)["train"]
    assert sorted(map(str, found)) == sorted(map(str, rows))


def test_lists_in_a_text_may_have_whole_numbers_among_floats(run, tmp_path):
    like = run(write([{"x": i, "v": [[0.5]]} for i in ROWS], tmp_path / "first.jsonl"), "first", task="none", **OPTIONS)
    text = "x,v\n" + "".join(f'{i},"[[{i}, 0.5], [], null]"\n' for i in ROWS)
    (tmp_path / "second.csv").write_text(text)
    found = splits(tmp_path, run(tmp_path / "second.csv", like=like["train"], **OPTIONS))["train"]
    assert sorted(str(row["v"]) for row in found) == sorted(str([[float(i), 0.5], [], None]) for i in ROWS)


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "arrow"])
def test_lists_of_whole_numbers_fit_large_lists_of_floats(ending, run, tmp_path):
    table = pa.table({"x": [*ROWS], "v": pa.array([[0.5]] * len(ROWS), pa.large_list(pa.float64()))})
    like = run(write_table(table, tmp_path / "first.parquet"), "first", task="none", **OPTIONS)["train"]
    file = write([{"x": i, "v": [i]} for i in ROWS], tmp_path / f"second.{ending}")
    found = splits(tmp_path, run(file, like=like, **OPTIONS))["train"]
    assert sorted(json.dumps(row["v"]) for row in found) == sorted(json.dumps([float(i)]) for i in ROWS)


@pytest.mark.parametrize(("first", "second"), [("parquet", "arrow"), ("arrow", "parquet")])
def test_lists_of_objects_have_equal_types_in_parquet_and_arrow(first, second, run, tmp_path):
    rows = [{"x": i, "v": [{"a": i, "b": [1.5]}]} for i in ROWS]
    like = run(write(rows, tmp_path / f"first.{first}"), "first", task="none", **OPTIONS)["train"]
    manifests = run(write(rows, tmp_path / f"second.{second}"), like=like, **OPTIONS)
    assert sorted(map(str, splits(tmp_path, manifests)["train"])) == sorted(map(str, rows))


@pytest.mark.parametrize("second", ["parquet", "jsonl"])
@pytest.mark.parametrize(
    ("kept", "value"),
    [
        ([0.5], [2**53 + 1]),
        ([True], [7]),
        ([True], [0.5]),
        ([1], ["007"]),
        ([1], [datetime.datetime(2020, 1, 1)]),
        ([datetime.datetime(2020, 1, 1)], [1]),
        (True, 7),
        (True, 0.5),
        (1, datetime.datetime(2020, 1, 1)),
        (datetime.datetime(2020, 1, 1), 1),
    ],
)
def test_values_do_not_become_others_of_another_type(kept, value, second, run, tmp_path):
    """Arrow would make True of 7, and microseconds of a time."""
    if second == "jsonl" and "datetime" in repr((kept, value)):
        pytest.skip("JSON Lines has no times")
    kept_rows = pa.table({"x": [*ROWS], "v": [kept] * len(ROWS)})
    like = run(write_table(kept_rows, tmp_path / "first.parquet"), "first", task="none", **OPTIONS)["train"]
    source = tmp_path / f"second.{second}"
    if second == "parquet":
        write_table(pa.table({"x": [*ROWS], "v": [value] * len(ROWS)}), source)
    else:
        write([{"x": i, "v": value} for i in ROWS], source)
    with pytest.raises(
        ValueError, match=r"does not fit the type of the column|has values of type .*, not |, but list<.* in the"
    ):
        run(source, like=like, **OPTIONS)


@pytest.mark.parametrize(
    ("kept", "number"),
    [(pa.array([[0.5]]), 2**53), (pa.array([[[0.5]]], pa.list_(pa.list_(pa.float32()))), 2**24)],
)
def test_whole_numbers_that_floats_do_not_hold_are_refused_in_texts_of_lists(kept, number, run, tmp_path):
    rows = pa.table({"x": [*ROWS], "v": kept.take(pa.array([0] * len(ROWS)))})
    like = run(write_table(rows, tmp_path / "first.parquet"), "first", task="none", **OPTIONS)["train"]
    values = [[number + 1 if i == 7 else number] for i in ROWS]
    values = [[value] for value in values] if pa.types.is_list(kept.type.value_type) else values
    source = write([{"x": i, "v": value} for i, value in zip(ROWS, values, strict=True)], tmp_path / "second.csv")
    with pytest.raises(ValueError, match=rf"row 9 of second.csv: 'v' is '\[+{number + 1}\]+', which is no list"):
        run(source, like=like, **OPTIONS)


NOON = datetime.datetime(2020, 1, 1, 13, 30)
KEPT = {
    "bool": pa.array([True]),
    "date": pa.array([datetime.date(2020, 1, 1)]),
    "time": pa.array([datetime.time(13)]),
    "timestamp": pa.array([NOON]),
    "zone": pa.array([NOON], pa.timestamp("us", "Europe/Berlin")),
    "list of float16": pa.array([[0.5]], pa.list_(pa.float16())),
    "pairs": pa.array([[{"key": "a", "value": 1}]]),
    "binary": pa.array([b"a"]),
    "fixed binary": pa.array([b"abcd"], pa.binary(4)),
    "struct of binary": pa.array([{"bytes": b"a", "path": "b"}]),
    "decimal": pa.array([decimal.Decimal("1.25")], pa.decimal128(10, 2)),
    "int": pa.array([1]),
    "float": pa.array([0.5]),
    "float32": pa.array([0.5], pa.float32()),
    "pair of floats": pa.array([[0.5, 1.0]], pa.list_(pa.float32(), 2)),
    "lists of floats": pa.array([[[0.5]]], pa.list_(pa.list_(pa.float32()))),
    "struct of bool": pa.array([{"a": True}]),
    "structs": pa.array([[{"a": 1}]]),
    "struct of float32": pa.array([{"a": 0.5}], pa.struct([("a", pa.float32())])),
    "map of bools": pa.array([[("a", True)]], pa.map_(pa.string(), pa.bool_())),
    "struct of nulls": pa.array([{"a": [None], "b": 1}]),
}
OTHERS = {
    "date": [pa.array([NOON]), pa.array([NOON], pa.timestamp("us", "Europe/Berlin"))],
    "zone": [pa.array([NOON]), pa.array([datetime.date(2020, 1, 1)])],
    "timestamp": [pa.array([NOON], pa.timestamp("us", "Europe/Berlin"))],
    "list of float16": [pa.array([[70000]])],
    "time": [pa.array([NOON])],
    "decimal": [pa.array([0.125])],
    "int": [pa.array(["007"]), pa.array(["0x10"]), pa.array([NOON]), pa.array([decimal.Decimal("2.5")])],
    "float": [pa.array(["9007199254740993"]), pa.array([2**53 + 1])],
    "float32": [pa.array(["16777217"]), pa.array([1e300]), pa.array([decimal.Decimal(10**60)]), pa.array(["1e39"])],
    "pair of floats": [pa.array([[16777217, 2]], pa.list_(pa.int64(), 2)), pa.array([[1e300, 2]])],
    "lists of floats": [pa.array([[[16777217]]])],
    "struct of bool": [pa.array([{"a": 7}]), pa.array([{"b": True}]), pa.array([{"a": True, "b": 1}])],
    "structs": [pa.array([[{"a": NOON}]]), pa.array([[{"a": 1, "b": 2}]])],
    "struct of float32": [pa.array([{"a": 1e300}])],
    "struct of nulls": [
        pa.array([{"a": [None, None], "b": 1}] * 3, pa.struct([("a", pa.list_(pa.null())), ("b", "i4")]))
    ],
    "map of bools": [pa.array([[("a", 7)]], pa.map_(pa.string(), pa.int64()))],
}
EQUAL = {
    "bool": [pa.array([1]), pa.array(["true"])],
    "date": [pa.array([datetime.datetime(2020, 1, 1)])],
    "decimal": [pa.array([decimal.Decimal("1.25")], pa.decimal128(12, 2)), pa.array([0.1])],
    "int": [
        *(pa.array(["7"]), pa.array([2.0]), pa.array([decimal.Decimal("2.00")], pa.decimal128(10, 2))),
        *(pa.array([decimal.Decimal("2.00")], pa.decimal64(5, 2)), pa.array([b"7"], pa.large_binary())),
        *(pa.array([7]).dictionary_encode(), pa.array([2.0], pa.float16())),
    ],
    "float32": [pa.array(["3.14159265358979"]), pa.array(["16777217.5"]), pa.array(["NaN"]), pa.array(["-inf"])],
    "zone": [pa.array([NOON], pa.timestamp("us", "Asia/Tokyo"))],
    "pairs": [pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))],
    "binary": [pa.array([b"\x89PNG\xff"], pa.large_binary()), pa.array([b"\x89PNG\xff"]).dictionary_encode()],
    "fixed binary": [pa.array([b"\x89P\xff\xff"])],
    "struct of binary": [pa.array([{"path": "b", "bytes": b"\xff"}])],
    "float": [
        pa.array(["1.50"]),
        pa.array(["0.3333333333333333148"]),
        pa.array([2**60]),
        pa.array([decimal.Decimal("1.25")]),
    ],
    "pair of floats": [pa.array([[0.1, 2.0]])],
    "struct of bool": [pa.array([{"a": 1}])],
    "structs": [pa.array([[{"a": 2.0}], None])],
    "struct of float32": [pa.array([{"a": 0.1}])],
}


def nested(values):
    return [values, pa.array([[values[0].as_py()]], pa.list_(values.type))]


@pytest.mark.parametrize(
    ("kept", "other"),
    [
        (pair[0].type, pair[1])
        for name, others in OTHERS.items()
        for other in others
        for pair in zip(nested(KEPT[name]), nested(other), strict=True)
    ],
    ids=str,
)
def test_values_that_would_change_do_not_fit_a_type(kept, other):
    with pytest.raises((pa.ArrowInvalid, pa.ArrowNotImplementedError)):
        cast_kept(other, kept)


@pytest.mark.parametrize(
    ("kept", "other"),
    [
        (pair[0].type, pair[1])
        for name, others in EQUAL.items()
        for other in others
        for pair in zip(nested(KEPT[name]), nested(other), strict=True)
    ],
    ids=str,
)
def test_values_that_stay_the_same_fit_a_type(kept, other):
    result = cast_kept(other, kept)
    assert result.type == kept
    assert cast_kept(result, kept).to_pylist() == result.to_pylist() or "NaN" in str(other)
    numbers = [part.flatten() if pa.types.is_list(part.type) else part for part in (result, other)]
    if all(pa.types.is_floating(part.type) or pa.types.is_integer(part.type) for part in numbers):
        assert numbers[0].to_pylist() == pytest.approx(numbers[1].to_pylist())


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("values", [[0, 1], [1, 1]])
def test_zeros_and_ones_are_booleans(values, ending, run, tmp_path):
    first = write_table(pa.table({"x": [*ROWS], "v": [True] * len(ROWS)}), tmp_path / "first.parquet")
    like = run(first, "first", task="none", **OPTIONS)["train"]
    rows = [{"x": i, "v": values[i % 2]} for i in ROWS]
    source = tmp_path / f"second.{ending}"
    if ending == "csv":
        source.write_text("x,v\n" + "".join(f"{row['x']},{row['v']}\n" for row in rows))
    else:
        write(rows, source)
    found = splits(tmp_path, run(source, like=like, **OPTIONS))["train"]
    assert sorted(map(str, found)) == sorted(str({**row, "v": bool(row["v"])}) for row in rows)


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ([[("a", 1)], None, [], [("b", 2), ("c", 3)]], (pa.int64(), pa.float64())),
        ([[("a", 7)], [("b", 0)], [("c", 1)]], (pa.int64(), pa.bool_())),
    ],
)
@pytest.mark.parametrize("first", [1, 2])
def test_maps_of_a_part_of_the_rows_fit_by_themselves(first, values, kept):
    found, wanted = (pa.map_(pa.string(), kind) for kind in kept)
    part = pa.array(values, found).slice(first)
    assert cast_kept(part, wanted).to_pylist() == part.to_pylist()
