import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from kfp_distributed.components.model_formats.load import load_model
from kfp_distributed.components.model_formats.model_inputs import plan_inputs
from kfp_distributed.storage.dataset import Column
from kfp_distributed.storage.tensor_specs import TensorSpec


@pytest.fixture
def of_a_pipeline(tmp_path):
    """A model as skl2onnx converts a pipeline of scikit-learn: an input [n, 1] for each column of a table."""
    inputs = [
        helper.make_tensor_value_info(name, kind, [None, 1])
        for name, kind in (("age", TensorProto.INT64), ("income", TensorProto.DOUBLE), ("town", TensorProto.STRING))
    ]
    nodes = [
        helper.make_node("Cast", ["age"], ["years"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["income"], ["money"], to=TensorProto.FLOAT),
        helper.make_node(
            "LabelEncoder",
            ["town"],
            ["place"],
            domain="ai.onnx.ml",
            keys_strings=["Ulm"],
            values_floats=[100.0],
            default_float=-1.0,
        ),
        helper.make_node("Sum", ["years", "money", "place"], ["variable"]),
    ]
    outputs = [helper.make_tensor_value_info("variable", TensorProto.FLOAT, [None, 1])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
    graph = helper.make_graph(nodes, "pipeline", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(tmp_path / "model.onnx"))
    return tmp_path


def test_an_onnx_model_with_an_input_for_each_column_takes_a_dataset(of_a_pipeline):
    model = load_model(of_a_pipeline)
    assert model.signature.inputs == {
        "age": TensorSpec("age", "int64", (None, 1)),
        "income": TensorSpec("income", "float64", (None, 1)),
        "town": TensorSpec("town", "string", (None, 1)),
    }
    assert model.signature.outputs == {"variable": TensorSpec("variable", "float32", (None, 1))}
    columns = [
        Column("town", "category", "int32", vocabulary=("Ulm", "Bonn")),
        Column("income", "number", "float32"),
        Column("age", "number", "float32"),
    ]
    inputs = plan_inputs(model.signature, columns)
    answers = model.run(inputs.from_matrix(np.array([[1, 0.5, 30], [2, 0.5, 30], [0, 1, 1]], np.float32)))
    assert answers["variable"].tolist() == [[130.5], [29.5], [1.0]]
    raw = {"town": ["Ulm", "Rome"], "income": [1, 1], "age": [1, 1]}
    assert model.run(inputs.from_columns(raw))["variable"].tolist() == [[102], [1]]
    as_bytes = inputs.from_columns(raw) | {"town": np.array([[b"Ulm"], ["Rome"]], object)}
    assert model.run(as_bytes)["variable"].tolist() == [[102], [1]]
    with pytest.raises(ValueError, match=r"^the model failed: save it with a signature .*\(InvalidArgument: [^\n]*$"):
        model.run({name: np.zeros((1, 1)) for name in model.signature.inputs})


def test_a_saved_model_is_run_by_the_names_of_its_signature(tmp_path):
    import tensorflow as tf

    class Adder(tf.Module):
        def __init__(self):
            super().__init__()
            self.weight = tf.Variable(2.0)
            keys = tf.lookup.KeyValueTensorInitializer(["a"], tf.constant([5.0]))
            self.table = tf.lookup.StaticHashTable(keys, -1.0)

        @tf.function
        def serve(self, number, text):
            return {"sum": number * self.weight + self.table.lookup(text), "text": text}

    module, specs = Adder(), (tf.TensorSpec([None], tf.float64, "number"), tf.TensorSpec([None], tf.string, "text"))
    module.weight = tf.Variable(2.0, dtype=tf.float64)
    module.serve = tf.function(
        lambda number, text: {"sum": number * module.weight + tf.cast(module.table.lookup(text), tf.float64)},
        input_signature=specs,
    )
    tf.saved_model.save(module, str(tmp_path), module.serve)
    model = load_model(tmp_path)
    assert model.signature.inputs == {
        "number": TensorSpec("number", "float64", (None,)),
        "text": TensorSpec("text", "string", (None,)),
    }
    assert model.signature.outputs == {"sum": TensorSpec("sum", "float64", (None,))}
    answers = model.run({"number": np.array([1.0, 2.0]), "text": np.array(["a", "b"], object)})
    assert answers["sum"].tolist() == [7, 3]
