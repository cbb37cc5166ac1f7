"""Replicas that train while their object store hangs, or that are killed during an upload."""

import json
import signal
import threading
import time
from functools import partial

import pytest
from faulty_proxy import Fault, faulty_proxy
from hanging_store import hanging

from kfp_distributed.storage import open_store
from kfp_distributed.storage.object_stores.multipart import unfinished_uploads
from kfp_distributed.trainers import train_specification
from kfp_distributed.trainers.runtime.checkpoints.stored_checkpoints import (
    complete_checkpoints,
    list_checkpoints,
    parse_manifest,
    restore_checkpoint,
    save_checkpoint,
)

pytestmark = pytest.mark.takes(20)


def train(model_dir, checkpoint_dir, metrics_dir, last: int, go: str, fails: bool = False, megabytes: int = 50):
    """Save two files of the same number for each epoch. Wait before epoch 2 for the file `go`."""
    import time
    from pathlib import Path

    from kfp_distributed.trainers.sync import record_epoch

    print("begins with", sorted(path.name for path in Path(checkpoint_dir).iterdir()), flush=True)
    for epoch in range(1, last + 1):
        while epoch > 1 and not Path(go).exists():
            time.sleep(0.05)
        for name in ("weights", "optimizer"):
            with Path(checkpoint_dir, "new").open("wb") as file:
                for _ in range(megabytes // 2):
                    file.write(f"{epoch:08d}".encode() * (1 << 17))
            Path(checkpoint_dir, "new").replace(Path(checkpoint_dir, name))
        begin = time.monotonic()
        record_epoch(Path(metrics_dir, "training.json"), "worker-0", epoch, last, {"loss": 1 / epoch})
        print(f"pause {time.monotonic() - begin:.3f}", flush=True)
    if fails:
        raise ValueError("fails right after record_epoch")
    Path(model_dir, "weights").write_text("done")


@pytest.fixture
def start(make_replicas, digits, tmp_path, object_store):
    """Return a function that starts a replica which trains with the real object store."""

    def start(**parameters):
        parameters = {"go": str(tmp_path / "go"), "megabytes": 4, **parameters}
        environment = object_store.environment()
        replicas = make_replicas(
            train_specification(train), parameters, {"worker": 1}, digits, "s3://bucket/run", environment
        )
        replicas.start_all()
        return replicas

    return start


def stored(replicas, object_store, tmp_path):
    """Return the epoch of the newest checkpoint and the last epoch of the metrics. The checkpoint is complete."""
    store = open_store(replicas.job.checkpoint_uri, object_store.credentials())
    name = restore_checkpoint(store, tmp_path / "restored")
    files, guessed = parse_manifest(store.read(f"{name}.json"))
    assert [file.path for file in files] == ["optimizer", "weights"]
    assert not guessed
    (epoch,) = {int((tmp_path / "restored" / file.path).read_bytes()[-8:]) for file in files}
    metrics = open_store(replicas.job.metrics_uri, object_store.credentials()).read("training.json")
    return epoch, json.loads(metrics)["epochs"][-1]["epoch"]


def pauses(replicas):
    lines = replicas.text("worker-0").splitlines()
    return [float(line.split()[1]) for line in lines if line.startswith("pause ")]


def test_the_training_goes_on_while_the_store_hangs(start, object_store, tmp_path):
    replicas = start(last=6)
    replicas.wait_for("worker-0", "epoch 1/6")
    with hanging(object_store):
        (tmp_path / "go").touch()
        replicas.wait_for("worker-0", "epoch 6/6")
        snapshots = list((replicas.folder / "worker-0" / "checkpoint_dir-snapshots").glob("[0-9]*"))
        assert len(snapshots) <= 2, "one is uploaded and one waits"
        assert replicas.running["worker-0"].poll() is None
    assert replicas.wait("worker-0") == 0, replicas.text("worker-0")
    assert len(pauses(replicas)) == 6
    # A pause that copied the files or waited for the store would last until the store answers.
    assert max(pauses(replicas)) < 20
    assert stored(replicas, object_store, tmp_path) == (6, 6)
    assert not (replicas.folder / "worker-0" / "checkpoint_dir-snapshots").exists()


def test_a_program_that_fails_right_after_record_epoch_has_its_checkpoint_stored(start, object_store, tmp_path):
    replicas = start(last=2, fails=True)
    replicas.wait_for("worker-0", "epoch 1/2")
    with hanging(object_store):
        (tmp_path / "go").touch()
        replicas.wait_for("worker-0", "epoch 2/2")
        time.sleep(1)  # The program fails meanwhile, while the upload hangs.
    assert replicas.wait("worker-0") == 1
    assert stored(replicas, object_store, tmp_path) == (2, 2)
    assert not (replicas.folder / "worker-0" / "checkpoint_dir-snapshots").exists()


def test_sigterm_stores_what_waits(start, object_store, tmp_path):
    replicas = start(last=3)
    replicas.wait_for("worker-0", "epoch 1/3")
    replicas.running["worker-0"].send_signal(signal.SIGTERM)
    assert replicas.wait("worker-0") == 143
    assert stored(replicas, object_store, tmp_path) == (1, 1)
    assert not (replicas.folder / "worker-0" / "checkpoint_dir-snapshots").exists()


def test_a_kill_during_an_upload_leaves_no_checkpoint_that_looks_complete(
    make_replicas, digits, object_store, tmp_path
):
    with faulty_proxy(object_store.endpoint) as proxy:
        environment = object_store.environment() | {"AWS_ENDPOINT_URL": proxy.url, "AWS_ENDPOINT_URL_S3": proxy.url}
        parameters = {"last": 2, "go": str(tmp_path / "go")}
        replicas = make_replicas(
            train_specification(train), parameters, {"worker": 1}, digits, "s3://bucket/run", environment
        )
        killed = threading.Event()

        def kill():
            replicas.running["worker-0"].kill()
            replicas.wait("worker-0")
            killed.set()

        proxy.faults = [Fault("PUT /bucket/run/checkpoints/00000001/weights?partNumber=3", before=kill, reset=True)]
        replicas.start_all()
        replicas.wait_until(killed.is_set)
        assert replicas.wait("worker-0") == -signal.SIGKILL
        store = open_store(replicas.job.checkpoint_uri, object_store.credentials())
        assert complete_checkpoints(store) == []
        unfinished = partial(unfinished_uploads, store.client, "bucket")
        assert {upload.object_name for upload in unfinished()} <= {
            f"run/checkpoints/00000001/{name}" for name in ("weights", "optimizer")
        }
        assert unfinished()
        left = replicas.folder / "worker-0" / "checkpoint_dir-snapshots"
        assert left.exists()
        (tmp_path / "go").touch()
        replicas.start("worker-0")
        assert replicas.wait("worker-0") == 0, replicas.text("worker-0")
    assert replicas.text("worker-0").count("begins with []") == 2
    assert stored(replicas, object_store, tmp_path) == (2, 2)
    assert not left.exists()
    assert not unfinished(), "the next start has deleted their parts"


def test_a_checkpoint_that_is_uploaded_while_a_command_fails_proves_that_the_restored_one_was_good(
    make_replicas, digits, tmp_path, object_store
):
    write = "cat {checkpoint_dir}/state > old; head -c 30000000 /dev/zero > new; cat old >> new"
    wait = f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done"
    fail = f"touch {tmp_path}/fails; exit 1"
    command = f"{write}; mv new {{checkpoint_dir}}/state; touch {tmp_path}/written; {wait}; {fail}"
    replicas = make_replicas(
        {"command": ["sh", "-c", command]}, {}, {"worker": 1}, digits, "s3://bucket/run", object_store.environment()
    )
    store = open_store(replicas.job.checkpoint_uri, object_store.credentials())
    (tmp_path / "earlier").mkdir()
    for number in (1, 2):
        (tmp_path / "earlier" / "state").write_text(str(number))
        save_checkpoint(store, tmp_path / "earlier")
    replicas.start_all()
    until = time.monotonic() + 120
    while not (tmp_path / "written").exists() and time.monotonic() < until:
        time.sleep(0.05)
    with hanging(object_store):  # The upload begins, and the command fails during it.
        time.sleep(7)  # The folder is uploaded when it has not changed for two looks of 2 s each.
        (tmp_path / "go").touch()
        replicas.wait_until((tmp_path / "fails").exists)
        time.sleep(2)  # The replica notices the end of its command, which has nothing else to do.
    assert replicas.wait("worker-0") == 1
    stored = list_checkpoints(store)
    assert (stored.complete[0], stored.rejected) == ("00000003", [])


def fail_beside_the_leader(model_dir, checkpoint_dir, metrics_dir, go: str):
    import os
    import time
    from pathlib import Path

    from kfp_distributed.trainers.sync import record_epoch

    if os.environ["KFP_DISTRIBUTED_REPLICA"] == "worker-0":
        Path(checkpoint_dir, "new").write_bytes(os.urandom(20_000_000))
        Path(checkpoint_dir, "new").replace(Path(checkpoint_dir, "weights"))
        record_epoch(Path(metrics_dir, "training.json"), "worker-0", 3, 3, {"loss": 1})
        Path(model_dir, "weights").write_text("done")
        return
    while not Path(go).exists():
        time.sleep(0.05)
    raise ValueError("a bug")


def test_a_replica_that_fails_during_the_upload_of_the_leader_rejects_no_checkpoint(
    make_replicas, digits, tmp_path, object_store
):
    go = tmp_path / "go"
    with faulty_proxy(object_store.endpoint) as proxy:
        environment = object_store.environment() | {"AWS_ENDPOINT_URL": proxy.url, "AWS_ENDPOINT_URL_S3": proxy.url}
        replicas = make_replicas(
            train_specification(fail_beside_the_leader),
            {"go": str(go)},
            {"worker": 2},
            digits,
            "s3://bucket/run",
            environment,
        )
        store = open_store(replicas.job.checkpoint_uri, object_store.credentials())
        (tmp_path / "earlier").mkdir()
        for number in (1, 2):
            (tmp_path / "earlier" / "weights").write_text(str(number))
            save_checkpoint(store, tmp_path / "earlier")
        codes = []

        def await_failure():
            go.touch()
            codes.append(replicas.wait("worker-1"))

        proxy.faults = [Fault("PUT /bucket/run/checkpoints/00000003/weights?partNumber=1", before=await_failure)]
        replicas.start_all()
        assert replicas.wait("worker-0") == 0, replicas.text("worker-0")
    assert codes == [1], replicas.text("worker-1")
    stored = list_checkpoints(store)
    assert (stored.complete[0], stored.rejected) == ("00000003", [])
