"""The SavedModel of a Keras model, with a signature that takes raw rows by the names of the columns."""

import keyword
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import tensorflow as tf
import tf_keras
from tensorflow.core.protobuf import saved_model_pb2

from kfp_distributed.storage.dataset import Column, DatasetManifest, input_shape, width
from kfp_distributed.trainers.keras_training.keras_model import build_model
from kfp_distributed.trainers.runtime.data_loading.epoch_steps import categories

_SERVING = "serving_default"
_MATRIX = "features"


def export_model(model: tf_keras.Model, manifest: DatasetManifest, folder: str) -> None:
    """Write a SavedModel with two signatures of the same output.

    "serving_default" takes an input for each column, by its name: of a number float32 [n], of a category string [n], of
    a tensor float32 [n, *shape]. NaN and "" stand for a missing value. "features" takes float32 [n, *input_shape], as
    `read_batches` yields rows. The output is "probabilities", float32 [n, classes], or for a number "prediction",
    float64 [n, 1], in its own unit.

    A category that is not in the vocabulary, or an index out of range, is a value of its own, see `with_unknown`.

    Args:
        model: The trained model, from `build_model`.
        manifest: Manifest of the training dataset.
        folder: Folder of the SavedModel.
    """
    served, label = with_unknown(model, manifest), manifest.label
    counts = categories(manifest)
    limits = np.array([counts.get(index, 0) for index in range(width(manifest))], np.float32)
    tables = [_index_table(column) if column.kind == "category" else None for column in manifest.columns]

    def answer(matrix: tf.Tensor) -> dict[str, tf.Tensor]:
        # Of NaN, both comparisons are false.
        is_known = (limits == 0) | ((matrix >= 0) & (matrix < limits))
        outputs = served(tf.where(is_known, matrix, limits), training=False)
        if label.task == "regression":
            # A 32-bit float has too few digits for a mean that is large beside the deviation, such as that of times.
            return {"prediction": tf.cast(outputs, tf.float64) * label.std + label.mean}
        return {"probabilities": outputs}

    def serve_matrix(features: tf.Tensor) -> dict[str, tf.Tensor]:
        return answer(tf.reshape(features, [-1, width(manifest)]))

    def serve_columns(*values: tf.Tensor) -> dict[str, tf.Tensor]:
        parts = []
        for column, table, value in zip(manifest.columns, tables, values, strict=True):
            numbers = value if table is None else tf.cast(table.lookup(value), tf.float32)
            parts.append(tf.reshape(numbers, [-1, int(np.prod(column.shape))]))
        return answer(tf.concat(parts, 1))

    names = parameter_names(column.name for column in manifest.columns)
    module = tf.Module()
    module.weights, module.tables = served.weights, [table for table in tables if table]
    matrix = tf.TensorSpec([None, *input_shape(manifest)], tf.float32, name=_MATRIX)
    # AutoGraph would rewrite functions without control flow, which takes longer than tracing them.
    signatures = {
        _SERVING: tf.function(serve_columns, list(map(_input, manifest.columns, names)), autograph=False),
        _MATRIX: tf.function(serve_matrix, [matrix], autograph=False),
    }
    tf.saved_model.save(module, folder, signatures=signatures)
    _rename_inputs(Path(folder), {name: column.name for name, column in zip(names, manifest.columns, strict=True)})


def with_unknown(model: tf_keras.Model, manifest: DatasetManifest) -> tf_keras.Model:
    """Return a copy of a model whose categories have one more value, `len(vocabulary) + 1`, for an unknown text.

    No row has trained such a value. Its embedding is the mean of those of the vocabulary, so that the model answers as
    for an average category. That of a missing value would be wrong: rows without a value may have a meaning of their
    own, and without any such row its embedding is still the random initial one.
    """
    units = [layer.units for layer in model.layers if isinstance(layer, tf_keras.layers.Dense)]
    larger = build_model(manifest, units[:-1], spare_values=1)
    for layer, trained in zip(larger.layers, model.layers, strict=True):
        weights = trained.get_weights()
        if isinstance(layer, tf_keras.layers.Embedding):
            (table,) = weights
            known = table[1:] if len(table) > 1 else table
            weights = [np.vstack([table, known.mean(axis=0)])]
        layer.set_weights(weights)
    return larger


def _input(column: Column, name: str) -> tf.TensorSpec:
    return tf.TensorSpec([None, *column.shape], tf.string if column.kind == "category" else tf.float32, name=name)


def _index_table(column: Column) -> tf.lookup.StaticHashTable:
    indices = {"": 0} | {text: index for index, text in enumerate(column.vocabulary, 1)}
    keys, values = tf.constant(list(indices)), tf.constant(list(indices.values()), tf.int64)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), len(column.vocabulary) + 1)


def parameter_names(names: Iterable[str]) -> list[str]:
    """Return a name for each input that TensorFlow accepts as a parameter of a function.

    It is the name itself if that is possible. Else it is `column_N` with the index N of the column, and with "_" at its
    end while another column has that name. TensorFlow does not tell upper from lower case.
    """
    names = list(names)
    taken, before, result = {name.lower() for name in names}, set[str](), []
    for index, name in enumerate(names):
        is_alike = name.lower() in before
        before.add(name.lower())
        if is_alike or not re.fullmatch(r"(?a)[A-Za-z]\w*", name) or keyword.iskeyword(name) or name == "self":
            name = f"column_{index}"
            while name in taken:
                name += "_"
        taken.add(name.lower())
        result.append(name)
    return result


def _rename_inputs(folder: Path, names: dict[str, str]) -> None:
    """Give the inputs of `serving_default` their names in the signature with which servers answer.

    TensorFlow saves a signature as a Python function, and replaces the characters of a name that Python does not allow
    in a parameter: "unit price" and "unit.price" become "unit_price", and "self" cannot be called. The signature itself
    has no such limits.
    """
    if all(name == renamed for name, renamed in names.items()):
        return
    file = folder / "saved_model.pb"
    content = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    inputs = content.meta_graphs[0].signature_def[_SERVING].inputs
    tensors = {names[name]: tensor.SerializeToString() for name, tensor in inputs.items()}
    inputs.clear()
    for name, tensor in tensors.items():
        inputs[name].ParseFromString(tensor)
    file.write_bytes(content.SerializeToString())
    # It has a hash of the signatures. Models before TensorFlow 2.12 have no such file.
    (folder / "fingerprint.pb").unlink(missing_ok=True)
