"""Sharded checkpoints of PyTorch: real ranks with Gloo, and a real object store that is slow, stopped or damaged."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from environments import environment, trainer_python
from faulty_proxy import Fault, faulty_proxy
from forked_replicas import forked
from hanging_store import hanging

from kfp_distributed.components.train.run.runners.local.ports import free_ports
from kfp_distributed.components.train.run.training_request.resume import copy_newest
from kfp_distributed.processes import ProcessGroup
from kfp_distributed.storage import open_store
from kfp_distributed.trainers import train_specification
from kfp_distributed.trainers.runtime.checkpoints.sharded_files import SavedRange
from kfp_distributed.trainers.runtime.checkpoints.sharded_uploads import ShardSave, ShardUploads
from kfp_distributed.trainers.runtime.checkpoints.stored_checkpoints import (
    Sharding,
    complete_checkpoints,
    list_checkpoints,
    reject_checkpoint,
)
from kfp_distributed.trainers.runtime.job_description import CHECKPOINT_REJECTED, PEER_LOST, PREEMPTED, JobDescription

pytestmark = pytest.mark.takes(52)

WIDTH = 510
BYTES = 3 * 2 * WIDTH * WIDTH * 4
"""Two matrices, and two states of Adam for each. Two and three ranks can divide them."""


def train(
    model_dir, steps: int, go: str = "", stop: str = "", width: int = 510, waits: bool = False, fails: bool = False
):
    """Train a network of two matrices that are divided among the ranks. Save a sharded checkpoint after each step."""
    import os
    import time
    from datetime import timedelta
    from pathlib import Path

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    from kfp_distributed.trainers.torch_checkpoint import is_ending, load_sharded, save_sharded

    # Gloo may miss the end of a killed rank. Then the others wait for this long.
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width, bias=False), nn.ReLU(), nn.Linear(width, width, bias=False))
    mesh = init_device_mesh("cpu", (ranks,))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    seen = torch.zeros((), dtype=torch.long)
    state = {"model": model, "optimizer": optimizer, "seen": seen}
    first = (load_sharded(state) or 0) + 1

    def total():
        """Return a sum over the model and the optimizer that depends on each value and its place."""
        tensors = [*model.parameters(), *(s["exp_avg"] for s in optimizer.state.values())]
        values = [tensor.detach().full_tensor().double().flatten() for tensor in tensors]
        return sum(float((value * torch.linspace(1, 2, len(value), dtype=torch.double)).sum()) for value in values)

    print(f"process {os.getpid()}")
    print(f"begins with step {first}, seen {int(seen)}, total {total() if first > 1 else 0:.9e}", flush=True)
    if fails:
        raise ValueError("fails after its load")
    for step in range(first, steps + 1):
        while step > 1 and go and not Path(go).exists():
            time.sleep(0.05)
        generator = torch.Generator().manual_seed(step)
        model(torch.rand(8, width, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen += 8
        begin = time.monotonic()
        save_sharded(state, step, wait=waits)
        print(f"step {step} pause {time.monotonic() - begin:.3f} total {total():.9e}", flush=True)
        if is_ending():
            return
    while stop and not Path(stop).exists():
        time.sleep(0.05)
    if rank == 0:
        Path(model_dir, "weights").write_text("done")


class Ranks:
    """The ranks of a PyTorchJob, started as the operator would."""

    def __init__(self, group, folder, archive, job, environment):
        self.group, self.folder, self.job, self.environment = group, folder, job, environment
        self.archive, self.running, self.starts = archive, [], 0
        self.own = {}
        """Variables of single ranks."""

    def start(self, ranks):
        self.starts += 1
        job_file = self.folder / "job.json"
        job_file.write_text(self.job.to_json())
        (port,) = free_ports(1)
        self.running = []
        for rank in range(ranks):
            name = f"worker-{rank - 1}" if rank else "master-0"
            cwd = self.folder / name
            cwd.mkdir(exist_ok=True)
            variables = {
                **{key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
                **self.environment,
                **self.own.get(rank, {}),
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "KFP_DISTRIBUTED_JOB": str(job_file),
                "KFP_DISTRIBUTED_REPLICA": name,
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(self.archive),
            }
            argv = [str(environment("torch2")), "-m", "kfp_distributed.trainers.runtime.entry"]
            with self.log(rank).open("wb") as log:
                self.running.append(self.group.start(name, argv, env=variables, cwd=cwd, stdout=log))

    def log(self, rank):
        return self.folder / f"{self.starts}-{rank}.log"

    def text(self, rank=0):
        return self.log(rank).read_text(errors="replace")

    def wait(self):
        return [process.wait(timeout=300) for process in self.running]

    def kill(self, rank):
        """Kill the process of a rank itself, whose client would end before it, and wait for its end."""
        os.kill(int(re.search(r"^process (\d+)", self.text(rank), re.MULTILINE)[1]), signal.SIGKILL)
        assert self.running[rank].wait(timeout=300) == -signal.SIGKILL

    def wait_for(self, text, rank=0, seconds=300):
        until = time.monotonic() + seconds
        while text not in self.text(rank):
            if self.running[rank].poll() is not None or time.monotonic() > until:
                pytest.fail(f"rank {rank} never printed {text!r}:\n{self.text(rank)}")
            time.sleep(0.02)

    def totals(self, rank=0):
        return dict(re.findall(r"^step (\d+) pause \S+ total (\S+)$", self.text(rank), re.MULTILINE))


@pytest.fixture
def make_ranks(digits, tmp_path, object_store, library_archive):
    """Return a function that makes the ranks of a job from the parameters of `train`."""
    with ProcessGroup() as group:

        def make(name="run", **parameters):
            root = f"s3://bucket/{name}"
            job = JobDescription(
                name="a-job",
                program=train_specification(train),
                parameters=parameters,
                train_uri=str(digits.folder / "train"),
                validation_uri="",
                model_uri=f"{root}/model",
                checkpoint_uri=f"{root}/checkpoints",
                metrics_uri=f"{root}/metrics",
                leader="master-0",
                data_replicas=("master-0", "worker-0", "worker-1"),
            )
            folder = tmp_path / name
            folder.mkdir()
            return Ranks(group, folder, library_archive, job, object_store.environment())

        yield make


@pytest.fixture
def checkpoints(object_store):
    return open_store("s3://bucket/run/checkpoints", object_store.credentials())


def set_parameters(ranks, **parameters):
    ranks.job = replace(ranks.job, parameters=parameters)


def read_bytes(ranks, count):
    texts = [ranks.text(rank) for rank in range(count)]
    return [int(re.search(r"has read (\d+) bytes", text)[1]) for text in texts]


def test_checkpoint_of_three_ranks_is_loaded_by_two(make_ranks, checkpoints, object_store):
    ranks = make_ranks(steps=5)
    ranks.start(3)
    assert ranks.wait() == [0] * 3, ranks.text()
    total = ranks.totals()["5"]
    stored = list_checkpoints(checkpoints)
    assert stored.complete[0] == "00000005"
    assert len(stored.complete) <= 3
    assert stored.folders == stored.complete, "what was replaced is deleted"
    manifest = json.loads(checkpoints.read("00000005.json"))
    assert manifest["sharding"]["step"] == 5
    assert manifest["sharding"]["ranks"] == 3
    sizes = [file["size"] for file in manifest["files"] if file["path"].endswith(".distcp")]
    assert len(sizes) == 3
    assert max(sizes) < BYTES / 3 * 1.1, "each rank stores only its part"
    # Another number of ranks reads it.
    set_parameters(ranks, steps=6)
    checkpoints_of_model = open_store("s3://bucket/run/model", object_store.credentials())
    checkpoints_of_model.delete([entry.key for entry in checkpoints_of_model.list()])
    ranks.start(2)
    assert ranks.wait() == [0] * 2, ranks.text()
    assert f"begins with step 6, seen 40, total {total}" in ranks.text()
    # The part of one of two ranks lies in two of three files.
    assert max(read_bytes(ranks, 2)) < BYTES * 2 / 3 * 1.1, "each rank reads only its part"
    assert not list(ranks.folder.glob("*/checkpoint_dir/*"))
    assert not list(ranks.folder.glob("*/checkpoint_dir-shards/*")), "stored files are deleted from the disk"
    # resume_from copies it like others.
    copy_newest(checkpoints, target := open_store("s3://bucket/other/checkpoints", object_store.credentials()))
    names = complete_checkpoints(checkpoints)
    assert complete_checkpoints(target) == names
    copied, parts = (
        [entry.key for entry in store.list(f"{names[0]}/") if entry.key.endswith(".distcp")]
        for store in (target, checkpoints)
    )
    assert copied == parts
    assert len(parts) == 2


def test_rank_that_is_killed_during_its_upload_leaves_no_complete_checkpoint(
    make_ranks, checkpoints, object_store, tmp_path
):
    ranks = make_ranks(steps=1000, go=str(tmp_path / "go"))
    ranks.start(2)
    ranks.wait_for("checkpoint 00000001 of step 1 is stored")
    # The upload runs beside the training, so it may end before the line of its step is printed.
    ranks.wait_for("step 1 pause")
    first = ranks.totals()["1"]
    with hanging(object_store):
        (tmp_path / "go").touch()
        ranks.wait_for("step 2 pause", rank=1)
        ranks.kill(1)
    # The other one stores its part, but the checkpoint remains incomplete.
    assert ranks.wait()[0] == PEER_LOST, ranks.text()
    assert complete_checkpoints(checkpoints) == ["00000001"]
    assert "00000002" in list_checkpoints(checkpoints).folders
    assert not any("rank-1" in entry.key for entry in checkpoints.list("00000002/"))
    set_parameters(ranks, steps=2)
    ranks.start(1)
    assert ranks.wait() == [0], ranks.text()
    assert f"begins with step 2, seen 8, total {first}" in ranks.text()
    stored = list_checkpoints(checkpoints)
    assert len(stored.complete) == 2
    assert stored.complete[0] > "00000002"
    assert stored.folders == stored.complete, "the files of the incomplete checkpoint are deleted"


def test_training_continues_while_the_store_does_not_answer(make_ranks, checkpoints, object_store, tmp_path):
    ranks = make_ranks(steps=8, go=str(tmp_path / "go"))
    ranks.start(2)
    ranks.wait_for("checkpoint 00000001 of step 1 is stored")
    with hanging(object_store):
        (tmp_path / "go").touch()
        ranks.wait_for("step 8 pause")
        for folder in ranks.folder.glob("*/checkpoint_dir-shards"):
            assert len([*folder.iterdir()]) <= 2, "the one that is uploaded, and the newest"
    assert ranks.wait() == [0] * 2, ranks.text()
    names = complete_checkpoints(checkpoints)
    steps = [json.loads(checkpoints.read(f"{name}.json"))["sharding"]["step"] for name in names]
    assert steps == [8, 2, 1]
    assert list_checkpoints(checkpoints).folders == names


def test_damaged_and_rejected_checkpoints_are_skipped(make_ranks, checkpoints, object_store):
    ranks = make_ranks(steps=3, waits=True)
    ranks.start(2)
    assert ranks.wait() == [0] * 2, ranks.text()
    model = open_store("s3://bucket/run/model", object_store.credentials())
    model.delete([entry.key for entry in model.list()])
    assert complete_checkpoints(checkpoints) == ["00000003", "00000002", "00000001"]
    key = next(entry.key for entry in checkpoints.list("00000003/") if entry.key.endswith("__1_0.distcp"))
    data = bytearray(checkpoints.read(key))
    data[len(data) // 2] ^= 1
    checkpoints.write(key, bytes(data))
    assert reject_checkpoint(checkpoints, "00000002") == ""
    set_parameters(ranks, steps=3, fails=True)
    ranks.start(2)
    codes = ranks.wait()
    assert "cannot use checkpoint 00000003, trying the previous one" in ranks.text()
    assert "begins with step 3" in ranks.text()
    assert CHECKPOINT_REJECTED in codes
    assert list_checkpoints(checkpoints).rejected == ["00000003"]


def test_training_loses_no_step_when_a_replica_must_end(make_ranks, checkpoints):
    ranks = make_ranks(steps=100_000)
    ranks.start(2)
    ranks.wait_for("step 2 pause")
    ranks.running[1].terminate()
    assert ranks.wait() in ([PREEMPTED] * 2, [PREEMPTED, 143]), ranks.text()
    last = max(map(int, ranks.totals()))
    total = ranks.totals()[str(last)]
    assert json.loads(checkpoints.read(f"{last:08d}.json"))["sharding"]["step"] == last
    set_parameters(ranks, steps=last)
    ranks.start(2)
    assert ranks.wait() == [0] * 2, ranks.text()
    assert f"begins with step {last + 1}, seen {8 * last}, total {total}" in ranks.text()


@pytest.mark.parametrize(
    ("where", "times", "width"),
    [("/__1_0.distcp", 1, 1024), ("/checkpoints/00000002/", 10**9, 512)],
    ids=["part", "all"],
)
def test_checkpoint_that_the_store_refuses_in_one_rank_is_given_up(
    make_ranks, checkpoints, object_store, tmp_path, where, times, width
):
    """The next one is stored. Rank 0 learns the failure from the record, or with the next save.

    The wider network has files of two parts.
    """
    ranks = make_ranks(steps=12, go=str(tmp_path / "go"), width=width)
    with faulty_proxy(object_store.endpoint) as proxy:
        ranks.own[1] = {"AWS_ENDPOINT_URL": proxy.url, "AWS_ENDPOINT_URL_S3": proxy.url}
        ranks.start(2)
        ranks.wait_for("checkpoint 00000001 of step 1 is stored")
        proxy.faults = [Fault(where, times, status=403)]
        (tmp_path / "go").touch()
        assert ranks.wait() == [0] * 2, ranks.text()
    assert re.search(r"not stored: checkpoint 00000002, because rank 1 failed: .*Status403", ranks.text()), ranks.text()
    assert "not stored: checkpoint 00000002, because rank 1 failed" in ranks.text(1)
    names = complete_checkpoints(checkpoints)
    assert "00000002" not in names
    assert json.loads(checkpoints.read(f"{names[0]}.json"))["sharding"]["step"] == 12
    assert not checkpoints.list("00000002/")


def save_of(rank, folder, ranks=2):
    files = folder / f"part-{rank}"
    files.mkdir()
    (files / f"__{rank}_0.distcp").write_bytes(bytes(100))
    return ShardSave("00000007", Sharding(70, ranks, "save"), rank, files, [SavedRange(f"__{rank}_0.distcp", 0, 100)])


def test_log_of_rank_0_names_the_ranks_whose_records_are_missing(tmp_path, monkeypatch):
    printed = []  # capsys may lose what a thread prints while it is read.
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=printed.append, flush=lambda: None))
    store = open_store(str(tmp_path / "store"))
    leader, rank_2 = ShardUploads(store, missing_seconds=0.1), ShardUploads(store)
    leader.add(save_of(0, tmp_path, 4))
    rank_2.add(save_of(2, tmp_path, 4))
    assert rank_2.finish(60)
    while "whose log" not in "".join(printed):
        assert not leader.finish(0)
        time.sleep(0.02)
    assert "".join(printed).splitlines()[-1] == (
        "checkpoint 00000007 of step 70 is not complete: it waits for 2 ranks (1, 3), whose log has the reason"
    )
    leader.fail([{}, {"save": "the object store has not answered for 600 s"}, {}, {}])
    assert leader.finish(0)
    assert "checkpoint 00000007, because rank 1 failed: the object store has not" in "".join(printed)


def test_rank_whose_store_does_not_answer_gives_up_in_the_end(tmp_path, object_store, checkpoints):
    with faulty_proxy(object_store.endpoint) as proxy:
        proxy.faults = [Fault("", times=10**9, reset=True)]
        credentials = replace(object_store.credentials(), endpoint=proxy.url.removeprefix("http://"))
        uploads = ShardUploads(open_store(checkpoints.uri, credentials, retry_seconds=0), away_seconds=1)
        uploads.add(save_of(1, tmp_path))
        until, failures = time.monotonic() + 120, {}
        while not failures and time.monotonic() < until:
            failures = uploads.take_failures()
    assert failures["save"].startswith(f"the object store has not answered for 1 s: {proxy.url}, bucket 'bucket', key")
    assert uploads.take_failures().keys() == {"save"}, "until all ranks have given it up"
    uploads.fail([{}, failures])
    assert uploads.finish(0)
    assert uploads.take_failures() == {}
    assert not (tmp_path / "part-1").exists()


def test_older_pytorch_is_an_error_that_says_what_to_do(library_archive):
    code = "from kfp_distributed.trainers.torch_checkpoint import save_sharded; save_sharded({}, 1)"
    variables = {**os.environ, "PYTHONPATH": str(library_archive)}
    result = subprocess.run(
        forked(trainer_python("pytorch"), "-c", code), env=variables, capture_output=True, text=True, check=False
    )
    assert "ImportError: save_sharded() needs PyTorch 2.3 or newer, and this is 1.13" in result.stderr


PROGRAM = """
import errno, json, os, pathlib, sys
import torch
from kfp_distributed.storage import open_store
from kfp_distributed.trainers.runtime.checkpoints.stored_checkpoints import save_checkpoint
from kfp_distributed.trainers.torch_checkpoint import load_sharded, save_sharded

class Values:
    is_full = True
    def state_dict(self):
        if self.is_full:
            raise OSError(errno.ENOSPC, "the disk is full")
        return {"values": torch.ones(3)}
    def load_state_dict(self, state):
        pass

values, found = Values(), {}
try:
    save_sharded({"values": values}, 5)
except RuntimeError as error:
    found["ranks"] = str(error)
del os.environ["WORLD_SIZE"]
try:
    save_sharded({"values": values}, 5)
except OSError as error:
    found["error"] = str(error)
values.is_full = False
found["again"] = save_sharded({"values": values}, 5)
save_sharded({"values": values}, 5, wait=True)
store, folder = open_store(sys.argv[1]), pathlib.Path("checkpoint_dir")
found["complete"] = "00000002.json" in store.children()
(folder / "file").write_text("of another kind")
save_checkpoint(store, folder)
store.write("00000004.json", b"{")
found["loaded"] = load_sharded({"values": values})
print(json.dumps(found))
"""


def test_saves_of_one_process(tmp_path, library_archive):
    job = JobDescription("a-job", {}, {}, "", "", "", str(tmp_path / "store"), "", "worker-0", ("worker-0",))
    (tmp_path / "job.json").write_text(job.to_json())
    (tmp_path / "checkpoint_dir").mkdir()
    variables = {
        **os.environ,
        "WORLD_SIZE": "2",
        "KFP_DISTRIBUTED_JOB": str(tmp_path / "job.json"),
        "KFP_DISTRIBUTED_CHECKPOINT_DIR": str(tmp_path / "checkpoint_dir"),
        "PYTHONPATH": str(library_archive),
    }
    command = forked(environment("torch2"), "-c", PROGRAM, job.checkpoint_uri)
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert "call torch.distributed.init_process_group() before" in found["ranks"]
    assert "the disk is full" in found["error"]
    assert found["again"], "a save that failed does not count"
    assert found["complete"], "a save of the same step waits for the first one"
    assert found["loaded"] == 5, "checkpoints of another kind and damaged ones are skipped"
