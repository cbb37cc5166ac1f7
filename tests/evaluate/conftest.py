import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kfp_distributed.storage.dataset import DATASET_MANIFEST, Column, DatasetManifest, Label, Shard
from kfp_distributed.storage.files import describe_folder
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest


@pytest.fixture
def write_dataset(tmp_path):
    """Write rows as a dataset of two shards, by default with classes. Return its folder."""

    def write(columns, values, labels, classes=("ant", "bee", "cat"), name="dataset", split="test", label=None):
        folder = tmp_path / name
        folder.mkdir()
        shards = []
        for number, rows in enumerate(np.array_split(np.arange(len(labels)), 2) if len(labels) else []):
            arrays = [as_arrow(column, value[rows]) for column, value in zip(columns, values, strict=True)]
            table = pa.table([*arrays, pa.array(labels[rows])], names=[*(c.name for c in columns), "kind"])
            file = folder / f"part-{number}.parquet"
            pq.write_table(table, file)
            data = file.read_bytes()
            shards.append(Shard(file.name, len(rows), len(data), hashlib.sha256(data).hexdigest()))
        label = label or Label("kind", classes)
        counts = tuple(int((labels == index).sum()) for index in range(len(label.classes)))
        manifest = DatasetManifest(split, tuple(columns), label, tuple(shards), counts, 0, "made up")
        (folder / DATASET_MANIFEST).write_text(manifest.to_json())
        return folder

    return write


def as_arrow(column, value):
    if not column.shape:
        return pa.array(value, pa.float32(), mask=np.isnan(value))
    flat = pa.array(value.reshape(-1), getattr(pa, column.dtype)())
    return pa.FixedSizeListArray.from_arrays(flat, int(np.prod(column.shape)))


@pytest.fixture
def pictures(write_dataset):
    """Sixty pictures of 4 by 4 pixels in three classes, and the folder of their dataset."""
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 17, (60, 4, 4), np.uint8), random.integers(0, 3, 60)
    return images, labels, write_dataset([Column("image", "tensor", "uint8", (4, 4))], [images], labels)


@pytest.fixture(scope="session")
def save_model(tmp_path_factory):
    """Save a function of a batch as a SavedModel with its model.json. Return its folder."""

    def save(predict, *inputs, signature="serving_default", weights=(), **manifest):
        import tensorflow as tf

        folder = tmp_path_factory.mktemp("model")
        module = tf.Module()
        module.weights = weights
        module.predict = tf.function(predict, input_signature=[tf.TensorSpec(*spec) for spec in inputs])
        tf.saved_model.save(module, str(folder), {signature: module.predict})
        (folder / MODEL_MANIFEST).write_text(ModelManifest(files=describe_folder(folder), **manifest).to_json())
        return folder

    return save


@pytest.fixture(scope="session")
def linear(save_model):
    """A linear model of pictures of 4 by 4 pixels and three classes: its folder and its weights."""
    import tensorflow as tf

    weights = np.random.default_rng(1).normal(0, 0.1, (16, 3)).astype(np.float32)

    def predict(features):
        return {"probabilities": tf.nn.softmax(tf.reshape(features, [-1, 16]) @ weights)}

    return save_model(predict, ([None, 4, 4], tf.float32, "features")), weights
