"""Tests for the pods that prepare data, as processes of this machine: the same program, variables and object store."""

import json
import os
import re
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from forked_replicas import forked

from kfp_distributed.components.kfp_interface.step_packages import PREPARATION
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.preparation_pods.preparation_request import (
    MODULE,
    PreparationRequest,
    preparation_folder,
)
from kfp_distributed.components.prepare_data.preparation_pods.preparation_results import store_results
from kfp_distributed.components.prepare_data.preparation_pods.preparation_run import prepare_in_pods
from kfp_distributed.components.prepare_data.prepare import prepare
from kfp_distributed.components.train.describe.manifests import job_manifest
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.describe.manifests.pod import ADDRESS_VARIABLE
from kfp_distributed.components.train.describe.topology import Replica, Resources, Topology
from kfp_distributed.components.train.run.conclusions.status import advance, begin
from kfp_distributed.components.train.run.conclusions.time_budgets import expired_budget
from kfp_distributed.components.train.run.facts import JobEnded, LogLine, ReplicaChanged, Tick
from kfp_distributed.components.train.run.identity import identify_training
from kfp_distributed.components.train.run.launch import follow_job
from kfp_distributed.components.train.run.runners.kubernetes.cluster_records.pods import replica_of
from kfp_distributed.components.train.tell.step_log import StepLog
from kfp_distributed.components.worker_pool.pod_engine import versions
from kfp_distributed.components.worker_pool.worker_job import WorkerProgram, parse_worker_settings, plan_worker_job
from kfp_distributed.components.worker_pool.worker_replica import INDEX_VARIABLE
from kfp_distributed.components.worker_pool.worker_results import read_result, store_error
from kfp_distributed.components.worker_pool.worker_run import WorkersFailed
from kfp_distributed.processes import ProcessGroup
from kfp_distributed.storage import open_store
from kfp_distributed.storage.dataset import DatasetManifest
from kfp_distributed.storage.object_stores.embedded import embedded_object_store
from kfp_distributed.trainers.runtime.job_description import JOB_VARIABLE, LOST_SECONDS_VARIABLE

pytestmark = pytest.mark.takes(28)

SPLITS = ("train", "validation", "test")
ROOT = "s3://pipelines/v2/artifacts/digits/8f3c1d7e-2f3a-4b5c-9d6e-7f8091a2b3c4/prepare-data/51b25a3c-7d1e-4f2a-8b6c-0d9e8f7a6b5c"

PARAMETERS = {
    "label_column": "label",
    "validation_fraction": 0.1,
    "test_fraction": 0.1,
    "shards": 4.0,
    "seed": 0,
    "image_size": "",
    "drop_columns": [],
}


@pytest.fixture
def store_environment(tmp_path, monkeypatch):
    with embedded_object_store(tmp_path / "objects") as server:
        (tmp_path / "objects" / "pipelines").mkdir()
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield


@pytest.fixture
def source(tmp_path):
    generator = np.random.default_rng(0)
    numbers = {f"x{column}": generator.normal(size=20_000) for column in range(20)}
    table = pa.table({**numbers, "label": generator.integers(0, 3, 20_000)})
    file = tmp_path / "rows.csv"
    pyarrow.csv.write_csv(table, file)
    return file


def request_of(source, **changes):
    uris = {split: f"{ROOT}/{split}_dataset" for split in SPLITS}
    values = {
        "source": str(source),
        "sources_of_splits": {},
        "parameters": PARAMETERS,
        "like": "",
        "source_fingerprint": "",
        "uris": uris,
        "workers": 2,
        "folder": preparation_folder(uris["train"]),
    }
    return PreparationRequest(**{**values, **changes})


def planned(request, settings, name, identity, image=""):
    return plan_worker_job(request, WorkerProgram(MODULE, PREPARATION, image), settings, name, identity)


def job_of(request):
    return planned(request, parse_worker_settings({}), "prepare-data", ("run", "x"))


def store_of(job):
    return open_store(job.description.parameters["folder"])


def start(processes, job, folder, index):
    """Start a pod as Kubernetes does: with the job's file, and with the index of the pod."""
    file = folder / "job.json"
    file.write_text(job.description.to_json())
    work = folder / f"pod-{index}"
    work.mkdir(exist_ok=True)
    variables = {JOB_VARIABLE: str(file), INDEX_VARIABLE: str(index), ADDRESS_VARIABLE: "127.0.0.1"}
    with (folder / f"pod-{index}.log").open("ab") as log:
        return processes.start(
            f"pod-{index}", forked(sys.executable, "-m", MODULE), env={**os.environ, **variables}, cwd=work, stdout=log
        )


def here(source, folder):
    """Return the manifests and the shards of the same data, prepared in this process."""
    datasets = {
        split: SimpleNamespace(path=str(folder / split), uri=str(folder / split), metadata={}) for split in SPLITS
    }
    manifests = prepare(str(source), Options(shards=4), datasets, str(folder / "overview"))
    shards = {
        f"{split}/{shard.path}": (folder / split / shard.path).read_bytes()
        for split, manifest in manifests.items()
        for shard in manifest.shards
    }
    return manifests, shards


@pytest.mark.usefixtures("store_environment")
def test_pods_leave_the_same_datasets_and_end(source, tmp_path):
    request = request_of(source)
    job = job_of(request)
    manifests, shards = here(source, tmp_path / "here")
    with ProcessGroup() as processes:
        pods = [start(processes, job, tmp_path, index) for index in range(3)]
        assert [pod.wait(300) for pod in pods] == [0, 0, 0], (tmp_path / "pod-0.log").read_text()
    store = store_of(job)
    result = read_result(store, job.description.request)
    assert (result.error, result.metadata["train"]) == ("", {"rows": 16_000, "task": "classification", "classes": 3})
    for split, manifest in manifests.items():
        stored = DatasetManifest.from_json(store.read(f"{split}/dataset.json").decode())
        assert stored == replace(manifest, shards_uri=f"{ROOT}/shards/{split}_dataset")
        for shard in stored.shards:
            assert open_store(stored.shards_uri).read(shard.path) == shards[f"{split}/{shard.path}"]
    assert sorted(entry.key for entry in store.list()) == [
        "overview",
        "result.json",
        *(f"{s}/dataset.json" for s in sorted(SPLITS)),
    ]


def await_result(store):
    """Wait until a task has stored its result."""
    while not any("/results/" in entry.key for entry in store.list("scratch")):
        time.sleep(0.02)


@pytest.mark.usefixtures("store_environment")
def test_pods_that_are_killed_are_replaced_and_go_on(source, tmp_path):
    request = request_of(source)
    job = job_of(request)
    store = store_of(job)
    with ProcessGroup() as processes:
        worker = start(processes, job, tmp_path, 1)
        start(processes, job, tmp_path, 0)
        await_result(store)
        processes.stop(["pod-0"], grace_seconds=0)
        assert read_result(store, job.description.request) is None
        leader = start(processes, job, tmp_path, 0)
        assert (leader.wait(300), worker.wait(300)) == (0, 0), (tmp_path / "pod-0.log").read_text()
    assert read_result(store, job.description.request).metadata["train"]["rows"] == 16_000
    log = (tmp_path / "pod-0.log").read_text()
    assert len(re.findall(r"an earlier start has completed \d+ tasks, which are not run again", log)) == 1, log


@pytest.mark.usefixtures("store_environment")
def test_wrong_data_end_all_pods_and_the_result_says_why(source, tmp_path):
    lines = source.read_text().splitlines()
    source.write_text("\n".join([*lines, "a" * 3]))
    job = job_of(request_of(source))
    with ProcessGroup() as processes:
        pods = [start(processes, job, tmp_path, index) for index in range(3)]
        assert [pod.wait(300) for pod in pods] == [1, 1, 1]
    store = store_of(job)
    assert "row 20002 of rows.csv" in read_result(store, job.description.request).error
    assert [entry.key for entry in store.list()] == ["result.json"]


@pytest.mark.usefixtures("store_environment")
def test_a_pod_whose_step_is_gone_ends(source, tmp_path, monkeypatch):
    monkeypatch.setenv(LOST_SECONDS_VARIABLE, "1")
    with ProcessGroup() as processes:
        assert start(processes, job_of(request_of(source)), tmp_path, 1).wait(300) == 1


def test_the_job_is_an_indexed_job_whose_pods_restart_alone():
    job = planned(
        request_of("s3://data/rows.csv", workers=3),
        parse_worker_settings({"worker_memory": "2Gi"}),
        "prepare-data",
        ("run", "x"),
        image="example.com/steps:1",
    )
    resources = Resources(None, "2Gi", 0, "nvidia.com/gpu")
    workers = ("worker-0", "worker-1", "worker-2")
    assert job.topology == Topology(
        "Job",
        (Replica("scheduler", 0, resources), *(Replica("worker", index, resources) for index in range(3))),
        "scheduler-0",
        workers,
        frozenset({"scheduler-0", *workers}),
        frozenset(workers),
    )
    spec = job_manifest(job, ClusterSettings("team", image="example.com/steps:1"))["spec"]
    assert {key: value for key, value in spec.items() if key not in ("podFailurePolicy", "template")} == {
        "completionMode": "Indexed",
        "completions": 4,
        "parallelism": 4,
        "backoffLimit": 12,
        "ttlSecondsAfterFinished": 3600,
    }
    (container,) = spec["template"]["spec"]["containers"]
    assert (container["command"][-3:], container["resources"]) == (
        ["python3", "-m", MODULE],
        {"limits": {"memory": "2Gi"}, "requests": {"memory": "2Gi"}},
    )
    assert container["env"][-1]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}


@pytest.mark.parametrize("place", ["labels", "annotations"])
@pytest.mark.parametrize(("index", "name"), [("0", "scheduler-0"), ("2", "worker-1")])
def test_the_index_of_a_pod_names_its_replica(place, index, name):
    """Kubernetes before 1.28 sets no label."""
    pod = {"metadata": {"annotations": {}, "labels": {"kfp-distributed/first-replica": "scheduler-0"}}}
    pod["metadata"][place]["batch.kubernetes.io/job-completion-index"] = index
    assert replica_of(pod) == name


def changed(time, replica, state):
    return ReplicaChanged(time, replica, state)


def test_a_worker_that_never_starts_neither_ends_nor_holds_the_job():
    job = job_of(request_of("s3://data/rows.csv"))
    status = begin(job, 0.0)
    for replica in ("scheduler-0", "worker-0"):
        status = advance(advance(status, changed(1, replica, "running")), LogLine(2, replica, "begun"))
    assert expired_budget(status, job.specification, 10_000.0) == ""
    nobody = advance(begin(job, 0.0), changed(1, "worker-0", "running"))
    assert "scheduling_timeout" in expired_budget(nobody, job.specification, 10_000.0)

    class Runner:
        def facts(self):
            yield from (changed(1, "scheduler-0", "running"), changed(2, "scheduler-0", "succeeded"), Tick(3))
            raise AssertionError("the job is over")

    assert follow_job(Runner(), job, lambda fact: None).ended == JobEnded(3, True)


@pytest.mark.usefixtures("store_environment")
def test_a_worker_of_other_versions_ends(source, tmp_path):
    job = job_of(request_of(source))
    record = {"address": "tls://127.0.0.1:1", "certificate": "", "key": "", "versions": {**versions(), "numpy": "1.0"}}
    store_of(job).write("scheduler.json", json.dumps(record).encode())
    with ProcessGroup() as processes:
        assert start(processes, job, tmp_path, 1).wait(300) == 1
    assert "and not 1.0, which the scheduler has" in (tmp_path / "pod-1.log").read_text()


class Job:
    """A runner whose job ends as it is told, see `Runner`. It notes what it is asked for."""

    shares_disk, namespace, manifest = False, "team", {}

    def __init__(self, ends=lambda: None, *, exists=False):
        self.calls, self._ends, self._exists = [], ends, exists

    def check(self, job):
        self.calls.append("check")

    def start(self, job):
        self.calls.append("start")

    def adopt(self, job):
        self.calls.append("adopt")
        return self._exists

    def facts(self):
        self._ends()
        yield JobEnded(1, True)

    def stop(self):
        self.calls.append("stop")


def store_datasets(job, tmp_path):
    """Store what the pods leave for the step."""
    page = tmp_path / "pod" / "page"
    datasets = outputs({split: tmp_path / "pod" / split for split in SPLITS})
    prepare(str(tmp_path / "rows.csv"), Options(shards=1), datasets, str(page))
    store_results(store_of(job), job.description.request, datasets, page)


def outputs(folders):
    return {
        split: SimpleNamespace(path=str(path), uri=f"{ROOT}/{split}_dataset", metadata={})
        for split, path in folders.items()
    }


@pytest.fixture
def run(source, tmp_path, monkeypatch):
    """A function that runs the step with a runner, and returns the outputs."""
    monkeypatch.delenv("KFP_POD_NAME", raising=False)
    request = request_of(source)
    identity = identify_training(request.uris["train"], {}, print)
    job = planned(request, parse_worker_settings({}), identity.task_name, (identity.run_id, *identity.distinction))

    def run_step(runner):
        datasets = outputs({split: tmp_path / "outputs" / split for split in SPLITS})
        prepare_in_pods(
            request, parse_worker_settings({}), runner, datasets, tmp_path / "outputs" / "page", StepLog(print)
        )
        return datasets

    return SimpleNamespace(step=run_step, job=job)


@pytest.mark.usefixtures("store_environment")
def test_a_result_that_is_stored_while_the_step_checks_the_job_is_kept(run, tmp_path):
    """An earlier attempt has started the job, which this one adopts."""
    runner = Job()
    runner.check = lambda job: store_datasets(job, tmp_path)
    assert run.step(runner)["train"].metadata["rows"] == 16_000
    assert store_of(run.job).list() == []


@pytest.mark.usefixtures("store_environment")
def test_a_step_that_finds_the_result_ends_the_job_of_the_earlier_attempt(run, tmp_path):
    store_datasets(run.job, tmp_path)
    runner = Job(exists=True)
    assert run.step(runner)["test"].metadata["rows"] == 2_000
    assert runner.calls == ["adopt", "stop"]


@pytest.mark.usefixtures("store_environment")
def test_an_error_of_an_earlier_attempt_is_forgotten_before_the_job_starts_again(run, tmp_path):
    store_error(store_of(run.job), run.job.description.request, ValueError("no rows"))
    runner = Job(lambda: store_datasets(run.job, tmp_path))
    runner.check = lambda job: runner.calls.append(read_result(store_of(job), job.description.request))
    assert run.step(runner)["train"].metadata["rows"] == 16_000
    assert runner.calls == [None, "start", "stop"]


@pytest.mark.usefixtures("store_environment")
def test_a_missing_shard_fails_the_step(run, tmp_path):
    def ends():
        store_datasets(run.job, tmp_path)
        shards = open_store(f"{ROOT}/shards/train_dataset")
        shards.delete([entry.key for entry in shards.list()])

    with pytest.raises(OSError, match=r"the train shard .* is not in s3://"):
        run.step(Job(ends))


@pytest.mark.usefixtures("store_environment")
def test_wrong_data_fail_the_step_with_their_error_and_leave_nothing(run):
    with pytest.raises(WorkersFailed, match="no rows"):
        run.step(Job(lambda: store_error(store_of(run.job), run.job.description.request, ValueError("no rows"))))
    assert store_of(run.job).list() == []
