"""The codes of texts in the pieces: those of all chunks for those of one (pure)."""

from collections.abc import Mapping
from itertools import islice

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.pieces.growing_vocabulary import GrowingVocabulary


class PieceCodes:
    """Changes the codes of chunks to those that the merged vocabularies have, before the merge."""

    def __init__(self) -> None:
        self._codes: dict[str, dict[str, int]] = {}
        self._tables: dict[str, NDArray[np.int32]] = {}

    def begin_chunk(self) -> None:
        """Begin with a chunk, whose vocabularies are new."""
        self._tables = {}

    def merged(self, batch: pa.RecordBatch, vocabularies: Mapping[str, GrowingVocabulary]) -> pa.RecordBatch:
        """Return rows of the chunk with the codes of all chunks.

        Args:
            batch: The rows.
            vocabularies: The vocabularies of the chunk so far.
        """
        return with_codes(batch, self.tables(vocabularies))

    def tables(self, vocabularies: Mapping[str, GrowingVocabulary]) -> dict[str, NDArray[np.int32]]:
        """Return the code of all chunks for each code of the chunk, without the columns whose codes are equal.

        Args:
            vocabularies: The vocabularies of the chunk so far.
        """
        for name, vocabulary in vocabularies.items():
            known = self._codes.setdefault(name, {})
            table = self._tables.get(name, np.zeros(1, np.int32))
            if len(table) <= len(vocabulary.codes):
                new = islice(vocabulary.codes, len(table) - 1, None)
                codes = [known.setdefault(text, len(known) + 1) for text in new]
                self._tables[name] = np.concatenate([table, np.array(codes, np.int32)])
        return {name: table for name, table in self._tables.items() if not np.array_equal(table, np.arange(len(table)))}


def with_codes(batch: pa.RecordBatch, tables: Mapping[str, NDArray[np.int32]]) -> pa.RecordBatch:
    """Return rows with other codes in some columns.

    Args:
        batch: The rows, which may lack the columns.
        tables: The new code for each code, by column.
    """
    for name, table in tables.items():
        if (position := batch.schema.get_field_index(name)) >= 0:
            mapped = pa.array(table[batch[name].to_numpy()])
            batch = batch.set_column(position, batch.schema.field(position), mapped)
    return batch
