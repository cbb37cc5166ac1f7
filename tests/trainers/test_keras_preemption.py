"""keras_classifier when a replica must end soon: it loses no step."""

import json
import signal

import numpy as np
import pytest
from held_training import HELD, hold

from kfp_distributed.storage import open_store
from kfp_distributed.trainers.runtime.checkpoints.stored_checkpoints import complete_checkpoints
from kfp_distributed.trainers.runtime.job_description import PREEMPTED

pytestmark = pytest.mark.takes(21)

PROGRAM = {"trainer": "keras_classifier"}
STEPS = 65
"""Steps of an epoch."""
PARAMETERS = {"epochs": 2, "batch_size": 20, "hidden_units": [16]}


def preempt(replicas, leader, *names):
    """End replicas by SIGTERM while the leader is held in its second epoch, and wait until all have ended."""
    replicas.start_all()
    replicas.wait_for(leader, HELD)
    if "evaluator-0" in replicas.names():
        replicas.running["evaluator-0"].terminate()
        assert replicas.wait("evaluator-0", 10) == 128 + signal.SIGTERM, "nobody waits for it"
    for name in names:
        replicas.running[name].terminate()
    assert replicas.wait(leader, 25) == PREEMPTED, replicas.text(leader)
    for name in {*names} - {leader}:
        assert replicas.wait(name, 10) == 128 + signal.SIGTERM
    replicas.group.stop(replicas.names(), grace_seconds=0)
    assert "saved a checkpoint in epoch 2 after step 50" in replicas.text(leader)


def assert_resumed(replicas, leader):
    """Start all replicas again, and assert that the training continues after the step and ends."""
    stored = open_store(replicas.job.checkpoint_uri)
    name = complete_checkpoints(stored)[0]
    assert f"{name}/ckpt-1.index" in [entry.key for entry in stored.list()]
    position = json.loads(stored.read(f"{name}/position.json"))
    assert (position["epoch"], position["step"]) == (1, 50)
    replicas.start_all()
    assert replicas.wait(leader) == 0, replicas.text(leader)
    assert f"continues epoch 2 after step 50 of {STEPS}" in replicas.text(leader)
    assert replicas.epochs(leader) == [1, 2]
    newest = complete_checkpoints(stored)[0]
    assert f"{newest}/position.json" not in [entry.key for entry in stored.list()]


def weights(replicas, leader):
    """Return the weights and the state of the optimizer in the leader's last checkpoint, by name."""
    import tensorflow as tf

    path = tf.train.latest_checkpoint(replicas.folder / leader / "checkpoint_dir")
    names = [name for name, _ in tf.train.list_variables(path) if name.startswith("model/")]
    assert names, path
    return {name: tf.train.load_variable(path, name) for name in names}


def test_one_process_ends_with_the_weights_of_a_training_without_interruption(
    make_replicas, digits, monkeypatch, tmp_path
):
    hold(monkeypatch, tmp_path, 3)
    replicas = make_replicas(PROGRAM, PARAMETERS, {"worker": 1}, digits)
    preempt(replicas, "worker-0", "worker-0")
    assert_resumed(replicas, "worker-0")
    interrupted = weights(replicas, "worker-0")
    for uri in (replicas.job.checkpoint_uri, replicas.job.metrics_uri, replicas.job.model_uri):
        store = open_store(uri)
        store.delete([entry.key for entry in store.list()])
    replicas.start_all()
    assert replicas.wait("worker-0") == 0, replicas.text("worker-0")
    whole = weights(replicas, "worker-0")
    for name in whole:
        np.testing.assert_array_equal(interrupted[name], whole[name], err_msg=name)


def test_two_workers_continue_after_the_step_when_one_is_preempted(make_replicas, digits, monkeypatch, tmp_path):
    hold(monkeypatch, tmp_path, 3)
    replicas = make_replicas(PROGRAM, PARAMETERS, {"worker": 2}, digits)
    preempt(replicas, "worker-0", "worker-1")
    assert_resumed(replicas, "worker-0")
    assert replicas.wait("worker-1", 20) == 0


def test_a_chief_saves_a_checkpoint_when_a_parameter_server_is_preempted(make_replicas, digits, monkeypatch, tmp_path):
    hold(monkeypatch, tmp_path, STEPS + 50)
    replicas = make_replicas(PROGRAM, PARAMETERS, {"chief": 1, "ps": 1, "worker": 1, "evaluator": 1}, digits)
    # The training operator fails a job whose pod is being deleted, and the step then deletes all of its pods.
    preempt(replicas, "chief-0", "worker-0", "ps-0", "chief-0")
    assert "evaluator-0 must end soon" not in replicas.text("chief-0")
    del replicas.roles["evaluator"]
    assert_resumed(replicas, "chief-0")
