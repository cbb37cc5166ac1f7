"""The diffs of docs/distribution.md for TensorFlow: the programs that they make train, and their models are good."""

import textwrap
from dataclasses import replace

import pytest
from environments import trainer_python
from examples.test_diffs import PAGE, code_of
from saved_models import score

from kfp_distributed.components.train.launch import Request, launch
from kfp_distributed.components.train.runners.local import LocalRunner
from kfp_distributed.storage import open_store

# What the page does not show.
BEFORE = """
def fit(train_dir, model_dir):
    from glob import glob

    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    import tensorflow as tf

    Adam, epochs, rate = tf.keras.optimizers.Adam, 30, 2e-3
    table = pa.concat_tables([pq.read_table(file) for file in glob(train_dir + "/*.parquet")])
    inputs, labels = np.array(table["image"].to_pylist(), np.float32) / 16, np.array(table["label"])

    def make_rows():
        return tf.data.Dataset.from_tensor_slices((inputs, labels)).shuffle(2000).batch(64).repeat()

    def build_model():
        features = tf.keras.layers.InputLayer((64,), name="features")
        return tf.keras.Sequential([features, tf.keras.layers.Dense(10, "softmax", name="probabilities")])

"""
# After the strategy: that of workers comes before all tensors.
ROWS = "rows = make_rows().take(len(inputs) // 64)\n"
DEVICES = """
(processor,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * 2)
"""
SERVERS = """
DatasetCreator = tf.keras.utils.experimental.DatasetCreator
steps = len(inputs) // 64
"""
FIT, SAVE = "model.fit(rows, epochs=epochs)\n", "model.save(model_dir)\n"
RANKS = "from horovod.tensorflow import allgather_object\n"

TF = {"distribution_type": "TF", "number_of_workers": 2}
CASES = {
    "All-reduce among workers": ({**TF, "number_of_parameter_servers": 0}, "", ""),
    "Parameter servers": (TF, SERVERS, SAVE),
    "Horovod": ({"distribution_type": "MPI", "number_of_workers": 2}, RANKS, ""),
    "One pod with several devices": ({}, DEVICES, f"{FIT}print('on', strategy.num_replicas_in_sync)\n{SAVE}"),
}


@pytest.mark.parametrize("section", CASES)
def test_the_changed_program_trains(section, digits, tmp_path, monkeypatch):
    distribution, before, after = CASES[section]
    monkeypatch.setenv("KFP_DISTRIBUTED_HOROVOD_PYTHON", trainer_python("horovod"))
    changed = code_of(section, " +")
    scope = "with strategy.scope():\n" if "strategy" in changed else ""
    body = before + changed.replace(scope, ROWS + scope, 1) + "\n" + after
    request = Request(
        train_uri=str(digits.folder / "train"),
        model_uri=str(tmp_path / "model"),
        train_specification={"function": "fit", "source": BEFORE + textwrap.indent(body, "    ")},
        distribution_specification=distribution,
        identity=("run", str(tmp_path)),
    )
    said = []
    launch(request, LocalRunner(), said.append)
    assert ("[worker-0] on 2" in said) == (before == DEVICES)
    flat = replace(digits, test_inputs=digits.test_inputs.reshape(-1, 64) / 16)
    (tmp_path / "score").mkdir()
    description, accuracy = score(open_store(request.model_uri), tmp_path / "score", flat)
    assert description == "float32 (None, 64)"
    assert accuracy > 0.85


def test_no_diff_has_more_than_fifteen_lines():
    diffs = [part.partition("\n```")[0].splitlines() for part in PAGE.read_text().split("```diff\n")[1:]]
    assert len(diffs) == 9
    assert max(map(len, diffs)) <= 15
