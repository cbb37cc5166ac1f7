import json

import pytest

from kfp_distributed.trainers.language_training.held_out_prompts import HeldOutPrompt, held_out_prompts
from kfp_distributed.trainers.runtime.outputs.fine_tuning_file import (
    MAX_CHARACTERS,
    MAX_PROMPTS,
    FineTuning,
    HeldOutAnswer,
    parse_fine_tuning,
    write_fine_tuning,
)

SYSTEM, ASKED = {"role": "system", "content": "Add."}, {"role": "user", "content": "1 + 1?"}
ANSWER, THANKS = {"role": "assistant", "content": "2"}, {"role": "user", "content": "Thanks"}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "füge"}}]}
TOOLS = [{"type": "function"}]


@pytest.mark.parametrize(
    ("row", "prompt", "text"),
    [
        (
            {"messages": [SYSTEM, ASKED, ANSWER]},
            HeldOutPrompt([SYSTEM, ASKED], None, "2"),
            "system: Add.\nuser: 1 + 1?",
        ),
        (
            {"messages": [ASKED, ANSWER, ASKED, CALL, THANKS], "tools": TOOLS},
            HeldOutPrompt([ASKED, ANSWER, ASKED], TOOLS, '[{"function": {"name": "füge"}}]'),
            "user: 1 + 1?\nassistant: 2\nuser: 1 + 1?",
        ),
        ({"prompt": "1 + 1 =", "completion": " 2"}, HeldOutPrompt("1 + 1 =", None, "2"), "1 + 1 ="),
        (
            {"prompt": [ASKED], "chosen": [ANSWER], "rejected": [THANKS]},
            HeldOutPrompt([ASKED], None, "2"),
            "user: 1 + 1?",
        ),
        ({"prompt": [ASKED], "completion": [ANSWER]}, HeldOutPrompt([ASKED], None, "2"), "user: 1 + 1?"),
        (
            {"prompt": [ASKED], "completion": [ANSWER, THANKS]},
            HeldOutPrompt([ASKED], None, "assistant: 2\nuser: Thanks"),
            "user: 1 + 1?",
        ),
    ],
)
def test_the_prompt_and_the_reference_of_a_row(row, prompt, text):
    (found,) = held_out_prompts([row])
    assert (found, found.text) == (prompt, text)


@pytest.mark.parametrize("row", [{"text": "1 + 1 = 2"}, {"messages": [ANSWER]}, {"messages": [ASKED]}])
def test_a_row_without_a_prompt_has_none(row):
    assert held_out_prompts([row]) == []


def test_the_file_has_the_end_of_a_long_prompt_and_the_begin_of_a_long_answer(tmp_path):
    long = HeldOutAnswer("a" + "b" * MAX_CHARACTERS, "ä", "c" * MAX_CHARACTERS, "c" * MAX_CHARACTERS + "d")
    write_fine_tuning(tmp_path, FineTuning("2 rows", (long,)))
    tokens, (found,) = parse_fine_tuning((tmp_path / "fine_tuning.json").read_bytes())
    assert tokens == "2 rows"
    kept = MAX_CHARACTERS - 1
    assert found == ("…" + "b" * kept, "ä", "c" * MAX_CHARACTERS, "c" * kept + "…")


def test_of_a_file_of_a_program_so_many_rows_are_read():
    rows = [dict.fromkeys(HeldOutAnswer._fields, number) for number in range(2 * MAX_PROMPTS)]
    content = {"tokens": "", "answers": rows}
    assert parse_fine_tuning(json.dumps(content).encode()).answers[-1] == HeldOutAnswer(*[str(MAX_PROMPTS - 1)] * 4)
