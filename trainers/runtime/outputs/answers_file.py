"""The file of the answers to held-out prompts, before and after a fine-tuning.

Its form is [{"prompt": TEXT, "reference": TEXT, "base": TEXT, "tuned": TEXT}, ...].
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kfp_distributed.storage.files import unfinished_file
from kfp_distributed.trainers.runtime.job_description import ANSWERS

MAX_PROMPTS = 20
"""Number of held-out prompts that are answered, at most."""

MAX_CHARACTERS = 2000
"""Number of characters that are kept of a text: of a prompt the last, of an answer the first."""


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


def write_answers(folder: Path, answers: Sequence[HeldOutAnswer]) -> None:
    """Write the file into the folder metrics_dir. Texts are cut to `MAX_CHARACTERS`."""
    with unfinished_file(folder / ANSWERS) as stream:
        stream.write(json.dumps([_cut(answer)._asdict() for answer in answers], indent=1).encode())


def parse_answers(content: bytes) -> tuple[HeldOutAnswer, ...]:
    """Return the answers of a file: at most `MAX_PROMPTS`, because a program may have written it.

    Raises:
        KeyError, TypeError, ValueError: The file has another form.
    """
    rows = json.loads(content)[:MAX_PROMPTS]
    return tuple(_cut(HeldOutAnswer(*(str(row[name]) for name in HeldOutAnswer._fields))) for row in rows)


def _cut(answer: HeldOutAnswer) -> HeldOutAnswer:
    prompt, *answers = answer
    if len(prompt) > MAX_CHARACTERS:  # The question is at its end.
        prompt = f"…{prompt[1 - MAX_CHARACTERS :]}"
    return HeldOutAnswer(
        prompt, *(f"{text[: MAX_CHARACTERS - 1]}…" if len(text) > MAX_CHARACTERS else text for text in answers)
    )
