"""The page with the results of a soak."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.soak.judge import Observed
from cluster.soak.plan import Plan

SUCCEEDED, NAMED, WRONG, NONE = "succeeded", "failed with the fault named", "violated an invariant", "not disturbed"


@dataclass(frozen=True)
class Result:
    """A training, what was observed of it, and the violations of the invariants."""

    plan: Plan
    observed: Observed
    violations: tuple[str, ...]

    @property
    def outcome(self) -> str:
        """How the training ended."""
        if self.violations:
            return WRONG
        return SUCCEEDED if self.observed.succeeded else NAMED


def write_page(file: Path, results: Sequence[Result]) -> None:
    """Write the page."""
    raise NotImplementedError
