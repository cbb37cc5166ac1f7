"""JSON Lines: types of columns, lines that do not fit, and keys that come late."""

import gzip
import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prepare_data.test_sources import LABELLED, category, number, rows_of

from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.tables import json_files, json_table
from kfp_distributed.components.prepare_data.tables.open_source import open_source
from kfp_distributed.storage.dataset import Column

ALL_FOR_TRAINING = {"shards": 1, "validation_fraction": 0, "test_fraction": 0}


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few lines, so that a later line is in a later block."""
    monkeypatch.setattr(json_files, "BLOCK_BYTES", 64)
    monkeypatch.setattr(json_table, "FIRST_BYTES", 64)


def test_types_of_columns(file):
    text = lines(
        {"kind": 1, "age": 1, "town": "Ülm", "ok": True, "day": "2024-01-31", "zip": "02134", "no": None},
        {"kind": 2, "age": 2.5, "town": None, "ok": False},
        {"age": None, "kind": 10, "town": "Bern", "day": "2024-02-01T12:00:00Z", "zip": "1"},
    )
    columns, rows = rows_of(file("data.jsonl", text))
    assert columns == (
        number("age"),
        category("town"),
        category("ok"),
        Column("day", "number", "float32", source_type="date"),
        category("zip"),
        number("no"),
    )
    assert rows == {
        "kind": ["1", "2", "10"],
        "age": [1, 2.5, None],
        "town": ["Ülm", None, "Bern"],
        "ok": ["true", "false", None],
        "day": [19753, None, 19754.5],
        "zip": ["02134", None, "1"],
        "no": [None] * 3,
    }


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("data.jsonl", lambda text: text.encode()),
        ("data.NDJSON", lambda text: b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()),
        ("data.json", lambda text: b"\n" + text.rstrip("\n").encode()),
        ("data.jsonl.gz", lambda text: gzip.compress(text.encode())),
        ("data.jsonl.zst", lambda text: pa.compress(text.encode(), "zstd", asbytes=True)),
    ],
)
def test_forms_of_files(file, name, content):
    text = lines({"kind": "a", "age": 1}, {"age": 2, "kind": "b"})
    assert rows_of(file(name, content(text))) == ((number("age"),), {"kind": ["a", "b"], "age": [1, 2]})


def test_a_folder_of_files(file):
    file("rows/b.ndjson.gz", gzip.compress(lines({"age": 2, "kind": "b"}).encode()))
    file("rows/c.json", lines({"kind": "c"}))
    folder = file("rows/a.jsonl", lines({"kind": "a", "age": 1})).parent
    assert rows_of(folder) == ((number("age"),), {"kind": ["a", "b", "c"], "age": [1, 2, None]})


@pytest.mark.usefixtures("small_blocks")
def test_a_type_that_only_later_lines_show(file):
    early = [{"kind": "a", "x": None, "town": None, "n": 1}] * 9
    late = [{"kind": "b", "x": 1, "town": "Ulm", "n": 1.5}]
    columns, rows = rows_of(file("data.jsonl", lines(*early, *late)))
    assert columns == (number("x"), category("town"), number("n"))
    assert [values[-2:] for values in rows.values()] == [["a", "b"], [None, 1], [None, "Ulm"], [1, 1.5]]


@pytest.mark.usefixtures("small_blocks")
def test_whole_numbers_keep_their_digits_unless_a_later_one_has_a_fraction(file, run, tmp_path):
    rows = [
        {"id": 2**60 + i, "x": i, "words": ["a", None] if i > 9 else [], "v": [[1], [i]], "day": "2024-01-31"}
        for i in range(20)
    ]
    rows[-1] |= {"x": 0.5, "v": [[0.5]]}
    train = run(file("data.jsonl", lines(*rows)), label_column="", task="none", **ALL_FOR_TRAINING)["train"]
    assert [column.dtype for column in train.columns] == [
        "int64",
        "double",
        "list<item: string>",
        "list<item: list<item: double>>",
        "timestamp[us]",
    ]
    table = pq.read_table(tmp_path / "out" / "train" / "part-00000.parquet").sort_by("id").to_pydict()
    assert [table["id"], table["x"][-1], table["v"][-1]] == [[row["id"] for row in rows], 0.5, [[0.5]]]


def test_declared_columns(file, run, tmp_path):
    rows = [{"code": i % 3, "v": [1, 2.5], "text": f"t {i}", "n": str(i), "label": i % 2 == 0} for i in range(20)]
    declared = {"code": "category", "v": "list<float>", "text": "text", "n": "number"}
    train = run(file("data.jsonl", lines(*rows)), columns=declared, **ALL_FOR_TRAINING)["train"]
    assert [(column.kind, column.vocabulary) for column in train.columns] == [
        ("category", ("0", "1", "2")),
        ("kept", ()),
        ("kept", ()),
        ("number", ()),
    ]
    assert train.label.classes == ("false", "true")
    written = pq.read_table(tmp_path / "out" / "train" / "part-00000.parquet").sort_by("n").to_pylist()
    assert written[7] | {"label": 0} == {"code": 2, "v": [1, 2.5], "text": "t 7", "n": 7, "label": 0}


@pytest.mark.usefixtures("small_blocks")
def test_keys_of_later_lines_are_left_out_with_a_line(file, run, capsys):
    rows = [{"label": "ab"[i % 2], "x": i} for i in range(40)]
    rows[30] |= {"more": 1, "dropped": 1}
    rows[31] |= {"more": "x", "extra": {"a": []}}
    source = file("data.jsonl", lines(*rows, {"label": "a", "x": 1, "dropped": 2}))
    run(source, shards=1)
    line = "left out 3 keys that the first lines of data.jsonl do not have: 'dropped', 'extra', 'more'. Write each key"
    assert line in capsys.readouterr().out


@pytest.mark.takes(8)
@pytest.mark.parametrize("at", [1, 2000])
@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"kind": "a", "age": 1', " is no JSON .*: write one object in each line"),
        (b"[1]", r" is '\[1\]', which is no object: write"),
        (b'{"kind": "a"} {"kind": "b"}', " is no JSON .Extra data"),
        (b'{"kind": "a", "age": "old"}', ": 'age' is \"old\", but numbers in the first lines: write .* drop_columns"),
        (b'{"kind": "a", "age": [1]}', r": 'age' is \[1\], but numbers in"),
        (b'{"kind": 5, "age": 1}', ": 'kind' is 5, but texts in"),
        (b'{"kind": "a", "age": {"x": 1}}', r": 'age' is \{\"x\": 1\}, but numbers in"),
        (b'{"kind": "a", "age": 1, "age": 2}', ": 'age' occurs twice in the line"),
        (b'{"kind": "a \\ud83d", "age": 1}', r": 'kind' has '\\ud83d', which is half of a character: write the whole"),
        (b'{"kind": "\xff"}', " is not UTF-8: write JSON as UTF-8"),
        (b'{"age": 1}', ": 'kind' is missing"),
    ],
)
def test_a_line_that_does_not_fit_is_named(file, run, line, problem, at, capsys):
    good = [b'{"kind": "a", "age": 1}', b"", b'{"kind": "b", "age": 2}'] * 1000
    source = file("data.jsonl", b"\n".join([*good[:at], line, *good[at:]]))
    with pytest.raises(ValueError, match=f"^row {at + 1} of data.jsonl{problem}"):
        run(source, label_column="kind")
    manifests = run(source, label_column="kind", on_bad_row="skip")
    assert sum(manifest.rows for manifest in manifests.values()) == 2000
    assert "left out 1 row that cannot be used, such as row" in capsys.readouterr().out


def test_all_bad_lines_of_all_blocks_are_found(file, run, small_blocks):
    generator = np.random.default_rng(0)
    is_bad = generator.random(500) < 0.1
    text = "".join('{"label": 1\n' if bad else f'{{"label": {i % 2}, "x": {i}}}\n' for i, bad in enumerate(is_bad))
    with pytest.raises(ValueError, match="cannot be used") as error:
        run(file("data.jsonl", text))
    rows = [int(row) for row in re.findall(r"\d+", str(error.value).partition(" of data.jsonl")[0])]
    assert rows == (np.flatnonzero(is_bad)[:20] + 1).tolist()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "data.jsonl cannot be read: it has no rows"),
        ('[{"age": 1, "kind": "a"}]', "data.jsonl cannot be read: it is one JSON array: write one object in each line"),
        ('{\n  "age": 1\n}\n', "it is one JSON object over several lines: write one object in each line"),
        (lines({"age": 1}).encode("utf-16"), "it is UTF-16 text or a binary file: write JSON as UTF-8"),
        ("age,kind\n1,a\n", "row 1 of data.jsonl is no JSON"),
        (lines({"age": 1}), r"there is no column 'kind' in data.jsonl; it has \['age'\]"),
        (lines({"kind": "a", "p": {"x": 1}}), "column 'p' has objects .*jq: . \\+ .KEY .*drop_columns"),
        (lines({"kind": "a", "p": [{"x": 1}]}), "column 'p' has objects"),
        (lines({"kind": "a", "p": [1]}), r"column 'p' is of type list<item: int64>: .* keep the column for a func"),
    ],
)
def test_an_unusable_file_is_refused(file, tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        open_source(file("data.jsonl", text), LABELLED, tmp_path)


@pytest.mark.parametrize("of_split", [{}, {"time_column": "day"}])
def test_dates_may_be_beside_texts_of_blanks(file, run, of_split):
    days = [" ", "", *(f"{day}/1/2024" for day in range(1, 29))]
    lines = [json.dumps({"x": i, "day": days[i % 30], "label": "ab"[i % 2]}) for i in range(90)]
    options = {"columns": {"x": "number", "day": "date"} if of_split else {}, "on_bad_row": "skip", **of_split}
    manifests = run(file("data.jsonl", "\n".join(lines)), **options)
    column = manifests["train"].columns[1]
    assert (column.kind, column.source_type) == ("number", "date %d/%m/%Y")
    assert sum(manifest.rows for manifest in manifests.values()) == (84 if of_split else 90)


def test_a_number_to_predict(file, run):
    rows = [{"x": i, "price": i if i < 100 else i / 2} for i in range(200)]
    assert run(file("data.jsonl", lines(*rows)), label_column="price")["train"].label.task == "regression"


def test_lines_like_those_of_an_earlier_dataset(file, run):
    rows = [{"x": i, "town": "ab"[i % 2], "label": i % 2} for i in range(40)]
    earlier = run(file("a.jsonl", lines(*rows)), "earlier")["train"]
    new = file("b.jsonl", lines({"x": 0.5, "town": None, "label": 1}, {"label": 0}))
    test = run(new, "new", like=earlier, validation_fraction=0, test_fraction=1, label_column="label")["test"]
    assert (test.rows, test.columns) == (2, earlier.columns)


def test_a_dropped_column_may_have_objects(file):
    text = lines({"kind": "a", "age": 1, "meta": {"x": 1}}, {"kind": "b", "age": 2, "meta": 5})
    columns, rows = rows_of(file("data.jsonl", text), Options("kind", drop_columns=("meta",)))
    assert (columns, rows) == ((number("age"),), {"kind": ["a", "b"], "age": [1, 2]})
