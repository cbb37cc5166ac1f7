"""The files of the evaluation of a language model: its scores, and its answers to prompts of the rows.

evaluation.json is {"rows": 100, "tokens": 5120, "loss": 1.25, "perplexity": 3.49, "prompts": 50, "exact_match": 0.42}.
The last two are missing if no prompt was answered. Each line of answers.jsonl is
{"prompt": TEXT, "reference": TEXT, "answer": TEXT, "is_exact": false}.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

SCORES = "evaluation.json"
ANSWERS = "answers.jsonl"


class ScoredAnswer(NamedTuple):
    """A prompt and the answer of the model to it.

    Attributes:
        prompt: The prompt.
        reference: The answer of the row.
        answer: The answer of the model.
        is_exact: Whether both are equal, without white space at their ends.
    """

    prompt: str
    reference: str
    answer: str
    is_exact: bool


def write_scores(folder: Path, scores: Mapping[str, float], answers: Sequence[ScoredAnswer]) -> None:
    """Write the files.

    Args:
        folder: An existing folder.
        scores: The scores by name.
        answers: The answers in the order of the rows.
    """
    lines = [json.dumps(answer._asdict(), ensure_ascii=False) for answer in answers]
    (folder / ANSWERS).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / SCORES).write_text(json.dumps(scores, indent=1))


def parse_scores(scores: bytes, answers: bytes) -> tuple[dict[str, float], list[ScoredAnswer]]:
    """Return the content of the files.

    Args:
        scores: Content of evaluation.json.
        answers: Content of answers.jsonl.
    """
    return json.loads(scores), [ScoredAnswer(**json.loads(line)) for line in answers.splitlines()]
