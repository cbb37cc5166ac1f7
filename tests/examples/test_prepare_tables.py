"""Each call of prepare_data on the page about tables runs, and gives what the page says."""

import datetime
import gzip
import io
import json
import os
from pathlib import Path
from types import SimpleNamespace

import prepare_tables
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from PIL import Image

from kfp_distributed.components.prepare_data.step import run_step
from kfp_distributed.components.train.run.runners.runner_choice import RUNNER_VARIABLE
from kfp_distributed.storage.dataset import DatasetManifest
from kfp_distributed.storage.object_stores.embedded import embedded_object_store

pytestmark = pytest.mark.takes(13)

ROWS = 200
DAYS = [datetime.date(2024, 1, 1) + datetime.timedelta(days=i) for i in range(ROWS)]
LABEL = ["a", "b"] * (ROWS // 2)
NUMBERS = [i / 4 for i in range(ROWS)]


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """Run a function of the page on a table: prepared(prepare_tables.classes, "wine.csv", {...}) -> the manifests."""
    monkeypatch.chdir(tmp_path)

    def run_component(**parameters):
        names = ("train_dataset", "validation_dataset", "test_dataset", "overview")
        outputs = {
            name: SimpleNamespace(path=str(tmp_path / "out" / name), uri=str(tmp_path / "out" / name), metadata={})
            for name in names
        }
        component = prepare_tables.prepare_data
        inputs = component.component_spec.inputs
        defaults = {name: given.default for name, given in inputs.items() if given.optional}
        run_step(**outputs, **defaults | parameters)
        return [DatasetManifest.from_json(Path(outputs[name].path, "dataset.json").read_text()) for name in names[:3]]

    component = prepare_tables.prepare_data
    run_component.component_spec = component.component_spec
    monkeypatch.setattr(prepare_tables, "prepare_data", run_component)

    def run(function, *arguments, **tables):
        for name, table in tables.items():
            stem, _, ending = name.rpartition("_")
            if ending == "parquet":
                pq.write_table(pa.table(table), f"{stem}.parquet")
            elif isinstance(table, dict):
                pa.csv.write_csv(pa.table(table), f"{stem}.csv")
            else:
                Path(f"{stem}.csv.gz" if ending == "gz" else f"{stem}.csv").write_bytes(table)
        return function(*arguments)

    return run


def test_classes(prepared):
    train, *_ = prepared(prepare_tables.classes, wine_csv={"alcohol": NUMBERS, "cultivar": LABEL})
    assert (train.label.task, train.label.classes, train.rows) == ("classification", ("a", "b"), 160)


def test_number(prepared):
    train, *_ = prepared(prepare_tables.number, houses_parquet={"rooms": [1, 2] * 100, "price": NUMBERS})
    assert train.label.task == "regression"


def test_gaps(prepared):
    rows = b"age,town,label\n" + b"1,Ulm,a\n?,-,b\n3,Bern,a\n4,Ulm,b\n" * 50
    train, *_ = prepared(prepare_tables.gaps, survey_csv=rows)
    assert (train.columns[0].fill, train.columns[1].vocabulary) == (3, ("Bern", "Ulm"))


def test_spreadsheet(prepared):
    train, *_ = prepared(
        prepare_tables.spreadsheet, export_csv="größe;label\n1,5;a\n2;b\n".encode("latin-1") * 1 + b"1;a\n2;b\n" * 50
    )
    assert [(column.name, column.kind) for column in train.columns] == [("größe", "number")]


def test_codes(prepared):
    table = {"id": range(ROWS), "zip": [1000, 2000] * 100, "ordered_on": DAYS, "label": LABEL}
    train, *_ = prepared(prepare_tables.codes, orders_csv={name: [*values] for name, values in table.items()})
    assert [(column.name, column.kind, column.source_type) for column in train.columns] == [
        ("zip", "category", ""),
        ("ordered_on", "number", "date"),
    ]


def test_patients(prepared):
    table = {"patient": [f"p{i // 4}" for i in range(ROWS)], "x": NUMBERS, "label": LABEL}
    train, validation, test = prepared(prepare_tables.patients, scans_csv=table)
    assert [column.name for column in train.columns] == ["x"]
    assert {manifest.rows % 4 for manifest in (train, validation, test)} == {0}


def test_time(prepared):
    train, validation, test = prepared(prepare_tables.time, sales_csv={"day": DAYS, "x": NUMBERS, "sold": LABEL})
    assert [manifest.rows for manifest in (train, validation, test)] == [140, 40, 20]


def test_files(prepared):
    table = {"x": NUMBERS, "label": LABEL}
    parts = {name: {key: values[:rows] for key, values in table.items()} for name, rows in (("a", 40), ("b", 20))}
    manifests = prepared(prepare_tables.files, train_csv=table, validation_csv=parts["a"], test_csv=parts["b"])
    assert [manifest.rows for manifest in manifests] == [200, 40, 20]


def test_texts(prepared):
    table = {"review": [f"good, {i}" for i in range(ROWS)], "stars": [1, 5] * 100}
    train, *_ = prepared(prepare_tables.texts, reviews_csv=table)
    assert [(column.kind, column.dtype) for column in train.columns] == [("kept", "string")]


def test_records(prepared):
    table = {"when": DAYS, "vector": [[1.0, 2.0]] * ROWS, "payload": [b"x"] * ROWS}
    train, *_ = prepared(prepare_tables.records, events_parquet=table)
    assert ([column.dtype for column in train.columns][::2], len(train.shards)) == (["date32[day]", "binary"], 16)


def test_hugging_face_images(prepared, tmp_path, capsys):
    features = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    contents = []
    for row in range(ROWS):
        data = io.BytesIO()
        Image.new("RGB" if row % 2 else "L", (40 + row % 3, 40)).save(data, "PNG")
        contents.append({"bytes": data.getvalue() if row else None, "path": "1.png"})
    table = pa.table({"image": contents, "label": [row % 2 for row in range(ROWS)]})
    (tmp_path / "photos").mkdir()
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "photos" / "train-00000-of-00001.parquet")
    train, *_ = prepared(prepare_tables.hugging_face_images)
    assert (train.columns[0].shape, train.label.classes) == ((32, 32, 3), ("cat", "dog"))
    assert "left out 1 row that cannot be used" in capsys.readouterr().out


def test_bad_rows(prepared, capsys):
    rows = b"x,label\n" + b"1,a\n2,b\n" * 50 + b"three,a\n"
    train, *_ = prepared(prepare_tables.bad_rows, sensor_gz=gzip.compress(rows))
    assert train.rows == 80
    assert "left out 1 row that cannot be used" in capsys.readouterr().out


def test_large_table(prepared, tmp_path, monkeypatch, capfd):
    """Without a cluster, the workers are processes, which read the table in the object store by ranges."""
    table = pa.table({"age": NUMBERS, "clicked": LABEL})
    with embedded_object_store(tmp_path / "objects") as server:
        for name, value in {**server.environment(), RUNNER_VARIABLE: "local"}.items():
            monkeypatch.setenv(name, value)
        (tmp_path / "objects" / "mlpipeline").mkdir()
        pq.write_table(table, tmp_path / "objects" / "mlpipeline" / "clicks.parquet")
        train, *_ = prepared(prepare_tables.large_table)
    assert (train.rows, len(train.shards)) == (160, 64)
    assert f"4 workers: {min(4, os.cpu_count())} processes of this machine" in capfd.readouterr().out
    outputs = {"overview", "test_dataset", "train_dataset", "validation_dataset"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == outputs


def test_new_rows(prepared, tmp_path):
    earlier, *_ = prepared(prepare_tables.classes, wine_csv={"alcohol": NUMBERS, "cultivar": LABEL})
    (tmp_path / "out").rename(tmp_path / "earlier")
    address = str(tmp_path / "earlier" / "train_dataset")
    *_, test = prepared(prepare_tables.new_rows, address, new_csv=b"cultivar,alcohol\nb,7\na,8\n")
    assert (test.rows, test.columns, test.like) == (2, earlier.columns, earlier.preparation)


def test_every_call_of_the_page_is_tested():
    functions = {
        name for name, value in vars(prepare_tables).items() if callable(value) and value.__module__ == "prepare_tables"
    }
    tests = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert functions <= tests
