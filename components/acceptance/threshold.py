"""Decides by one metric whether a model is good enough (pure)."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from kfp_distributed.storage.dataset import Label, Task

Direction = Literal["at least", "at most"]
"""Whether a good value is high or low."""

DIRECTIONS: Mapping[Task, Mapping[str, Direction]] = {
    "classification": {
        "accuracy": "at least",
        "macro_f1": "at least",
        "roc_auc": "at least",
        "average_precision": "at least",
        "loss": "at most",
        "calibration_error": "at most",
    },
    "regression": {"r2": "at least", "mae": "at most", "rmse": "at most"},
    "none": {},
}
"""The metrics of each task that a bound can be set for. The first one of a task is its default."""

OF_TEXTS: Mapping[str, Direction] = {"loss": "at most", "perplexity": "at most", "exact_match": "at least"}
"""The same of language models."""


class Verdict(NamedTuple):
    """Whether a model is good enough.

    Attributes:
        score: Value of the metric.
        is_good_enough: Whether the value reaches the bound.
    """

    score: float
    is_good_enough: bool


@dataclass(frozen=True)
class Threshold:
    """A metric and the value that it must reach.

    Attributes:
        metric: Name of the metric.
        direction: Whether `bound` is the lowest or the highest good value.
        bound: The value; None if every value is good enough.
    """

    metric: str
    direction: Direction
    bound: float | None = None

    @classmethod
    def of_label(cls, label: Label, metric: str = "", bound: float | None = None) -> "Threshold":
        """Return the threshold for a dataset.

        Args:
            label: Label of the dataset.
            metric: Name of the metric: one of DIRECTIONS, or "precision_CLASS" or "recall_CLASS" of a class. Default:
                "", which means the default of the task.
            bound: The value to reach. Default: None.

        Raises:
            ValueError: The task of the label has no such metric, or the bound is not finite.
        """
        directions = DIRECTIONS[label.task]
        of_classes = {f"{score}_{name}" for score in ("precision", "recall") for name in label.classes}
        classes = ", precision_CLASS and recall_CLASS of each class" if label.classes else ""
        if metric in of_classes:
            directions = {**directions, metric: "at least"}
        return cls._of(directions, metric, bound, f"the task {label.task!r} (label {label.name!r})", classes)

    @classmethod
    def of_texts(cls, metric: str = "", bound: float | None = None, tasks: Collection[str] = ()) -> "Threshold":
        """Return the threshold for a language model. See `of_label`.

        Args:
            metric: One of OF_TEXTS, or TASK/METRIC of a task. Default: "", the first of OF_TEXTS.
            bound: The value to reach. Default: None.
            tasks: Names of other tasks that are scored. Default: none.
        """
        directions, others = OF_TEXTS, f", and TASK/METRIC of {', '.join(tasks)}" if tasks else ""
        if "/" in metric and metric.partition("/")[0] in tasks:
            directions = {**OF_TEXTS, metric: "at least"}
        threshold = cls._of(directions, metric, bound, "language models", others)
        if metric == "exact_match" and bound is not None and bound > 1:
            raise ValueError(f"bound {bound} of exact_match is more than 1, which no model reaches: set a fraction")
        return threshold

    @classmethod
    def _of(
        cls, directions: Mapping[str, Direction], metric: str, bound: float | None, what: str, others: str = ""
    ) -> "Threshold":
        metric = metric or next(iter(directions))
        if metric not in directions:
            raise ValueError(
                f"metric {metric!r} is not a metric of {what}: allowed are {', '.join(directions)}{others}"
            )
        if bound is not None and not (isinstance(bound, int | float) and math.isfinite(bound)):
            raise ValueError(f"bound is {bound!r}, no finite number: set one, or None for no bound")
        return cls(metric, directions[metric], bound)

    def judge(self, values: Mapping[str, float]) -> Verdict:
        """Compare the value of the metric with the bound.

        Args:
            values: All defined metrics by name.

        Raises:
            ValueError: The metric is not defined for the dataset, or not finite.
        """
        if self.metric not in values:
            known = (*DIRECTIONS.values(), OF_TEXTS)
            defined = [name for name in values if "/" in name or any(name in names for names in known)]
            raise ValueError(
                f"the metric {self.metric!r} is undefined for the rows of this dataset: pass another one as `metric`, "
                f"such as {', '.join(defined)}" + ", or evaluate more rows" * ("/" not in self.metric)
            )
        score = float(values[self.metric])
        if not math.isfinite(score):
            # Kubeflow stores the score as JSON.
            raise ValueError(f"the metric {self.metric!r} is {score}, which is no score: pass another one as `metric`")
        if self.bound is None:
            return Verdict(score, True)
        return Verdict(score, score >= self.bound if self.direction == "at least" else score <= self.bound)

    def describe(self, verdict: Verdict) -> str:
        """Return the line of the log that says whether the model is good enough."""
        if self.bound is None:
            return f"score={verdict.score:.6g} ({self.metric}), no bound is set"
        result = "good enough" if verdict.is_good_enough else "not good enough"
        return f"score={verdict.score:.6g} ({self.metric}) is {result}: the bound is {self.direction} {self.bound:.6g}"
