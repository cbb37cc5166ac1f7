"""Tables whose values or rows are unusual: large integers, stray quotes, decimal commas, gaps and rare types."""

import decimal
import json
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kfp_distributed.components.prepare_data.preparation_options import parse_options
from kfp_distributed.components.prepare_data.report.duplicates import row_hashes
from kfp_distributed.components.prepare_data.scan import scanner
from kfp_distributed.components.prepare_data.scan.split_keys import TEST, VALIDATION
from kfp_distributed.components.prepare_data.split.decided_splits import count_groups, split_groups, split_times
from kfp_distributed.components.prepare_data.tables import csv_files
from kfp_distributed.components.prepare_data.tables.csv_quotes import first_row_end, last_row_end

pytestmark = pytest.mark.takes(9)

LARGE = 2**53
ROWS = range(200)
SEMICOLON = {"separator": ";", "decimal": ","}


def options(**values):
    return parse_options(
        **{
            "label_column": "label",
            "validation_fraction": 0.1,
            "test_fraction": 0.1,
            "shards": 1,
            "seed": 0,
            "image_size": "",
            "drop_columns": [],
        }
        | values
    )


@pytest.fixture
def prepared(run, tmp_path):
    """Run the step: prepared(source, task="none") -> manifest of the training split, rows of all splits."""

    def prepare(source, **values):
        manifests = run(source, **vars(options(**values)))
        files = [tmp_path / "out" / split / shard.path for split, m in manifests.items() for shard in m.shards]
        return manifests["train"], pa.concat_tables(map(pq.read_table, files))

    return prepare


@pytest.fixture
def parquet(tmp_path):
    """Write a table with a label and one more column."""

    def write(**columns):
        table = {"x": [*ROWS], **columns}
        pq.write_table(pa.table({"label": ["ab"[i % 2] for i in ROWS], **table}), tmp_path / "data.parquet")
        return tmp_path / "data.parquet"

    return write


def lines(rows, ending="\n"):
    return "".join(",".join(map(str, row)) + ending for row in rows)


def test_integers_of_a_csv_file_keep_all_digits(file, prepared):
    _, rows = prepared(file("data.csv", "id,x\n" + lines((LARGE + i, i) for i in ROWS)), task="none")
    assert sorted(rows["id"].to_pylist()) == [LARGE + i for i in ROWS]


@pytest.mark.parametrize("value", ["1.5", 10**19])
def test_a_later_number_that_is_no_integer_is_reported_with_its_row(file, prepared, monkeypatch, value):
    monkeypatch.setattr(csv_files, "FIRST_BLOCK_BYTES", 100)
    source = file("data.csv", "id,x\n" + lines((i, i) for i in ROWS) + f"{value},1\n{2**63 - 1},1\n")
    with pytest.raises(
        ValueError, match=f"row 202 of data.csv: 'id' is '{value}', which is no whole number of 64 bits"
    ):
        prepared(source, task="none")
    _, rows = prepared(source, task="none", on_bad_row="skip")
    assert sorted(rows["id"].to_pylist()) == [*ROWS, 2**63 - 1]


@pytest.mark.parametrize("broken", [False, True])
def test_large_integers_of_json_are_different_classes_categories_and_groups(file, prepared, broken):
    values = [{"x": i, "c": LARGE + i % 4, "g": LARGE + i % 5, "label": LARGE + i % 3} for i in ROWS]
    text = "".join(json.dumps(row) + "\n" for row in values) + "{\n" * broken
    manifest, _ = prepared(
        file("data.jsonl", text), columns={"c": "category"}, task="classification", on_bad_row="skip", group_column="g"
    )
    assert manifest.label.classes == tuple(str(LARGE + i) for i in range(3))
    assert manifest.columns[1].vocabulary == tuple(str(LARGE + i) for i in range(4))


def test_numbers_with_a_decimal_comma_are_numbers(file, prepared):
    text = "x;y;label\n" + "".join(f"{i},5;{i};{i},25\n" for i in ROWS)
    manifest, rows = prepared(file("data.csv", text), csv_format=SEMICOLON)
    assert (manifest.columns[0].kind, manifest.label.task) == ("number", "regression")
    assert sorted(rows["label"].to_pylist()) == [i + 0.25 for i in ROWS]


@pytest.mark.parametrize("first", [10, 100_000])
def test_a_stray_quote_does_not_hide_the_end_of_later_rows(file, prepared, monkeypatch, first):
    """After one, the number of quotes is even within the quoted values."""
    monkeypatch.setattr(csv_files, "FIRST_BLOCK_BYTES", first)
    monkeypatch.setattr(csv_files, "BLOCK_BYTES", first)
    rows = [(i, '5" nail' if i % 50 == 3 else f'"na\nil ""{i % 3}"', "ab"[i % 2]) for i in ROWS]
    manifest, table = prepared(file("data.csv", "x,t,label\n" + lines(rows)))
    assert table.num_rows == len(ROWS)
    assert '5" nail' in manifest.columns[1].vocabulary
    assert 'na\nil "0' in manifest.columns[1].vocabulary


@pytest.mark.parametrize(
    ("text", "end"),
    [
        (b'a,5" b\n"c\nd",e\n"f', 15),
        (b'a,5"" b\n"c\n', 8),
        (b'5" b\n5" b\n5" b\n', 15),
        (b'"a""b\n""",5"\n"', 13),
    ],
)
def test_the_end_of_rows_with_stray_quotes(text, end):
    assert last_row_end(text) == end
    assert first_row_end(b'5" a,"b\nc"\nd\n') == 11


def test_a_header_that_is_no_row_is_refused(file, prepared):
    with pytest.raises(ValueError, match=r"its header is no row of CSV .*close each quote"):
        prepared(file("data.csv", '"x,label\n' + "1,a\n" * 50_000))


def test_many_short_rows_at_the_beginning_are_skipped(file, prepared):
    text = "x,label\n" + "1\n" * 30 + lines((i, "ab"[i % 2]) for i in ROWS)
    _, rows = prepared(file("data.csv", text), on_bad_row="skip")
    assert rows.num_rows == len(ROWS)


@pytest.mark.parametrize(
    ("text", "values", "message"),
    [
        ("x,y,label\n1,,a\n2,,b\n", {"missing": "drop"}, "no row is left; left out 2 rows in which a value is missing"),
        ("x,y,label\n1,,a\n", {"missing": "drop", "task": "none"}, "no row is left; left out 1 rows"),
        (
            "x,y,label\n1,,a\n2,,b\n3,4,b\n",
            {"missing": "drop"},
            r"has the classes \['b'\]: two or more are needed; left out 2 rows in which a value is missing",
        ),
        ("x,t,label\n1,2,\n", {"on_bad_row": "skip", "time_column": "t"}, "no row is left; left out 1 row that cannot"),
    ],
)
def test_no_row_is_left(file, prepared, text, values, message):
    with pytest.raises(ValueError, match=message):
        prepared(file("data.csv", text), **values)


def test_only_an_error_about_the_label_says_which_rows_were_left_out(file, prepared, monkeypatch):
    text, another = "x,y,label\n1,,a\n" + "2,3,b\n3,4,CLASS\n" * 9, ValueError("of another kind")
    with pytest.raises(ValueError, match=r"two or more are needed; left out 1 rows") as error:
        prepared(file("data.csv", text.replace("CLASS", "b")), missing="drop")
    assert error.value.__cause__
    monkeypatch.setattr(scanner, "label_warnings", Mock(side_effect=another))
    with pytest.raises(ValueError, match="kind") as error:
        prepared(file("data.csv", text.replace("CLASS", "a")), missing="drop")
    assert error.value is another


def test_times_that_are_not_a_number_are_missing(parquet, prepared):
    times = [float("nan") if i == 7 else float(i) for i in ROWS]
    with pytest.raises(ValueError, match=r"row 8 of data\.parquet: 't' is missing, and it is the time_column"):
        prepared(parquet(t=pa.array(times)), time_column="t")


@pytest.mark.parametrize(
    "times",
    [
        pa.array([1_700_000_000_000_000_001 + 10**9 * i for i in ROWS]),
        pa.array([decimal.Decimal(i) for i in ROWS]),
        pa.array([f"2024-01-01T00:{i // 60:02}:{i % 60:02}Z" for i in ROWS]).dictionary_encode(),
        pa.array([f"2024-01-01T00:{i // 60:02}:{i % 60:02}" for i in ROWS]).cast(pa.string_view()),
    ],
    ids=lambda times: str(times.type),
)
def test_types_of_times(parquet, run, tmp_path, times):
    manifests = run(parquet(t=times), time_column="t")
    test = pq.read_table(tmp_path / "out" / "test" / manifests["test"].shards[0].path)
    assert sorted(test["x"].to_pylist()) == [*range(180, 200)]


def test_integers_are_no_dates(parquet, prepared):
    """They would be microseconds of 1970."""
    with pytest.raises(ValueError, match="column 't' has values of type int64, where dates and times"):
        prepared(parquet(t=[2000 + i % 20 for i in ROWS]), columns={"t": "date"})


def test_nan_is_no_category(parquet, prepared):
    manifest, _ = prepared(parquet(t=[float("nan") if i % 3 else 1.0 for i in ROWS]), columns={"t": "category"})
    assert manifest.columns[1].vocabulary == ("1",)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([*ROWS], pa.time32("s")),
        pa.array([*ROWS], pa.time64("us")),
        pa.array([1_700_000_000_000_000_001 + i for i in ROWS], pa.timestamp("ns", "Europe/Berlin")),
        pa.array([str(i) for i in ROWS]).cast(pa.string_view()),
    ],
    ids=lambda values: str(values.type),
)
def test_values_of_rare_types_are_kept(parquet, prepared, values):
    manifest, rows = prepared(parquet(t=values), task="none")
    assert len({*map(str, rows["t"].combine_chunks().cast(pa.string()))}) == len(ROWS)
    assert manifest.columns[2].kind == "kept"


@pytest.mark.parametrize(
    "values",
    [[1, None, 3], [1.5, None, -0.0], [True, None, False]],
)
def test_the_hash_of_a_kept_value_does_not_depend_on_other_rows(values):
    """Else the content of a dataset would depend on its batches, and duplicates would be missed."""
    column = pa.array(values)
    alone = [row_hashes([], [column[i : i + 1]])[0] for i in range(3)]
    np.testing.assert_array_equal(row_hashes([], [column]), alone)
    assert len({*alone}) == 3


def test_without_training_rows_all_groups_are_held_out():
    keys = np.arange(1, 40, dtype=np.uint64)
    assert {*split_groups(count_groups(keys), 0.0, 1.0, 0, "g").splits.tolist()} == {TEST}
    for seed in range(20):
        rows = np.repeat(keys, np.arange(1, 40))
        assert {*split_groups(count_groups(rows), 0.3, 0.7, seed, "g").splits.tolist()} == {TEST, VALIDATION}


def test_without_training_rows_all_times_are_held_out():
    """1 - 0.7 - 0.3 is more than 0 as a float."""
    times = np.arange(100)
    split = split_times(lambda function: [function(times)], 0.3, 0.7, "t")
    assert np.bincount(split.of(times)).tolist() == [0, 0, 30, 70]


WRONG_LISTS = [
    ("list<int>", [1, 2], [1, 2.5]),
    ("list<int>", [1, -(2**63)], [2**63]),
    ("list<float>", [1, 2.5, None], [True]),
    ("list<float>", [1, 2.5, None], [1.0, 1e39]),
    ("list<float>", [0, -(2.0**127)], [-1e300]),
    ("list<text>", ["a", "b"], "ab"),
    ("list<text>", ["a", "b"], {"a": "b"}),
    ("list<text>", ["a", "b"], ["a", 1]),
]


@pytest.mark.parametrize(
    ("form", "kind", "good", "wrong"),
    [(form, *case) for form in ("csv", "jsonl", "texts.jsonl", "texts.parquet") for case in WRONG_LISTS]
    # A list of Arrow has entries of one type.
    + [("parquet", *case) for case in WRONG_LISTS if {*map(type, case[2])} == {float} or case == WRONG_LISTS[0]],
)
def test_a_list_that_its_type_does_not_hold_is_a_wrong_row_in_all_formats(file, prepared, form, kind, good, wrong):
    values = [good] * 12 + [wrong]
    texts = [json.dumps(value) for value in values]
    rows = texts if form.startswith("texts") else values
    source = file(f"data.{form}", "")
    if form == "csv":
        source.write_text("l\n" + "".join('"{}"\n'.format(text.replace('"', '""')) for text in texts))
    elif form.endswith("jsonl"):
        source.write_text("".join(json.dumps({"l": row}) + "\n" for row in rows))
    else:
        pq.write_table(pa.table({"l": rows}), source)
    declared = {"task": "none", "label_column": "", "columns": {"l": kind}}
    with pytest.raises(ValueError, match=rf"^row 1[34] of data\.{form}: 'l' is "):
        prepared(source, **declared)
    _, table = prepared(source, **declared, on_bad_row="skip")
    assert table["l"].to_pylist() == [good] * 12


def test_a_whole_number_with_a_point_is_in_a_list_unless_it_may_have_lost_digits(file, prepared):
    source = file("data.csv", "l\n" + '"[2.0, 1e3]"\n' * 20)
    declared = {"task": "none", "label_column": "", "columns": {"l": "list<int>"}}
    _, table = prepared(source, **declared)
    assert table["l"].to_pylist()[0] == [2, 1000]
    with pytest.raises(ValueError, match=rf"'\[{LARGE}.0\]', which is no list of whole numbers of 64 bits, such as"):
        prepared(file("data.csv", f'l\n"[{LARGE}.0]"\n'), **declared)


@pytest.mark.parametrize("text", ["[1e400]", "[NaN]", "[-Infinity]", "[1, 9" + "9" * 400 + "]"])
def test_numbers_that_no_float_is_are_in_no_list(file, prepared, text):
    declared = {"task": "none", "label_column": "", "columns": {"l": "list<float>"}}
    with pytest.raises(
        ValueError, match=r"which is no list of numbers of up to 3.4e38, such as \[1, 2.5\]: correct it"
    ):
        prepared(file("data.csv", f'l\n"{text}"\n'), **declared)


def parquet_of_lists(file, entry):
    path = file(f"{type(entry).__name__}.parquet", "")
    pq.write_table(pa.table({"l": [[entry]] * 15}), path)
    return path


def test_a_number_is_the_same_in_a_list_of_floats_with_and_without_a_point(file, prepared):
    declared = {"task": "none", "label_column": "", "columns": {"l": "list<float>"}}
    values = ["[16777217]", "[16777217.0]", "[1.6777217e7]"]
    for source in (
        file("data.csv", "l\n" + "".join(f'"{value}"\n' for value in values * 5)),
        file("data.jsonl", "".join(f'{{"l": {value}}}\n' for value in values * 5)),
        *(parquet_of_lists(file, entry) for entry in (16_777_217, 16_777_217.0)),
    ):
        _, table = prepared(source, **declared)
        assert table["l"].to_pylist() == [[16777216.0]] * 15
