"""Numbers the values of texts in the order in which they first appear, while a source is read (pure)."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.columns.spelled_values import number_names


@dataclass
class GrowingVocabulary:
    """The values of the texts so far, and the rows of each.

    Attributes:
        codes: The code of each value, see `number_names`, from 1. 0 stands for a missing one.
    """

    codes: dict[str, int] = field(default_factory=dict)
    _rows: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))

    def encode(self, texts: pa.StringArray) -> NDArray[np.int32]:
        """Return the code of each text, and count the rows."""
        batch = texts.dictionary_encode()
        # Most batches have no new text, so this loop is over a few values and not over the rows.
        known = self.codes
        for text in (values := number_names(batch.dictionary).to_pylist()):
            known.setdefault(text, len(known) + 1)
        by_index = np.array([0, *(known[text] for text in values)], np.int32)
        codes: NDArray[np.int32] = by_index[batch.indices.fill_null(-1).to_numpy(zero_copy_only=False) + 1]
        rows = np.bincount(codes, minlength=len(known) + 1)
        rows[: len(self._rows)] += self._rows
        self._rows = rows
        return codes

    def merge(self, other: "GrowingVocabulary") -> NDArray[np.int32]:
        """Add the texts and rows of a later part of the source.

        Returns:
            The code of each code of the other vocabulary, so that `result[codes]` are codes of this one.
        """
        known = self.codes
        codes = np.array([0, *(known.setdefault(text, len(known) + 1) for text in other.codes)], np.int32)
        rows = np.zeros(len(known) + 1, np.int64)
        rows[: len(self._rows)] += self._rows
        # The codes of the other vocabulary differ, so no index occurs twice.
        rows[codes] += other._rows
        self._rows = rows
        return codes

    @property
    def missing(self) -> int:
        """Number of the rows without a text."""
        return int(self._rows[0])

    @property
    def rows(self) -> Counter[str]:
        """Rows of each text, in the order of the codes."""
        return Counter(dict(zip(self.codes, self._rows[1:].tolist(), strict=True)))


def sorted_codes(codes: dict[str, int], order: dict[str, int]) -> NDArray[np.int32]:
    """Return the final code of each code, so that `result[codes]` are the final codes.

    Args:
        codes: The code of each text, from 1.
        order: The final code of each text. A text that is not there gets 0, missing.
    """
    return np.array([0, *(order.get(text, 0) for text in codes)], np.int32)
