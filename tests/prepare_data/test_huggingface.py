"""Parquet files that the library `datasets` of Hugging Face writes.

The metadata are those that `datasets` 5.2.0 writes by `Dataset.to_parquet`. The library itself is no requirement of the
tests, because it installs more than 400 MB.
"""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prepare_data.test_sources import category, number, rows_of

FEATURES = {
    "age": {"dtype": "int64", "_type": "Value"},
    "colour": {"names": ["red", "blue"], "_type": "ClassLabel"},
    "kind": {"names": ["cat", "dog"], "_type": "ClassLabel"},
}


@pytest.fixture
def written(tmp_path):
    def write(metadata, **columns):
        pq.write_table(pa.table(columns).replace_schema_metadata({"huggingface": metadata}), tmp_path / "data.parquet")
        return tmp_path / "data.parquet"

    return write


def test_class_numbers_become_names(written):
    metadata = json.dumps({"info": {"features": FEATURES}})
    columns, rows = rows_of(written(metadata, age=[4, 5, 6], colour=[1, None, -1], kind=[1, 0, 1]))
    assert columns == (number("age"), category("colour"))
    assert rows == {"kind": ["dog", "cat", "dog"], "age": [4, 5, 6], "colour": ["blue", None, None]}


def test_a_row_without_a_class_is_named(written, run):
    source = written(json.dumps({"info": {"features": FEATURES}}), age=[4, 5, 6], kind=[1, -1, 0])
    with pytest.raises(ValueError, match=r"row 2 of data\.parquet: 'kind' is missing"):
        run(source, label_column="kind")


@pytest.mark.parametrize("metadata", ["", "{", "[]", '{"info": {"features": {"kind": 5}}}', '{"info": null}'])
def test_metadata_of_another_form_are_not_used(written, metadata):
    assert rows_of(written(metadata, age=[4], kind=[1]))[1] == {"kind": ["1"], "age": [4]}
