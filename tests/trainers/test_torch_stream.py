"""Two ranks of torch_classifier that stream their rows from an object store: an outage, other rows, another order."""

import json
import os
import re
import shutil
import subprocess
import threading
import time
from dataclasses import replace

import pytest
from environments import trainer_python
from faulty_proxy import Fault, faulty_proxy
from forked_replicas import forked

from kfp_distributed.components.train.run.runners.local.ports import free_ports
from kfp_distributed.storage.dataset import DATASET_MANIFEST, DatasetManifest
from kfp_distributed.trainers.runtime.data_loading.row_feed import CACHE_VARIABLE

pytestmark = pytest.mark.takes(29)

OPTIONS = {"batch_size": 512, "seed": 3, "hidden_units": [16]}

TRAIN = """
import json, sys
from kfp_distributed.trainers.torch_classifier import torch_classifier
from kfp_distributed.trainers.programs.training_parameters import TrainingParameters
folders, parameters = json.loads(sys.argv[1])
torch_classifier(**folders, parameters=TrainingParameters(**parameters))
"""

BEFORE_STREAMS = """
import json, sys
import torch
from kfp_distributed.trainers.epochs.position import plan_of_rows
from kfp_distributed.trainers.runtime.data_loading.epoch_steps import read_manifest

file, train_dir, batch_size, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
checkpoint = torch.load(file, weights_only=True)
plan = plan_of_rows(read_manifest(train_dir), batch_size, 2, seed)
torch.save({**checkpoint, "step": 5, "plan": plan}, file)
"""
"""Turns the checkpoint of an epoch into one of a version that had no streams, whose plan names no order."""


class Ranks:
    """The processes of trainings with two ranks, whose rows are behind a proxy."""

    def __init__(self, folder, archive, environment):
        self.folder, self._environment = folder, {**os.environ, "PYTHONPATH": str(archive), **environment}

    def python(self, *arguments, **options):
        return subprocess.Popen(forked(trainer_python("pytorch"), "-c", *arguments), text=True, **options)

    def train(self, name, epochs):
        """Train up to an epoch; return the exit codes and the outputs of both ranks."""
        results = self.folder / name
        folders = {"train_dir": str(self.folder / "train"), "validation_dir": ""}
        for kind in ("model", "checkpoint", "metrics"):
            (results / kind).mkdir(parents=True, exist_ok=True)
            folders[f"{kind}_dir"] = str(results / kind)
        address, running = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0]), "WORLD_SIZE": "2"}, []
        for rank in ("0", "1"):
            (results / rank).mkdir(exist_ok=True)
            environment = {**self._environment, **address, "RANK": rank}
            arguments = json.dumps([folders, {**OPTIONS, "epochs": epochs}])
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            running.append(self.python(TRAIN, arguments, cwd=results / rank, env=environment, **pipes))
        try:
            printed = [process.communicate(timeout=300)[0] for process in running]
        finally:
            for process in running:
                process.kill()
        return [process.returncode for process in running], printed

    def history(self, name):
        return json.loads((self.folder / name / "metrics" / "training.json").read_text())["epochs"]

    def turn_old(self, name):
        arguments = [self.folder / name / "checkpoint" / "checkpoint.pt", self.folder / "train", "512", "3"]
        assert self.python(BEFORE_STREAMS, *arguments, env=self._environment).wait(300) == 0


@pytest.fixture
def stored(tmp_path, object_store, shards_in_groups, library_archive):
    """Return the ranks, the proxy before the store of their rows, and the folder of the shards in the store."""
    shards = tmp_path / "objects" / "bucket" / "data"
    shutil.copytree(shards_in_groups, shards)
    manifest = DatasetManifest.from_json((shards_in_groups / DATASET_MANIFEST).read_text())
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / DATASET_MANIFEST).write_text(replace(manifest, shards_uri="s3://bucket/data").to_json())
    with faulty_proxy(object_store.endpoint) as proxy:
        environment = {
            **object_store.environment(),
            "AWS_ENDPOINT_URL": proxy.url,
            "AWS_ENDPOINT_URL_S3": proxy.url,
            "OMP_NUM_THREADS": "1",
            CACHE_VARIABLE: "0",
        }
        yield Ranks(tmp_path, library_archive, environment), proxy, shards


def faults_in_epoch_2(before):
    """Return faults of which the second one happens when half of the rows of epoch 2 are read."""
    return [Fault("/part-", times=300), Fault("/part-", before=before, reset=True)]


def test_an_outage_and_a_checkpoint_of_another_order_change_no_row(stored):
    """All trainings have the losses of one without an interruption, so each row comes once in an epoch."""
    ranks, proxy, _ = stored
    assert ranks.train("whole", 1)[0] == [0, 0]
    shutil.copytree(ranks.folder / "whole", ranks.folder / "old")
    assert ranks.train("whole", 3)[0] == [0, 0]
    expected = [pytest.approx(epoch, rel=1e-6) for epoch in ranks.history("whole")]

    # A position of an order before streams means other rows, so the epoch begins anew.
    ranks.turn_old("old")
    codes, printed = ranks.train("old", 3)
    assert codes == [0, 0], printed
    for text in printed:
        assert "continues after epoch 1, and not after step 5 of the next one: its rows are divided or ordered" in text
    assert ranks.history("old") == expected

    is_over = threading.Event()

    def begin():
        proxy.faults = [Fault("", times=10**9, reset=True)]
        threading.Timer(3, end).start()

    def end():
        until = time.monotonic() + 120
        while proxy.faults[0].times == 10**9 and time.monotonic() < until:
            time.sleep(0.05)
        assert proxy.faults[0].times < 10**9, "there were requests during the outage"
        proxy.faults.clear()
        is_over.set()

    proxy.faults = faults_in_epoch_2(begin)
    codes, printed = ranks.train("outage", 3)
    assert codes == [0, 0], printed
    assert is_over.is_set()
    assert ranks.history("outage") == expected


def test_a_shard_that_is_replaced_ends_the_ranks_with_its_name(stored):
    ranks, proxy, shards = stored

    def put_others():
        for file in shards.glob("*.parquet"):
            (file.parent / "new").write_bytes(bytes(file.stat().st_size))
            (file.parent / "new").replace(file)

    proxy.faults = faults_in_epoch_2(put_others)
    codes, printed = ranks.train("replaced", 3)
    assert 0 not in codes, printed
    assert re.search(r"ChecksumMismatch: .*data/part-0000\d\.parquet", "".join(printed)), printed
    assert len(ranks.history("replaced")) < 3
