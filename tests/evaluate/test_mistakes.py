"""The choice of the worst mistakes."""

import numpy as np

from kfp_distributed.components.evaluate.scoring.mistakes import Mistake, WorstMistakes


def test_the_worst_mistakes_of_all_batches_are_kept():
    features = np.arange(12, dtype=np.float32).reshape(6, 2)
    labels = np.array([0, 1, 0, 1, 0, 1])
    # Wrong are the rows 0, 2, 3 and 5.
    probabilities = np.array([[0.25, 0.75], [0, 1], [0.125, 0.875], [0.75, 0.25], [1, 0], [0.625, 0.375]])
    worst = WorstMistakes(3)
    for begin in (0, 2, 4):
        part = slice(begin, begin + 2)
        worst.add(features[part], labels[part], probabilities[part], begin)
    assert worst == WorstMistakes(
        3,
        [
            Mistake(2, 0, 1, 0.875, 0.125, features[2]),
            Mistake(0, 0, 1, 0.75, 0.25, features[0]),
            Mistake(3, 1, 0, 0.75, 0.25, features[3]),
        ],
        4,
    )
    assert [mistake.features.tolist() for mistake in worst.mistakes] == [[4, 5], [0, 1], [6, 7]]
