"""The columns of rows for language models: which are kept, their values, and how sources of other splits are read."""

import datetime
import json

import pyarrow as pa
import pytest
from language_tables import FORMATS, GOOD, ROWS, message, splits, turn, write, write_table

from kfp_distributed.components.prepare_data.csv_format import parse_csv_format
from kfp_distributed.components.prepare_data.preparation_options import parse_options

pytestmark = pytest.mark.takes(8)

PROMPTS = [{"prompt": f"What is {i}?", "completion": f" It is {i}."} for i in ROWS]
ALPACA = [{"instruction": f"Add 1 to {i}", "input": f"{i}", "output": f"{i + 1}"} for i in ROWS]
KINDS = {"prompt": "text", "completion": "text"}
JSON_TEXTS = [{"prompt": f"p {i}", "completion": f'[{{"x": {i}}}]'} for i in ROWS]


def rows_of(tmp_path, manifests, name="out"):
    return [row for rows in splits(tmp_path, manifests, name).values() for row in rows]


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("kinds", [{"completion": "text"}, KINDS])
@pytest.mark.parametrize("empty", ["", " "])
def test_declared_answers_may_not_be_empty_either(empty, kinds, ending, run, tmp_path):
    file = write([*JSON_TEXTS[:40], {**JSON_TEXTS[40], "completion": empty}], tmp_path / f"data.{ending}")
    with pytest.raises(ValueError, match="'completion' is empty: fill it in"):
        run(file, columns=kinds)


@pytest.mark.parametrize("ending", FORMATS)
def test_declared_columns_are_named_once_as_kept(ending, run, tmp_path, capsys):
    run(write(JSON_TEXTS, tmp_path / f"data.{ending}"), columns={"completion": "text"})
    assert "kept are prompt, completion\n" in capsys.readouterr().out


@pytest.mark.parametrize("way", ["like", "validation_source", "source"])
def test_answers_such_as_none_are_texts_in_csv_files_of_each_source(way, run, tmp_path):
    answers = [{**row, "completion": ("None", "NA", "yes")[i % 3], "id": i} for i, row in enumerate(PROMPTS)]
    file, first = write(answers, tmp_path / "answers.csv"), write(PROMPTS, tmp_path / "first.jsonl")
    if way == "like":
        manifests = run(file, like=run(first, "first")["train"], label_column="")
    elif way == "source":
        manifests = run(file)
    else:
        manifests = run(first, sources={"validation": str(file)})
        manifests = {"validation": manifests["validation"]}
    found = [row["completion"] for row in rows_of(tmp_path, manifests)]
    assert sorted(found) == sorted(row["completion"] for row in answers)
    with pytest.raises(ValueError, match="'completion' is empty"):
        run(file, csv_format=parse_csv_format({"usual_missing": True}))


def test_an_input_such_as_na_stays_with_like(run, tmp_path):
    like = run(write(ALPACA, tmp_path / "first.jsonl"), "first")["train"]
    file = write([{**row, "input": "NA", "id": 1} for row in ALPACA], tmp_path / "second.csv")
    assert {row["input"] for row in rows_of(tmp_path, run(file, like=like, label_column=""))} == {"NA"}


@pytest.mark.parametrize("missing", ["NA", " NA ", "", "None", "?"])
@pytest.mark.parametrize("wrong", ["", "short"])
def test_texts_such_as_na_are_missing_in_other_columns(wrong, missing, run, tmp_path):
    """A row that does not fit makes its block be read in another way."""
    rows = [{**row, "completion": "NA ", "note": missing if i % 4 else "x"} for i, row in enumerate(PROMPTS)]
    rows = [{**row, **dict.fromkeys(("score", "d"), missing)} if i % 3 else row for i, row in enumerate(rows)]
    rows = [{"score": "1", "d": "2024-01-31", **row} for row in rows]
    file = write(rows, tmp_path / "data.csv")
    if wrong:
        file.write_text(f"{file.read_text()}x\n")
    kinds = {"score": "number", "d": "date", "note": "text"}
    csv_format = parse_csv_format({"missing": ["?"]})
    manifests = run(file, columns=kinds, csv_format=csv_format, missing="keep", on_bad_row="skip")
    found = rows_of(tmp_path, manifests)
    assert len(found) == len(rows)
    assert {row["completion"] for row in found} == {"NA "}
    assert sorted(row["note"] or "" for row in found) == [""] * 45 + ["x"] * 15
    with pytest.raises(ValueError, match="'note' is missing, and it is the group_column"):
        run(file, "grouped", group_column="note", csv_format=csv_format)


def test_rows_of_a_dataset_without_checks_fit_it(run, tmp_path):
    file = write([{**PROMPTS[0], "completion": ""}, *PROMPTS[1:]], tmp_path / "data.jsonl")
    like = run(file, "first", label_column="")["train"]
    assert len(rows_of(tmp_path, run(file, like=like, label_column=""))) == len(ROWS)


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("column", ["text", "messages", "conversations"])
def test_a_file_may_have_one_column(column, ending, run, tmp_path):
    values = [
        f"Number {i} is next, to {i + 1}" if column == "text" else json.dumps(turn(i), ensure_ascii=False) for i in ROWS
    ]
    file = write([{column: value} for value in values], tmp_path / f"data.{ending}")
    assert sorted(row[column] for row in rows_of(tmp_path, run(file))) == sorted(values)


def test_an_error_about_a_file_of_one_column_says_how_to_write_separators(run, tmp_path):
    (tmp_path / "data.csv").write_text("text\n" + "".join(f"One, {i}\n" for i in ROWS))
    with pytest.raises(ValueError, match="or put texts with separators in double quotes"):
        run(tmp_path / "data.csv")


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv"])
@pytest.mark.parametrize("answer", [0, 2.5, 2**53 + 1, True])
def test_answers_that_are_numbers_are_texts_in_all_formats(answer, ending, run, tmp_path):
    file = write([{**row, "completion": answer} for row in PROMPTS], tmp_path / f"data.{ending}")
    text = "true" if answer is True and ending != "csv" else str(answer)
    assert {row["completion"] for row in rows_of(tmp_path, run(file))} == {text}


DEEP, HUGE = "[" * 1500 + "]" * 1500, "1" * 5000


@pytest.mark.parametrize("value", [DEEP, HUGE])
@pytest.mark.parametrize("key", ["messages", "tools"])
def test_a_line_that_python_cannot_read_is_a_wrong_row(key, value, run, tmp_path):
    file = write([{"messages": turn(i), "tools": None} for i in ROWS], tmp_path / "data.jsonl")
    lines = file.read_text().splitlines()
    others = "" if key == "messages" else f'"messages": {json.dumps(GOOD)}, '
    lines.insert(40, f'{{{others}"{key}": {value}}}')
    file.write_text("\n".join(lines))
    with pytest.raises(ValueError, match=r"^row 41 of data\.jsonl"):
        run(file)
    assert len(rows_of(tmp_path, run(file, on_bad_row="skip"))) == len(ROWS)


@pytest.mark.parametrize("ending", FORMATS)
def test_a_dropped_label_does_not_count(ending, run, tmp_path):
    file = write([{"messages": turn(i), "label": "ab"[i % 2]} for i in ROWS], tmp_path / f"data.{ending}")
    assert run(file, drop_columns=("label",))["train"].columns[0].source_type == "conversation"
    other = write([{"a": i, "label": "ab"[i % 2]} for i in ROWS], tmp_path / f"other.{ending}")
    with pytest.raises(ValueError, match="drop_columns has 'label', which is the label_column: take it out"):
        run(other, drop_columns=("label",))


@pytest.mark.parametrize("ending", FORMATS)
def test_the_first_value_of_all_files_decides(ending, run, tmp_path):
    (tmp_path / "data").mkdir()
    write([{"prompt": "", "completion": " "}], tmp_path / "data" / f"a.{ending}")
    rows = [{"prompt": json.dumps(turn(i)[:1]), "completion": json.dumps(turn(i)[1:])} for i in ROWS]
    write(rows, tmp_path / "data" / f"b.{ending}")
    manifests = run(tmp_path / "data", on_bad_row="skip")
    assert len(rows_of(tmp_path, manifests)) == len(ROWS)
    assert [column.source_type for column in manifests["train"].columns] == ["conversation"] * 2


def tool(**properties):
    return {"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}


TOOLS = [[tool(a={"type": "number"}), tool(b={"enum": ["x"]})], [tool(c={"type": "string"})], [], None]
WITH_TOOLS = {
    "messages": [{"messages": turn(i), "tools": TOOLS[i % 4]} for i in ROWS],
    "ShareGPT": [{"conversations": turn(i, "from", "value", ("human", "gpt")), "tools": TOOLS[i % 4]} for i in ROWS],
    "prompts": [{"prompt": turn(i)[:1], "completion": turn(i)[1:], "tools": TOOLS[i % 4]} for i in ROWS],
    "texts": [{**row, "tools": TOOLS[i % 4]} for i, row in enumerate(PROMPTS)],
}


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("form", WITH_TOOLS)
@pytest.mark.parametrize("are_texts", [False, True])
def test_tools_are_kept_as_json_texts_in_all_formats(are_texts, form, ending, run, tmp_path, capsys):
    rows = [{**row, "tools": json.dumps(row["tools"]) if are_texts else row["tools"]} for row in WITH_TOOLS[form]]
    manifests = run(write(rows, tmp_path / f"data.{ending}"))
    assert ", tools\n" in capsys.readouterr().out
    assert manifests["train"].columns[-1].source_type == "list<object>"
    found = [row["tools"] and json.loads(row["tools"]) for row in rows_of(tmp_path, manifests)]
    assert sorted(map(str, found)) == sorted(str(row["tools"]) for row in WITH_TOOLS[form])


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("value", ["hammer", '["hammer"]', '{"name": "f"}', "3"])
def test_tools_that_are_no_lists_of_objects_are_refused_with_what_to_do(value, ending, run, tmp_path):
    file = write([{"messages": turn(i), "tools": value} for i in ROWS], tmp_path / f"data.{ending}")
    with pytest.raises(ValueError, match=r"'tools' is .*, and no list of objects: write .* or leave the column out"):
        run(file)
    assert {row["tools"] for row in rows_of(tmp_path, run(file, columns={"tools": "text"}))} == {value}
    assert [column.name for column in run(file, drop_columns=("tools",))["train"].columns] == ["messages"]


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize(
    "row",
    [
        {"prompt": GOOD, "completion": "yes"},
        {"prompt": "why?", "completion": GOOD},
        {"prompt": GOOD, "completion": ["yes"]},
    ],
)
def test_only_texts_of_the_source_are_to_be_declared_as_texts(row, ending, run, tmp_path):
    file = write([row] * 60, tmp_path / f"data.{ending}")
    with pytest.raises(ValueError, match=r"(?i:if the source has texts)"):
        run(file)


@pytest.mark.parametrize("ending", FORMATS)
def test_lists_of_objects_may_have_any_name(ending, run, tmp_path):
    file = write([{"a": [{"x": i}, {"y": "z"}], "label": "ab"[i % 2]} for i in ROWS], tmp_path / f"data.{ending}")
    manifests = run(file, columns={"a": "list<object>"})
    assert sorted(row["a"] for row in rows_of(tmp_path, manifests)) == sorted(
        json.dumps([{"x": i}, {"y": "z"}]) for i in ROWS
    )
    second = run(file, "second", like=manifests["train"], validation_fraction=0, test_fraction=1.0)["test"]
    assert second.columns == manifests["train"].columns
    if ending != "csv":
        with pytest.raises(ValueError, match=r"(columns=\{'a': \"|other lists of objects by \")list<object>\""):
            run(file, "third")


def of_map(value):
    return [*value.items()] if isinstance(value, dict) else value


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
@pytest.mark.parametrize("in_a_list", [False, True])
def test_maps_are_objects_also_without_entries(in_a_list, ending, run, tmp_path):
    arguments = [{}, {"x": "1"}, {"x": "1", "y": "2"}]
    maps = pa.map_(pa.string(), pa.string())
    entry = pa.list_(maps) if in_a_list else maps
    call = pa.struct([("name", pa.string()), ("arguments", entry)])
    kind = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("tool_calls", pa.list_(call))]))
    values = [[of_map(value)] if in_a_list else of_map(value) for value in arguments]
    messages = [
        [message("user", f"q {i}"), message("assistant", "a", tool_calls=[{"name": "f", "arguments": values[i % 3]}])]
        for i in ROWS
    ]
    tools = [[of_map(arguments[i % 3])] for i in ROWS]
    table = pa.table({"messages": pa.array(messages, kind), "tools": pa.array(tools, pa.list_(maps))})
    file = write_table(table, tmp_path / f"data.{ending}")
    found = rows_of(tmp_path, run(file))
    calls = [json.loads(row["messages"])[1]["tool_calls"][0]["arguments"] for row in found]
    expected = [[value] if in_a_list else value for value in arguments]
    assert sorted(map(str, calls)) == sorted(map(str, expected * 20))
    assert sorted(row["tools"] for row in found) == sorted(json.dumps([value]) for value in arguments * 20)


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_messages_may_be_maps(ending, run, tmp_path):
    kind = pa.list_(pa.map_(pa.string(), pa.string()))
    rows = [[[*item.items()] for item in turn(i)] for i in ROWS]
    table = pa.table({name: pa.array(rows, kind) for name in ("prompt", "completion")})
    file = write_table(table, tmp_path / f"data.{ending}")
    assert json.loads(rows_of(tmp_path, run(file))[0]["prompt"])[0]["role"] == "user"


OPTIONAL = {
    "tools": [{"messages": turn(i), "tools": [tool(a=i)]} for i in ROWS],
    "input": ALPACA,
}


def without(name):
    return [{key: value for key, value in row.items() if key != name} for row in OPTIONAL[name]]


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("way", ["like", "validation_source", "test_source"])
@pytest.mark.parametrize("name", OPTIONAL)
def test_rows_of_another_source_may_lack_optional_columns(name, way, ending, run, tmp_path):
    first = write(OPTIONAL[name], tmp_path / f"first.{ending}")
    other = write(without(name), tmp_path / f"other.{ending}")
    if way == "like":
        manifests = run(other, like=run(first, "first")["train"], label_column="")
    else:
        split = way.removesuffix("_source")
        manifests = {split: run(first, sources={split: str(other)})[split]}
    found = rows_of(tmp_path, manifests)
    assert len(found) == len(ROWS)
    assert {row[name] for row in found} == {None}


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("names", ["ab", "ba"])
@pytest.mark.parametrize("name", OPTIONAL)
def test_some_files_of_a_folder_may_lack_optional_columns(name, names, ending, run, tmp_path):
    first = write(OPTIONAL[name], tmp_path / f"first.{ending}")
    (tmp_path / "data").mkdir()
    write(OPTIONAL[name], tmp_path / "data" / f"{names[0]}.{ending}")
    write(without(name), tmp_path / "data" / f"{names[1]}.{ending}")
    manifests = run(first, sources={"validation": str(tmp_path / "data")})
    found = [rows_of(tmp_path, {"validation": manifests["validation"]})]
    if names == "ab":  # The first file of the main source decides.
        found.append(rows_of(tmp_path, run(tmp_path / "data", "second"), "second"))
    for values in ([row[name] for row in rows] for rows in found):
        assert values.count(None) == len(values) - values.count(None) == len(ROWS)


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("column", ["input", "note"])
def test_a_declared_column_of_the_main_source_is_needed(column, ending, run, tmp_path):
    file = write(without("input"), tmp_path / f"data.{ending}")
    with pytest.raises(ValueError, match=f"there is no column '{column}'"):
        run(file, columns={column: "text"})


def test_a_line_names_tools_that_the_first_rows_lack(run, tmp_path, capsys):
    like = run(write([{"messages": turn(i)} for i in ROWS], tmp_path / "first.jsonl"), "first")["train"]
    run(write(WITH_TOOLS["messages"], tmp_path / "second.jsonl"), like=like, label_column="")
    assert "column 'tools' of the form messages is left out" in capsys.readouterr().out


def test_a_dataset_in_like_decides_the_label(run, tmp_path):
    like = run(write([{"messages": turn(i)} for i in ROWS], tmp_path / "first.jsonl"), "first")["train"]
    given = {"label_column": "label", "validation_fraction": 0.1, "test_fraction": 0.1, "shards": 1, "seed": 0}
    assert parse_options(**given, image_size="", drop_columns=(), like=like).label_column == ""


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
@pytest.mark.parametrize(
    ("key", "pairs", "problem"),
    [
        (
            pa.string(),
            [("name", "f"), ("a", "b"), ("a", "c")],
            "'tools' has a map in the list in which a key occurs twice",
        ),
        (pa.date32(), [(datetime.date(2020, 1, 1), "x")], r"'tools' has the key datetime.date\(2020, 1, 1\) in the l"),
        (pa.binary(), [(b"a", "x")], "'tools' has the key b'a' in the list, which JSON does not have: write a text"),
    ],
)
@pytest.mark.parametrize("in_a_struct", [False, True])
def test_a_map_that_is_no_object_is_a_bad_row(in_a_struct, key, pairs, problem, ending, run, tmp_path):
    values = [[pairs], *[[pairs[:1]] if key == pa.string() else None for _ in ROWS[1:]]]
    kind = pa.map_(key, pa.string())
    if in_a_struct:
        values, kind = [value and [{"a": entry} for entry in value] for value in values], pa.struct([("a", kind)])
    tools = pa.array(values, pa.list_(kind))
    messages = [[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] for _ in ROWS]
    file = write_table(pa.table({"messages": messages, "tools": tools}), tmp_path / f"data.{ending}")
    with pytest.raises(ValueError, match=f"row 1 .*{problem}"):
        run(file)
    assert sum(len(split) for split in splits(tmp_path, run(file, on_bad_row="skip")).values()) == len(ROWS) - 1


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("group", ["prompt", "completion", "instruction", "input", "text"])
def test_equal_texts_of_a_form_may_be_kept_in_one_split(group, ending, run, tmp_path):
    rows = {"instruction": ALPACA, "input": ALPACA, "text": [{"text": ""} for _ in ROWS]}.get(group, PROMPTS)
    rows = [{**row, group: f"text {i % 20}"} for i, row in enumerate(rows)]
    found = splits(tmp_path, run(write(rows, tmp_path / f"data.{ending}"), group_column=group))
    groups = [{row[group] for row in split} for split in found.values()]
    assert sum(map(len, groups)) == len({*groups[0], *groups[1], *groups[2]}) == 20


@pytest.mark.parametrize("declared", [{}, {"tools": "list<object>"}])
@pytest.mark.parametrize("names", ["prompt,completion,tools", "prompt,completion"])
def test_the_first_file_may_have_no_rows_or_no_optional_column(names, declared, run, tmp_path, capsys):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text(f"{names}\n" + "a,b\n" * ("tools" not in names))
    rows = [{**row, "tools": [tool(a=1)]} for row in PROMPTS] if "tools" not in names and declared else PROMPTS
    write(rows, tmp_path / "data" / "b.csv")
    found = rows_of(tmp_path, run(tmp_path / "data", columns=declared))
    assert "left out 1 column" not in capsys.readouterr().out or "tools" not in rows[0]
    assert len(found) == len(PROMPTS) + ("tools" not in names)
    assert sum(bool(row.get("tools")) for row in found) == (len(PROMPTS) if "tools" in rows[0] else 0)
