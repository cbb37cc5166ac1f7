"""Rows for language models: their forms in all formats, and what the overview shows."""

import json
import re

import pytest
from language_tables import FORMATS, GOOD, ROWS, message, splits, turn, write

from kfp_distributed.components.prepare_data.csv_format import parse_csv_format

pytestmark = pytest.mark.takes(8)

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


@pytest.mark.parametrize("form", FORMS)
def test_the_form_of_the_rows_is_found_in_all_formats_and_gives_equal_datasets(form, run, tmp_path, capsys):
    rows, columns = FORMS[form]
    found = {}
    for ending in FORMATS:
        with_id = [{**row, **({} if form == "text" else {"id": number})} for number, row in enumerate(rows)]
        manifests = run(write(with_id, tmp_path / f"data.{ending}"), ending)
        found[ending] = splits(tmp_path, manifests, ending)
        text = f"task: none, because rows for language models of the form {form}: kept are {columns}"
        text += "\n" if form == "text" else "; left out are id."
        assert text in capsys.readouterr().out
        kinds = {column.name: column.source_type for column in manifests["train"].columns}
        kind = "conversation" if form in ("messages", "ShareGPT") else "required text"
        optional = {"input": "optional text"} if form == "Alpaca" else {}
        assert kinds == dict.fromkeys(columns.split(", "), kind) | optional
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


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv"])
@pytest.mark.parametrize("empty", ["", "  ", None])
@pytest.mark.parametrize("column", ["prompt", "completion"])
def test_an_empty_answer_is_refused_in_all_formats(ending, empty, column, run, tmp_path):
    rows = [*PROMPTS[:40], {**PROMPTS[40], column: empty}, *PROMPTS[41:]]
    with pytest.raises(ValueError, match=f"{column}.*is empty: fill it in, or leave the row out"):
        run(write(rows, tmp_path / f"data.{ending}"))


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
    assert [column.source_type for column in manifests["train"].columns] == ["required text"] * 2
    found = [row for rows in splits(tmp_path, manifests).values() for row in rows]
    assert sorted(found, key=str) == sorted(rows, key=str)


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("text", ["no list", "[INST]", '[{"town": "Ulm"}]'])
def test_an_error_about_prompts_names_the_way_to_keep_texts(text, ending, run, tmp_path):
    rows = [{"prompt": json.dumps(GOOD[:1]), "completion": '[{"town": "Ulm"}]'} for i in ROWS]
    rows[30]["completion"] = text
    file = write(rows, tmp_path / f"data.{ending}")
    kinds = {"prompt": "text", "completion": "text"}
    with pytest.raises(ValueError, match=re.escape(f"such as JSON texts, set columns={json.dumps(kinds)}")):
        run(file)
    columns = run(file, columns=kinds)["train"].columns
    assert [column.source_type for column in columns] == ["required text"] * 2
    like = run(write([{"prompt": GOOD[:1], "completion": GOOD[1:]}] * 60, tmp_path / "like.jsonl"), "like")["train"]
    with pytest.raises(ValueError, match=r"'completion' (has|is) ") as error:
        run(file, "second", like=like, label_column="")
    assert "columns=" not in str(error.value)


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("form", ["prompt and completion", "Alpaca", "text", "messages"])
def test_rows_like_those_of_a_dataset_are_checked_like_them(form, ending, run, tmp_path):
    rows, columns = FORMS[form]
    first = run(write(rows, tmp_path / "first.jsonl"), "first")["train"]
    for column in columns.split(", "):
        value = json.dumps([message("user"), message("assistant", " ")]) if form == "messages" else " "
        faulty = [{**row, column: json.dumps(row[column]) if form == "messages" else row[column]} for row in rows]
        faulty = [{**row, "id": i} for i, row in enumerate([*faulty[:50], *({**row, column: value} for row in faulty)])]
        file = write(faulty, tmp_path / f"{column}.{ending}")
        if column == "input":
            assert run(file, "second", like=first, label_column="")["train"].columns == first.columns
            continue
        with pytest.raises(ValueError, match=rf"^rows? 5[12].* of {column}\.{ending}: '{column}' .*empty"):
            run(file, "second", like=first, label_column="")
        manifests = run(file, "second", like=first, label_column="", on_bad_row="skip")
        assert sum(manifest.rows for manifest in manifests.values()) == 50


def test_texts_of_other_datasets_may_be_empty(run, tmp_path):
    rows = [{**row, "kind": "ab"[i % 2], "completion": ""} for i, row in enumerate(PROMPTS)]
    file = write(rows, tmp_path / "data.jsonl")
    first = run(file, "first", label_column="kind", columns={"prompt": "text", "completion": "text"})["train"]
    assert run(file, "second", like=first, label_column="kind")["train"].rows == first.rows
    texts = write([{"text": "ab"[i % 2] * (i % 3), "town": "cd"[i % 2]} for i in ROWS], tmp_path / "texts.jsonl")
    first = run(texts, "third", label_column="")["train"]
    assert run(texts, "fourth", like=first, label_column="")["train"].rows == first.rows


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("way", ["like", "validation_source"])
def test_a_line_names_inputs_of_alpaca_that_the_first_rows_lack(way, ending, run, tmp_path, capsys):
    rows = FORMS["Alpaca"][0]
    without = [{"instruction": row["instruction"], "output": row["output"]} for row in rows]
    first = write(without, tmp_path / f"first.{ending}")
    other = write([{**row, "input": "x"} for row in rows], tmp_path / f"other.{ending}")
    text = "column 'input' of the form Alpaca is left out, because the training rows do not have it"
    like = run(first, "first")["train"]
    assert text not in capsys.readouterr().out
    if way == "like":
        run(other, "second", like=like, label_column="")
    else:
        run(first, "second", sources={"validation": str(other)})
    assert text in capsys.readouterr().out


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("texts", ["prompt", "completion"])
def test_prompts_and_completions_have_one_form(texts, ending, run, tmp_path):
    rows = [{"prompt": turn(i)[:1], "completion": turn(i)[1:]} | {texts: f"t {i}"} for i in ROWS]
    (other,) = {"prompt", "completion"} - {texts}
    file = write(rows, tmp_path / f"data.{ending}")
    for declared in ({}, {texts: "text"}, {other: "conversation"}, {texts: "text", other: "conversation"}):
        with pytest.raises(
            ValueError, match=f"column '{other}' has lists of messages, and '{texts}' has texts: write both"
        ):
            run(file, columns=declared)


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("value", [27, 27.5, True, "2019-01-28"])
@pytest.mark.parametrize("column", ["messages", "conversations"])
def test_a_table_with_a_number_of_messages_is_refused_with_what_to_do(column, value, ending, run, tmp_path):
    file = write([{column: value, "churn": "ab"[i % 2]} for i in ROWS], tmp_path / f"data.{ending}")
    with pytest.raises(ValueError, match=f"'{column}' is .*, and no list of messages.* set label_column to the column"):
        run(file)
    assert [column.name for column in run(file, label_column="churn")["train"].columns] == [column]


def test_answers_that_look_like_missing_values_are_texts(run, tmp_path):
    rows = [{**row, "completion": ("None", "NA", "yes")[number % 3]} for number, row in enumerate(PROMPTS)]
    manifests = run(write(rows, tmp_path / "data.csv"))
    assert sum(manifest.rows for manifest in manifests.values()) == len(rows)
    with pytest.raises(ValueError, match="is empty: fill it in"):
        run(tmp_path / "data.csv", "given", csv_format=parse_csv_format({"usual_missing": True}))
