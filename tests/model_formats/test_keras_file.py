import numpy as np
import pytest

from kfp_distributed.components.evaluate.weights import check_weights
from kfp_distributed.components.model_formats.load import load_model
from kfp_distributed.components.model_formats.model_inputs import plan_inputs
from kfp_distributed.storage.dataset import Column
from kfp_distributed.storage.tensor_specs import TensorSpec

COLUMNS = [Column("colour", "category", "int32", vocabulary=("red", "blue")), Column("size", "number", "float32")]


def test_a_model_takes_its_columns_by_the_names_of_its_inputs(tmp_path):
    import keras

    size, colour = keras.Input((1,), name="size"), keras.Input((1,), name="colour", dtype="string")
    place = keras.layers.StringLookup(vocabulary=["red"], output_mode="one_hot")(colour)
    joined = keras.layers.Concatenate()([size, place])
    outputs = keras.layers.Dense(1, kernel_initializer="ones", name="prediction")(joined)
    keras.Model([size, colour], outputs).save(tmp_path / "model.keras")
    model = load_model(tmp_path)
    assert model.signature.inputs == {
        "size": TensorSpec("size", "float32", (None, 1)),
        "colour": TensorSpec("colour", "string", (None, 1)),
    }
    assert model.signature.outputs == {"prediction": TensorSpec("prediction", "float32", (None, 1))}
    inputs = plan_inputs(model.signature, COLUMNS)
    answers = model.run(inputs.from_matrix(np.array([[1, 2], [2, 3]], np.float32)))
    assert answers["prediction"].tolist() == [[3], [4]]
    check_weights(tmp_path)
    with pytest.raises(ValueError, match=r"^the model failed: "):
        model.run({"size": np.zeros((1, 7), np.float32), "colour": np.zeros((1, 1), np.float32)})


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_a_sequential_model_takes_the_matrix_and_nan_in_its_weights_is_refused(tmp_path, library):
    keras = pytest.importorskip(library)
    network = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    network.compile("adam", "mse")
    network.save(tmp_path / "model.keras")
    model = load_model(tmp_path)
    answers = model.run(plan_inputs(model.signature, COLUMNS).from_matrix(np.array([[1, 2]], np.float32)))
    assert [values.tolist() for values in answers.values()] == [[[3]]]
    check_weights(tmp_path)
    network.layers[-1].set_weights([np.full((2, 1), np.nan), np.zeros(1)])
    network.save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match=r"1 of 2 weight tensors of the model have NaN"):
        check_weights(tmp_path)


def test_a_model_that_returns_a_dictionary_has_its_names(tmp_path):
    import keras

    features = keras.Input((2,), name="features")
    keras.Model(features, {"probabilities": keras.layers.Softmax()(features)}).save(tmp_path / "model.keras")
    model = load_model(tmp_path)
    assert model.run({"features": np.zeros((1, 2), np.float32)})["probabilities"].tolist() == [[0.5, 0.5]]


def test_outputs_of_the_same_name_are_refused(tmp_path):
    """Keras 3 names both outputs by their layer. One of them would be taken for the other."""
    import keras

    layer, inputs = keras.layers.Dense(1, name="score"), [keras.Input((2,), name=name) for name in ("a", "b")]
    keras.Model(inputs, [layer(tensor) for tensor in inputs]).save(tmp_path / "model.keras")
    with pytest.raises(
        ValueError, match=r"has several outputs of one name, \['score', 'score'\]: save a model that ret"
    ):
        load_model(tmp_path)


def test_code_in_a_file_is_refused(tmp_path):
    import keras

    network = keras.Sequential([keras.Input((2,)), keras.layers.Lambda(lambda values: values)])
    network.save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match=r"model.keras cannot be loaded: .*without custom classes"):
        load_model(tmp_path)
    (tmp_path / "model.keras").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"model.keras cannot be loaded: .*BadZipFile"):
        load_model(tmp_path)
