"""keras_classifier when a replica must end soon: it loses no step."""

import json
import re
import signal

import numpy as np
import pytest

from kfp_distributed.storage import open_store
from kfp_distributed.trainers.runtime.checkpoints import complete_checkpoints
from kfp_distributed.trainers.runtime.job_description import PREEMPTED

pytestmark = pytest.mark.takes(40)

PROGRAM = {"trainer": "keras_classifier"}


def await_training(replicas):
    metrics = open_store(replicas.job.metrics_uri)
    replicas.wait_until(lambda: metrics.exists("notices/leader"))


def preempt(replicas, leader, *names):
    """End replicas by SIGTERM once the leader trains; return the epoch and the step after which the leader ended."""
    replicas.start_all()
    await_training(replicas)
    if "evaluator-0" in replicas.names():
        replicas.running["evaluator-0"].terminate()
        assert replicas.wait("evaluator-0", 10) == 128 + signal.SIGTERM, "nobody waits for it"
    for name in names:
        replicas.running[name].terminate()
    assert replicas.wait(leader, 25) == PREEMPTED, replicas.text(leader)
    for name in {*names} - {leader}:
        assert replicas.wait(name, 10) == 128 + signal.SIGTERM
    replicas.group.stop(replicas.names(), grace_seconds=0)
    (saved,) = re.findall(r"saved a checkpoint in epoch (\d+) after step (\d+)", replicas.text(leader))
    return tuple(map(int, saved))


def assert_resumed(replicas, leader, epoch, step, steps, epochs):
    """Start all replicas again, and assert that the training continues after the step and ends."""
    stored = open_store(replicas.job.checkpoint_uri)
    name = complete_checkpoints(stored)[0]
    assert f"{name}/ckpt-{epoch - 1}.index" in [entry.key for entry in stored.list()]
    position = json.loads(stored.read(f"{name}/position.json"))
    assert (position["epoch"], position["step"]) == (epoch - 1, step)
    replicas.start_all()
    assert replicas.wait(leader) == 0, replicas.text(leader)
    assert f"continues epoch {epoch} after step {step} of {steps}" in replicas.text(leader)
    assert replicas.epochs(leader) == list(range(1, epochs + 1))
    newest = complete_checkpoints(stored)[0]
    assert f"{newest}/position.json" not in [entry.key for entry in stored.list()]


def weights(replicas, leader):
    """Return the weights and the state of the optimizer in the leader's last checkpoint, by name."""
    import tensorflow as tf

    path = tf.train.latest_checkpoint(replicas.folder / leader / "checkpoint_dir")
    names = [name for name, _ in tf.train.list_variables(path) if name.startswith("model/")]
    assert names, path
    return {name: tf.train.load_variable(path, name) for name in names}


def weights_without_interruption(replicas, leader):
    """Train from nothing, and return the weights."""
    for uri in (replicas.job.checkpoint_uri, replicas.job.metrics_uri, replicas.job.model_uri):
        store = open_store(uri)
        store.delete([entry.key for entry in store.list()])
    replicas.start_all()
    assert replicas.wait(leader) == 0, replicas.text(leader)
    return weights(replicas, leader)


def test_one_process_ends_with_the_weights_of_a_training_without_interruption(make_replicas, digits):
    parameters = {"epochs": 2, "batch_size": 8, "hidden_units": [16]}
    replicas = make_replicas(PROGRAM, parameters, {"worker": 1}, digits)
    epoch, step = preempt(replicas, "worker-0", "worker-0")
    assert_resumed(replicas, "worker-0", epoch, step, 163, 2)
    interrupted, whole = weights(replicas, "worker-0"), weights_without_interruption(replicas, "worker-0")
    for name in whole:
        np.testing.assert_array_equal(interrupted[name], whole[name], err_msg=name)


def test_two_workers_continue_after_the_step_when_one_is_preempted(make_replicas, digits):
    parameters = {"epochs": 2, "batch_size": 8, "hidden_units": [16], "learning_rate": 1e-4}
    replicas = make_replicas(PROGRAM, parameters, {"worker": 2}, digits)
    epoch, step = preempt(replicas, "worker-0", "worker-1")
    assert_resumed(replicas, "worker-0", epoch, step, 163, 2)
    assert replicas.wait("worker-1", 20) == 0
    interrupted, whole = weights(replicas, "worker-0"), weights_without_interruption(replicas, "worker-0")
    for name in whole:
        np.testing.assert_allclose(interrupted[name], whole[name], rtol=1e-3, atol=1e-4, err_msg=name)


def test_a_chief_saves_a_checkpoint_when_a_parameter_server_is_preempted(make_replicas, digits):
    parameters = {"epochs": 2, "batch_size": 8, "hidden_units": [16]}
    replicas = make_replicas(PROGRAM, parameters, {"chief": 1, "ps": 1, "worker": 1, "evaluator": 1}, digits)
    # The training operator fails a job whose pod is being deleted, and the step then deletes all of its pods.
    epoch, step = preempt(replicas, "chief-0", "worker-0", "ps-0", "chief-0")
    assert "evaluator-0 must end soon" not in replicas.text("chief-0")
    assert_resumed(replicas, "chief-0", epoch, step, 163, 2)
