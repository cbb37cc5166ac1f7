import json
from dataclasses import asdict, replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from prediction_models import linear_network, manifest_of, save_onnx

from kfp_distributed.storage.dataset import DATASET_MANIFEST, read_batches

pytestmark = pytest.mark.takes(2)


@pytest.fixture
def numbers(tmp_path, prepared):
    """A dataset of two numbers and a category, with classes."""
    generator = np.random.default_rng(0)
    rows = [f"{x:.3f},{n % 5},{'red' if x > 0 else ''},{'ab'[n % 2]}" for n, x in enumerate(generator.normal(size=300))]
    source = tmp_path / "rows.csv"
    source.write_text("x,n,color,label\n" + "\n".join(rows) + "\n")
    return prepared(source)


def write_manifest(dataset, **changes):
    (dataset / DATASET_MANIFEST).write_text(replace(manifest_of(dataset), **changes).to_json())


def test_the_rows_of_all_shards_are_predicted_in_order(numbers, model_of, predicted):
    output = predicted(model=model_of(numbers, by_column=False), dataset=numbers)
    table, manifest = output.table(), manifest_of(numbers)
    assert table.schema.names == ["shard", "row", "prediction", "probability"]
    positions = [(shard.path, row) for shard in manifest.shards for row in range(shard.rows)]
    assert [*zip(table["shard"].to_pylist(), table["row"].to_pylist(), strict=True)] == positions
    features = np.vstack([rows for rows, _ in read_batches(numbers, manifest)])
    assert len(features) == output.rows == 300


def test_keys_are_inputs_and_the_label_by_their_texts(numbers, model_of, predicted):
    keys = ["color", "label", "n"]
    found = predicted(model=model_of(numbers), dataset=numbers, key_columns=keys).table()
    manifest = manifest_of(numbers)
    shards = [pq.read_table(numbers / shard.path).to_pylist() for shard in manifest.shards]
    expected = [
        {"color": [None, "red"][row["color"]], "label": "ab"[row["label"]], "n": row["n"]}
        for rows in shards
        for row in rows
    ]
    assert found.select(keys).to_pylist() == expected
    assert [str(kind) for kind in found.schema.types[:3]] == ["string", "string", "float"]


def test_shards_beside_the_dataset_are_downloaded_and_checked(tmp_path, numbers, model_of, predicted, refused):
    model = model_of(numbers)
    expected = predicted(model=model, dataset=numbers).table()
    stored = tmp_path / "stored"
    stored.mkdir()
    for shard in manifest_of(numbers).shards:
        (numbers / shard.path).rename(stored / shard.path)
    (tmp_path / "predictions").rename(tmp_path / "earlier")
    message = refused(model=model, dataset=numbers)
    assert message.startswith("ValueError: shard ")
    assert message.endswith(" of the dataset is missing or damaged: run prepare_data again")
    write_manifest(numbers, shards_uri=str(stored))
    assert predicted(model=model, dataset=numbers).table().equals(expected)


def test_a_damaged_shard_is_refused(numbers, model_of, refused):
    model = model_of(numbers)
    shard = numbers / manifest_of(numbers).shards[-1].path
    shard.write_bytes(shard.read_bytes()[:-8] + b"\0" * 8)
    assert f"shard {shard.name} of the dataset is missing or damaged" in refused(model=model, dataset=numbers)


def test_a_dataset_of_other_columns_or_classes_is_refused(tmp_path, numbers, prepared, model_of, refused):
    model = model_of(numbers)
    source = tmp_path / "rows.csv"
    text = source.read_text()
    source.write_text(text.replace("red", "green"))
    others = prepared(source, "others")
    message = refused(model=model, dataset=others)
    assert message.startswith(
        "ValueError: the dataset is not of the kind that the model was trained on: the vocabulary"
    )
    assert "set source to the rows themselves" in message
    source.write_text(text.replace(",a", ",c"))
    assert "the classes are" in refused(model=model, dataset=prepared(source, "classes"))
    message = refused(model=model, dataset=numbers, key_columns=["id"])
    assert message == "ValueError: key_columns has 'id', which the dataset lacks; it has ['x', 'n', 'color', 'label']"


def test_a_dataset_without_a_label_is_predicted(tmp_path, prepared, predicted):
    source = tmp_path / "rows.csv"
    source.write_text("x,note\n" + "".join(f"{number},n{number}\n" for number in range(50)))
    dataset = prepared(source, task="none", columns={"x": "number"}, drop_columns=["note"])
    columns = tuple(map(asdict, manifest_of(dataset).columns))
    label = {"name": "y", "task": "regression", "classes": []}
    model = save_onnx(tmp_path / "model", linear_network([0], 0), columns=columns, label=label)
    found = predicted(model=model, dataset=dataset, key_columns=["x"]).table()
    ratio = np.array(found["prediction"]) / np.maximum(np.array(found["x"]), 1e-9)
    assert found.schema.names == ["x", "prediction"]
    assert str(found.schema.field("prediction").type) == "double"
    np.testing.assert_allclose(ratio[np.array(found["x"]) > 0], ratio[np.array(found["x"]) > 0][0], rtol=1e-5)


def test_an_empty_dataset_gives_a_file_without_rows(numbers, model_of, predicted):
    model = model_of(numbers)
    empty = numbers.parent / "test"
    output = predicted(model=model, dataset=empty, probabilities=True)
    assert (output.rows, output.manifest["rows"]) == (0, 0)
    assert output.table().schema.names == ["shard", "row", "prediction", "probability", "probabilities"]
    assert json.loads(output.table().schema.metadata[b"classes"]) == ["a", "b"]
