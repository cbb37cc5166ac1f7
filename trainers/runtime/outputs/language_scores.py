"""The files of the evaluation of a language model: its scores, and its answers to prompts of the rows.

evaluation.json is {"rows": 100, "tokens": 5120, "loss": 1.25, "perplexity": 3.49, "prompts": 50,
"longer_references": 3, "exact_match": 0.42}. The rows are those with tokens that count. The last three are missing if
no prompt was answered. Scores of tasks of lm-evaluation-harness have names such as
"arc/acc". "lower_is_better" is a list of the scores of which low ones are good. Each line of answers.jsonl is
{"prompt": TEXT, "reference": TEXT, "answer": TEXT, "is_exact": false}.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

SCORES = "evaluation.json"
ANSWERS = "answers.jsonl"

_LOWER = "lower_is_better"
_OWN_LOWER = ("loss", "perplexity")


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


def write_scores(
    folder: Path, scores: Mapping[str, float], answers: Sequence[ScoredAnswer], lower_is_better: Sequence[str] = ()
) -> None:
    """Write the files.

    Args:
        folder: An existing folder.
        scores: The scores by name.
        answers: The answers in the order of the rows.
        lower_is_better: Names of scores of other tasks of which low ones are good. Default: none.
    """
    lines = [json.dumps(answer._asdict(), ensure_ascii=False) for answer in answers]
    (folder / ANSWERS).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / SCORES).write_text(json.dumps({**scores, _LOWER: [*_OWN_LOWER, *lower_is_better]}, indent=1))


def parse_scores(scores: bytes, answers: bytes) -> tuple[dict[str, float], list[ScoredAnswer], list[str]]:
    """Return the content of the files: the scores, the answers, and the scores of which low ones are good.

    Args:
        scores: Content of evaluation.json.
        answers: Content of answers.jsonl.
    """
    values = json.loads(scores)
    lower = values.pop(_LOWER)
    return values, [ScoredAnswer(**json.loads(line)) for line in answers.splitlines()], lower
