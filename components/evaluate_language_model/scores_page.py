"""The HTML report of the evaluation of a language model (pure)."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kfp_distributed.library.address_secrets import without_secrets
from kfp_distributed.reports.parts import Table
from kfp_distributed.storage.dataset import DatasetManifest
from kfp_distributed.trainers.runtime.outputs.fine_tuning_file import MAX_CHARACTERS
from kfp_distributed.trainers.runtime.outputs.language_scores import ScoredAnswer

_ANSWERS = 50
"""Answers that the page shows, at most."""


class ScoresPage(NamedTuple):
    """Content of the report.

    Attributes:
        title: What was evaluated.
        facts: The model, the verdict, and names and values of the scores.
        answers: One row for each answer that is shown.
        shown: Which answers are shown, as a sentence; "" if none was asked for.
        warning: Why the scores may not be those of new rows; "" for no reason.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    answers: Table
    shown: str
    warning: str


def scores_page(
    model_uri: str,
    dataset: DatasetManifest,
    scores: Mapping[str, float],
    answers: Sequence[ScoredAnswer],
    verdict: str,
    warning: str = "",
) -> ScoresPage:
    """Return the content of the report.

    Args:
        model_uri: Address of the model.
        dataset: Manifest of the dataset.
        scores: The scores by name.
        answers: All answers. The first ones that differ from the references are shown, and then others.
        verdict: Metric, bound, and whether the model is good enough, as a sentence.
        warning: Why the scores may not be those of new rows. Default: "", for no reason.
    """
    shown = sorted(answers, key=lambda answer: answer.is_exact)[:_ANSWERS]
    rows = tuple(
        (*map(_cut, (answer.prompt, answer.reference, answer.answer)), "yes" if answer.is_exact else "no")
        for answer in shown
    )
    facts = (
        ("model", without_secrets(model_uri)),
        ("verdict", verdict),
        *((name.replace("_", " "), _written(scores[name])) for name in scores),
    )
    counted = (
        f"{len(shown):,} of {len(answers):,} answers, those that differ from the reference first." if answers else ""
    )
    table = Table(("prompt", "reference", "answer", "exact match"), rows)
    return ScoresPage(f"Evaluation of a language model on {dataset.split}", facts, table, counted, warning)


def _written(score: float) -> str:
    return f"{score:,}" if isinstance(score, int) else f"{score:.4g}"


def _cut(text: str) -> str:
    return f"{text[: MAX_CHARACTERS - 1]}…" if len(text) > MAX_CHARACTERS else text
