"""The columns of the output (pure)."""

import json

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.components.predict.asked_model.model_plan import ModelPlan
from kfp_distributed.components.predict.reading.input_rows import InputRows, RowReader

ROW = "row"
"""Name of the column of the numbers of rows."""

CLASSES = "classes"
"""Key of the metadata of the Parquet schema: the classes in the order of `probabilities`, as JSON."""


def output_schema(plan: ModelPlan, reader: RowReader, *, has_probabilities: bool) -> pa.Schema:
    """Return the schema of the output.

    Args:
        plan: What the model answers.
        reader: Reader of the rows.
        has_probabilities: Whether there is a column of the probabilities of all classes.
    """
    fields = [*reader.key_schema] or [pa.field(reader.file_column, pa.string()), pa.field(ROW, pa.int64())]
    if plan.kind == "number":
        return pa.schema([*fields, pa.field("prediction", pa.float64())])
    fields += [pa.field("prediction", pa.string() if plan.classes else pa.int32())]
    fields += [pa.field("probability", pa.float32())]
    if has_probabilities:
        # A size of -1 is a list of any size.
        fields += [pa.field("probabilities", pa.list_(pa.float32(), plan.size or -1))]
    return pa.schema(fields, {CLASSES: json.dumps(plan.classes, ensure_ascii=False)})


def output_rows(
    schema: pa.Schema,
    plan: ModelPlan,
    rows: InputRows,
    names: list[str],
    row_numbers: NDArray[np.int64],
    answers: NDArray[np.float64],
) -> pa.RecordBatch:
    """Return rows of the output.

    Args:
        schema: Schema of the output.
        plan: What the model answers.
        rows: The rows.
        names: Name of the file of each row, for an output without key columns.
        row_numbers: Number of each row in its file, for the same.
        answers: The answers, which are finite: [n, classes] or [n].
    """
    columns: list[pa.Array] = [*rows.keys.columns]
    if not columns:
        columns = [pa.array(names, pa.string()), pa.array(row_numbers, pa.int64())]
    if plan.kind == "number":
        return pa.record_batch([*columns, pa.array(answers)], schema=schema)
    best = answers.argmax(axis=1) if len(answers) else np.zeros(0, np.int64)
    named = pa.array(plan.classes, pa.string()).take(pa.array(best)) if plan.classes else pa.array(best, pa.int32())
    short = answers.astype(np.float32)
    columns += [named, pa.array(short[np.arange(len(best)), best])]
    if "probabilities" in schema.names:
        values, size = pa.array(short.ravel()), answers.shape[1]
        columns.append(pa.FixedSizeListArray.from_arrays(values, size).cast(schema.field("probabilities").type))
    return pa.record_batch(columns, schema=schema)
