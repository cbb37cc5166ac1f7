"""Rows with a chosen and a rejected answer: which are kept, and which are wrong."""

import json

import pytest
from language_tables import FORMATS, GOOD, ROWS, message, splits, turn, write

pytestmark = pytest.mark.takes(3)

TEXTS = [{"prompt": f"What is {i}?", "chosen": f" It is {i}.", "rejected": " No."} for i in ROWS]
NO = message("assistant", "No.")
LISTS = [{"prompt": turn(i)[:1], "chosen": turn(i)[1:], "rejected": [NO]} for i in ROWS]
WHOLE = [{"chosen": turn(i), "rejected": [turn(i)[0], NO]} for i in ROWS]


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("rows", [TEXTS, LISTS, WHOLE])
def test_preferences_are_kept_and_named(rows, ending, run, tmp_path, capsys):
    file = write([{"id": i, "score_chosen": 2.5, **row} for i, row in enumerate(rows)], tmp_path / f"data.{ending}")
    manifests = run(file)
    kept = f"rows for language models of the form preference: kept are {', '.join(rows[0])}; left out are id, "
    assert kept in capsys.readouterr().out
    kind = "required text" if rows is TEXTS else "conversation"
    assert {column.source_type for column in manifests["train"].columns} == {kind}
    found = [row for split in splits(tmp_path, manifests).values() for row in split]
    texts = [{k: v if rows is TEXTS else json.dumps(v, ensure_ascii=False) for k, v in row.items()} for row in rows]
    assert sorted(found, key=str) == sorted(texts, key=str)


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize(
    ("rows", "wrong", "problem"),
    [
        (TEXTS, {"rejected": " It is 40."}, "'rejected' is equal to chosen: correct it, or leave the row out"),
        (TEXTS, {"rejected": " "}, "'rejected' is empty"),
        (TEXTS, {"prompt": ""}, "'prompt' is empty"),
        (LISTS, {"rejected": turn(40)[1:]}, "'rejected' is equal to chosen"),
        (LISTS, {"chosen": [message("user")]}, "'chosen' ends with a message of the user"),
        (LISTS, {"chosen": [message("robot")]}, "'chosen' has the role 'robot'"),
        (WHOLE, {"rejected": turn(40)}, "'rejected' is equal to chosen"),
        (WHOLE, {"rejected": [message("user"), NO]}, "'rejected' differs from chosen in a message that is no answer"),
        (WHOLE, {"rejected": [turn(40)[0], NO, *turn(0)]}, "no answer after the first answer in which they differ"),
        (WHOLE, {"rejected": [*turn(40), *turn(40)]}, "'rejected' has the messages of chosen and others"),
        (WHOLE, {"chosen": [*turn(40), turn(0)[1]], "rejected": [*turn(40), NO]}, "or chosen follows an answer"),
        (LISTS, {"chosen": turn(40)}, "'rejected' or chosen has a message that is no answer"),
        (LISTS, {"prompt": turn(40)}, "'rejected' or chosen follows an answer of the assistant"),
        (TEXTS, {"chosen": "What is 40? 40", "rejected": "What is 40? No"}, "repeats the prompt, and so does chosen"),
        (WHOLE, {"chosen": turn(40)[1:], "rejected": [NO]}, "has no message before the answer, and there is no column"),
    ],
)
def test_a_wrong_preference_is_a_wrong_row(rows, wrong, problem, ending, run, tmp_path):
    file = write([{**row, **wrong} if i == 40 else row for i, row in enumerate(rows)], tmp_path / f"data.{ending}")
    with pytest.raises(ValueError, match=f"row 4[12] of .*{problem}"):
        run(file)
    if problem == "'rejected' is equal to chosen":
        found = splits(tmp_path, run(file, on_bad_row="skip"))
        assert sum(map(len, found.values())) == len(ROWS) - 1


def test_texts_beside_whole_conversations_are_refused_with_what_to_do(run, tmp_path):
    file = write([{"prompt": "x", **row} for row in WHOLE], tmp_path / "data.jsonl")
    with pytest.raises(ValueError, match=r"or leave prompt out \(drop_columns\) if chosen and rejected are whole"):
        run(file)
    assert [column.name for column in run(file, drop_columns=("prompt",))["train"].columns] == ["chosen", "rejected"]
    texts = write([{"chosen": "a", "rejected": "b"}] * 60, tmp_path / "texts.jsonl")
    with pytest.raises(ValueError, match="'chosen' is 'a', and no list of messages"):
        run(texts)


def test_rows_of_another_dataset_are_checked_as_preferences(run, tmp_path):
    like = run(write(WHOLE, tmp_path / "first.jsonl"), "first")["train"]
    file = write([{"chosen": GOOD, "rejected": GOOD}] * 60, tmp_path / "second.jsonl")
    with pytest.raises(ValueError, match="'rejected' is equal to chosen"):
        run(file, like=like, label_column="")


def test_a_label_makes_them_other_columns(run, tmp_path):
    rows = [{"chosen": "a", "rejected": "a", "label": "xy"[i % 2]} for i in ROWS]
    assert run(write(rows, tmp_path / "data.jsonl"))["train"].rows
