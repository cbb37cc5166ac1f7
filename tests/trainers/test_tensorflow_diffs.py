"""The diffs of the how-to guides for TensorFlow: the changed programs train, and their models are accurate."""

import textwrap
from dataclasses import replace

import pytest
from environments import trainer_python
from examples.test_diffs import HOW_TO, code_of, diffs_of
from saved_models import score
from step_lines import into

from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.storage import open_store

pytestmark = pytest.mark.takes(30)

# Code that the page does not show.
BEFORE = """
def fit(train_dir, model_dir):
    from glob import glob

    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    import tensorflow as tf

    Adam, epochs, rate = tf.keras.optimizers.Adam, 16, 1e-3
    table = pa.concat_tables([pq.read_table(file) for file in glob(train_dir + "/*.parquet")])
    inputs, labels = np.array(table["image"].to_pylist(), np.float32), np.array(table["label"])

    def make_rows():
        return tf.data.Dataset.from_tensor_slices((inputs, labels)).shuffle(2000).batch(260).repeat()

    def build_model():
        features = tf.keras.layers.InputLayer((64,), name="features")
        # Without noise at the beginning, few steps are enough, also with the learning rate of "adam".
        layer = tf.keras.layers.Dense(10, "softmax", kernel_initializer="zeros", name="probabilities")
        return tf.keras.Sequential([features, layer])

"""
# After the strategy: that of workers comes before all tensors.
ROWS = "rows = make_rows().take(len(inputs) // 260)\n"
DEVICES = """
(processor,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * 2)
"""
SERVERS = """
DatasetCreator = tf.keras.utils.experimental.DatasetCreator
steps = len(inputs) // 260
"""
FIT, SAVE = "model.fit(rows, epochs=epochs)\n", "model.save(model_dir)\n"
RANKS = "from horovod.tensorflow import allgather_object\n"
ELASTIC = """
import horovod.tensorflow.keras as hvd
hvd.init()
model = build_model()
model.compile(hvd.DistributedOptimizer(Adam(rate * hvd.size())), "sparse_categorical_crossentropy")
LambdaCallback = tf.keras.callbacks.LambdaCallback

def rows_of(rank, size):
    chosen = tf.data.Dataset.from_tensor_slices((inputs, labels)).shard(size, rank)
    return chosen.batch(260 // size).take(len(labels) // 260)

def end_epoch(epoch, logs):
    state.done = epoch + 1
    state.commit()

"""

WITH_SERVERS = {"distribution_type": "TF", "number_of_workers": 1}
MIRRORED = {"distribution_type": "TF", "number_of_workers": 2, "number_of_parameter_servers": 0}
CASES = {
    ("multi-worker-mirrored", 0): (MIRRORED, "", ""),
    ("parameter-servers", 0): (WITH_SERVERS, SERVERS, SAVE),
    ("horovod", 0): ({"distribution_type": "MPI", "number_of_workers": 2}, RANKS, ""),
    ("elastic", 0): ({"distribution_type": "MPI", "number_of_workers": 1, "min_workers": 1}, ELASTIC, ""),
    ("gpus", 0): ({}, DEVICES, f"{FIT}print('on', strategy.num_replicas_in_sync)\n{SAVE}"),
}


@pytest.mark.parametrize(("page", "number"), CASES)
def test_the_changed_program_trains(page, number, digits, tmp_path, monkeypatch):
    distribution, before, after = CASES[page, number]
    if distribution.get("distribution_type") == "MPI":
        monkeypatch.setenv("KFP_DISTRIBUTED_HOROVOD_PYTHON", trainer_python("horovod"))
    changed = code_of(page, " +", number)
    scope = "with strategy.scope():\n" if "strategy" in changed else ""
    body = before + changed.replace(scope, ROWS + scope, 1) + "\n" + after
    request = Request(
        train_uri=str(digits.folder / "train"),
        model_uri=str(tmp_path / "model"),
        train_specification={"function": "fit", "source": BEFORE + textwrap.indent(body, "    ")},
        distribution_specification=distribution,
        identity=("run", str(tmp_path)),
    )
    lines = []
    launch(request, LocalRunner(), into(lines))
    assert ("[worker-0] on 2" in lines) == (before == DEVICES)
    flat = replace(digits, test_inputs=digits.test_inputs.reshape(-1, 64))
    (tmp_path / "score").mkdir()
    description, accuracy = score(open_store(request.model_uri), tmp_path / "score", flat)
    assert description == "float32 (None, 64)"
    assert accuracy > 0.85


TABLE = """
import tensorflow as tf
servers, rows, width = 2, 100_000, 4
ids = tf.constant([0, 7, 60_000, 99_999], tf.int64)
batches = [(ids, tf.fill([4, width], 3.0))] * 60

def zeros_of_a_part(partition_shape, partition_offset):
    return tf.zeros(partition_shape)

def train(ids, labels):
    with tf.GradientTape() as tape:
        lost = tf.reduce_sum((tf.nn.embedding_lookup(table, ids) - labels) ** 2)
    for part, gradient in zip(table.variables, tape.gradient(lost, table.variables)):
        part.scatter_sub(tf.IndexedSlices(0.1 * gradient.values, gradient.indices))

train = tf.function(train)
"""
TELL = """
print("parts", [part.shape[0] for part in table.variables], flush=True)
print("learned", tf.nn.embedding_lookup(table, ids).numpy().round(2).tolist(), flush=True)
open(model_dir + "/done", "w").close()
"""


def test_the_partitioned_table_learns(digits, tmp_path):
    body = TABLE + code_of("model-parallel", " +", 1) + TELL
    request = Request(
        train_uri=str(digits.folder / "train"),
        model_uri=str(tmp_path / "model"),
        train_specification={"function": "fit", "source": f"def fit(model_dir):\n{textwrap.indent(body, '    ')}"},
        distribution_specification=WITH_SERVERS,
        identity=("run", str(tmp_path)),
    )
    lines = []
    launch(request, LocalRunner(), into(lines))
    assert "[chief-0] parts [50000, 50000]" in lines
    assert f"[chief-0] learned {[[3.0] * 4] * 4}" in lines


def test_no_diff_has_more_than_fifteen_lines():
    diffs = [diff for page in HOW_TO.glob("*.md") for diff in diffs_of(page.stem)]
    assert len(diffs) == 9
    assert max(len(diff.splitlines()) for diff in diffs) <= 15
