"""Replicas that must end soon, and the leader that saves a checkpoint in time."""

import signal
import time

import pytest
from faulty_proxy import Fault, faulty_proxy

from kfp_distributed.storage import open_store
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.folder import FolderStore
from kfp_distributed.trainers import train_specification
from kfp_distributed.trainers.runtime.checkpoints.stored_checkpoints import complete_checkpoints
from kfp_distributed.trainers.runtime.job_description import PEER_LOST, PREEMPTED
from kfp_distributed.trainers.runtime.lifecycle import termination
from kfp_distributed.trainers.runtime.lifecycle.termination import Termination

pytestmark = pytest.mark.takes(55)


def count(model_dir, checkpoint_dir, asks: bool, last: int = 10**9, as_trainers: bool = False):
    """Count steps, in the leader with a checkpoint when it is asked to end."""
    import os
    import time
    from pathlib import Path

    from kfp_distributed.trainers.runtime.lifecycle.termination import EndedEarly
    from kfp_distributed.trainers.sync import flush, is_ending

    state = Path(checkpoint_dir, "state")
    step = int(state.read_text()) if state.exists() else 0
    print(f"continues after step {step}", flush=True)
    while step < last:
        time.sleep(0.01)
        step += 1
        if asks and is_ending():
            assert os.environ["KFP_DISTRIBUTED_REPLICA"] == "worker-0"
            state.write_text(str(step))
            print(f"ends after step {step}", flush=True)
            if as_trainers:
                flush()
                raise EndedEarly
            break
    Path(model_dir, "weights").write_text(str(step))


@pytest.mark.parametrize("ending", ["worker-0", "worker-1"])
def test_the_leader_saves_a_checkpoint_when_a_replica_must_end(make_replicas, digits, ending):
    replicas = make_replicas(train_specification(count), {"asks": True}, {"worker": 2}, digits)
    replicas.start_all()
    for name in replicas.names():
        replicas.wait_for(name, "continues after step 0")
    metrics = open_store(replicas.job.metrics_uri)
    replicas.wait_until(lambda: metrics.exists("notices/leader"))
    replicas.running[ending].terminate()
    assert replicas.wait("worker-0") == PREEMPTED
    if ending == "worker-1":
        assert replicas.wait("worker-1") == 128 + signal.SIGTERM
        assert "worker-1 must end soon" in replicas.text("worker-0")
    checkpoints = open_store(replicas.job.checkpoint_uri)
    (newest,) = complete_checkpoints(checkpoints)
    step = int(checkpoints.read(f"{newest}/state"))
    assert f"ends after step {step}" in replicas.text("worker-0")
    assert open_store(replicas.job.model_uri).list() == [], "it has not finished"
    assert not metrics.exists("notices/leader")


@pytest.mark.parametrize("as_trainers", [False, True])
def test_the_last_checkpoint_is_sent_again_within_the_grace_period(make_replicas, digits, object_store, as_trainers):
    with faulty_proxy(object_store.endpoint) as proxy:
        environment = object_store.environment() | {"AWS_ENDPOINT_URL": proxy.url, "AWS_ENDPOINT_URL_S3": proxy.url}
        environment["KFP_DISTRIBUTED_GRACE_SECONDS"] = "200"
        parameters = {"asks": True, "as_trainers": as_trainers}
        replicas = make_replicas(
            train_specification(count), parameters, {"worker": 1}, digits, "s3://bucket/run", environment
        )
        replicas.start_all()
        replicas.wait_for("worker-0", "continues after step 0")
        metrics = open_store(replicas.job.metrics_uri, object_store.credentials())
        replicas.wait_until(lambda: metrics.exists("notices/leader"))
        # An upload has six attempts, and each way of ending sends the checkpoint at least once.
        proxy.faults = [Fault("PUT /bucket/run/checkpoints/00000001/state", times=18, status=503)]
        replicas.running["worker-0"].terminate()
        assert replicas.wait("worker-0") == PREEMPTED, replicas.text("worker-0")
    assert proxy.faults[0].times == 0
    checkpoints = open_store(replicas.job.checkpoint_uri, object_store.credentials())
    assert complete_checkpoints(checkpoints) == ["00000001"]


def test_a_program_that_does_not_ask_ends_at_once(make_replicas, digits):
    environment = {"KFP_DISTRIBUTED_GRACE_SECONDS": "900"}
    replicas = make_replicas(
        train_specification(count), {"asks": False}, {"worker": 1}, digits, environment=environment
    )
    replicas.start_all()
    replicas.wait_for("worker-0", "continues after step 0")
    replicas.running["worker-0"].terminate()
    assert replicas.wait("worker-0") == 128 + signal.SIGTERM


def test_a_replica_that_must_end_does_not_wait_longer_than_its_grace_period(make_replicas, digits):
    """The leader is killed before it can answer."""
    environment = {"KFP_DISTRIBUTED_GRACE_SECONDS": "8"}
    program = train_specification(count)
    replicas = make_replicas(program, {"asks": True}, {"worker": 2}, digits, environment=environment)
    replicas.start_all()
    metrics = open_store(replicas.job.metrics_uri)
    replicas.wait_until(lambda: metrics.exists("notices/leader"))
    replicas.wait_for("worker-1", "continues after step 0")
    replicas.running["worker-0"].kill()
    replicas.running["worker-1"].terminate()
    assert replicas.wait("worker-1", 120) == 128 + signal.SIGTERM
    # The notice of worker-1 was for that start only.
    replicas.start("worker-0")
    replicas.wait_until(lambda: [entry.key for entry in metrics.list("notices/")] == ["notices/leader"])
    assert replicas.running["worker-0"].poll() is None


def lose_peer(model_dir, checkpoint_dir):
    """Lose the ending replica while the ranks write a checkpoint together."""
    import time
    from pathlib import Path

    from kfp_distributed.trainers.sync import is_ending

    print("begins", flush=True)
    while not is_ending():
        time.sleep(0.01)
    Path(checkpoint_dir, "state").write_text("half")
    raise RuntimeError("Connection reset by peer")


def test_a_leader_that_loses_a_peer_while_it_saves_has_not_saved(make_replicas, digits):
    replicas = make_replicas(train_specification(lose_peer), {}, {"worker": 1}, digits)
    replicas.start_all()
    metrics = open_store(replicas.job.metrics_uri)
    replicas.wait_until(lambda: metrics.exists("notices/leader"))
    metrics.write("notices/worker-1", b"")
    assert replicas.wait("worker-0") == PEER_LOST
    assert complete_checkpoints(open_store(replicas.job.checkpoint_uri)) == []


def lose_leader(model_dir):
    """Lose the leader in the replica that has left a notice, before that replica looks whether the leader has ended."""
    import os
    import time
    from pathlib import Path

    from kfp_distributed.storage import open_store
    from kfp_distributed.trainers.runtime.job_description import JobDescription
    from kfp_distributed.trainers.sync import is_ending

    metrics = open_store(JobDescription.from_json(Path(os.environ["KFP_DISTRIBUTED_JOB"]).read_text()).metrics_uri)
    print("begins", flush=True)
    while not metrics.exists("notices/worker-1"):
        is_ending()
        time.sleep(0.01)
    raise RuntimeError("Connection reset by peer")


def test_a_replica_that_must_end_and_loses_its_leader_has_ended_by_its_signal(make_replicas, digits):
    """Otherwise nobody knows which replica has ended first, and a limit counts its end as a failure."""
    replicas = make_replicas(train_specification(lose_leader), {}, {"worker": 2}, digits)
    replicas.start_all()
    metrics = open_store(replicas.job.metrics_uri)
    replicas.wait_until(lambda: metrics.exists("notices/leader"))
    replicas.wait_for("worker-1", "begins")
    replicas.running["worker-1"].terminate()
    assert replicas.wait("worker-1") == 128 + signal.SIGTERM
    assert replicas.wait("worker-0") == PEER_LOST


def test_a_leader_that_is_killed_and_starts_again_learns_of_a_replica_that_still_waits(make_replicas, digits):
    replicas = make_replicas(train_specification(count), {"asks": True}, {"worker": 2}, digits)
    replicas.start_all()
    metrics = open_store(replicas.job.metrics_uri)
    replicas.wait_until(lambda: metrics.exists("notices/leader"))
    replicas.wait_for("worker-1", "continues after step 0")
    replicas.running["worker-0"].kill()
    replicas.wait("worker-0")
    replicas.running["worker-1"].terminate()
    replicas.start("worker-0")
    assert replicas.wait("worker-0") == PREEMPTED
    assert replicas.wait("worker-1") == 128 + signal.SIGTERM


def test_a_replica_that_must_end_waits_for_a_leader_whose_looks_fail(make_replicas, digits, monkeypatch):
    monkeypatch.setattr(termination, "LOOK_SECONDS", 0.02)
    job = make_replicas(train_specification(count), {}, {"worker": 2}, digits).job
    store, waits = open_store(job.metrics_uri), iter(range(10))
    store.write("notices/leader", b"1 0")

    class Clock:
        monotonic = staticmethod(time.monotonic)

        def sleep(self, seconds):
            time.sleep(0.02)
            if next(waits) == 8:
                store.delete(["notices/leader"])

    monkeypatch.setattr(termination, "time", Clock())
    Termination(job, "worker-1", leads=False).await_leader()
    assert [*waits] == [9], "it has waited until the leader had ended"
    assert store.exists("notices/worker-1")


def test_a_leader_that_starts_again_is_never_seen_to_have_ended(make_replicas, digits, monkeypatch):
    job = make_replicas(train_specification(count), {}, {"worker": 2}, digits).job
    store, deleted, delete = open_store(job.metrics_uri), [], FolderStore.delete
    store.write("notices/leader", b"1 0")
    store.write("notices/worker-1", b"")
    monkeypatch.setattr(FolderStore, "delete", lambda self, keys: deleted.extend(keys) or delete(self, keys))
    leader = Termination(job, "worker-0", leads=True)
    leader.is_ending()
    while store.read("notices/leader") == b"1 0":
        pass
    assert deleted == ["notices/worker-1"]
    leader.leave()


def test_a_notice_of_an_earlier_start_that_cannot_be_deleted_at_first_ends_nothing(make_replicas, digits, monkeypatch):
    monkeypatch.setattr(termination, "LOOK_SECONDS", 0.02)
    job = make_replicas(train_specification(count), {}, {"worker": 2}, digits).job
    store, refusals = open_store(job.metrics_uri), [StorageError("http://store", "bucket", "key", "SlowDown")] * 3
    store.write("notices/worker-1", b"")
    delete = store.delete

    def refuse(keys):
        if refusals:
            raise refusals.pop()
        delete(keys)

    monkeypatch.setattr(store, "delete", refuse)
    monkeypatch.setattr(termination, "open_store", lambda uri, retry_seconds: store)
    leader = Termination(job, "worker-0", leads=True)
    answers = [leader.is_ending()]
    while not store.exists("notices/leader"):
        answers.append(leader.is_ending())
    assert (set(answers), refusals) == ({False}, [])
    store.write("notices/worker-1", b"")
    while not leader.is_ending():
        pass
    leader.leave()
    assert [entry.key for entry in store.list("notices/")] == ["notices/worker-1"]
