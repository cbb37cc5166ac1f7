"""Rows for language models as trl takes them."""

import json
from types import SimpleNamespace

import pytest

from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.prepare import prepare
from kfp_distributed.trainers.language_rows import language_rows

QUESTION, ANSWER = {"role": "user", "content": "What?"}, {"role": "assistant", "content": "That."}
OTHER = {"role": "assistant", "content": "This."}
SHARED = [{"from": "human", "value": "What?"}, {"from": "gpt", "value": "That."}]
CASES = {
    "messages": ({"messages": [QUESTION, ANSWER]}, {"messages": [QUESTION, ANSWER]}),
    "ShareGPT": ({"conversations": SHARED, "id": 1}, {"messages": [QUESTION, ANSWER]}),
    "texts": ({"prompt": "What?", "completion": " That."}, {"prompt": "What?", "completion": " That."}),
    "lists": ({"prompt": [QUESTION], "completion": [ANSWER]}, {"prompt": [QUESTION], "completion": [ANSWER]}),
    "Alpaca": (
        {"instruction": "What?", "output": "That."},
        {"prompt": [QUESTION], "completion": [ANSWER]},
    ),
    "Alpaca with an input": (
        {"instruction": "Add", "input": "1, 2", "output": "That."},
        {"prompt": [{"role": "user", "content": "Add\n\n1, 2"}], "completion": [ANSWER]},
    ),
    "preferences": (
        {"prompt": "What?", "chosen": "That.", "rejected": "This."},
        {"prompt": "What?", "chosen": "That.", "rejected": "This."},
    ),
    "whole preferences": (
        {"chosen": [QUESTION, ANSWER], "rejected": [QUESTION, OTHER], "score": 1},
        {"prompt": [QUESTION], "chosen": [ANSWER], "rejected": [OTHER]},
    ),
    "text": ({"text": "What? That."}, {"text": "What? That."}),
    "tools": (
        {"messages": [QUESTION, ANSWER], "tools": [{"name": "f"}]},
        {"messages": [QUESTION, ANSWER], "tools": [{"name": "f"}]},
    ),
    "tools as text": (
        {"conversations": SHARED, "tools": '[{"name": "f"}]'},
        {"messages": [QUESTION, ANSWER], "tools": [{"name": "f"}]},
    ),
    "no tools": (
        {"prompt": [QUESTION], "completion": [ANSWER], "tools": []},
        {"prompt": [QUESTION], "completion": [ANSWER], "tools": None},
    ),
}
DECLARED = {"score": "number", "source": "text", "shown": "list<object>"}


@pytest.fixture
def prepared(tmp_path):
    """A function that prepares 20 equal rows and returns the folder of the training dataset."""

    def prepare_rows(row, **options):
        (tmp_path / "data.jsonl").write_text(f"{json.dumps(row)}\n" * 20)
        names = ("train", "validation", "test")
        outputs = {n: SimpleNamespace(path=str(tmp_path / n), uri=str(tmp_path / n), metadata={}) for n in names}
        prepare(str(tmp_path / "data.jsonl"), Options(**options), outputs, str(tmp_path / "overview.html"), {})
        return tmp_path / "train"

    return prepare_rows


@pytest.mark.parametrize("form", CASES)
def test_rows_of_each_form(form, prepared):
    row, expected = CASES[form]
    assert language_rows(str(prepared(row))) == [expected] * 16


@pytest.mark.parametrize("form", ["messages", "ShareGPT", "texts", "Alpaca with an input", "text"])
def test_declared_columns_are_returned_too(form, prepared):
    row, expected = CASES[form]
    others = {"score": 2.5, "source": "web", "shown": [{"a": 1}]}
    assert language_rows(str(prepared({**row, **others}, columns=DECLARED))) == [{**expected, **others}] * 16


@pytest.mark.parametrize("form", ["ShareGPT", "Alpaca with an input"])
def test_declared_columns_of_another_form_do_not_take_the_place_of_what_was_checked(form, prepared):
    row, expected = CASES[form]
    others = {"completion": "zzz"} if form == "Alpaca with an input" else {"prompt": "", "completion": "zzz"}
    rows = language_rows(str(prepared({**row, **others}, columns=dict.fromkeys(others, "text"))))
    assert [{name: found[name] for name in expected} for found in rows] == [expected] * 16


def test_other_columns_are_refused(prepared):
    folder = prepared({"a": "x", "b": "y"}, label_column="")
    with pytest.raises(ValueError, match=r"data\.jsonl has the columns \['a', 'b'\]; allowed are messages, "):
        language_rows(str(folder))
