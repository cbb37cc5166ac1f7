"""keras_classifier in processes that are started as the operator starts them, and one of which is killed."""

import json
import re
import signal
from dataclasses import replace

import pytest
from held_training import HELD, hold
from resumed_epochs import assert_resumed
from saved_models import score
from step_lines import into

from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.storage import open_store
from kfp_distributed.storage.dataset import DATASET_MANIFEST
from kfp_distributed.storage.model import verify_model
from kfp_distributed.trainers.runtime.checkpoints.stored_checkpoints import KEPT, complete_checkpoints
from kfp_distributed.trainers.runtime.job_description import PEAK_MEMORY, PEER_LOST

pytestmark = pytest.mark.takes(60)

EPOCHS, STEPS = 5, 10
"""Epochs of a training, and steps of an epoch."""
PROGRAM = {"trainer": "keras_classifier"}
PARAMETERS = {"epochs": EPOCHS, "batch_size": 130, "learning_rate": 0.01}


def restart_all_after_a_kill(replicas, victim, leader):
    """Kill a replica once the leader is held in its third epoch, and restart all."""
    replicas.wait_for(leader, HELD)
    replicas.running[victim].send_signal(signal.SIGKILL)
    replicas.group.stop(replicas.names(), grace_seconds=0)
    assert replicas.epochs(leader) == [1, 2]
    replicas.start_all()


def test_multi_worker_mirrored_resumes_after_a_kill_and_saves_one_model(make_replicas, digits, tmp_path, monkeypatch):
    replicas = make_replicas(PROGRAM, PARAMETERS, {"worker": 2}, digits)
    hold(monkeypatch, tmp_path, 3)
    replicas.start_all()
    restart_all_after_a_kill(replicas, "worker-1", "worker-0")
    assert [replicas.wait(name) for name in replicas.names()] == [0, 0], replicas.text("worker-0")
    assert replicas.epochs("worker-0") == list(range(1, EPOCHS + 1))
    # Its line of an epoch does not wait for the leader, which was held at the end of the third epoch.
    assert_resumed(replicas.epochs("worker-1"), EPOCHS)

    training = json.loads(open_store(replicas.job.metrics_uri).read("training.json"))
    assert training["replica"] == "worker-0"
    assert [entry["epoch"] for entry in training["epochs"]] == list(range(1, EPOCHS + 1))
    final = training["epochs"][-1]
    assert set(final) == {"epoch", "loss", "accuracy", "val_loss", "val_accuracy"}
    assert len(complete_checkpoints(open_store(replicas.job.checkpoint_uri))) == KEPT

    model = open_store(replicas.job.model_uri)
    manifest = verify_model(model)
    assert (manifest.format, manifest.job, manifest.label["name"]) == ("saved_model", "a-job", "label")
    assert manifest.metrics == final
    description, accuracy = score(model, tmp_path, digits)
    assert description == "float32 (None, 8, 8)"
    assert accuracy >= 0.95


def test_a_worker_ends_if_another_one_does_not_answer(make_replicas, digits, monkeypatch, tmp_path):
    """The connections stay open but nothing arrives, as if a machine were lost. TensorFlow looks every 30 s."""
    replicas = make_replicas(PROGRAM, PARAMETERS, {"worker": 2}, digits)
    released = hold(monkeypatch, tmp_path, 1)
    replicas.start_all()
    replicas.wait_for("worker-0", HELD)
    replicas.running["worker-1"].send_signal(signal.SIGTSTP)
    released.touch()
    assert replicas.wait("worker-0") == PEER_LOST, replicas.text("worker-0")
    replicas.running["worker-1"].kill()


def test_parameter_servers_with_an_evaluator_resume_and_continue_without_a_worker(
    make_replicas, digits, tmp_path, object_store, monkeypatch
):
    roles = {"chief": 1, "ps": 1, "worker": 2, "evaluator": 1}
    replicas = make_replicas(
        PROGRAM, PARAMETERS, roles, digits, root="s3://bucket/run", environment=object_store.environment()
    )
    hold(monkeypatch, tmp_path, 2 * (STEPS + 1) + 5)
    replicas.start_all()
    (tmp_path / "again").mkdir()
    released = hold(monkeypatch, tmp_path / "again", STEPS + 5)
    restart_all_after_a_kill(replicas, "chief-0", "chief-0")
    replicas.wait_until(lambda: replicas.text("chief-0").count(HELD) == 2)
    replicas.running["worker-1"].send_signal(signal.SIGKILL)
    replicas.wait("worker-1")
    released.touch()
    replicas.wait_for("chief-0", f"epoch 4/{EPOCHS}")
    replicas.start("worker-1")  # The others have gone on meanwhile; now or later it takes part again.
    assert [replicas.wait("chief-0"), replicas.wait("evaluator-0")] == [0, 0], replicas.text("chief-0")

    assert replicas.epochs("chief-0") == list(range(1, EPOCHS + 1))
    credentials = object_store.credentials()
    metrics = open_store(replicas.job.metrics_uri, credentials)
    training, evaluator = (json.loads(metrics.read(f"{name}.json")) for name in ("training", "evaluator"))
    assert [entry["epoch"] for entry in training["epochs"]] == list(range(1, EPOCHS + 1))
    assert evaluator["replica"] == "evaluator-0"
    of_training = {entry["epoch"]: entry["val_accuracy"] for entry in training["epochs"]}
    assert evaluator["epochs"][-1]["epoch"] == EPOCHS
    assert {entry["epoch"]: entry["val_accuracy"] for entry in evaluator["epochs"]}.items() <= of_training.items()

    model = open_store(replicas.job.model_uri, credentials)
    verify_model(model)
    # The updates of several workers have no order, so two trainings differ by some points.
    assert score(model, tmp_path, digits)[1] >= 0.9

    for name in ("worker-0", "worker-1"):
        assert "streaming rows from" in replicas.text(name)
        files = [file.name for file in (replicas.folder / name).rglob("*") if file.is_file()]
        assert [file for file in files if file not in (DATASET_MANIFEST, "part.json", PEAK_MEMORY)] == [], "no rows"

    # It runs inside TensorFlow's C++ code for ever, and still ends at once on SIGTERM.
    replicas.running["ps-0"].terminate()
    assert replicas.wait("ps-0", 20) == 128 + signal.SIGTERM
    # Only the chief writes checkpoints: on a cluster, files of the server would stay in its pod.
    assert [file.name for file in (replicas.folder / "ps-0").rglob("*")] == [PEAK_MEMORY]


# What somebody brings who has never heard of us: it knows TensorFlow's variable and its own command line.
STRANGER = """
import argparse, glob, json, os, tempfile

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

arguments = argparse.ArgumentParser()
arguments.add_argument("--data")
arguments.add_argument("--output")
arguments.add_argument("--steps", type=int)
options = arguments.parse_args()
strategy = tf.distribute.MultiWorkerMirroredStrategy()
task = json.loads(os.environ["TF_CONFIG"])["task"]
files = glob.glob(options.data + "/*.parquet")
table = pa.concat_tables([pq.read_table(file) for file in files])
rows, labels = np.array(table["image"].to_pylist(), np.float32), np.array(table["label"])
sharding = tf.data.Options()
sharding.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
batches = tf.data.Dataset.from_tensor_slices((rows, labels)).shuffle(len(rows)).repeat().batch(128)
batches = batches.with_options(sharding)
with strategy.scope():
    model = tf.keras.Sequential([
        tf.keras.layers.InputLayer((64,), name="features"),
        tf.keras.layers.Rescaling(1 / 16),
        tf.keras.layers.Dense(10, "softmax", name="probabilities"),
    ])
    model.compile(tf.keras.optimizers.Adam(0.03), "sparse_categorical_crossentropy")
model.fit(batches, steps_per_epoch=options.steps, verbose=0)
print("worker", task["index"], "of", strategy.num_replicas_in_sync, "has", len(rows), "rows")
model.save(options.output if task["index"] == 0 else tempfile.mkdtemp())
"""


def test_a_command_that_reads_only_tf_config(digits, tmp_path):
    program, lines = tmp_path / "main.py", []
    program.write_text(STRANGER)
    request = Request(
        train_uri=str(digits.folder / "train"),
        model_uri=str(tmp_path / "model"),
        train_specification={"command": ["python", str(program), "--data", "{train_dir}", "--output={model_dir}"]},
        train_parameters={"steps": 60},
        distribution_specification={"distribution_type": "TF", "number_of_parameter_servers": 0},
        identity=("run", str(tmp_path)),
    )
    outcome = launch(request, LocalRunner(), into(lines))
    rows = [re.fullmatch(r"\[worker-(.)\] worker \1 of 2 has (\d+) rows", line) for line in lines]
    assert sum(int(match[2]) for match in rows if match) == 1300, "\n".join(lines)
    assert outcome.model.format == "saved_model"
    model = open_store(str(tmp_path / "model"))
    assert verify_model(model) == outcome.model
    (tmp_path / "score").mkdir()
    flat = replace(digits, test_inputs=digits.test_inputs.reshape(-1, 64))
    description, accuracy = score(model, tmp_path / "score", flat)
    assert description == "float32 (None, 64)"
    assert accuracy > 0.85
