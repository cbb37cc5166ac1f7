"""The predictions for a table are those for the dataset that prepare_data makes of it."""

import datetime
import hashlib
import json
import math
import shutil
from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from onnx import TensorProto, helper
from prediction_models import linear_network, save_onnx

from kfp_distributed.components.predict.answering.prediction_files import PredictionFiles
from kfp_distributed.storage.dataset import Column, Label

pytestmark = pytest.mark.takes(7)

ROWS = 500


def table_of(rows=ROWS):
    """A table with numbers, gaps, dates, categories of texts, integer codes and booleans, and a label."""
    generator = np.random.default_rng(3)
    has_gap = generator.random(rows) < 0.2
    day = datetime.date(2024, 1, 1)
    return pa.table(
        {
            "id": pa.array(range(10**12, 10**12 + rows), pa.int64()),
            "size": pa.array(generator.normal(0, 1, rows), mask=has_gap),
            "number": pa.array(generator.permutation(rows) / 64),
            "day": pa.array([day + datetime.timedelta(int(n) % 3) for n in range(rows)]),
            "color": pa.array(generator.choice(["blue", "red", "Grün"], rows), mask=generator.random(rows) < 0.1),
            "zone": pa.array(generator.integers(0, 4, rows)),
            "is_new": pa.array(generator.random(rows) < 0.5),
            "label": pa.array(generator.choice(["a", "b", "c"], rows)),
        }
    )


def write(table, path):
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=64)
        return path
    rows = table.to_pylist()
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, default=str) + "\n" for row in rows))
        return path
    lines = [",".join(table.schema.names)]
    lines += [",".join("" if value is None else str(value) for value in row.values()) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def by_number(output):
    return output.table().sort_by("number").to_pylist()


@pytest.mark.parametrize("by_column", [True, False])
@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
def test_a_table_is_predicted_as_the_dataset_made_of_it(ending, by_column, tmp_path, prepared, model_of, predicted):
    source = write(table_of(), tmp_path / f"rows.{ending}")
    dataset = prepared(source, columns={"zone": "category"}, drop_columns=["id"])
    model = model_of(dataset, by_column=by_column)
    options = {"model": model, "key_columns": ["number", "color", "label"], "probabilities": True}
    of_dataset = by_number(predicted(dataset=dataset, **options))
    of_table = by_number(predicted(source=str(source), **options))
    assert len(of_table) == ROWS
    names = ("number", "color", "label", "prediction")
    assert [[row[name] for name in names] for row in of_table] == [[row[name] for name in names] for row in of_dataset]
    for name in ("probability", "probabilities"):
        expected, found = ([row[name] for row in rows] for rows in (of_dataset, of_table))
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert len({row["prediction"] for row in of_table}) > 1


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
def test_a_category_of_numbers_is_known_in_another_spelling(ending, tmp_path, prepared, model_of, predicted):
    """pandas writes 5.0 in a column with a gap."""
    table = table_of()
    dataset = prepared(write(table, tmp_path / "rows.csv"), columns={"zone": "category"}, drop_columns=["id"])
    options = {"model": model_of(dataset), "key_columns": ["number"]}
    expected = by_number(predicted(dataset=dataset, **options))
    zones = pc.if_else(pc.equal(table["zone"], 0), -0.0, table["zone"].cast(pa.float64()))
    source = write(table.set_column(5, "zone", zones), tmp_path / f"floats.{ending}")
    assert [row["prediction"] for row in by_number(predicted(source=str(source), **options))] == [
        row["prediction"] for row in expected
    ]


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
def test_blanks_around_a_missing_value_are_no_part_of_it(ending, tmp_path, prepared, model_of, predicted, capsys):
    table = table_of()
    dataset = prepared(write(table, tmp_path / "rows.csv"), drop_columns=["id"])
    options = {"model": model_of(dataset), "key_columns": ["number"]}
    expected = by_number(predicted(source=str(write(table, tmp_path / f"plain.{ending}")), **options))
    spelled = [" ", "\u00a0", *(["NA ", "? ", "\u2009null"] if ending == "csv" else [])]
    colors = [color or spelled[row % len(spelled)] for row, color in enumerate(table["color"].to_pylist())]
    source = write(table.set_column(4, "color", pa.array(colors)), tmp_path / f"blanks.{ending}")
    capsys.readouterr()
    found = by_number(
        predicted(source=str(source), csv_format={"missing": ["?"]} if ending == "csv" else {}, **options)
    )
    assert found == expected
    assert "warning" not in capsys.readouterr().out


def test_the_rows_are_in_order_with_keys_of_their_types(tmp_path, prepared, model_of, predicted):
    table = table_of()
    source = write(table, tmp_path / "rows.parquet")
    model = model_of(prepared(source, drop_columns=["id"]))
    keys = ["id", "day", "is_new", "size"]
    output = predicted(model=model, source=str(source), key_columns=keys)
    found = output.table()
    assert found.schema.names == [*keys, "prediction", "probability"]
    assert found.select(keys).equals(table.select(keys))
    assert found.schema.field("probability").type == pa.float32()
    assert output.rows == ROWS
    assert output.metadata == {"rows": ROWS, "model": str(model)}
    as_csv = predicted(model=model, source=str(write(table, tmp_path / "rows.csv")), key_columns=["id", "day"]).table()
    assert as_csv.schema.types[:2] == [pa.int64(), pa.timestamp("us")]
    assert as_csv["id"].equals(table["id"])
    assert as_csv["prediction"].equals(found["prediction"])


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_dates_have_the_form_of_the_training_rows(ending, tmp_path, prepared, model_of, predicted, refused):
    """One row does not tell which number is the day."""
    table = table_of()
    days = {"iso": pc.strftime(table["day"], "%Y-%m-%d"), "other": pc.strftime(table["day"], "%d/%m/%Y")}
    declared = {"iso": {}, "other": {"day": "date %d/%m/%Y"}}
    models = {}
    for form, texts in days.items():
        source = write(table.set_column(3, "day", texts), tmp_path / f"{form}.csv")
        models[form] = model_of(prepared(source, form, columns=declared[form], drop_columns=["id"]), f"{form}-model")

    def one_row(form, day):
        row = write(table[:1].set_column(3, "day", pa.array([day])), tmp_path / f"row.{ending}")
        return {"model": models[form], "source": str(row), "key_columns": ["day"]}

    found = predicted(**one_row("other", "3/1/2024")).table()
    assert found["day"].to_pylist() == ["3/1/2024"]
    assert found["probability"].equals(predicted(**one_row("iso", "2024-01-03")).table()["probability"])
    assert not found["probability"].equals(predicted(**one_row("iso", "2024-03-01")).table()["probability"])
    shutil.rmtree(tmp_path / "predictions")
    message = refused(**one_row("other", "1/13/2024"))
    form = "which is no date of the form %d/%m/%Y, such as 31/01/2024, as the training rows have"
    assert f"'day' is '1/13/2024', {form}: correct it" in message


def test_an_unknown_category_reaches_the_model_as_a_text(tmp_path, predicted):
    model = save_onnx(
        tmp_path / "model",
        town_model(),
        columns=(asdict(Column("town", "category", "int32", vocabulary=("Bonn", "true"))),),
        label=asdict(Label("price", task="regression")),
    )
    (tmp_path / "rows.csv").write_text("town,note\nBonn,x\nUlm,y\n,z\n007,w\n")
    output = predicted(model=model, source=str(tmp_path / "rows.csv"))
    assert output.table().to_pylist() == [
        {"file": "rows.csv", "row": 0, "prediction": -1.0},
        {"file": "rows.csv", "row": 1, "prediction": 100.0},
        {"file": "rows.csv", "row": 2, "prediction": 5.0},
        {"file": "rows.csv", "row": 3, "prediction": 7.0},
    ]


def test_what_the_model_has_not_seen_is_counted(tmp_path, prepared, model_of, predicted, monkeypatch, capsys):
    rows = [f"{'Ulm' if number % 2 else 'Bonn'},{number % 7},{number},{'ab'[number % 2]}" for number in range(40)]
    source = tmp_path / "rows.csv"
    source.write_text("town,x,y,label\n" + "\n".join(rows) + "\n")
    model = model_of(prepared(source))
    capsys.readouterr()
    predicted(model=model, source=str(source))
    assert "warning" not in capsys.readouterr().out
    new = tmp_path / "new.csv"
    new.write_text("town,x,y\n" + "Rome,,1\nUlm,,2\n,,\nOslo,,4\n" * 100)
    for chunk_bytes in (2**20, 400):
        monkeypatch.setattr("kfp_distributed.components.predict.reading.source_rows.CHUNK_BYTES", chunk_bytes)
        predicted(model=model, source=str(new))
        assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")] == [
            "warning: column 'town' has values in 200 of 400 rows that no training row has, such as 'Rome', 'Oslo': "
            "the model has learned nothing about them",
            "warning: column 'x' has no value in any of 400 rows: the model answers as for missing values. Write the "
            "column as in the training data",
        ]


def test_a_value_that_looks_like_one_of_a_training_row_is_shown_with_it(
    tmp_path, prepared, model_of, predicted, capsys
):
    source = tmp_path / "rows.csv"
    source.write_text("town,x,label\n" + "Zürich,1,a\nUlm,2,b\n" * 20)
    model = model_of(prepared(source))
    new = tmp_path / "new.csv"
    new.write_text("town,x\nZu\u0308rich,1\nUlm\u200b,2\nRome,3\nULM,4\n")
    capsys.readouterr()
    predicted(model=model, source=str(new))
    assert (
        r"such as 'Zu\u0308rich' (a training row has 'Z\xfcrich'), 'Ulm\u200b' (a training row has 'Ulm'), 'Rome', "
        "'ULM' (a training row has 'Ulm'): the model has learned nothing about them"
    ) in capsys.readouterr().out


def test_rows_that_a_quote_may_have_taken_are_named(tmp_path, prepared, model_of, predicted, monkeypatch, capsys):
    (tmp_path / "rows.csv").write_text("town,x,label\n" + "Ulm,1,a\nBonn,2,b\n" * 20)
    model = model_of(prepared(tmp_path / "rows.csv"))
    new = tmp_path / "new.csv"
    new.write_text("town,x\n" + "Ulm,1\n" * 50 + 'Ulm,1\n"Bonn,2\nUlm,1\nBonn",2\n?,\n' + "Ulm,1\n" * 50)
    for chunk_bytes in (2**20, 400):
        monkeypatch.setattr("kfp_distributed.components.predict.reading.source_rows.CHUNK_BYTES", chunk_bytes)
        capsys.readouterr()
        predicted(model=model, source=str(new), csv_format={"missing": ["?", "-"]})
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if "has lines that look like rows, and begins with '\"Bonn,2" in line]
        assert 'warning: csv_format: "missing" has ["-"], which no value is' in lines


def town_model():
    """A model that knows the towns Ulm and 007, of which no dataset has told it, and what a gap is."""
    node = helper.make_node(
        "LabelEncoder",
        ["town"],
        ["prediction"],
        domain="ai.onnx.ml",
        keys_strings=["Ulm", "", "007"],
        values_floats=[100.0, 5.0, 7.0],
        default_float=-1.0,
    )
    graph = helper.make_graph(
        [node],
        "towns",
        [helper.make_tensor_value_info("town", TensorProto.STRING, [None, 1])],
        [helper.make_tensor_value_info("prediction", TensorProto.FLOAT, [None, 1])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_a_model_without_columns_and_classes_takes_the_columns_of_its_inputs(
    tmp_path, prepared, model_of, predicted, capsys
):
    source = write(table_of(), tmp_path / "rows.parquet")
    dataset = prepared(source, drop_columns=["id"])
    named = predicted(model=model_of(dataset), source=str(source), probabilities=True).table()
    output = predicted(model=model_of(dataset, "bare", has_manifest=False), source=str(source), probabilities=True)
    assert "`prediction` is the index of the class" in capsys.readouterr().out
    found = output.table()
    assert found["prediction"].to_pylist() == ["abc".index(name) for name in named["prediction"].to_pylist()]
    assert found["probabilities"].equals(named["probabilities"])
    assert output.manifest["classes"] == []


def test_files_hold_equally_many_rows_and_the_manifest_is_true(tmp_path, prepared, model_of, predicted, monkeypatch):
    monkeypatch.setattr(PredictionFiles.__init__, "__defaults__", (200,))
    folder = tmp_path / "rows"
    folder.mkdir()
    table = table_of()
    write(table[:300], folder / "a.csv")
    write(table[300:], folder / "b.csv")
    model = model_of(prepared(folder, drop_columns=["id"]))
    output = predicted(model=model, source=str(folder), probabilities=True)
    assert {file.name for file in output.folder.iterdir()} == {
        *(f"part-0000{number}.parquet" for number in range(3)),
        "predictions.json",
    }
    manifest = output.manifest
    assert [part["rows"] for part in manifest["parts"]] == [200, 200, 100]
    for part in manifest["parts"]:
        data = (output.folder / part["path"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (part["size"], part["sha256"])
    assert manifest["model"] == {"uri": str(model), "job": "train-1"}
    assert manifest["rows"] == ROWS
    assert manifest["columns"][-1] == {"name": "probabilities", "type": "fixed_size_list<item: float>[3]"}
    found = output.table()
    assert found["file"].to_pylist() == ["a.csv"] * 300 + ["b.csv"] * 200
    assert found["row"].to_pylist() == [*range(300), *range(200)]
    assert json.loads(found.schema.metadata[b"classes"]) == ["a", "b", "c"]
    assert pq.ParquetFile(output.folder / "part-00000.parquet").metadata.row_group(0).column(0).compression == "ZSTD"


def test_chunks_count_the_rows_of_a_file_on(tmp_path, prepared, model_of, predicted, monkeypatch):
    source = write(table_of(), tmp_path / "rows.parquet")
    model = model_of(prepared(source, drop_columns=["id"]))
    whole = predicted(model=model, source=str(source)).table()
    monkeypatch.setattr("kfp_distributed.components.predict.reading.source_rows.CHUNK_BYTES", 8000)
    parts = predicted(model=model, source=str(source)).table()
    assert whole["row"].to_pylist() == [*range(ROWS)]
    assert parts.equals(whole)


def test_a_key_of_codes_keeps_its_zeros(tmp_path, prepared, model_of, predicted):
    rows = [f"{number},{number % 7},{'ab'[number % 2]}" for number in range(100, 300)]
    source = tmp_path / "rows.csv"
    source.write_text("zip,x,label\n" + "\n".join(rows) + "\n")
    model = model_of(prepared(source, drop_columns=["zip"]))
    assert predicted(model=model, source=str(source), key_columns=["zip"]).table()["zip"].type == pa.int64()
    source.write_text(source.read_text() + "007,1,a\n")
    found = predicted(model=model, source=str(source), key_columns=["zip"]).table()
    assert found["zip"].to_pylist() == [*map(str, range(100, 300)), "007"]


def test_bad_rows_are_refused_or_left_out(tmp_path, prepared, model_of, predicted, refused, capsys):
    rows = [f"k{number},{number % 7},{'ab'[number % 2]}" for number in range(40)]
    source = tmp_path / "rows.csv"
    source.write_text("key,x,label\n" + "\n".join(rows) + "\n")
    model = model_of(prepared(source, drop_columns=["key"]))
    bad = tmp_path / "bad.csv"
    bad.write_text("key,x\n" + "\n".join(["a,1", "b,?!", "c", "d,1e60", "e,4"]) + "\n")
    message = refused(model=model, source=str(bad), key_columns=["key"])
    assert message.startswith("RowsRefused: row 3 of bad.csv: 'x' is '?!', which is no number")
    assert "row 4 of bad.csv has 1 values" in message
    assert "row 5 of bad.csv: 'x' is infinite or too large for a 32-bit number" in message
    assert "these are 3 rows that cannot be used" in message
    only = tmp_path / "only.csv"
    only.write_text("key,x\nb,?!\n")
    assert refused(model=model, source=str(only)).startswith("RowsRefused: row 2 of only.csv: 'x' is '?!'")
    for keys in (["key"], []):
        output = predicted(model=model, source=str(bad), key_columns=keys, on_bad_row="skip")
        line = "warning: left out 3 rows that cannot be used ('x': 2, whole rows: 1), such as row 3 of bad.csv"
        assert line in capsys.readouterr().out
        assert (output.rows, output.manifest["rows_left_out"]) == (2, 3)
        found = output.table()
        assert found["key"].to_pylist() == ["a", "e"] if keys else found["row"].to_pylist() == [0, 4]


def test_a_row_without_a_finite_answer_cannot_be_used(tmp_path, predicted, refused):
    model = save_onnx(
        tmp_path / "model",
        linear_network([math.nan], 2),
        columns=(asdict(Column("x", "number", "float32")),),
        label=asdict(Label("label", ("a", "b"))),
    )
    source = tmp_path / "rows.csv"
    source.write_text("x,y\n1,1\n,2\n3,3\n")
    message = refused(model=model, source=str(source))
    assert message.startswith("RowsRefused: row 3 of rows.csv gets no finite answer of the model")
    assert predicted(model=model, source=str(source), on_bad_row="skip").table()["row"].to_pylist() == [0, 2]
