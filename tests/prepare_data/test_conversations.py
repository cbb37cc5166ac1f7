"""Rows for language models: their forms in all formats, what is refused, and what the overview shows."""

import csv
import json
import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kfp_distributed.components.prepare_data.columns.conversations import conversation_texts

pytestmark = pytest.mark.takes(8)

ROWS = range(60)


def turn(number, question="role", text="content", names=("user", "assistant")):
    return [
        {question: names[0], text: f"What is {number} + 1?"},
        {question: names[1], text: f"It is {number + 1}. Ünd"},
    ]


PROMPTS = [{"prompt": f"What is {i}?", "completion": f" It is {i}."} for i in ROWS]
FORMS = {
    "messages": ([{"messages": turn(i)} for i in ROWS], "messages"),
    "ShareGPT": ([{"conversations": turn(i, "from", "value", ("human", "gpt"))} for i in ROWS], "conversations"),
    "prompt and completion": (PROMPTS, "prompt, completion"),
    "Alpaca": (
        [{"instruction": f"Add 1 to {i}", "input": "x" * (i % 2), "output": f"{i + 1}"} for i in ROWS],
        "instruction, output, input",
    ),
    "text": ([{"text": f"Number {i} is next to {i + 1}."} for i in ROWS], "text"),
}


def write(rows, file):
    """Write rows in the format of the file's name. CSV has lists as JSON texts."""
    if file.suffix == ".jsonl":
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif file.suffix == ".csv":
        with file.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, [*dict.fromkeys(name for row in rows for name in row)])
            writer.writeheader()
            writer.writerows(
                {name: json.dumps(v) if isinstance(v, list) else v for name, v in row.items()} for row in rows
            )
    elif file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    else:
        table = pa.Table.from_pylist(rows)
        with pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    return file


FORMATS = ("jsonl", "parquet", "arrow", "csv")


def splits(tmp_path, manifests, name="out"):
    """Return the rows of each split."""
    return {
        split: [row for shard in m.shards for row in pq.read_table(tmp_path / name / split / shard.path).to_pylist()]
        for split, m in manifests.items()
    }


@pytest.mark.parametrize("form", FORMS)
def test_the_form_of_the_rows_is_found_in_all_formats_and_gives_equal_datasets(form, run, tmp_path, capsys):
    rows, columns = FORMS[form]
    found = {}
    # A CSV file of one column may be one with another separator.
    for ending in ("jsonl", "parquet", "arrow", *(() if form == "text" else ("csv",))):
        with_id = [{**row, **({} if form == "text" else {"id": number})} for number, row in enumerate(rows)]
        manifests = run(write(with_id, tmp_path / f"data.{ending}"), ending)
        found[ending] = splits(tmp_path, manifests, ending)
        text = f"task: none, because rows for language models of the form {form}: kept are {columns}"
        text += "\n" if form == "text" else "; left out are id."
        assert text in capsys.readouterr().out
        kinds = {column.name: column.source_type for column in manifests["train"].columns}
        assert kinds == dict.fromkeys(columns.split(", "), "conversation" if form in ("messages", "ShareGPT") else "")
    if form == "Alpaca":  # An empty cell of CSV is missing.
        for row in (row for rows in found["jsonl"].values() for row in rows):
            row["input"] = row["input"] or None
        assert found.pop("csv") == found["jsonl"]
        assert found["parquet"] == found["arrow"]
        return
    assert all(rows == found["jsonl"] for rows in found.values())
    if form in ("messages", "ShareGPT"):
        texts = [row[columns] for rows in found["jsonl"].values() for row in rows]
        assert sorted(texts) == sorted(json.dumps(turn(i), ensure_ascii=False) for i in ROWS)


def test_conversations_may_be_prompts_and_completions(run, tmp_path):
    rows = [{"prompt": turn(i)[:1], "completion": turn(i)[1:]} for i in ROWS]
    manifests = run(write(rows, tmp_path / "data.jsonl"))
    assert [column.source_type for column in manifests["train"].columns] == ["conversation"] * 2
    assert json.loads(splits(tmp_path, manifests)["test"][0]["prompt"])[0]["role"] == "user"


def test_conversations_of_a_group_stay_in_one_split(run, tmp_path):
    rows = [{"messages": turn(i), "customer": i % 7} for i in ROWS]
    manifests = run(write(rows, tmp_path / "data.jsonl"), group_column="customer", test_fraction=0.3)
    found = splits(tmp_path, manifests)
    customers = [{int(row["messages"].split(" + ")[0].split()[-1]) % 7 for row in rows} for rows in found.values()]
    assert sum(map(len, customers)) == 7


def test_other_columns_and_other_labels_are_read_as_before(run, tmp_path):
    rows = [{**row, "kind": "ab"[i % 2], "text": f"t {i % 3}"} for i, row in enumerate(PROMPTS)]
    file = write(rows, tmp_path / "data.jsonl")
    assert run(file, "label", label_column="kind", columns={"prompt": "text"})["train"].label.task == "classification"
    manifests = run(file, "none", label_column="", task="none")
    assert [column.name for column in manifests["train"].columns] == ["prompt", "completion", "kind", "text"]
    manifests = run(file, "kept", columns={"kind": "category"})
    assert [column.name for column in manifests["train"].columns] == ["prompt", "completion", "kind"]


def test_a_text_beside_other_columns_needs_a_label(run, tmp_path):
    rows = [{"text": f"t {i}", "mood": "ab"[i % 2]} for i in ROWS]
    file = write(rows, tmp_path / "data.jsonl")
    with pytest.raises(ValueError, match=r"there is no column 'label' in data\.jsonl; it has \['text', 'mood'\]"):
        run(file)
    assert run(file, "named", drop_columns=("mood",))["train"].label.task == "none"


def test_a_declared_conversation_may_have_any_name_and_other_datasets_are_read_like_it(run, tmp_path):
    rows = [{"chat": turn(i), "label": "ab"[i % 2]} for i in ROWS]
    file = write(rows, tmp_path / "data.jsonl")
    first = run(file, "first", columns={"chat": "conversation"}, drop_columns=())["train"]
    second = run(file, "second", like=first, validation_fraction=0, test_fraction=1.0)["test"]
    assert second.columns == first.columns
    with pytest.raises(ValueError, match=r"kept by columns=\{'chat': \"conversation\"\}"):
        run(file, "third", label_column="label")


def message(role, content="x", **others):
    return {"role": role, "content": content, **others}


GOOD = [message("user"), message("assistant")]
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


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv"])
@pytest.mark.parametrize("empty", ["", "  ", None])
@pytest.mark.parametrize("column", ["prompt", "completion"])
def test_an_empty_answer_is_refused_in_all_formats(ending, empty, column, run, tmp_path):
    rows = [*PROMPTS[:40], {**PROMPTS[40], column: empty}, *PROMPTS[41:]]
    with pytest.raises(ValueError, match=f"{column}.*is empty: fill it in, or leave the row out"):
        run(write(rows, tmp_path / f"data.{ending}"))


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


def test_the_overview_shows_lengths_and_examples(run, tmp_path):
    run(write([{"messages": turn(i)} for i in ROWS], tmp_path / "data.jsonl"))
    page = (tmp_path / "out" / "overview.html").read_text()
    assert "Words of messages (median 9, most 9)" in page
    assert "user: What is" in page


@pytest.mark.parametrize("ending", FORMATS)
def test_dropped_columns_are_no_part_of_a_form(ending, run, tmp_path):
    rows = [{**row, "text": f"Text {i}", "messages": turn(i)} for i, row in enumerate(PROMPTS)]
    file = write(rows, tmp_path / f"data.{ending}")
    for dropped, kept in (
        (["messages"], ["prompt", "completion"]),
        (["messages", "prompt", "completion"], ["text"]),
        (["prompt", "text"], ["messages"]),
    ):
        manifests = run(file, drop_columns=tuple(dropped))
        assert [column.name for column in manifests["train"].columns] == kept
    file = write(FORMS["Alpaca"][0], tmp_path / f"alpaca.{ending}")
    assert [column.name for column in run(file, drop_columns=("input",))["train"].columns] == ["instruction", "output"]


@pytest.mark.parametrize("ending", FORMATS)
def test_json_texts_of_conversations_are_conversations_in_all_formats(ending, run, tmp_path):
    rows = [{"messages": json.dumps(turn(i)), "id": i} for i in ROWS]
    manifests = run(write(rows, tmp_path / f"data.{ending}"))
    assert manifests["train"].columns[0].source_type == "conversation"
    texts = [row["messages"] for rows in splits(tmp_path, manifests).values() for row in rows]
    assert sorted(texts) == sorted(json.dumps(turn(i), ensure_ascii=False) for i in ROWS)
    for wrong in (json.dumps([message("boss"), *GOOD]), "hello", "[INST]", "[]"):
        file = write([*rows[:40], {"messages": wrong, "id": 0}, *rows[40:]], tmp_path / f"wrong.{ending}")
        with pytest.raises(ValueError, match=rf"^row 4[12] of wrong\.{ending}: 'messages' .*(list|role)"):
            run(file)
        assert sum(manifest.rows for manifest in run(file, on_bad_row="skip").values()) == len(ROWS)


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("column", ["messages", "conversations"])
def test_columns_of_messages_are_conversations_whatever_the_first_value_is(column, ending, run, tmp_path):
    rows = [{column: value, "id": 1} for value in ("hello", *(json.dumps(turn(i)) for i in ROWS))]
    with pytest.raises(ValueError, match=rf"'{column}' is 'hello', and no list of messages"):
        run(write(rows, tmp_path / f"data.{ending}"))


@pytest.mark.parametrize("ending", FORMATS)
def test_prompts_and_completions_that_are_json_texts_of_messages_are_conversations(ending, run, tmp_path):
    rows = [{"prompt": json.dumps(turn(i)[:1]), "completion": json.dumps(turn(i)[1:])} for i in ROWS]
    for first in ("", " ", "[]"):
        file = write([{"prompt": first, "completion": first}, *rows], tmp_path / f"data.{ending}")
        manifests = run(file, on_bad_row="skip")
        assert [column.source_type for column in manifests["train"].columns] == ["conversation"] * 2
        assert sum(manifest.rows for manifest in manifests.values()) == len(ROWS)


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize(
    "text", ["[INST] {} [/INST]", "[{}]", '["Ulm", "Bern {}"]', "[[{}]]", '{{"town": {}}}', '"{}"', "{}", "[] {}"]
)
def test_texts_that_are_no_lists_of_objects_stay_texts(text, ending, run, tmp_path):
    rows = [{"prompt": text.format(i), "completion": text.format(i)} for i in ROWS]
    manifests = run(write(rows, tmp_path / f"data.{ending}"))
    assert [column.source_type for column in manifests["train"].columns] == [""] * 2
    found = [row for rows in splits(tmp_path, manifests).values() for row in rows]
    assert sorted(found, key=str) == sorted(rows, key=str)


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("text", ["no list", "[INST]", '[{"town": "Ulm"}]'])
def test_an_error_about_prompts_names_the_way_to_keep_texts(text, ending, run, tmp_path):
    rows = [{"prompt": f"p {i}", "completion": '[{"town": "Ulm"}]' if i else json.dumps(GOOD[1:])} for i in ROWS]
    rows[30]["completion"] = text
    file = write(rows, tmp_path / f"data.{ending}")
    with pytest.raises(ValueError, match=r"If its values are texts, set columns=\{'completion': \"text\"\}"):
        run(file)
    assert run(file, columns={"completion": "text"})["train"].columns[1].source_type == ""
    like = run(write([{"prompt": "x", "completion": GOOD[1:]}] * 60, tmp_path / "like.jsonl"), "like")["train"]
    with pytest.raises(ValueError, match=r"'completion' (has|is) ") as error:
        run(file, "second", like=like, label_column="")
    assert "columns=" not in str(error.value)


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
