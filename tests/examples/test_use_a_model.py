"""The programs of the page "Use a model" with models of the same columns."""

import importlib.util
import json
import sys
import threading
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from kfp import dsl
from kfp.compiler import Compiler
from prediction_models import linear_network, save_onnx

from kfp_distributed.components.model_formats.onnx_model import OnnxModel
from kfp_distributed.components.model_server.http_server import ModelServer, PredictHandler, ServedModel
from kfp_distributed.components.predict.step import run_step
from kfp_distributed.storage.dataset import Column, Label
from kfp_distributed.trainers.onnx_inputs import with_column_inputs

COLUMNS = (Column("size", "number", "float32", fill=2.0), Column("colour", "category", "int32", vocabulary=("red",)))


@pytest.fixture(scope="module")
def example():
    file = Path(__file__).parents[2] / "examples" / "use_a_model.py"
    spec = importlib.util.spec_from_file_location("use_a_model", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["use_a_model"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def onnx_model(tmp_path):
    network = with_column_inputs(linear_network([2, 0], 2), COLUMNS, has_unknown=False)
    label = asdict(Label("kind", ("rose", "tulip")))
    return save_onnx(tmp_path / "model", network, columns=tuple(map(asdict, COLUMNS)), label=label)


def test_models_are_asked_in_python(tmp_path, example, onnx_model):
    answers = example.ask_onnx_model(str(onnx_model))
    assert answers.shape == (2, 2)
    np.testing.assert_allclose(answers.sum(axis=1), 1, rtol=1e-6)
    assert example.class_names(str(onnx_model)) == ["rose", "tulip"]

    import tensorflow as tf

    class Model(tf.Module):
        @tf.function(
            input_signature=[tf.TensorSpec([None], tf.float32, "size"), tf.TensorSpec([None], tf.string, "colour")]
        )
        def serve(self, size, colour):
            return {"probabilities": tf.stack([size, tf.cast(colour == "red", tf.float32)], 1)}

    module = Model()
    tf.saved_model.save(module, str(tmp_path / "saved"), {"serving_default": module.serve})
    np.testing.assert_array_equal(example.ask_saved_model(str(tmp_path / "saved")), [[1.5, 1], [np.nan, 0]])


def test_a_server_gets_the_rows(example, onnx_model):
    served = ServedModel("flowers", 1, OnnxModel(onnx_model))
    with ModelServer("127.0.0.1", 0) as server:
        server.listen(partial(PredictHandler, served))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            answers = example.ask_server(server.url)
        finally:
            server.shutdown()
            thread.join()
    np.testing.assert_array_equal(np.array(answers, np.float32), example.ask_onnx_model(str(onnx_model)))


def test_the_predictions_of_the_pipeline_are_read(tmp_path, example, onnx_model):
    Compiler().compile(example.predict_new_flowers, str(tmp_path / "pipeline.yaml"))
    (tmp_path / "new.csv").write_text("id,size,colour\n7,1.5,red\n8,,\n")
    run_step(
        predictions=dsl.Artifact(uri=str(tmp_path / "predictions")),
        model=None,
        model_uri=str(onnx_model),
        dataset=None,
        source=str(tmp_path / "new.csv"),
        key_columns=["id"],
        csv_format={},
        on_bad_row="refuse",
        probabilities=True,
    )
    table, classes = example.read_predictions(str(tmp_path / "predictions"))
    assert classes == ["rose", "tulip"]
    np.testing.assert_allclose(table["probabilities"].to_pylist(), example.ask_onnx_model(str(onnx_model)), rtol=1e-6)
    assert json.loads(table.schema.metadata[b"classes"]) == classes
