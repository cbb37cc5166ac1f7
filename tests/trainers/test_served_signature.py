"""The signature in model.json is that of the file, as the steps that run the model read it."""

import pytest
from prediction_models import linear_network, save_onnx

from kfp_distributed.components.model_formats.load import load_model
from kfp_distributed.storage.dataset import Column
from kfp_distributed.trainers.onnx_inputs import with_column_inputs
from kfp_distributed.trainers.runtime.served_signature import served_signature

COLUMNS = [Column("size", "number", "float32"), Column("colour", "category", "int32", vocabulary=("red", "blue"))]


def saved_model(folder):
    import tensorflow as tf

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.float32, "size"), tf.TensorSpec([None], tf.string, "colour")]
    )
    def serve(size, colour):
        return {"probabilities": tf.stack([size, 1 - size], 1), "length": tf.strings.length(colour), "any": size[0:]}

    module = tf.Module()
    module.serve = serve
    tf.saved_model.save(module, str(folder), {"serving_default": serve})
    return folder


def onnx_model(folder):
    return save_onnx(folder / "model", with_column_inputs(linear_network([0, 0], 3), COLUMNS, has_unknown=False))


@pytest.mark.parametrize(("make", "name"), [(onnx_model, "onnx"), (saved_model, "saved_model")])
def test_it_has_the_inputs_and_outputs_of_the_loaded_model(tmp_path, make, name):
    folder = make(tmp_path)
    loaded = load_model(folder).signature
    expected = {
        end: {spec.name: {"dtype": spec.dtype, "shape": list(spec.shape)} for spec in specs.values()}
        for end, specs in (("inputs", loaded.inputs), ("outputs", loaded.outputs))
    }
    assert served_signature(folder, name) == expected


@pytest.mark.parametrize(("file", "name"), [("model.onnx", "onnx"), ("saved_model.pb", "saved_model")])
def test_a_file_that_cannot_be_read_has_none_and_fails_no_training(tmp_path, capsys, file, name):
    import tensorflow  # noqa: F401  (it reads a SavedModel)

    (tmp_path / file).write_bytes(b"no model")
    assert served_signature(tmp_path, name) == {}
    assert capsys.readouterr().out.startswith(f"{file} cannot be read, so model.json has no signature: ")


def test_other_formats_have_none(tmp_path):
    assert served_signature(tmp_path, "torch_export") == {}
