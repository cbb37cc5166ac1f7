"""Datasets with a number to predict, and without a label."""

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kfp_distributed.storage.dataset import read_batches

pytestmark = pytest.mark.takes(2)

SPLITS = ("train", "validation", "test")


def test_a_number_to_predict(file, run, tmp_path, capsys):
    source = file("data.csv", "x,price\n" + "".join(f"{i % 7},{i * 0.5}\n" for i in range(200)))
    manifests = run(source, label_column="price")
    train = manifests["train"]
    labels = {
        split: np.concatenate([labels for _, labels in read_batches(tmp_path / "out" / split, manifest)])
        for split, manifest in manifests.items()
    }
    assert (train.label.task, train.label.classes, train.class_counts) == ("regression", (), ())
    assert [manifests[split].rows for split in SPLITS] == [160, 20, 20]
    np.testing.assert_array_equal(np.sort(np.concatenate([*labels.values()])), np.arange(200) * 0.5)
    assert train.label.mean == pytest.approx(labels["train"].mean())
    assert train.label.std == pytest.approx(labels["train"].std())
    assert "task: regression, because label_column 'price' has the value 0.5, which is no" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("values", "task"),
    [
        (range(100), "classification"),
        (range(101), "regression"),
        ([*range(99), 0.5], "regression"),
        (["a", "b", "1.5"], "classification"),
        ([1.0, 2.0], "classification"),
    ],
)
def test_the_labels_decide_about_the_task(file, run, values, task):
    source = file("data.csv", "x,y\n" + "".join(f"{i},{value}\n" for i in range(4) for value in values))
    options = {"label_column": "y", "shards": 1, "validation_fraction": 0, "test_fraction": 0}
    assert run(source, **options)["train"].label.task == task


def test_the_parameter_decides_about_the_task(file, run, capsys):
    source = file("data.csv", "x,y\n" + "1,0.5\n2,1.5\n" * 20)
    assert run(source, label_column="y", task="classification")["train"].label.classes == ("0.5", "1.5")
    source = file("data.csv", "x,y\n" + "1,1\n2,2\n" * 20)
    assert run(source, label_column="y", task="regression")["train"].label.task == "regression"
    assert "task: regression, because the parameter task says so" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,0.5\n2,a\n3,1.5\n", "row 3 of data.csv: 'y' is 'a', which is no number"),
        ("1,0.5\n2,\n3,1.5\n", "row 3 of data.csv: 'y' is missing"),
        ("1,0.5\n2,inf\n3,1.5\n", "row 3 of data.csv: 'y' is no finite number"),
        (
            "1,0.5\n2,-1e39\n3,1.5\n",
            r"row 3 of data.csv: 'y' is -1e\+39, beyond the range of 32-bit floats \(3.4e\+38\)",
        ),
        ("1,1e-170\n2,2e-170\n3,3e-170\n", "label_column 'y' has numbers that differ by 2e-170 at most: their squares"),
        ("1,0.5\n2,0.5\n3,0.5\n", "label_column 'y' has the value 0.5 in all rows: there is nothing to learn"),
    ],
)
def test_unusable_numbers_to_predict_are_refused(file, run, text, message):
    with pytest.raises(ValueError, match=message):
        run(file("data.csv", "x,y\n" + text), label_column="y", task="regression")


def test_small_numbers_to_predict_keep_their_deviation(file, run):
    numbers = [(i % 50 + 0.5) * 1e-50 for i in range(100)]
    source = file("data.csv", "x,y\n" + "".join(f"{i},{number!r}\n" for i, number in enumerate(numbers)))
    label = run(source, label_column="y", shards=1, validation_fraction=0, test_fraction=0)["train"].label
    assert (label.mean, label.std) == pytest.approx((np.mean(numbers), np.std(numbers)), rel=1e-12, abs=0)


def test_rows_without_a_label_keep_their_types(run, tmp_path):
    table = pa.table(
        {
            "number": pa.array([2**53 + i for i in range(40)], pa.int64()),
            "text": [f"text {i}" for i in range(39)] + [None],
            "binary": [bytes([i]) for i in range(40)],
            "vector": pa.array([[i, i / 2] for i in range(40)], pa.list_(pa.float32())),
            "time": pa.array([datetime.datetime(2024, 1, 1 + i % 28) for i in range(40)], pa.timestamp("us", "UTC")),
            "flag": [True, False] * 20,
        }
    )
    pq.write_table(table, tmp_path / "data.parquet")
    manifests = run(tmp_path / "data.parquet", label_column="", shards=2)
    train = manifests["train"]
    assert (train.label.name, train.label.task, train.class_counts) == ("", "none", ())
    assert {column.kind for column in train.columns} == {"kept"}
    read = pa.concat_tables(
        [
            pq.read_table(tmp_path / "out" / split / shard.path)
            for split, manifest in manifests.items()
            for shard in manifest.shards
        ]
    ).sort_by("number")
    assert read.to_pydict() == table.to_pydict()
    assert [str(field.type) for field in read.schema][:2] == ["int64", "string"]
    assert [column.dtype for column in train.columns][:3] == ["int64", "string", "binary"]
    assert "<td>text " in (tmp_path / "out" / "overview.html").read_text()


@pytest.mark.parametrize("name", ["data.parquet", "data.csv", "data.jsonl"])
def test_kept_fractions_keep_all_digits(file, run, tmp_path, name):
    values = [0.1, 1 / 3, 1e300, 2.0**53 - 0.5]
    text = "x\n" + "".join(f"{value!r}\n" for value in values)
    source = file(name, text if name == "data.csv" else "".join(f'{{"x": {value!r}}}\n' for value in values))
    if name == "data.parquet":
        pq.write_table(pa.table({"x": [*values, float("inf"), float("nan")]}), source)
    options = {"label_column": "", "shards": 1, "validation_fraction": 0, "test_fraction": 0}
    train = run(source, **options)["train"]
    read = pq.read_table(tmp_path / "out" / "train" / "part-00000.parquet")["x"]
    assert train.columns[0].dtype == str(read.type) == "double"
    assert sorted(value for value in read.to_pylist() if np.isfinite(value)) == sorted(values)
    assert run(source, missing="drop", **options)["train"].rows == len(read) - (name == "data.parquet")


def test_texts_beside_a_label(file, run, tmp_path):
    text = "review,stars\n" + "".join(f'"good, {i}",{i % 2}\n' for i in range(2000))
    train = run(file("data.csv", text), label_column="stars", columns={"review": "text"})["train"]
    assert [(column.kind, column.dtype) for column in train.columns] == [("kept", "string")]
    rows = [row for shard in train.shards for row in pq.read_table(tmp_path / "out" / "train" / shard.path).to_pylist()]
    assert len(rows) == 1600
    assert all(int(row["review"].split()[1]) % 2 == row["stars"] for row in rows)


def test_columns_without_a_label_in_csv(file, run, tmp_path):
    text = "id,x,day,town\n1,0.5,2024-01-31,Ulm\n2,,2024-02-01,\n3,2,,Bern\n"
    train = run(file("d.csv", text), task="none", label_column="", shards=1, validation_fraction=0, test_fraction=0)[
        "train"
    ]
    assert [column.dtype for column in train.columns] == ["int64", "double", "timestamp[us]", "string"]
    rows = sorted(
        pq.read_table(tmp_path / "out" / "train" / "part-00000.parquet").to_pylist(), key=lambda row: row["id"]
    )
    assert rows[1] == {"id": 2, "x": None, "day": datetime.datetime(2024, 2, 1), "town": None}
