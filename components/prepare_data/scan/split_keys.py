"""What each row has that decides about its split."""

from hashlib import blake2b

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.columns.dates import names_of_dates
from kfp_distributed.components.prepare_data.columns.spelled_values import boolean_names

DRAWN, TRAIN, VALIDATION, TEST = range(4)
"""Splits of a row. DRAWN stands for one that is drawn at random."""

FIXED_SPLIT = "\0file"
"""Name of a column of pieces: the split of a row whose file decides about it. No source has a column of this name."""


def group_names(texts: pa.StringArray) -> pa.StringArray:
    """Return the name of the group of each text, which is the same for all spellings of a date or a boolean."""
    return boolean_names(names_of_dates(texts))


def hashes_of_texts(texts: pa.StringArray) -> NDArray[np.uint64]:
    """Return a 64-bit hash of the group of each text.

    Two of 100 million groups have one hash with a chance of 1 in 4,000.
    """
    batch = texts.dictionary_encode()
    names = group_names(batch.dictionary).to_pylist()
    hashes = [blake2b(name.encode(), digest_size=8).digest() for name in names]
    result: NDArray[np.uint64] = np.frombuffer(b"".join(hashes), np.uint64)[batch.indices.to_numpy()]
    return result
