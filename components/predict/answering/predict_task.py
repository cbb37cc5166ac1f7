"""The task that predicts the rows of a chunk, in any process."""

import atexit
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.components.predict.answering.answer_columns import ROW, output_rows, output_schema
from kfp_distributed.components.predict.asked_model.model_plan import ModelPlan
from kfp_distributed.components.predict.asked_model.predictor import BATCH_BYTES, BATCH_ROWS, loaded_predictor
from kfp_distributed.components.predict.reading.input_rows import InputRows, RowReader
from kfp_distributed.components.predict.reading.seen_values import SeenValues
from kfp_distributed.components.prepare_data.sources.chunks import Chunk, FilePart
from kfp_distributed.components.prepare_data.sources.read_rows import RejectedRows
from kfp_distributed.storage.files import FileEntry
from kfp_distributed.storage.opener import open_store


@dataclass(frozen=True)
class PredictWork:
    """What is needed to predict any chunk.

    Attributes:
        plan: How the model is asked.
        reader: Reader of the rows.
        policy: What becomes of rows that cannot be used.
        has_probabilities: Whether the output has the probabilities of all classes.
        folder: Folder of the answers of the chunks; "" to return the answers with what the task has done.
        model_uri: Address of the model, for processes that do not see the folder of the plan; "" if they do.
        model_files: The files of the model at this address.
    """

    plan: ModelPlan
    reader: RowReader
    policy: Literal["refuse", "skip"]
    has_probabilities: bool
    folder: str
    model_uri: str = ""
    model_files: tuple[FileEntry, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        """Schema of the output."""
        return output_schema(self.plan, self.reader, has_probabilities=self.has_probabilities)


@dataclass
class PredictedChunk:
    """What a task has done.

    Attributes:
        path: Arrow file of the answers; "" if they are in `answers`. Rows without key columns are counted from the
            first one that the chunk has of their file.
        rejected: Rows that cannot be used, with the same numbers.
        rows: Number of the answers.
        rows_of_files: Rows of each file, whether they can be used or not.
        seen: What the model has not seen in its training.
        late: What the reader has noted, see `LateFindings`.
        answers: The answers in the format of the file, if there is none.
    """

    path: str
    rejected: RejectedRows
    rows: int = 0
    rows_of_files: dict[str, int] = field(default_factory=dict)
    seen: SeenValues = field(default_factory=SeenValues)
    late: Any = None
    answers: bytes = field(default=b"", repr=False)

    @contextmanager
    def open(self) -> Iterator[pa.RecordBatchReader]:
        """Yield the answers."""
        source = pa.OSFile(self.path) if self.path else pa.BufferReader(self.answers)
        with source, pa.ipc.open_stream(source) as stream:
            yield stream

    def discard(self) -> None:
        """Delete the answers."""
        self.answers = b""
        if self.path:
            Path(self.path).unlink()


def predict_chunk(work: PredictWork, item: tuple[int, Chunk]) -> PredictedChunk:
    """Predict the rows of a chunk.

    Args:
        work: What is needed for it.
        item: Number of the chunk, and its parts.

    Raises:
        ValueError: A file is damaged, the model fails, or 20 rows are refused.
    """
    number, chunk = item
    path = str(Path(work.folder, f"chunk-{number}.arrow")) if work.folder else ""
    found, findings = PredictedChunk(path, RejectedRows(work.policy)), work.reader.late_findings
    if findings:
        findings.take_late()  # Those of another chunk, and of the first rows.
    sink = pa.OSFile(path, "wb") if path else pa.BufferOutputStream()
    with sink:
        with pa.ipc.new_stream(sink, work.schema) as stream:
            for part in chunk:
                for batch in _PartPrediction(work, part, found).batches():
                    stream.write_batch(batch)
                    found.rows += batch.num_rows
        if not path:
            found.answers = sink.getvalue().to_pybytes()
    found.late = findings.take_late() if findings else None
    return found


class _PartPrediction:
    """Predicts the rows of a part.

    Args:
        work: What is needed for it.
        part: The part.
        chunk: Gets the rows that cannot be used, and the number of the rows.
    """

    def __init__(self, work: PredictWork, part: FilePart, chunk: PredictedChunk) -> None:
        self._work, self._part, self._chunk = work, part, chunk
        self._predictor = loaded_predictor(_plan_here(work))
        self._before = chunk.rows_of_files.get(part.name, 0)
        self._counted = 0
        # Two passes over the rows may both leave out a row.
        self._problems: dict[int, tuple[str, str]] = {}

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield rows of the output."""
        for rows in self._work.reader.read(self._part, self._reject, self._count):
            self._chunk.seen.merge(rows.seen)
            for few in _divided(rows):
                if self._work.policy == "skip" or not self._chunk.rejected.count:
                    yield self._predicted(few)
            if len(rows.numbers):
                self._report(int(rows.numbers[-1]))
        self._report()
        self._chunk.rows_of_files[self._part.name] = self._before + self._counted

    def _predicted(self, rows: InputRows) -> pa.RecordBatch:
        work = self._work
        answers = self._predictor.answers(rows.values, len(rows.numbers))
        is_finite: NDArray[np.bool_] = np.all(np.isfinite(answers.reshape(len(answers), -1)), axis=1)
        if not is_finite.all():
            for row in rows.numbers[~is_finite].tolist():
                self._reject(
                    row, "", "gets no finite answer of the model: fill in its missing values, or train the model again"
                )
            rows, answers = rows.take(is_finite), answers[is_finite]
        names = work.reader.file_names(self._part, rows.numbers)
        numbers = self._before + rows.numbers
        if names is not None:
            numbers = np.full(len(names), work.reader.first_row)
        file_names = names or [self._part.name] * len(numbers)
        return output_rows(work.schema, work.plan, rows, file_names, numbers, answers)

    def _count(self, rows: int) -> None:
        self._counted += rows

    def _reject(self, row: int, column: str, problem: str) -> None:
        self._problems.setdefault(row, (column, problem))

    def _report(self, last: int | None = None) -> None:
        """Add the rows that cannot be used, up to a number, to those of the chunk."""
        rows = sorted(row for row in self._problems if last is None or row <= last)
        for row in rows:
            self._chunk.rejected.add(self._part.name, self._before + row, *self._problems.pop(row))


def _plan_here(work: PredictWork) -> ModelPlan:
    """Return the plan with a folder that this process sees."""
    if not work.model_uri:
        return work.plan
    return replace(work.plan, folder=_downloaded_model(work.model_uri, work.model_files))


@lru_cache(maxsize=1)
def _downloaded_model(uri: str, files: tuple[FileEntry, ...]) -> str:
    """Download a model, and return its folder. A process does this once."""
    scratch = tempfile.mkdtemp(prefix="predict-model-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    folder = Path(scratch, "model")
    open_store(uri).download_folder(folder, expected=files)
    return str(folder)


def _divided(rows: InputRows) -> Iterator[InputRows]:
    """Yield rows in batches for the model."""
    count = len(rows.numbers)
    values = [rows.values] if isinstance(rows.values, np.ndarray) else [*rows.values.values()]
    row_bytes = sum(int(np.prod(array.shape[1:])) * 4 for array in values)
    step = max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, row_bytes)))
    for begin in range(0, count, step):
        yield rows.take(slice(begin, begin + step))


def with_row_numbers(batch: pa.RecordBatch, reader: RowReader, rows_before: Mapping[str, int]) -> pa.RecordBatch:
    """Return answers with the number of each row in its file, from 0. Answers with key columns stay as they are.

    Args:
        batch: Answers of a chunk, of one part.
        reader: Reader of the rows.
        rows_before: Rows of each file in the chunks before.
    """
    if len(reader.key_schema) or not batch.num_rows:
        return batch
    before = rows_before.get(batch[reader.file_column][0].as_py(), 0)
    numbers: NDArray[np.int64] = batch[ROW].to_numpy() + (before - reader.first_row)
    position = batch.schema.names.index(ROW)
    return batch.set_column(position, batch.schema.field(position), pa.array(numbers))
