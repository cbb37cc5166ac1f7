"""Models by address, of both formats, and what is refused before rows are read."""

import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest
from kfp import dsl
from onnx import TensorProto, helper, numpy_helper
from prediction_models import linear_network, save_onnx

from kfp_distributed.components.export_model.step import run_step as export_step
from kfp_distributed.storage.dataset import Column, Label
from kfp_distributed.storage.files import describe_folder
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest

COLUMNS = (asdict(Column("x", "number", "float32")),)
CLASSES = asdict(Label("label", ("a", "b")))


@pytest.fixture
def source(tmp_path):
    (tmp_path / "rows.csv").write_text("x\n1\n2\n3\n")
    return str(tmp_path / "rows.csv")


@pytest.fixture
def model(tmp_path):
    return save_onnx(tmp_path / "model", linear_network([0], 2), columns=COLUMNS, label=CLASSES)


def test_a_model_is_downloaded_and_checked(tmp_path, model, source, predicted, refused, capsys):
    expected = predicted(model=model, source=source).table()
    manifest = dsl.Artifact(uri=str(tmp_path / "export.json"))
    (tmp_path / "models").mkdir()
    exported = export_step(
        model=dsl.Model(uri=str(model)),
        model_name="digits",
        bucket=str(tmp_path / "models"),
        manifest=manifest,
        version=0,
        metrics=None,
    )
    alias = f"{tmp_path}/models/digits@latest"
    for given, uri in ((str(model), str(model)), (exported.uri, exported.uri), (alias, exported.uri)):
        output = predicted(model_uri=given, source=source)
        assert output.table().equals(expected)
        assert output.metadata["model"] == output.manifest["model"]["uri"] == uri
        assert f"downloading the model {uri}" in capsys.readouterr().out
    (tmp_path / "predictions").rename(tmp_path / "earlier")
    (model / "model.onnx").write_bytes(b"x" * (model / "model.onnx").stat().st_size)
    assert refused(model_uri=str(model), source=source).startswith("ChecksumMismatch: ")
    message = refused(model_uri=str(tmp_path / "none"), source=source)
    assert message.startswith(f"ModelIncomplete: model_uri {tmp_path / 'none'}: ")
    assert message.endswith("such as s3://models/digits/3")


def test_a_saved_model_is_run(tmp_path, source, predicted):
    import tensorflow as tf

    class Twice(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 1], tf.float32, "x")])
        def serve(self, x):
            return {"prediction": 2 * x}

    module, folder = Twice(), tmp_path / "saved"
    tf.saved_model.save(module, str(folder), {"serving_default": module.serve})
    label = asdict(Label("y", task="regression"))
    manifest = ModelManifest(files=describe_folder(folder), columns=COLUMNS, label=label)
    (folder / MODEL_MANIFEST).write_text(manifest.to_json())
    assert predicted(model=folder, source=source).table()["prediction"].to_pylist() == [2.0, 4.0, 6.0]


def test_exactly_one_model_and_one_source_of_rows_are_needed(model, source, refused):
    address = "s3://models/digits/3"
    assert refused(source=source) == (
        "ValueError: neither model nor model_uri is set: set one of them, which gives the model"
    )
    assert refused(model=model, model_uri=address, source=source) == (
        f"ValueError: model and model_uri ({address}) are both set: set one of them, which gives the model"
    )
    assert refused(model=model) == (
        "ValueError: neither dataset nor source is set: set one of them, which gives the rows"
    )
    assert refused(model=model, dataset="folder", source=source) == (
        f"ValueError: dataset and source ({source}) are both set: set one of them, which gives the rows"
    )


def test_parameters_are_checked_before_anything_is_read(source, refused):
    def message(**parameters):
        return refused(model="none", **{"source": "none", **parameters})

    assert message(on_bad_row="drop") == "ValueError: on_bad_row is 'drop': allowed are 'refuse', 'skip'"
    assert message(key_columns=["id", "id"]) == "ValueError: key_columns has 'id' 2 times: name each column once"
    assert message(key_columns=["probability"]).startswith(
        "ValueError: key_columns has 'probability', which is a column of the predictions: rename"
    )
    assert message(csv_format={"point": ","}).startswith("ValueError: csv_format")
    assert message(source="", dataset="none", csv_format={"decimal": ","}) == (
        "ValueError: csv_format is set, and a dataset has no CSV files: leave csv_format out, or set source"
    )


def test_outputs_that_are_no_probabilities_or_numbers_are_refused(tmp_path, source, refused):
    three = {**CLASSES, "classes": ("a", "b", "c")}
    model = save_onnx(tmp_path / "three", linear_network([0], 2), columns=COLUMNS, label=three)
    assert refused(model=model, source=source).startswith(
        "ValueError: the model's output has the shape [3, 2] for a batch of 3 rows, where [3, 3], one probability"
    )
    one = save_onnx(
        tmp_path / "one", linear_network([0], 0, scales=0.001), columns=COLUMNS, label={**CLASSES, "classes": ("a",)}
    )
    assert refused(model=one, source=source).startswith(
        "ValueError: the model's output 'prediction' has values outside"
    )


@pytest.mark.takes(30)
def test_a_large_source_needs_no_more_memory(tmp_path, model, predicted):
    """One batch of rows at a time is in memory, whatever the number of the rows is."""
    code = r"""
import re, sys
from pathlib import Path
from kfp import dsl
from onnx import TensorProto, helper, numpy_helper
from kfp_distributed.components.predict.step import run_step
run_step(
    predictions=dsl.Artifact(uri=sys.argv[3]), model=dsl.Model(uri=sys.argv[1]), dataset=None, model_uri="",
    source=sys.argv[2], key_columns=["x"], csv_format={}, on_bad_row="refuse", probabilities=True,
)
# Unlike ru_maxrss, it does not begin with the memory of the process that has started this one.
print(int(re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())[1]) // 1024)
"""
    peaks = []
    for rows in (1_000_000, 5_000_000):
        file = tmp_path / f"{rows}.csv"
        with file.open("w") as stream:
            stream.write("x,text\n")
            for _ in range(rows // 100_000):
                stream.write("".join(f"{number / 7:.9f},some more text\n" for number in range(100_000)))
        argv = [sys.executable, "-c", code, str(model), str(file), str(tmp_path / "predictions")]
        done = subprocess.run(argv, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"predicted {rows:,} rows, all" in done.stdout
        peaks.append(int(done.stdout.split()[-1]))
    assert peaks[1] < peaks[0] + 60, f"MiB of 1,000,000 and 5,000,000 rows: {peaks}"


@pytest.mark.parametrize("has_dataset", [True, False])
def test_a_model_without_a_manifest_is_described_by_the_dataset_or_by_its_inputs(
    tmp_path, prepared, model_of, predicted, has_dataset, source
):
    rows = tmp_path / "labeled.csv"
    rows.write_text("x,label\n" + "".join(f"{number},{'ab'[number % 2]}\n" for number in range(1, 9)))
    dataset = prepared(rows, shards=1)
    model = model_of(dataset)
    given = {"dataset": dataset} if has_dataset else {"source": source}
    named = predicted(model=model, probabilities=True, **given).table()
    answers = named["prediction"].to_pylist()
    (model / MODEL_MANIFEST).unlink()
    found = predicted(model=model, probabilities=True, **given).table()
    assert found["probabilities"].equals(named["probabilities"])
    expected = answers if has_dataset else ["ab".index(name) for name in answers]
    assert found["prediction"].to_pylist() == expected


@pytest.mark.parametrize("shape", [[-1], [-1, 1]])
@pytest.mark.parametrize("label", [CLASSES, {}])
def test_the_probability_of_the_second_class_is_enough(tmp_path, source, predicted, shape, label):
    network = linear_network([0], 0, scales=10)
    network.graph.node[-1].output[0] = "column"
    nodes = [
        helper.make_node("Sigmoid", ["column"], ["p"]),
        helper.make_node("Reshape", ["p", "shape"], ["probabilities"]),
    ]
    network.graph.node.extend(nodes)
    network.graph.initializer.append(numpy_helper.from_array(np.array(shape), "shape"))
    network.graph.output.pop()
    sizes = ["n", *shape[1:]]
    network.graph.output.append(helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, sizes))
    model = save_onnx(tmp_path / "binary", network, columns=COLUMNS, label=label)
    found = predicted(model=model, source=source, probabilities=True).table()
    second = [values[1] for values in found["probabilities"].to_pylist()]
    names = ("a", "b") if label else (0, 1)
    assert found["prediction"].to_pylist() == [names[value > 0.5] for value in second]
    assert found["probability"].to_pylist() == pytest.approx([max(value, 1 - value) for value in second])
    assert len({round(value, 4) for value in second}) == 3
