"""The signature in model.json is that of the file, as the steps that run the model read it."""

import importlib
import sys
from functools import partial
from zipfile import ZipFile

import numpy as np
import pytest
from prediction_models import linear_network, save_onnx

from kfp_distributed.components.model_formats.load import load_model
from kfp_distributed.storage import open_store
from kfp_distributed.storage.dataset import Column
from kfp_distributed.storage.model import verify_model
from kfp_distributed.trainers import train_specification
from kfp_distributed.trainers.onnx_inputs import with_column_inputs
from kfp_distributed.trainers.runtime.outputs.served_signature import served_signature

pytestmark = pytest.mark.takes(3)

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


def keras_file(folder, library="keras"):
    keras = importlib.import_module(library)
    size, colour = keras.Input((1,), name="size"), keras.Input((1,), name="colour", dtype="string")
    place = keras.layers.StringLookup(output_mode="one_hot")
    place.adapt(np.array([["red"], ["blue"]]))  # Its texts are a file of their own.
    joined = keras.layers.Concatenate()([size, place(colour)])
    network = keras.layers.Dense(2)(keras.layers.BatchNormalization()(joined))
    keras.Model([size, colour], {"probabilities": keras.layers.Softmax()(network)}).save(folder / "model.keras")
    return folder


def sequential(folder):
    import keras

    keras.Sequential([keras.Input((2, 3)), keras.layers.Flatten(), keras.layers.Dense(1)]).save(folder / "model.keras")
    return folder


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (onnx_model, "onnx"),
        (saved_model, "saved_model"),
        (keras_file, "keras"),
        pytest.param(
            partial(keras_file, library="tf_keras"),
            "keras",
            marks=pytest.mark.skipif(
                (3, 13) <= sys.version_info < (3, 13, 5),
                reason="zipfile of this Python reads from wrong places of the files that tf_keras opens",
            ),
        ),
        (sequential, "keras"),
    ],
)
def test_it_has_the_inputs_and_outputs_of_the_loaded_model(tmp_path, make, name):
    folder = make(tmp_path)
    signature = served_signature(folder, name)
    assert signature["inputs"]
    assert signature == load_model(folder).signature.to_dict()


def test_a_saved_model_has_the_signature_of_the_graph_that_servers_load(tmp_path):
    """A SavedModel of TensorFlow 1 may have a graph for training before that for serving."""
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2

    expected = served_signature(saved_model(tmp_path), "saved_model")
    file = tmp_path / "saved_model.pb"
    model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    training = saved_model_pb2.SavedModel.FromString(file.read_bytes()).meta_graphs[0]
    training.meta_info_def.tags[:] = [tf.saved_model.TRAINING]
    del training.signature_def["serving_default"].outputs["any"]
    model.meta_graphs.insert(0, training)
    file.write_bytes(model.SerializeToString())
    assert served_signature(tmp_path, "saved_model") == expected == load_model(tmp_path).signature.to_dict()


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_a_compiled_keras_model_has_the_signature_of_one_that_is_not_compiled(tmp_path, library):
    keras = importlib.import_module(library)
    part = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model = keras.Sequential([keras.Input((3,)), part])
    folders = tmp_path / "plain", tmp_path / "compiled"
    for folder in folders:
        folder.mkdir()
    model.save(folders[0] / "model.keras")
    for network in (part, model):
        network.compile("adam", "mse")
    model.fit(np.zeros((4, 3)), np.zeros((4, 2)), verbose=0)
    model.save(folders[1] / "model.keras")

    plain, compiled = (served_signature(folder, "keras") for folder in folders)

    assert plain
    assert compiled == plain


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_the_weights_of_a_keras_file_are_not_read(tmp_path, library):
    folder = keras_file(tmp_path, library)
    complete = served_signature(folder, "keras")
    with ZipFile(folder / "model.keras") as archive:
        texts = {name: archive.read(name) for name in ("metadata.json", "config.json")}
    with ZipFile(folder / "model.keras", "w") as archive:
        for name, text in texts.items():
            archive.writestr(name, text)
    assert served_signature(folder, "keras") == complete


def test_a_keras_file_of_a_keras_that_is_not_imported_has_none(tmp_path, monkeypatch):
    folder = keras_file(tmp_path)
    monkeypatch.delitem(sys.modules, "keras")
    assert served_signature(folder, "keras") == {}


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("model.onnx", "onnx"),
        ("saved_model.pb", "saved_model"),
        ("model.keras", "keras"),
        ("model.pt2", "torch_export"),
    ],
)
def test_a_file_that_cannot_be_read_has_none_and_fails_no_training(tmp_path, capsys, file, name):
    import tensorflow  # noqa: F401  (it reads a SavedModel)

    (tmp_path / file).write_bytes(b"no model")
    assert served_signature(tmp_path, name) == {}
    assert capsys.readouterr().out.startswith(f"{file} cannot be read, so model.json has no signature: ")


def test_other_formats_have_none(tmp_path):
    assert served_signature(tmp_path, "safetensors") == {}


def save_keras_file(model_dir):
    import keras

    features, output = keras.Input((8, 8), name="image"), keras.layers.Dense(10, activation="softmax", name="digit")
    keras.Model(features, output(keras.layers.Flatten()(features))).save(f"{model_dir}/model.keras")


def test_a_training_by_a_function_records_it(make_replicas, digits):
    replicas = make_replicas(train_specification(save_keras_file), {}, {"worker": 1}, digits)
    replicas.start_all()
    assert replicas.wait("worker-0") == 0, replicas.text("worker-0")
    assert verify_model(open_store(replicas.job.model_uri)).signature == {
        "inputs": {"image": {"dtype": "float32", "shape": [None, 8, 8]}},
        "outputs": {"digit": {"dtype": "float32", "shape": [None, 10]}},
    }
