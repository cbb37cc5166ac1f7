"""Writes the Parquet files of the output and their manifest."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kfp_distributed.storage.files import describe_file, unfinished_file

PREDICTIONS_MANIFEST = "predictions.json"
FORMAT = "kfp-distributed-predictions-1"
PART_ROWS = 100_000
"""Rows of a file."""


@dataclass(frozen=True)
class PredictionPart:
    """A Parquet file: its name, its rows, its size in bytes and its SHA-256 in hex."""

    path: str
    rows: int
    size: int
    sha256: str


class PredictionFiles:
    """Writes rows into files of equally many rows.

    Args:
        folder: Folder of the files.
        schema: Schema of the rows.
        part_rows: Rows of a file. Default: 100,000.

    Attributes:
        parts: The complete files.
    """

    def __init__(self, folder: Path, schema: pa.Schema, part_rows: int = PART_ROWS) -> None:
        self._folder, self._schema, self._part_rows = folder, schema, part_rows
        self.parts: list[PredictionPart] = []
        self._writer: pq.ParquetWriter | None = None
        self._rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Write rows."""
        begin = 0
        while begin < rows.num_rows:
            few = rows.slice(begin, self._part_rows - self._rows)
            self._open().write_batch(few, few.num_rows)
            begin, self._rows = begin + few.num_rows, self._rows + few.num_rows
            if self._rows == self._part_rows:
                self._close()

    def finish(self) -> None:
        """Complete the last file. Without rows, there is one file without rows, which has the columns."""
        if self._writer or not self.parts:
            self._open()
            self._close()

    def discard(self) -> None:
        """Close the file that is not complete."""
        if self._writer:
            self._writer.close()

    def _path(self) -> Path:
        return self._folder / f"part-{len(self.parts):05}.parquet"

    def _open(self) -> pq.ParquetWriter:
        if not self._writer:
            self._writer = pq.ParquetWriter(self._path(), self._schema, compression="zstd", write_page_checksum=True)
        return self._writer

    def _close(self) -> None:
        assert self._writer
        self._writer.close()
        entry = describe_file(self._path(), self._path().name)
        self.parts.append(PredictionPart(entry.path, self._rows, entry.size, entry.sha256))
        self._writer, self._rows = None, 0


def write_manifest(
    folder: Path,
    schema: pa.Schema,
    files: PredictionFiles,
    model: Mapping[str, Any],
    classes: tuple[str, ...],
    rows_left_out: int,
) -> None:
    """Write predictions.json, which completes the output.

    Args:
        folder: Folder of the output.
        schema: Schema of the files.
        files: The files.
        model: Address and job of the model.
        classes: Classes in the order of `probabilities`; () if they are unknown or a number is predicted.
        rows_left_out: Number of the rows that could not be used.
    """
    content = {
        "format": FORMAT,
        "model": dict(model),
        "columns": [{"name": field.name, "type": str(field.type)} for field in schema],
        "classes": [*classes],
        "rows": sum(part.rows for part in files.parts),
        "rows_left_out": rows_left_out,
        "parts": [asdict(part) for part in files.parts],
    }
    with unfinished_file(folder / PREDICTIONS_MANIFEST) as stream:
        stream.write((json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
