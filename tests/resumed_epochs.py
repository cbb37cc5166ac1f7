"""The epochs that a training prints that was killed."""

from collections.abc import Sequence
from itertools import pairwise


def assert_resumed(printed: Sequence[int], epochs: int, kills: int = 1) -> None:
    """Assert that all epochs were printed, and that a kill repeats its last epoch at most.

    The checkpoint of an epoch is uploaded in the background after its line is printed. A process that is killed loses
    one that is not stored yet.
    """
    assert sorted(set(printed)) == list(range(1, epochs + 1)), printed
    steps = [after - before for before, after in pairwise(printed)]
    assert set(steps) <= {0, 1}, f"resumed at an earlier epoch: {printed}"
    assert steps.count(0) <= kills, printed
