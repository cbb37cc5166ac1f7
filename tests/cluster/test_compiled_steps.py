"""The compiled steps in pods, with image and namespace delivery, and only with the permissions of deploy/."""

import base64
import gzip
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cluster.jobs import left_behind
from cluster.step_pods import StepContainer, end_of, image_of, logs_of
from cluster.test_launch import function
from compiled import SPECS, Run, step_command, whole_job
from kubernetes import client
from kubernetes.stream import stream

from kfp_distributed.components import Delivery
from kfp_distributed.components.train.describe.task_path import TaskPath
from kfp_distributed.components.train.run.identity import identify_training
from kfp_distributed.components.train.run.training_request.request import job_name
from kfp_distributed.components.train.tell.log_format import log, parse_line
from kfp_distributed.library.archive import library_config_map, make_small_archive
from kfp_distributed.library.content import content_hash, read_library
from kfp_distributed.pipelines.specs import write_specs
from kfp_distributed.storage import Store, credentials_from_environment, open_store
from kfp_distributed.storage.dataset import DatasetManifest

pytestmark = pytest.mark.cluster

# Runs a command, and prints its exit code and duration in the last line of the log.
_TIMED = """\
start=$(date +%s%N)
"$@"
echo "exit code $? after $((($(date +%s%N) - start) / 1000000)) ms"
"""


# What the launcher of KFP 2.17 does between two steps, each of which has a pod of its own (uploadOutputArtifacts and
# downloadArtifacts of launcher_v2.go): upload the outputs of the step before, and download every object whose key
# begins with that of an input.
_LAUNCHER = """\
import shutil, sys
from pathlib import Path
from kfp_distributed.storage import open_store

bucket, *inputs = sys.argv[1:]
store, disk = open_store(f"s3://{bucket}"), Path("/s3", bucket)
store.upload_folder(disk)
shutil.rmtree(disk)
for key in inputs:
    entries = store.list(key)
    for entry in entries:
        store.download(entry.key, disk / entry.key)
    print(f"{key.rpartition('/')[2]}: {sum(entry.size for entry in entries)} bytes")
"""


@contextmanager
def installed(api, config_map: dict) -> Iterator[None]:
    """Install the ConfigMap of a library while the block runs."""
    name, namespace = config_map["metadata"]["name"], config_map["metadata"]["namespace"]
    api.create_namespaced_config_map(namespace, config_map)
    try:
        yield
    finally:
        api.delete_namespaced_config_map(name, namespace)


def write_prices(file: Path) -> None:
    """Write 1,200 rows with numbers, gaps, a category, and a number to predict that is linear in them."""
    generator = np.random.default_rng(0)
    size, rooms = generator.uniform(20, 200, 1200), generator.integers(1, 8, 1200)
    place = generator.choice(["town", "village"], 1200)
    price = 3 * size + 20 * rooms + np.where(place == "town", 150, 0) + generator.normal(0, 20, 1200)
    gaps = generator.random(1200) < 0.05
    lines = [
        f"{'' if gap else f'{area:.1f}'},{count},{where},{value:.2f}\n"
        for gap, area, count, where, value in zip(gaps, size, rooms, place, price, strict=True)
    ]
    file.write_bytes(gzip.compress("".join(["size,rooms,place,price\n", *lines]).encode()))


def with_launcher(steps: Sequence[StepContainer], run: Run, bucket: str) -> list[StepContainer]:
    """Return the steps, and before each but the first what KFP's launcher does between the steps."""
    inputs = {
        "train": ("prepare_data/train_dataset", "prepare_data/validation_dataset"),
        "tune": ("prepare_data/train_dataset", "prepare_data/validation_dataset"),
        "evaluate": ("train/model", "prepare_data/test_dataset"),
        "evaluate_language_model": ("prepare_data/test_dataset",),
        "export_model": ("train/model",),
    }
    result = []
    for step in steps:
        if step.step in inputs:
            keys = [run.uri(output).removeprefix(f"s3://{bucket}/") for output in inputs[step.step]]
            command = ["python3", "-c", _LAUNCHER, bucket, *keys]
            result.append(StepContainer(f"launcher-{step.step}", steps[0].image, command))
        result.append(step)
    return result


def assert_datasets_are_not_downloaded(run: Run, store: Store, logs: dict[str, str]) -> None:
    """Assert that the pods of the steps receive the manifest of a dataset, and none of its rows."""
    sizes = {}
    for split in ("train", "validation", "test"):
        text = store.read(f"{run.uri(f'prepare_data/{split}_dataset').removeprefix(f'{store.uri}/')}/dataset.json")
        sizes[f"{split}_dataset"] = len(text)
        manifest = DatasetManifest.from_json(text.decode())
        shards = manifest.shards_uri.removeprefix(f"{store.uri}/")
        assert [entry.size for entry in store.list(f"{shards}/")] == [shard.size for shard in manifest.shards]
    received = {
        name: {key: int(size) for key, size in re.findall(r"(\w+_dataset): (\d+) bytes", log)}
        for name, log in logs.items()
        if name.startswith("launcher-")
    }
    assert received == {
        "launcher-train": {key: sizes[key] for key in ("train_dataset", "validation_dataset")},
        "launcher-evaluate": {"test_dataset": sizes["test_dataset"]},
        "launcher-export-model": {},
    }


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kind",
    [pytest.param("image", marks=pytest.mark.takes(60)), pytest.param("namespace", marks=pytest.mark.takes(90))],
)
def test_the_steps_run_in_a_pod(
    kind, api, training_namespace, run_in_pod, bucket, store_environment, trainer_image, image_specs, tmp_path
):
    """Image delivery needs neither a package index nor the ConfigMap; namespace delivery needs both.

    One predicts numbers of a table in the object store, the other classifies the digits. With namespace delivery,
    further steps would install their packages, which takes long and shows nothing new. With image delivery, the steps
    use no bucket but that of the pipeline root.
    """
    namespace, specs = training_namespace, image_specs if kind == "image" else tmp_path
    config_map = library_config_map(namespace)
    # With a local root, the steps share the disk. With a store, the launcher transfers inputs and outputs.
    run = Run(f"s3://{bucket}" if kind == "image" else "/steps", str(uuid.uuid4()))
    store = open_store(f"s3://{bucket}", credentials_from_environment(store_environment))
    checkpoints_uri = run.uri("train/checkpoints") if kind == "image" else f"s3://{bucket}/{run.run_id}/checkpoints"
    task: dict[str, dict] = {}
    if kind == "image":
        (tmp_path / "prices").mkdir()
        write_prices(tmp_path / "prices" / "prices.csv.gz")
        store.upload_folder(str(tmp_path / "prices"), "prices")
        table = {
            "source": f"s3://{bucket}/prices/prices.csv.gz",
            "label_column": "price",
            "shards": 3,
            "distribution_specification": {"number_of_workers": 2},
        }
        task = {"table": table, "threshold": {"metric": "r2", "bound": 0.5}}
    else:
        write_specs(tmp_path, Delivery.namespace())
    commands = whole_job(run, "" if kind == "image" else checkpoints_uri, trainer_image, specs=specs, **task)
    if kind == "namespace":
        del commands["evaluate"], commands["export_model"]
    steps = [StepContainer(step, image_of(specs, step), command) for step, command in commands.items()]
    if kind == "image":
        steps = with_launcher(steps, run, bucket)
        maps = api.list_namespaced_config_map(namespace).items
        assert config_map["metadata"]["name"] not in [item.metadata.name for item in maps]
        logs = logs_of(api, run_in_pod(kind, steps))
    else:
        with installed(api, config_map):
            logs = logs_of(api, run_in_pod(kind, steps))
    ran = [name for name in logs if not name.startswith("launcher-")]
    assert ran == [step.replace("_", "-") for step in commands], "".join(logs.values())[-6000:]
    if kind == "image":
        assert f"created Job {namespace}/prepare-data-" in logs["prepare-data"]
        assert " scheduler-0 train: 960 rows in 3 shards" in logs["prepare-data"]
        assert_datasets_are_not_downloaded(run, store, logs)
        assert float(re.search(r"r2=([0-9.]+)", logs["evaluate"])[1]) > 0.5, logs["evaluate"]
        assert store.exists("models/digits/1/saved_model.pb"), logs["export-model"][-6000:]
    assert f"Job {namespace}/train-" in logs["train"]
    assert " worker-0 epoch 8/8" in logs["train"]
    assert "Wrote executor output file" in logs["train"], logs["train"][-6000:]
    whole_log = "".join(logs.values())
    assert store_environment["AWS_SECRET_ACCESS_KEY"] not in whole_log
    assert ("pip installs" in whole_log) == (kind == "namespace")
    # Local artifacts were staged in the store for the replicas, and deleted.
    checkpoints = [entry.key for entry in store.list(f"{checkpoints_uri.removeprefix(f'{store.uri}/')}/")]
    assert checkpoints
    assert not [key for key in checkpoints if "/staged/" in key]


def test_the_log_of_a_failed_training_ends_with_its_cause(
    api, training_namespace, run_in_pod, bucket, store_environment, trainer_image, image_specs
):
    """KFP shows the cause of a failed step nowhere else."""
    run = Run(f"s3://{bucket}", str(uuid.uuid4()))
    fails = function("raise RuntimeError('no such column: price')")
    node = "digits-h9hh4(0).root(0).tune(0).iteration-iterations(1:1)(0).iteration-item(0).train(0).executor(0)"
    annotations = {"workflows.argoproj.io/node-name": node}
    step = train_step(image_specs, fails, trainer_image, bucket, run)
    logs = logs_of(api, run_in_pod("fails", [step], annotations=annotations))
    lines = [parse_line(line) or pytest.fail(logs["train"][-6000:]) for line in logs["train"].splitlines()[-6:]]
    # After the cause come the report's address and three lines on how to open it.
    error, cause, report = lines[:3]
    assert (error.replica, error.message) == ("worker-0", "RuntimeError: no such column: price")
    assert cause.message.startswith("worker-0 failed with exit code 1, ")
    assert report.message.startswith("Report: ")
    store = open_store(f"s3://{bucket}", credentials_from_environment(store_environment))
    keys = [entry.key for entry in store.list(f"{run.run_id}/checkpoints/")]
    assert not [key for key in keys if "/staged/" in key]
    _is_shown_after_its_end(training_namespace, store_environment, bucket, run, cause.message)


def _is_shown_after_its_end(namespace: str, store_environment: dict, bucket: str, run: Run, cause: str) -> None:
    """Assert that the commands show a failed training whose job is gone."""

    def print_of(*words: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "kfp_distributed.cli.main", *words, "--namespace", namespace]
        environment = {**os.environ, "AWS_ENDPOINT_URL": store_environment["AWS_ENDPOINT_URL"]}
        root = f"s3://{bucket}/v2/artifacts"
        end = subprocess.run([*command, "--bucket", root], env=environment, capture_output=True, text=True, timeout=60)
        return end.returncode, end.stdout + end.stderr

    code, table = print_of("jobs", "--ended")
    (row,) = (line for line in table.splitlines() if run.run_id in line)
    assert (code, row.split()[1:4]) == (0, ["TFJob", "failed", "1"])
    name = row.split()[0]
    assert name.startswith("tune-train-1-")
    assert row.split()[-2:] == ["tune/train[1]", run.run_id]  # The table may have wider rows of other trainings.
    code, log = print_of("logs", name)
    assert code == 0
    assert " INFO worker-0 RuntimeError: no such column: price\n" in log
    code, end = print_of("watch", name)
    assert code == 1
    assert cause in end


def test_a_step_without_its_library_fails_before_anything_is_installed(api, training_namespace, run_in_pod):
    """The error is one sentence with namespace, ConfigMap, cause and the command to run."""
    namespace = training_namespace
    # Hashes of the library that the steps request.
    hashes = {"missing": "0" * 64, "tampered": "1" * 64, "forbidden": "2" * 64}
    steps = {case: timed_step(SPECS, case, hash_) for case, hash_ in hashes.items()}
    with installed(api, config_map_of(namespace, read_library(), hashes["tampered"])):
        one = run_in_pod("library", [steps["missing"], steps["tampered"]], in_parallel=True)
        other = run_in_pod("no-role", [steps["forbidden"]], service_account="default")
        logs = {**logs_of(api, one), **logs_of(api, other)}
    causes = {
        "missing": 'configmaps "{}" not found',
        "tampered": "its content has another hash",
        "forbidden": f'configmaps "{{}}" is forbidden: User "system:serviceaccount:{namespace}:default" cannot get '
        f'resource "configmaps" in API group "" in the namespace "{namespace}"',
    }
    for case, cause in causes.items():
        name = config_map_of(namespace, {}, hashes[case])["metadata"]["name"]
        sentence, end = logs[case].splitlines()[-2:]
        command = f"kfp-distributed install --namespace {namespace}"
        command += " --service-account default" if case == "forbidden" else ""
        assert sentence == f"ConfigMap {namespace}/{name}: {cause.format(name)}; run {command}", logs[case]
        seconds = re.fullmatch(r"exit code 1 after (\d+) ms", end)
        assert seconds, logs[case]
        # tests/components/test_bootstrap.py tests that there are no retries. Python may start slowly on a busy node.
        assert int(seconds[1]) < 20_000, logs[case]


def test_the_library_of_the_config_map_has_precedence_over_that_of_the_image(
    api, training_namespace, run_in_pod, image_specs
):
    path = "kfp_distributed/components/prepare_data/step.py"
    library = read_library()
    library[path] += b"\nprint('the library that compiled the step')\n"
    step = timed_step(image_specs, "prepare_data", content_hash(library))
    with installed(api, config_map_of(training_namespace, library, content_hash(library))):
        log = logs_of(api, run_in_pod("other-version", [step]))["prepare-data"]
    assert "the library that compiled the step\n" in log
    assert re.search(r"exit code 0 after \d+ ms\n$", log), log


def config_map_of(namespace: str, content: dict[str, bytes], hash_: str) -> dict:
    """Return the ConfigMap of the library with this hash, with other content."""
    config_map = library_config_map(namespace)
    name = config_map["metadata"]["name"]
    config_map["metadata"]["name"] = name.replace(content_hash(read_library())[:12], hash_[:12])
    config_map["binaryData"]["library.zip"] = base64.b64encode(make_small_archive(content)).decode()
    return config_map


def timed_step(specs: Path, name: str, hash_: str) -> StepContainer:
    """Return the step prepare_data with the digits, as if a library with this hash had compiled it."""
    run, own_hash = Run("/steps", str(uuid.uuid4())), content_hash(read_library())
    command = step_command("prepare_data", run, {"source": "digits"}, {}, specs=specs)
    words = [word.replace(own_hash, hash_).replace(own_hash[:12], hash_[:12]) for word in command]
    return StepContainer(name, image_of(specs, "prepare_data"), ["sh", "-c", _TIMED, "sh", *words])


def train_step(specs: Path, program: dict, image: str, bucket: str, run: Run) -> StepContainer:
    """Return a train step with one worker, whose dataset is in the object store."""
    command = step_command(
        "train",
        run,
        {
            "train_specification": {**program, "image": image},
            "distribution_specification": ONE_WORKER,
            "checkpoint_uri": f"s3://{bucket}/{run.run_id}/checkpoints",
        },
        {"train_dataset": f"s3://{bucket}/train_dataset"},
        specs=specs,
    )
    return StepContainer("train", image_of(specs, "train"), command)


ONE_WORKER = {"distribution_type": "TF", "number_of_workers": 1, "number_of_parameter_servers": 0}


@pytest.mark.timeout(600)
@pytest.mark.takes(60)
def test_the_owner_of_a_job_is_the_pod_that_follows_it(
    api, training_namespace, run_in_pod, bucket, trainer_image, image_specs
):
    """Another pod adopts the job of a killed step. When that pod is deleted too, Kubernetes deletes the job."""
    namespace, run = training_namespace, Run("/steps", str(uuid.uuid4()))
    identity = identify_training(run.uri("train/model"), {}, log)
    step = SimpleNamespace(name=job_name("train", (run.run_id, *identity.distinction)), namespace=namespace)
    sleeps = function("import time\nprint('begun', flush=True)\ntime.sleep(600)")
    step_container = train_step(image_specs, sleeps, trainer_image, bucket, run)

    first = run_in_pod("step-1", [step_container])
    wait_for_log(api, first, " worker-0 begun")
    job = job_of(step)
    assert owners(job) == [("Pod", first.metadata.uid)]
    kill_step(api, first)
    assert end_of(api, namespace, "step-1") == "Failed"

    second = run_in_pod("step-2", [step_container])
    wait_for_log(api, second, " worker-0 begun")
    assert (job_of(step)["metadata"]["uid"], owners(job_of(step))) == (
        job["metadata"]["uid"],
        [("Pod", second.metadata.uid)],
    )
    delete_pod(api, first)
    time.sleep(5)  # The garbage collector would delete the job meanwhile.
    assert job_of(step)["metadata"]["uid"] == job["metadata"]["uid"]

    kill_step(api, second)
    assert end_of(api, namespace, "step-2") == "Failed"
    assert left_behind(step, 3) != []
    delete_pod(api, second)
    assert left_behind(step) == []


@pytest.mark.timeout(600)
@pytest.mark.takes(40)
def test_iterations_on_a_backend_before_kfp_2_4_have_separate_jobs(
    api, training_namespace, run_in_pod, bucket, trainer_image, image_specs
):
    """Their output folders are the same, so each step reads its own pod, with the permissions of deploy/."""
    run = Run(f"s3://{bucket}", str(uuid.uuid4()), has_uuids=False)
    sleeps = function("import time\nprint('begun', flush=True)\ntime.sleep(600)")
    step_container = train_step(image_specs, sleeps, trainer_image, bucket, run)
    pods, expected = [], set()
    for iteration in (0, 1):
        node = f"digits-h9hh4(0).root(0).iteration-iterations({iteration}:{iteration})(0).train(0).executor(0)"
        annotations = {"workflows.argoproj.io/node-name": node}
        pods.append(run_in_pod(f"iteration-{iteration}", [step_container], annotations=annotations))
        identity = identify_training(run.uri("train/model"), {}, log, lambda node=node: node)
        expected.add(job_name("train", (run.run_id, *identity.distinction), TaskPath((), (iteration,))))
    for pod in pods:
        wait_for_log(api, pod, " worker-0 begun")
    jobs = client.CustomObjectsApi().list_namespaced_custom_object(
        "kubeflow.org", "v1", training_namespace, "tfjobs", label_selector=f"kfp-distributed/run={run.run_id}"
    )
    assert {job["metadata"]["name"] for job in jobs["items"]} == expected
    assert len(expected) == 2
    for pod in pods:
        delete_pod(api, pod)
    assert [left_behind(SimpleNamespace(name=name, namespace=training_namespace)) for name in expected] == [[], []]


def job_of(step) -> dict:
    jobs = client.CustomObjectsApi()
    return jobs.get_namespaced_custom_object("kubeflow.org", "v1", step.namespace, "tfjobs", step.name)


def owners(job: dict) -> list[tuple[str, str]]:
    return [(owner["kind"], owner["uid"]) for owner in job["metadata"].get("ownerReferences", ())]


def kill_step(api, pod) -> None:
    """Kill all processes of a pod except the first one by SIGKILL."""
    name, namespace, command = pod.metadata.name, pod.metadata.namespace, ["sh", "-c", "kill -9 -1"]
    # The connection ends with the container.
    stream(api.connect_get_namespaced_pod_exec, name, namespace, command=command, stdout=True, _request_timeout=60)


def delete_pod(api, pod) -> None:
    api.delete_namespaced_pod(pod.metadata.name, pod.metadata.namespace, grace_period_seconds=0)


def wait_for_log(api, pod, text: str, seconds: float = 240) -> None:
    deadline, log = time.monotonic() + seconds, ""
    while text not in log:
        assert time.monotonic() < deadline, f"no {text!r} after {seconds} s:\n{log[-6000:]}"
        time.sleep(0.5)
        try:
            log = api.read_namespaced_pod_log(pod.metadata.name, pod.metadata.namespace)
        except client.ApiException as error:
            if error.status != 400:  # The container has not started.
                raise
