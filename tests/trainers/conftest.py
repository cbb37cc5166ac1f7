"""Datasets and replica processes for the tests of the trainers."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import samples

from kfp_distributed.components.train.run.runners.local.ports import free_ports
from kfp_distributed.library.archive import ARCHIVE_KEY, make_archive
from kfp_distributed.library.content import REPLICA_PACKAGES, read_library
from kfp_distributed.processes import ProcessGroup
from kfp_distributed.storage.dataset import (
    DATASET_MANIFEST,
    Column,
    DatasetManifest,
    ShardPart,
    whole_shard,
)
from kfp_distributed.storage.object_stores.embedded import embedded_object_store
from kfp_distributed.storage.shard_reader import WHOLE_BYTES
from kfp_distributed.trainers.runtime.data_loading.rank_part import keep_rows
from kfp_distributed.trainers.runtime.job_description import JobDescription


@pytest.fixture(scope="session")
def library_archive(tmp_path_factory):
    """Return the path of the archive with which a Python of an image imports the trainers."""
    archive = tmp_path_factory.mktemp("library") / ARCHIVE_KEY
    archive.write_bytes(make_archive(read_library(REPLICA_PACKAGES)))
    return archive


@pytest.fixture(scope="session")
def shards_in_groups(tmp_path_factory, write_dataset):
    """A dataset of two shards, which are too large to be read with one request and kept for the next epoch."""
    rows, folder = 20_000, tmp_path_factory.mktemp("data") / "train"
    values = np.random.default_rng(0).random(rows * 64, np.float32)
    columns, arrays = [Column("series", "tensor", "float32", (64,))], [pa.FixedSizeListArray.from_arrays(values, 64)]
    manifest = write_dataset(folder, columns, arrays, np.arange(rows) % 2, ["a", "b"], [rows // 2] * 2)
    assert min(shard.size for shard in manifest.shards) > WHOLE_BYTES
    return folder


@pytest.fixture(scope="session")
def write_dataset():
    """Return a function that writes rows as a dataset and returns its manifest."""
    return samples.write_dataset


@dataclass(frozen=True)
class Digits:
    """The training and validation datasets of the digits, and 297 other rows for tests."""

    folder: Path
    test_inputs: np.ndarray
    test_labels: np.ndarray


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    from sklearn.datasets import load_digits

    data, folder = load_digits(), tmp_path_factory.mktemp("digits")
    order = np.random.default_rng(0).permutation(len(data.target))
    inputs, labels = data.images[order].astype(np.uint8), data.target[order]
    column = Column("image", "tensor", "uint8", (8, 8), (), float(inputs.mean()), float(inputs.std()))

    def write(split, rows, shards):
        values = pa.FixedSizeListArray.from_arrays(pa.array(inputs[rows].reshape(-1)), 64)
        classes = [str(digit) for digit in range(10)]
        samples.write_dataset(folder / split, [column], [values], labels[rows], classes, shards, split)

    write("train", slice(0, 1300), [300, 1, 499, 500])
    write("validation", slice(1300, 1500), [200])
    return Digits(folder, inputs[1500:].astype(np.float32), labels[1500:])


@pytest.fixture(scope="session")
def odd_digits(digits, tmp_path_factory):
    """The digits without the first training row: two ranks do not divide 1299 rows evenly, nor do steps of 100."""
    folder = tmp_path_factory.mktemp("odd")
    shutil.copytree(digits.folder, folder, dirs_exist_ok=True)
    manifest = DatasetManifest.from_json((folder / "train" / DATASET_MANIFEST).read_text())
    first, *others = manifest.shards
    parts = [ShardPart(first, (1, first.rows - 1), 1), *map(whole_shard, others)]
    keep_rows(folder / "train", manifest, parts)
    return replace(digits, folder=folder)


@dataclass
class Replicas:
    """The replicas of a job, started as the operator would: each has a folder and a TF_CONFIG."""

    group: ProcessGroup
    folder: Path
    job: JobDescription
    roles: dict
    environment: dict
    config: dict = field(default_factory=dict)
    running: dict = field(default_factory=dict)
    arguments: tuple = ("-m", "kfp_distributed.trainers.runtime.entry")

    def names(self):
        return [f"{role}-{index}" for role, count in self.roles.items() for index in range(count)]

    def start_all(self):
        ports = iter(free_ports(sum(self.roles.values())))
        self.config = {role: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for role, count in self.roles.items()}
        for name in self.names():
            self.start(name)

    def start(self, name):
        cwd, (role, _, index) = self.folder / name, name.partition("-")
        cwd.mkdir(exist_ok=True)
        job_file, text = self.folder / "job.json", self.job.to_json()
        # A replica that runs may be reading the file.
        if not job_file.exists() or job_file.read_text() != text:
            job_file.write_text(text)
        environment = {**os.environ, **self.environment, "KFP_DISTRIBUTED_JOB": str(job_file)}
        environment |= {"KFP_DISTRIBUTED_REPLICA": name, "PYTHONFAULTHANDLER": "1"}
        if len(self.names()) > 1:
            task = {"type": role, "index": int(index)}
            environment["TF_CONFIG"] = json.dumps({"cluster": self.config, "task": task, "environment": "cloud"})
        argv = [sys.executable, *self.arguments]
        with self.log(name).open("ab") as log:
            self.running[name] = self.group.start(name, argv, env=environment, cwd=cwd, stdout=log)

    def log(self, name):
        return self.folder / f"{name}.log"

    def text(self, name):
        return self.log(name).read_text(errors="replace") if self.log(name).exists() else ""

    def epochs(self, name):
        return [int(epoch) for epoch in re.findall(r"^epoch (\d+)/", self.text(name), re.MULTILINE)]

    def wait(self, name, seconds=300):
        try:
            return self.running[name].wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self._fail(f"{name} has not ended")

    def wait_until(self, condition, seconds=120):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                self._fail("nothing has fulfilled the condition")
            time.sleep(0.05)

    def wait_for(self, name, text, seconds=300):
        deadline = time.monotonic() + seconds
        while text not in self.text(name):
            if self.running[name].poll() is not None or time.monotonic() > deadline:
                self._fail(f"{name} never printed {text!r}")
            time.sleep(0.02)

    def _fail(self, problem):
        """Fail with what the replicas have printed, and where the threads of those that run are."""
        for replica in self.running.values():
            if replica.poll() is None:
                replica.send_signal(signal.SIGABRT)  # Python prints the threads.
        for replica in self.running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                replica.wait(10)
        pytest.fail("\n".join([problem, *(f"{name} has printed:\n{self.text(name)}" for name in self.names())]))


@pytest.fixture
def make_replicas(tmp_path):
    """Return a function that makes the replicas of a job from its program, parameters and roles."""
    with ProcessGroup() as group:

        def make(program, parameters, roles, digits, root=None, environment=None):
            root = root or str(tmp_path / "store")
            leader = "chief-0" if "chief" in roles else "worker-0"
            job = JobDescription(
                name="a-job",
                program=program,
                parameters=parameters,
                train_uri=str(digits.folder / "train"),
                validation_uri=str(digits.folder / "validation"),
                model_uri=f"{root}/model",
                checkpoint_uri=f"{root}/checkpoints",
                metrics_uri=f"{root}/metrics",
                leader=leader,
                data_replicas=tuple(f"worker-{index}" for index in range(roles["worker"])),
                parameter_servers=roles.get("ps", 0),
            )
            folder = tmp_path / "replicas"
            folder.mkdir()
            return Replicas(group, folder, job, roles, environment or {})

        yield make


@pytest.fixture
def object_store(tmp_path):
    with embedded_object_store(tmp_path / "objects") as server:
        (tmp_path / "objects" / "bucket").mkdir()
        yield server
