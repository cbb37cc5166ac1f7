"""What the Hugging Face library `datasets` says about the columns of an Arrow or Parquet file (pure).

It writes the features into the schema's metadata, as JSON: {"info": {"features": {COLUMN: {"_type": TYPE, ...}}}}.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_METADATA = b"huggingface"


def names_of_classes(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the names of the classes of each column of class numbers (ClassLabel).

    Args:
        schema: Schema of a file. One without features has no such columns.
    """
    try:
        return {
            name: [str(text) for text in feature["names"]]
            for name, feature in _features(schema).items()
            if feature.get("_type") == "ClassLabel" and name in schema.names
        }
    except (KeyError, TypeError, AttributeError):
        return {}


def image_columns(schema: pa.Schema) -> list[str]:
    """Return the columns of images: structs with the content of an image file in the field "bytes".

    Args:
        schema: Schema of a file. One without features has no such columns.
    """
    features = _features(schema)
    return [
        field.name
        for field in schema
        if pa.types.is_struct(field.type)
        and field.type.get_field_index("bytes") >= 0
        and isinstance(feature := features.get(field.name), dict)
        and feature.get("_type") == "Image"
    ]


def _features(schema: pa.Schema) -> dict[str, Any]:
    """Return the features by column; none if the metadata have another form."""
    try:
        features = json.loads((schema.metadata or {})[_METADATA])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    return features if isinstance(features, dict) else {}


def schema_with_names(schema: pa.Schema) -> pa.Schema:
    """Return a schema in which the columns of class numbers are texts."""
    for name in names_of_classes(schema):
        for index in schema.get_all_field_indices(name):
            schema = schema.set(index, pa.field(name, pa.string()))
    return schema


def with_names(rows: pa.RecordBatch, classes: Mapping[str, Sequence[str]]) -> pa.RecordBatch:
    """Return rows with names in the place of class numbers. A number without a name, such as -1, is a missing value."""
    for index, name in enumerate(rows.schema.names):
        if name in classes:
            numbers = rows.column(index).cast(pa.int64())
            known = pa.array(range(len(classes[name])), pa.int64())
            texts = pa.array(classes[name], pa.string()).take(pc.index_in(numbers, known))
            rows = rows.set_column(index, pa.field(name, pa.string()), texts)
    return rows
