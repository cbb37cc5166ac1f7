"""The file of what a fine-tuning tells besides its metrics: the tokens of its rows, and answers to held-out prompts.

Its form is {"tokens": TEXT, "answers": [{"prompt": TEXT, "reference": TEXT, "base": TEXT, "tuned": TEXT}, ...]}.
"""

import json
from pathlib import Path
from typing import NamedTuple

from kfp_distributed.storage.files import unfinished_file
from kfp_distributed.trainers.runtime.job_description import FINE_TUNING

MAX_PROMPTS = 20
"""Number of held-out prompts that are answered, at most."""

MAX_CHARACTERS = 2000
"""Number of characters that are kept of a text: of a prompt the last, of others the first."""


class HeldOutAnswer(NamedTuple):
    """A prompt that the training has not seen, and what the models answer.

    Attributes:
        prompt: The prompt.
        reference: The answer of the dataset.
        base: Answer of the model before the training.
        tuned: Answer of the model after the training.
    """

    prompt: str
    reference: str
    base: str
    tuned: str


class FineTuning(NamedTuple):
    """Content of the file.

    Attributes:
        tokens: How many tokens the training rows have. Default: "", unknown.
        answers: Answers to held-out prompts. Default: (), none.
    """

    tokens: str = ""
    answers: tuple[HeldOutAnswer, ...] = ()


def write_fine_tuning(folder: Path, content: FineTuning) -> None:
    """Write the file into the folder metrics_dir. Texts are cut to `MAX_CHARACTERS`."""
    answers = [_cut(answer)._asdict() for answer in content.answers]
    with unfinished_file(folder / FINE_TUNING) as stream:
        stream.write(json.dumps({"tokens": _first(content.tokens), "answers": answers}, indent=1).encode())


def parse_fine_tuning(content: bytes) -> FineTuning:
    """Return the content of a file: at most `MAX_PROMPTS` answers, because a program may have written it.

    Raises:
        KeyError, TypeError, ValueError: The file has another form.
    """
    known = json.loads(content)
    rows = known["answers"][:MAX_PROMPTS]
    answers = tuple(_cut(HeldOutAnswer(*(str(row[name]) for name in HeldOutAnswer._fields))) for row in rows)
    return FineTuning(_first(str(known["tokens"])), answers)


def _cut(answer: HeldOutAnswer) -> HeldOutAnswer:
    prompt, *answers = answer
    if len(prompt) > MAX_CHARACTERS:  # The question is at its end.
        prompt = f"…{prompt[1 - MAX_CHARACTERS :]}"
    return HeldOutAnswer(prompt, *map(_first, answers))


def _first(text: str) -> str:
    return f"{text[: MAX_CHARACTERS - 1]}…" if len(text) > MAX_CHARACTERS else text
