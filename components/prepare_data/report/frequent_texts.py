"""The most frequent texts of a column and the first ones, with bounded memory (pure)."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import pyarrow as pa

_FIRST = 1000
"""The most first texts to keep: as many as a category can have."""


@dataclass
class FrequentTexts:
    """Texts among which are all that are in more than one of `most` + 1 rows, by the algorithm of Misra and Gries.

    Attributes:
        most: The most of these texts to keep. Default: 64.
        first: The first texts of the column, up to 1,000.
    """

    most: int = 64
    first: dict[str, None] = field(default_factory=dict)
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
        if len(self.first) < _FIRST:
            self.first |= dict.fromkeys(batch.field("values").slice(0, 2 * _FIRST).to_pylist())
        self._bound()

    def merge(self, other: "FrequentTexts") -> None:
        """Add the texts of another part of the source."""
        self._counts.update(other._counts)
        self.first |= other.first
        self._bound()

    def _bound(self) -> None:
        self.first = dict.fromkeys(islice(self.first, _FIRST))
        if len(self._counts) > self.most:
            subtracted = sorted(self._counts.values())[-self.most - 1]
            self._counts = Counter(
                {text: count - subtracted for text, count in self._counts.items() if count > subtracted}
            )

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts, the most frequent one first."""
        return tuple(text for text, _ in self._counts.most_common())
