"""The line that a replica prints at the end of each epoch and the train step reads. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_LINE = re.compile(r"epoch (\d{1,9})/(\d{1,9})((?: \w+=-?(?:\d+\.\d+|nan|inf))*)")


@dataclass(frozen=True)
class Progress:
    """Progress of a training.

    Attributes:
        epoch: Epochs that are done.
        epochs: Epochs in total.
        metrics: Metrics of the last epoch.
    """

    epoch: int
    epochs: int
    metrics: Mapping[str, float] = field(default_factory=dict)


def format_progress(epoch: int, epochs: int, metrics: Mapping[str, float]) -> str:
    """Return the progress line that `parse_progress` parses, such as "epoch 3/6 loss=0.1234 accuracy=0.9812"."""
    return f"epoch {epoch}/{epochs}" + "".join(f" {name}={value:.4f}" for name, value in metrics.items())


def parse_progress(line: str) -> Progress | None:
    """Parse a line of `format_progress`. Return None for a line of another form."""
    match = _LINE.fullmatch(line.strip())
    if match is None:
        return None
    pairs = (pair.split("=") for pair in match[3].split())
    return Progress(int(match[1]), int(match[2]), {name: float(value) for name, value in pairs})
