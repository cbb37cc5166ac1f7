"""The mistakes of which a model is most certain."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Mistake:
    """A row whose predicted class is wrong.

    Attributes:
        row: Number of the row in the dataset, from 0.
        label: Index of the true class.
        predicted: Index of the predicted class.
        probability: Probability of the predicted class.
        label_probability: Probability of the true class.
        features: Values of the row, flat. They are not compared.
    """

    row: int
    label: int
    predicted: int
    probability: float
    label_probability: float
    features: NDArray[np.float32] = field(compare=False)


@dataclass
class WorstMistakes:
    """The wrong predictions with the highest probabilities. Earlier rows come first among equal ones.

    Attributes:
        limit: The most mistakes to keep.
        mistakes: The worst mistakes so far, the worst first.
        count: Number of all mistakes.
    """

    limit: int
    mistakes: list[Mistake] = field(default_factory=list)
    count: int = 0

    def add(
        self,
        features: NDArray[np.float32],
        labels: NDArray[np.integer],
        probabilities: NDArray[np.float64],
        first_row: int,
    ) -> None:
        """Add a batch.

        Args:
            features: The rows, [rows, width].
            labels: The true class of each row.
            probabilities: The model's probabilities, [rows, classes].
            first_row: The batch's first row within the dataset.
        """
        predicted = probabilities.argmax(axis=1)
        wrong = np.flatnonzero(predicted != labels)
        self.count += len(wrong)
        worst = wrong[np.argsort(-probabilities[wrong, predicted[wrong]], kind="stable")[: self.limit]]
        added = [
            Mistake(
                first_row + int(row),
                int(labels[row]),
                int(predicted[row]),
                float(probabilities[row, predicted[row]]),
                float(probabilities[row, labels[row]]),
                features[row].copy(),
            )
            for row in worst
        ]
        ranked = sorted([*self.mistakes, *added], key=lambda mistake: (-mistake.probability, mistake.row))
        self.mistakes = ranked[: self.limit]
