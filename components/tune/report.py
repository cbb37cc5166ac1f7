"""The HTML report of a search: its history, the curves of its trials, and which parameters matter (pure)."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState

from kfp_distributed.components.train.describe.durations import format_seconds
from kfp_distributed.components.tune.search_space import Choices, Range, Space
from kfp_distributed.components.tune.study import CAUSE, Search, stored_value
from kfp_distributed.reports.charts import Chart, Mark, bar_chart, line_chart
from kfp_distributed.reports.palette import SERIES
from kfp_distributed.reports.parallel_coordinates import ParallelAxis, ParallelLine, parallel_chart
from kfp_distributed.reports.parts import Table

MAX_ROWS = 500
"""Trials in the table, the best ones and then the latest."""

MAX_CURVES = 200
"""Trials whose curves are drawn, and whose parameters are: the best ones and then the latest."""

_MAX_POINTS = 20_000
_MAX_TEXT = 300
_LEAST_COMPLETE = 4
"""Complete trials from which the importance of parameters is estimated."""

_STATES = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
}
_QUARTERS = dict(
    zip(("last quarter", "third quarter", "second quarter", "best quarter"), ("#8a8f98", *SERIES[6::-3]), strict=True)
)
"""Colors of trials by their rank."""


class SearchPage(NamedTuple):
    """Content of the report.

    Attributes:
        title: Name of the search.
        succeeded: Whether it has a best trial.
        outcome: How it ended, as a few words.
        cause: Why it failed; "" if it succeeded.
        facts: Label and value of its most important numbers.
        history: The values of the trials and the best one so far, by the number of the trial.
        curves: The values of the metric after each epoch.
        parallel: The parameters and the values of the trials.
        importance: Which part of the differences of the values each parameter explains; None if it is not known.
        trials: One row for each trial, the best one first.
    """

    title: str
    succeeded: bool
    outcome: str
    cause: str
    facts: tuple[tuple[str, str], ...]
    history: Chart
    curves: Chart
    parallel: Chart
    importance: Chart | None
    trials: Table


def search_page(
    title: str,
    metric: str,
    search: Search,
    space: Space,
    trials: Sequence[FrozenTrial],
    reports: Mapping[int, str],
    cause: str = "",
) -> SearchPage:
    """Return the content of the report.

    Args:
        title: Name of the search.
        metric: Name of the metric.
        search: How values were searched.
        space: The search space.
        trials: All trials.
        reports: Addresses of the reports of trials, by number.
        cause: Why the search failed. Default: "", it has not.
    """
    sign = 1 if search.direction == "minimize" else -1
    ranked = sorted(trials, key=lambda trial: sign * value if (value := _value(trial)) is not None else math.inf)
    complete = [trial for trial in ranked if _value(trial) is not None]
    best = complete[0] if complete else None
    states = Counter(_STATES[trial.state] for trial in trials)
    facts = [
        ("metric", f"{metric} ({search.direction})"),
        ("sampler", search.sampler),
        ("pruner", search.pruner),
        ("trials", ", ".join(f"{states[state]} {state}" for state in _STATES.values() if states[state]) or "0"),
    ]
    if best:
        facts += [("best trial", str(best.number)), ("best value", _written(best.value))]
        facts += [(name, _text(best.params[name])) for name in space if name in best.params]
    shown = [*ranked[:MAX_CURVES]]
    return SearchPage(
        title=title,
        succeeded=not cause,
        outcome="failed" if cause else f"best {metric} {_written(best.value)}" if best else "no trial is complete",
        cause=cause,
        facts=tuple(facts),
        history=_history(metric, search, complete),
        curves=_curves(metric, shown, best),
        parallel=_parallel(metric, space, complete[:MAX_CURVES], search),
        importance=_importance(search, complete, trials),
        trials=_table(metric, space, ranked, reports),
    )


def _value(trial: FrozenTrial) -> float | None:
    return trial.value if trial.state == TrialState.COMPLETE else None


def _history(metric: str, search: Search, complete: Sequence[FrozenTrial]) -> Chart:
    values = sorted((trial.number, float(trial.value or 0)) for trial in complete)
    numbers = [number for number, _ in values]
    best = accumulate((value for _, value in values), min if search.direction == "minimize" else max)
    marks = [Mark(complete[0].number, float(complete[0].value or 0), "best trial")] if complete else []
    series = {metric: values, "best so far": [*zip(numbers, best, strict=True)]}
    return line_chart("History", "trial", metric, series, marks, dashed=["best so far"])


def _curves(metric: str, trials: Sequence[FrozenTrial], best: FrozenTrial | None) -> Chart:
    curves = {f"trial {trial.number}": sorted(trial.intermediate_values.items()) for trial in trials}
    groups = {f"trial {trial.number}": _STATES[trial.state] for trial in trials}
    marks = []
    if best and best.intermediate_values and math.isfinite(last := max(best.intermediate_values.items())[1]):
        marks = [Mark(max(best.intermediate_values), last, "best trial")]
    return line_chart("Trials", "epoch", metric, curves, marks, groups=groups, max_points=_MAX_POINTS)


def _parallel(metric: str, space: Space, complete: Sequence[FrozenTrial], search: Search) -> Chart:
    names = [name for name in space if any(name in trial.params for trial in complete)]
    values = [float(trial.value or 0) for trial in complete] or [0.0]
    low, high = min(values), max(values)
    axes = [ParallelAxis(name, _ticks(space[name])) for name in names]
    axes.append(ParallelAxis(metric, ((0.0, _written(low)), *(((1.0, _written(high)),) if high > low else ()))))
    lines = []
    for rank, trial in enumerate(complete):
        heights = [_height(space[name], trial.params[name]) for name in names]
        heights.append((float(trial.value or 0) - low) / (high - low) if high > low else 0.0)
        texts = [*(_text(trial.params[name]) for name in names), _written(trial.value)]
        quarter = [*_QUARTERS][3 - 4 * rank // len(complete)]
        lines.append(ParallelLine(str(trial.number), quarter, heights, texts))
    colors = {name: _QUARTERS[name] for name in [*_QUARTERS][::-1] if any(line.group == name for line in lines)}
    return parallel_chart("Parameters", "trial", axes, lines[::-1], colors)


def _height(entry: Range | Choices, stored: Any) -> float:  # noqa: ANN401  (any JSON)
    """Return the height of a value at the axis of its parameter, from 0 to 1."""
    if isinstance(entry, Choices):
        values = [stored_value(value) for value in entry.values]
        return values.index(stored) / (len(values) - 1)
    scale = math.log if entry.log else float
    low, high = scale(entry.low), scale(entry.high)
    return (scale(stored) - low) / (high - low)


def _ticks(entry: Range | Choices) -> list[tuple[float, str]]:
    return [(_height(entry, stored_value(value)), _text(value)) for value in entry.corners]


def _importance(search: Search, complete: Sequence[FrozenTrial], trials: Sequence[FrozenTrial]) -> Chart | None:
    if len(complete) < _LEAST_COMPLETE or len({float(trial.value or 0) for trial in complete}) == 1:
        return None
    study = optuna.create_study(direction=search.direction)
    study.add_trials(trial for trial in trials if trial.state != TrialState.RUNNING)
    found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    if len(found) < 2:
        return None
    return bar_chart("Importance of the parameters", [*found], {"importance": [*found.values()]}, x="parameter", y="")


def _table(metric: str, space: Space, ranked: Sequence[FrozenTrial], reports: Mapping[int, str]) -> Table:
    columns = ("trial", "state", metric, "epochs", "duration", *space, "cause", "report")
    rows = []
    for trial in ranked[:MAX_ROWS]:
        epochs = max(trial.intermediate_values, default=0)
        value = trial.value if trial.state == TrialState.COMPLETE else trial.intermediate_values.get(epochs)
        seconds = trial.duration.total_seconds() if trial.duration else None
        rows.append(
            (
                str(trial.number),
                _STATES[trial.state],
                _written(value),
                str(epochs),
                "" if seconds is None else format_seconds(seconds),
                *(_text(trial.params[name]) if name in trial.params else "" for name in space),
                _text(trial.user_attrs.get(CAUSE, "")),
                reports.get(trial.number, ""),
            )
        )
    return Table(columns, tuple(rows), len(ranked))


def _written(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _text(value: Any) -> str:  # noqa: ANN401  (any JSON)
    # KFP passes whole numbers in dicts as floats.
    text = f"{value:.6g}" if isinstance(value, float) else re.sub(r"(\d)\.0\b", r"\1", str(value))
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
