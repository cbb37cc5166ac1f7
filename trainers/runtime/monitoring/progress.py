"""The line that a replica prints at the end of each epoch, or of a step, and the train step reads. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

_LINE = re.compile(r"(epoch|step) (\d{1,9})/(\d{1,9})((?: \w+=-?(?:\d+\.\d+|nan|inf))*)")


@dataclass(frozen=True)
class Progress:
    """Progress of a training.

    Attributes:
        done: Epochs or steps that are done.
        total: Epochs or steps in total; 0 if it is not known.
        metrics: Metrics of the last one.
        unit: What is counted. Default: "epoch".
    """

    done: int
    total: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    unit: Literal["epoch", "step"] = "epoch"

    def __str__(self) -> str:
        """Return what is done, such as "epoch 3/6", or "step 3" if the total is not known."""
        return f"{self.unit} {self.done}" + (f"/{self.total}" if self.total else "")


def format_progress(progress: Progress) -> str:
    """Return the progress line that `parse_progress` parses, such as "epoch 3/6 loss=0.1234 accuracy=0.9812"."""
    # The step would not read a line with another name.
    named = ((name, value) for name, value in progress.metrics.items() if re.fullmatch(r"\w+", name))
    # Of a learning rate such as 0.00002, four digits after the point would show nothing.
    metrics = "".join(f" {name}={value:.{8 if 0 < abs(value) < 0.001 else 4}f}" for name, value in named)
    return f"{progress.unit} {progress.done}/{progress.total}{metrics}"


def parse_progress(line: str) -> Progress | None:
    """Parse a line of `format_progress`. Return None for a line of another form."""
    match = _LINE.fullmatch(line.strip())
    if match is None:
        return None
    unit, done, total, metrics = match.groups()
    pairs = (pair.split("=") for pair in metrics.split())
    # The pattern allows two units.
    return Progress(int(done), int(total), {name: float(value) for name, value in pairs}, unit)  # type: ignore[arg-type]
