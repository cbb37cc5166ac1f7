"""Parquet files and folders that the library `datasets` of Hugging Face writes.

The metadata are those that `datasets` 5.2.0 writes by `Dataset.to_parquet`. The folders are written with pyarrow, in
the documented form of `Dataset.save_to_disk`. The library itself is no requirement of the tests, because it installs
more than 400 MB.
"""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prepare_data.test_sources import LABELLED, category, number, rows_of

from kfp_distributed.components.prepare_data.tables.open_source import open_source

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


AGES = {"age": [4, 5, 6], "kind": [1, 0, 1]}


def save_to_disk(folder, *tables, features=FEATURES, **state):
    """Write tables as the files of one dataset: Arrow streams, state.json and dataset_info.json."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"data-{i:05d}-of-{len(tables):05d}.arrow" for i in range(len(tables))]
    for name, columns in zip(names, tables, strict=True):
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        rows = pa.table(columns).replace_schema_metadata(metadata)
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_table(rows)
    files = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "69b4", "_split": None}
    (folder / "state.json").write_text(json.dumps({**files, **state}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    return folder


def test_a_saved_dataset_is_read_in_the_order_of_its_files(tmp_path):
    folder = save_to_disk(tmp_path / "saved", AGES, {"age": [7, None], "kind": [0, 0]})
    columns, rows = rows_of(folder)
    assert columns == (number("age"),)
    assert rows == {"kind": ["dog", "cat", "dog", "cat", "cat"], "age": [4, 5, 6, 7, None]}
    assert rows_of(folder / "data-00000-of-00002.arrow")[1]["age"] == [4, 5, 6]


def test_files_of_an_earlier_saved_dataset_are_left_out(tmp_path):
    folder = save_to_disk(tmp_path / "saved", AGES, AGES)
    folder = save_to_disk(folder, {"age": [7], "kind": [0]})
    assert rows_of(folder)[1] == {"kind": ["cat"], "age": [7]}
    assert open_source(folder, LABELLED, tmp_path).notes == (
        "left out 2 names that state.json or dataset_dict.json does not list, as of an earlier dataset: "
        "'data-00000-of-00002.arrow', 'data-00001-of-00002.arrow'",
    )


def test_an_incomplete_saved_dataset_is_refused(tmp_path):
    folder = save_to_disk(tmp_path / "saved", AGES, AGES)
    last = folder / "data-00001-of-00002.arrow"
    # A stream without its end mark is one whose last batches may be missing.
    last.write_bytes(last.read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"data-00001-of-00002\.arrow cannot be read: it is not a complete Arrow file"):
        rows_of(folder)
    last.write_bytes(b"")
    with pytest.raises(ValueError, match=r"data-00001-of-00002\.arrow cannot be read: it is not a complete Arrow file"):
        rows_of(folder)
    last.unlink()
    with pytest.raises(ValueError, match=r"state\.json lists 2 files, but 1 of them are missing, such as 'data-00001"):
        rows_of(folder)


def test_a_saved_dataset_with_row_numbers_is_refused(tmp_path):
    folder = save_to_disk(tmp_path / "saved", AGES, _indices_data_files=[{"filename": "indices.arrow"}])
    with pytest.raises(ValueError, match="save the dataset again with datasets 2 or later"):
        rows_of(folder)


def test_the_arrow_file_format_is_read(tmp_path):
    rows = pa.table({"age": [4, 5], "kind": ["a", "b"]})
    with pa.OSFile(str(tmp_path / "data.arrow"), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as file:
        file.write_table(rows, max_chunksize=1)
    assert rows_of(tmp_path / "data.arrow") == ((number("age"),), {"kind": ["a", "b"], "age": [4, 5]})


def test_a_state_of_another_form_is_a_file_like_others(file):
    folder = file("rows/a.jsonl", '{"kind": "a", "age": 1}\n').parent
    file("rows/state.json", '{"kind": "b", "age": 2}\n')
    assert rows_of(folder)[1] == {"kind": ["a", "b"], "age": [1, 2]}
