"""The messages of conversations: what is kept of them, and what is refused."""

import json
import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from language_tables import FORMATS, GOOD, ROWS, message, splits, turn, write

from kfp_distributed.components.prepare_data.columns.conversations import conversation_texts

pytestmark = pytest.mark.takes(8)

CALLS = [message("user"), {"role": "assistant", "tool_calls": [{"name": "f"}]}, message("tool"), message("assistant")]
FAULTS = {
    "missing": (None, "is missing, and no list of messages"),
    "empty": ([], "is an empty list, and no list of messages"),
    "text": ("hello", "is 'hello', and no list of messages"),
    "no object": ([*GOOD, "x"], "has 'x' as message 3"),
    "role": ([message("boss"), *GOOD], "has the role 'boss' in message 1; allowed are system, developer, user, "),
    "no role": ([{"text": "x"}], "has no role in message 1, whose keys are text"),
    "no answer": ([message("user"), message("assistant", " ")], "has an empty answer in message 2, of the assistant"),
    "no content": ([{"role": "user"}, message("assistant")], "has an empty content in message 1, of the user"),
    "number": ([message("user", 3), message("assistant")], "has the content 3 in message 1"),
    "end": ([*GOOD, message("user")], "ends with a message of the user"),
    "system": ([*GOOD, message("system"), message("assistant")], "has a message of the system after the first one"),
    "tool": (
        [message("user"), message("tool"), message("assistant")],
        "has a message of a tool that no assistant has called",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_no_conversation_is_refused_with_its_line(fault, run, tmp_path):
    value, text = FAULTS[fault]
    rows = [{"messages": turn(i)} for i in ROWS]
    file = write([*rows[:40], {"messages": value}, *rows[40:]], tmp_path / "data.jsonl")
    with pytest.raises(ValueError, match=rf"^row 41 of data\.jsonl: 'messages' {re.escape(text)}"):
        run(file)
    manifests = run(file, "skipped", on_bad_row="skip")
    assert sum(manifest.rows for manifest in manifests.values()) == len(ROWS)


def test_calls_of_tools_and_other_keys_are_kept_and_gaps_of_parquet_are_not():
    problems = []
    conversations = [CALLS, [message("user", name="Ann"), message("assistant")]]
    values = pa.array(conversations)
    texts = conversation_texts("messages", values, lambda *problem: problems.append(problem))
    assert problems == []
    assert [json.loads(text) for text in texts.to_pylist()] == conversations


def test_half_a_character_is_no_text():
    problems = []
    values = pa.array([json.dumps([message("user", "\ud800"), message("assistant")])])
    conversation_texts("messages", values, lambda *problem: problems.append(problem))
    assert problems == [(0, "messages", "has '\\ud800', which is half of a character: write the whole character")]


TIME = datetime(2024, 1, 31, 12, 30, 1, 5)
TIMES = {
    "time": (pa.scalar(TIME), "2024-01-31T12:30:01.000005"),
    "nanoseconds": (pa.scalar(TIME, pa.timestamp("ns")), "2024-01-31T12:30:01.000005"),
    "seconds": (pa.scalar(TIME.replace(microsecond=0), pa.timestamp("s")), "2024-01-31T12:30:01"),
    "zone": (pa.scalar(TIME.replace(tzinfo=UTC), pa.timestamp("ns", "UTC")), "2024-01-31T12:30:01.000005+00:00"),
    "date": (pa.scalar(date(2024, 1, 31)), "2024-01-31"),
    "time of a day": (pa.scalar(time(12, 30), pa.time64("ns")), "12:30:00"),
}


def with_value(value, row=40):
    """Return conversations, of which one has a value in its first message, at two depths."""
    kind = pa.struct([("role", pa.string()), ("content", pa.string()), ("extra", pa.struct([("at", value.type)]))])
    rows = [[message("user"), message("assistant", str(i))] for i in ROWS]
    rows[row][0]["extra"] = {"at": value.as_py() if value.type != pa.timestamp("ns") else TIME}
    return pa.array(rows, pa.list_(kind))


def write_column(values, file):
    table = pa.table({"messages": values})
    if file.suffix == ".parquet":
        pq.write_table(table, file)
    else:
        with pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    return file


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
@pytest.mark.parametrize("kind", TIMES)
def test_times_in_messages_become_iso_texts(kind, ending, run, tmp_path):
    value, text = TIMES[kind]
    manifests = run(write_column(with_value(value), tmp_path / f"data.{ending}"))
    found = [json.loads(row["messages"]) for rows in splits(tmp_path, manifests).values() for row in rows]
    assert [first["extra"] for first, _ in found if "extra" in first] == [{"at": text}]


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
@pytest.mark.parametrize("value", [Decimal("1.5"), b"x", timedelta(1), float("nan"), float("inf")])
def test_values_that_json_does_not_have_are_refused_with_their_row_and_key(value, ending, run, tmp_path):
    file = write_column(with_value(pa.scalar(value)), tmp_path / f"data.{ending}")
    with pytest.raises(
        ValueError, match=rf"^row 41 of data\.{ending}: 'messages' has .* in 'extra\.at' of message 1"
    ) as error:
        run(file)
    assert "write a text or a number, or leave the key out" in str(error.value)
    manifests = run(file, on_bad_row="skip")
    assert sum(manifest.rows for manifest in manifests.values()) == len(ROWS) - 1


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("key", ["role", "from"])
@pytest.mark.parametrize("role", [["user"], {"name": "user"}, 3, True])
def test_a_role_that_is_no_text_is_a_wrong_row(role, key, ending, run, tmp_path):
    # Arrow has one type of roles.
    rows = [{"messages": turn(i), "id": i} for i in ROWS] if ending in ("jsonl", "csv") else []
    wrong = {"messages": [{key: role, "content": "x"}, {key: role, "content": "y"}], "id": 0}
    file = write([*rows[:40], wrong, *rows[40:]], tmp_path / f"data.{ending}")
    number = {"jsonl": 41, "csv": 42}.get(ending, 1)
    with pytest.raises(ValueError, match=rf"^row {number} of data\.{ending}: 'messages' has the role .* in message 1"):
        run(file)


def call(name, arguments, **others):
    return {"role": "assistant", "tool_calls": [{"function": {"name": name, "arguments": arguments}}], **others}


PART = [{"type": "text", "text": "x"}]
NESTED = {
    "texts": [
        [message("user"), call("f", {"a": 1}), message("tool", ""), message("assistant")],
        [message("user"), call("g", {"b": [{"c": 1}, {"d": 2.5}]}), message("tool", name="t"), message("assistant")],
        [message("user"), call("h", {"e": {"k": ["x", None]}}, content="y")],
        [
            message("user"),
            {"role": "assistant", "function_call": {"name": "f"}},
            message("function", name="f"),
            message("assistant"),
        ],
    ],
    "parts": [
        [message("user", [*PART, {"type": "image", "url": "u"}]), message("assistant", PART)],
        [message("user", PART), call("f", {"a": 1}), message("tool", []), message("assistant", PART)],
    ],
}


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("kind", NESTED)
def test_calls_of_tools_and_parts_give_equal_datasets_in_all_formats(kind, ending, run, tmp_path):
    chosen = NESTED[kind]
    manifests = run(write([{"messages": chosen[i % len(chosen)], "id": i} for i in ROWS], tmp_path / f"data.{ending}"))
    texts = {row["messages"] for rows in splits(tmp_path, manifests).values() for row in rows}
    expected = json.loads(json.dumps(chosen).replace('"role": "function"', '"role": "tool"'))
    # Arrow has the keys of all rows in one order.
    found = sorted(json.dumps(json.loads(text), sort_keys=True) for text in texts)
    assert found == sorted(json.dumps(row, sort_keys=True) for row in expected)


def test_maps_of_arrow_are_objects():
    problems = []
    calls = pa.struct([("role", pa.string()), ("function_call", pa.map_(pa.string(), pa.string()))])
    values = pa.array([[{"role": "assistant", "function_call": [("name", "f"), ("none", None)]}]], pa.list_(calls))
    texts = conversation_texts("messages", values, lambda *problem: problems.append(problem))
    assert json.loads(texts[0].as_py()) == [{"role": "assistant", "function_call": {"name": "f"}}]
    assert problems == []


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("role", ["user", "system", "assistant", "tool"])
@pytest.mark.parametrize("content", ["", None])
def test_only_outputs_of_tools_may_be_empty(content, role, ending, run, tmp_path):
    before = [] if role == "system" else [message("user"), message("assistant")]
    wrong = [*before, message(role, content), message("user"), message("assistant")]
    file = write([{"messages": value, "id": 1} for value in [wrong, *[GOOD] * 59]], tmp_path / f"data.{ending}")
    if role == "tool" and content == "":
        assert sum(manifest.rows for manifest in run(file).values()) == len(ROWS)
        return
    with pytest.raises(ValueError, match=rf"'messages' has an empty (content|answer) in message {len(before) + 1}"):
        run(file)
