"""Kept numbers: a whole number that the floats of its column do not have is refused in every format."""

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kfp_distributed.components.prepare_data.csv_format import parse_csv_format

BIG = 2**53 + 1
KEPT = {"task": "none", "label_column": "", "shards": 1, "validation_fraction": 0, "test_fraction": 0}


@pytest.fixture
def write(file):
    """Write a column of JSON values, each in a row, in a format."""

    def write_values(kind, values, decimal="."):
        if kind == "jsonl":
            return file("data.jsonl", "".join(f'{{"x": {i}, "id": {value}}}\n' for i, value in enumerate(values)))
        rows = "".join(f"{i};{value.replace('.', decimal)}\n" for i, value in enumerate(values))
        return file("data.csv", "x;id\n" + rows)

    return write_values


@pytest.mark.parametrize("where", ["first rows", "later block"])
@pytest.mark.parametrize("number", [str(BIG), str(-BIG), "12345678901234567890"])
@pytest.mark.parametrize(("kind", "decimal"), [("jsonl", "."), ("csv", "."), ("csv", ",")])
@pytest.mark.usefixtures("small")
def test_a_whole_number_beside_fractions_keeps_its_digits_or_is_refused(write, run, kind, decimal, number, where):
    """It became a float, in which other whole numbers are equal to it."""
    values = ["1.5", *map(str, range(3000))]
    values.insert(1 if where == "first rows" else 2000, number)
    row = values.index(number) + 1 + (kind == "csv")
    way_out = "write texts in all lines" if kind == "jsonl" else "set columns to {'id': \"text\"}"
    options = {**KEPT, "csv_format": parse_csv_format({"separator": ";", "decimal": decimal} if kind == "csv" else {})}
    message = rf"row {row} of data.{kind}: 'id' is '?{number}'?, a whole number of 2⁵³ or more .*{re.escape(way_out)}"
    with pytest.raises(ValueError, match=message):
        run(write(kind, values, decimal), **options)
    manifests = run(write(kind, values, decimal), on_bad_row="skip", **options)
    assert manifests["train"].rows == len(values) - 1


def test_the_text_keeps_all_digits(write, run, tmp_path):
    run(write("csv", ["1.5", str(BIG)] * 20), columns={"id": "text"}, **KEPT)
    shard = tmp_path / "out" / "train" / "part-00000.parquet"
    assert {*pq.read_table(shard)["id"].to_pylist()} == {"1.5", str(BIG)}


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("values", "texts"),
    [([1, None, BIG], {"1", None, str(BIG)}), ([1.5, 1e300], {"1.5", "1e+300"}), ([True, False], {"true", "false"})],
)
def test_a_column_that_is_declared_a_text_may_have_numbers(write, file, run, tmp_path, kind, values, texts):
    if kind == "jsonl":
        source = write(kind, map(json.dumps, values * 20))
    else:
        source = file("data.parquet", "")
        pq.write_table(pa.table({"x": range(len(values) * 20), "id": values * 20}), source)
    run(source, columns={"id": "text"}, **KEPT)
    assert {*pq.read_table(tmp_path / "out" / "train" / "part-00000.parquet")["id"].to_pylist()} == texts


@pytest.mark.parametrize("columns", [{}, {"id": "text"}])
def test_no_number_of_json_lines_loses_digits_in_its_text(write, run, columns):
    with pytest.raises(ValueError, match=f"row 2 of data.jsonl: 'id' is {BIG}, a whole number of 2⁵³ or more"):
        run(write("jsonl", ["1.5", str(BIG)]), columns=columns, **KEPT)


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
@pytest.mark.parametrize(
    "values", [["1.5", "1e300", "1e16"], ["1.5", "9007199254740991"], ["7", str(BIG)], ["1.5", f"{BIG}.0"]]
)
def test_floats_and_columns_of_whole_numbers_are_kept(write, run, tmp_path, kind, values):
    run(write(kind, values * 20), **KEPT)
    found = pq.read_table(tmp_path / "out" / "train" / "part-00000.parquet")["id"].to_pylist()
    assert {*found} == {json.loads(value) for value in values}


@pytest.mark.parametrize("values", [[1.5, BIG], [[1.5], [BIG]], [[[0.5]], [[BIG, 1]]]])
def test_the_numbers_of_lists_are_refused_too(file, run, values):
    lines = "".join(json.dumps({"x": i, "id": value}) + "\n" for i, value in enumerate(values * 5))
    with pytest.raises(ValueError, match=f"rows 2, 4, 6, 8, 10 of data.jsonl: 'id' is .*{BIG}.*, a whole number of"):
        run(file("data.jsonl", lines), **KEPT)


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
@pytest.mark.parametrize("is_like", [True, False])
def test_another_source_has_the_same_rule_without_advice_that_it_cannot_take(write, run, tmp_path, kind, is_like):
    train = run(write(kind, ["1.5", "2"] * 20), "first", **KEPT)["train"]
    main = write(kind, ["1.5", "2"] * 20).rename(tmp_path / f"main.{kind}")
    wrong = write(kind, ["1.5", str(BIG)] * 20)
    options = {"like": train, "test_fraction": 1} if is_like else {"sources": {"test": str(wrong)}}
    with pytest.raises(ValueError, match=f"'id' is '?{BIG}'?, a whole number of 2⁵³ or more") as error:
        run(wrong if is_like else main, "new", **{**KEPT, **options})
    assert ("drop_columns" in str(error.value)) == (kind == "jsonl" and not is_like)
    assert ("set columns" in str(error.value)) == (kind == "csv" and not is_like)


@pytest.mark.parametrize("values", [["1.5", "2.5"], ["1", "2"]])
def test_a_word_in_a_kept_column_of_numbers_is_kept_by_its_text(write, run, values):
    """Not by a category, which is no kept value."""
    with pytest.raises(ValueError, match=re.escape("set columns to {'id': \"text\"} if the column has texts")):
        run(write("csv", [*values * 20, "x"]), **KEPT)


@pytest.mark.parametrize("number", ["1e400", "-2.5e999"])
@pytest.mark.parametrize("wrong", ['"id": {}', '"id": [{}]', '"other": {}'])
@pytest.mark.parametrize("columns", [{}, {"id": "text"}, {"id": "number"}])
def test_a_number_beyond_the_range_of_floats_is_named(file, run, columns, wrong, number):
    """Arrow refuses the whole line."""
    lines = [f'{{"x": {i}, "id": {i}.5}}\n' for i in range(40)]
    lines[20] = f'{{"x": 1, {wrong.format(number)}}}\n'
    with pytest.raises(ValueError, match=rf"row 21 of data.jsonl has a number .*\({number} is too large.* as a text"):
        run(file("data.jsonl", "".join(lines)), columns=columns, **KEPT)


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
@pytest.mark.parametrize("number", ["1e400", "-1E+309"])
def test_a_number_that_64_bits_do_not_hold_is_a_bad_row(number, ending, file, run):
    lines = {
        "csv": "x,y\n" + "0.5,1\n" * 20 + f"{number},2\n",
        "jsonl": '{"x": 0.5, "y": 1}\n' * 20 + f'{{"x": {number}, "y": 2}}\n',
    }
    source = file(f"data.{ending}", lines[ending])
    with pytest.raises(ValueError, match=rf"row 2[12] of data.{ending}.*{re.escape(number)}"):
        run(source, task="none", label_column="")
    manifests = run(source, task="none", label_column="", on_bad_row="skip")
    assert sum(manifest.rows for manifest in manifests.values()) == 20
