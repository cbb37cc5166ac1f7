"""keras_classifier in several processes and on several devices has the same results as in one process on one device."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from forked_replicas import forked
from mirrored_classifier import mirrored_classifier
from step_lines import into

from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.runners.local.ports import free_ports
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.storage.dataset import DatasetManifest, read_batches
from kfp_distributed.trainers import train_specification
from kfp_distributed.trainers.runtime.data_loading.epoch_steps import plan_epoch
from kfp_distributed.trainers.runtime.ranks.cluster import processors
from kfp_distributed.trainers.runtime.ranks.tensorflow_settings import tensorflow_environment

pytestmark = pytest.mark.takes(32)

TRAININGS = {
    # Each step has all rows, so that the order of the rows does not matter.
    "whole": {"epochs": 6, "batch_size": 1400, "learning_rate": 0.01, "hidden_units": [32], "seed": 3},
    # With several workers, a step has other rows than in one process, so that the curves differ by noise.
    "parts": {"epochs": 3, "batch_size": 60, "learning_rate": 5e-3, "hidden_units": [32], "seed": 3},
}
EXACT, NOISY = 1e-4, 0.1
"""Relative tolerances of the loss after each epoch."""

# Runs the trainings one after the other with one strategy. Writes each record of the input pipeline to a file, and
# where the weights are at the end.
PROGRAM = """
import json, os, sys
import numpy as np
import tensorflow as tf
from kfp_distributed.trainers import keras_classifier as trainer
from kfp_distributed.trainers.programs.training_parameters import TrainingParameters

folders, trainings, devices = map(json.loads, sys.argv[1:])
if devices > 1:
    one = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(one, [tf.config.LogicalDeviceConfiguration()] * devices)
dataset_of_rows, fit, strategies = trainer.dataset_of_rows, trainer.tf_keras.Model.fit, []
strategy = trainer._strategy

def same_strategy(cluster):
    if not strategies:
        strategies.append(strategy(cluster))
    return strategies[0]

def note(*record):
    with open("notes", "ab") as notes:
        notes.write(np.column_stack(record).astype("<f4").tobytes())
    return np.int64(0)

def noted(*record):
    with tf.control_dependencies([tf.numpy_function(note, record, tf.int64)]):
        return tuple(map(tf.identity, record))

def fit_and_look(model, *arguments, **options):
    fit(model, *arguments, **options)
    values = [getattr(weight, "values", [weight]) for weight in model.weights]
    copies = [[(copy.device[-5:], copy.numpy()) for copy in of_weight] for of_weight in values]
    same = all((value == of_weight[0][1]).all() for of_weight in copies for _, value in of_weight)
    devices_of_copies = [[name for name, _ in of_weight] for of_weight in copies]
    with open("weights.json", "w") as file:
        json.dump({"devices_of_copies": devices_of_copies, "same": same}, file)

trainer.dataset_of_rows = lambda *arguments: dataset_of_rows(*arguments).map(noted)
trainer.tf_keras.Model.fit, trainer._strategy = fit_and_look, same_strategy
start = os.getcwd()
for name, parameters in trainings.items():
    os.makedirs(f"{start}/{name}")
    os.chdir(f"{start}/{name}")
    trainer.keras_classifier(
        **folders, model_dir="model", checkpoint_dir="checkpoint", metrics_dir=".", tensorboard_dir="",
        parameters=TrainingParameters(**parameters),
    )
"""


def train(odd_digits, folder, workers=1, devices=1):
    """Run the trainings in some processes with some devices each; each process has a folder.

    Several ranks have the rate of "whole" by `scale_learning_rate`.
    """
    folders = {f"{split}_dir": str(odd_digits.folder / split) for split in ("train", "validation")}
    ranks = workers * devices
    scaled = {**TRAININGS["whole"], "learning_rate": 0.01 / ranks, "scale_learning_rate": ranks > 1}
    arguments = [json.dumps(value) for value in (folders, {**TRAININGS, "whole": scaled}, devices)]
    environment = {**os.environ, **tensorflow_environment({}, workers, True, processors())}
    addresses, running = [f"127.0.0.1:{port}" for port in free_ports(workers)], []
    for index in range(workers):
        own = folder / f"worker-{index}"
        own.mkdir()
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        if workers > 1:
            environment["TF_CONFIG"] = json.dumps(task)
        with (own / "log").open("wb") as log:
            argv = forked(sys.executable, "-c", PROGRAM, *arguments)
            running.append(subprocess.Popen(argv, cwd=own, env=environment, stdout=log, stderr=subprocess.STDOUT))
    try:
        codes = [process.wait(300) for process in running]
    finally:
        for process in running:
            process.kill()
    assert codes == [0] * workers, "\n".join(file.read_text() for file in folder.glob("*/log"))
    return folder


DISAGREEMENT = """
import os, sys
import tensorflow as tf
from kfp_distributed.trainers.keras_classifier import _check_agreement
from kfp_distributed.trainers.runtime.lifecycle.fatal_errors import is_lost_peer

strategy = tf.distribute.MultiWorkerMirroredStrategy()
_check_agreement(strategy, 2, 5)
try:
    _check_agreement(strategy, 2, int(sys.argv[1]))
except Exception as error:
    print(error, flush=True)
    # A normal exit would fail when the other process ends first.
    os._exit(5 if is_lost_peer(error) else 1)
"""


def test_all_workers_restart_if_their_checkpoints_differ():
    addresses, running = [f"127.0.0.1:{port}" for port in free_ports(2)], []
    for index in range(2):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environment = {**os.environ, **tensorflow_environment({}, 2, True, processors()), "TF_CONFIG": json.dumps(task)}
        argv = forked(sys.executable, "-c", DISAGREEMENT, str(index))
        running.append(subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True))
    try:
        outputs = [process.communicate(timeout=300)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [5, 5]
    assert outputs == [
        f"the checkpoint of this worker is of epoch 2{steps}, and that of another worker is not\n"
        for steps in ("", " and 1 steps")
    ]


def curve(folder, training, measure="loss"):
    file = folder / "worker-0" / training / "training.json"
    return [epoch[measure] for epoch in json.loads(file.read_text())["epochs"]]


def rows_of_epochs(folder, training, devices):
    """Return the rows that all workers saw in each epoch, sorted, without the fillers of weight 0."""
    epochs, workers = [], sorted(folder.glob(f"worker-*/{training}"))
    records = plan_epoch(1299, TRAININGS[training]["batch_size"], len(workers), devices).records
    for worker in workers:
        noted = np.fromfile(worker / "notes", "<f4").reshape(-1, 66)
        # The pipeline may have fetched more rows than were used.
        count = TRAININGS[training]["epochs"]
        epochs.append(noted[: records * count].reshape(count, records, 66))
    return [in_order(epoch[epoch[:, -1] == 1, :-1]) for epoch in np.concatenate(epochs, axis=1)]


def in_order(rows):
    return rows[np.lexsort(rows.T)]


@pytest.fixture(scope="module")
def alone(odd_digits, tmp_path_factory):
    return train(odd_digits, tmp_path_factory.mktemp("alone"))


@pytest.mark.parametrize(("workers", "devices"), [(2, 1), (1, 2)])
def test_synchronous_training_equals_training_in_one_process(odd_digits, tmp_path, alone, workers, devices):
    """Two workers have uneven parts."""
    together = train(odd_digits, tmp_path, workers, devices)
    for training, tolerance in {"whole": EXACT, "parts": EXACT if workers == 1 else NOISY}.items():
        assert curve(together, training) == pytest.approx(curve(alone, training), rel=tolerance), training
    assert curve(alone, "whole")[0] > 1.5 * curve(alone, "whole")[-1]

    folder = odd_digits.folder / "train"
    manifest = DatasetManifest.from_json((folder / "dataset.json").read_text())
    every = in_order(np.concatenate([np.column_stack(batch) for batch in read_batches(folder, manifest)]))
    for training in TRAININGS:
        for seen in rows_of_epochs(together, training, devices):
            np.testing.assert_array_equal(seen, every, err_msg="each row once an epoch")

    weights = json.loads((together / "worker-0" / "parts" / "weights.json").read_text())
    assert weights == {"devices_of_copies": [[f"CPU:{device}" for device in range(devices)]] * 4, "same": True}


def test_the_example_trains_on_two_devices(odd_digits, tmp_path, alone):
    request = Request(
        train_uri=str(odd_digits.folder / "train"),
        validation_uri=str(odd_digits.folder / "validation"),
        model_uri=str(tmp_path / "model"),
        train_specification=train_specification(mirrored_classifier),
        train_parameters={**TRAININGS["parts"], "devices": 2},
        identity=(str(tmp_path),),
    )
    lines = []
    outcome = launch(request, LocalRunner(), into(lines))
    assert "[worker-0] trained on 2 CPU devices" in lines
    losses = [epoch["loss"] for epoch in outcome.metrics["worker-0"]]
    assert losses == pytest.approx(curve(alone, "parts"), rel=EXACT)
