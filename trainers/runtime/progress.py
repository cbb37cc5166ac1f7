"""The one line that a training replica prints at the end of each epoch, read back."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_LINE = re.compile(r"epoch (\d+)/(\d+)((?: \w+=-?(?:\d+\.\d+|nan|inf))*)")


@dataclass(frozen=True)
class Progress:
    """Where a training stands: `epoch` of `epochs` is done (1 is the first), with these metrics."""

    epoch: int
    epochs: int
    metrics: Mapping[str, float] = field(default_factory=dict)


def parse_progress(line: str) -> Progress | None:
    """Return what a line says, or None where it is no such line as `sync.format_progress` makes."""
    match = _LINE.fullmatch(line.strip())
    if match is None:
        return None
    pairs = (pair.split("=") for pair in match[3].split())
    return Progress(int(match[1]), int(match[2]), {name: float(value) for name, value in pairs})
