"""The most frequent texts of a column, with bounded memory (pure)."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa


@dataclass
class FrequentTexts:
    """Texts among which are all that are in more than one of `most` + 1 rows, by the algorithm of Misra and Gries.

    Attributes:
        most: The most texts to keep. Default: 64.
    """

    most: int = 64
    _counts: Counter[str] = field(default_factory=Counter)

    def add(self, texts: pa.StringArray) -> None:
        """Add a batch of texts. Null is none."""
        batch = texts.drop_null().value_counts()
        counts = batch.field("counts").to_numpy()
        if len(counts) > self.most:
            # As below, but without a loop over all texts of the batch.
            counts = counts - np.partition(counts, -self.most - 1)[-self.most - 1]
        kept = np.flatnonzero(counts > 0)
        names = batch.field("values").take(pa.array(kept)).to_pylist()
        self._counts.update(dict(zip(names, counts[kept].tolist(), strict=True)))
        self._bound()

    def merge(self, other: "FrequentTexts") -> None:
        """Add the texts of another part of the source."""
        self._counts.update(other._counts)
        self._bound()

    def _bound(self) -> None:
        if len(self._counts) > self.most:
            subtracted = sorted(self._counts.values())[-self.most - 1]
            self._counts = Counter(
                {text: count - subtracted for text, count in self._counts.items() if count > subtracted}
            )

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts, the most frequent one first."""
        return tuple(text for text, _ in self._counts.most_common())
