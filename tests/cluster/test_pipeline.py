"""The whole pipeline with its steps on this machine and its training on the cluster."""

import json
import os
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from cluster.jobs import left_behind
from kubernetes import client
from pages import Page
from process_hygiene import started
from train.programs.jobs import wait_until

from kfp_distributed.pipelines.local_run import local_run
from kfp_distributed.pipelines.train_and_export import train_and_export
from kfp_distributed.storage import credentials_from_environment, open_store

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

DISTRIBUTION = {"distribution_type": "TF", "number_of_workers": 2, "number_of_parameter_servers": 0}
PARAMETERS = {"epochs": 8, "seed": 1, "batch_size": 130, "learning_rate": 0.01}


def outputs(folder: Path, step: str) -> dict:
    (file,) = folder.glob(f"artifacts/*/{step}/executor_output.json")
    return json.loads(file.read_text())


@pytest.mark.takes(80)
def test_local_steps_train_on_the_cluster(
    tmp_path, api, training_namespace, bucket, store_environment, trainer_image, monkeypatch
):
    program = {"trainer": "keras_classifier", "image": trainer_image}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", in_namespace(os.environ["KUBECONFIG"], training_namespace, tmp_path))
    for name, value in store_environment.items():
        monkeypatch.setenv(name, value)
    with local_run("cluster", embedded_store=False):
        train_and_export(
            train_specification=program,
            train_parameters=PARAMETERS,
            distribution_specification=DISTRIBUTION,
            runner="kubernetes",
            checkpoint_uri=f"s3://{bucket}/pipeline",
            bucket=f"{bucket}/pipeline-models",
        )
    # The same as in tests/pipelines/test_train_and_export.py, which runs without a cluster.
    assert outputs(tmp_path / "cluster", "evaluate")["parameterValues"]["score"] > 0.93
    check_report(tmp_path / "cluster", {node.metadata.name for node in api.list_node().items}, store_environment)
    store = open_store(f"s3://{bucket}", credentials_from_environment(store_environment))
    assert store.exists("pipeline-models/digits/1/saved_model.pb")
    # Only the keys of this pipeline, because killed steps of other tests leave staged objects.
    keys = [entry.key for entry in store.list("pipeline/")]
    assert keys
    assert not [key for key in keys if "/staged/" in key]


PIPELINE = """
import sys
from kfp import dsl
from kfp_distributed.components import prepare_data, train
from kfp_distributed.pipelines.local_run import local_run

@dsl.pipeline
def silent():
    data = prepare_data(source="digits")
    train(
        train_dataset=data.outputs["train_dataset"],
        train_specification={"command": ["sh", "-c", "echo begun; sleep 1000"], "image": sys.argv[2]},
        runner="kubernetes",
        checkpoint_uri=sys.argv[1],
    )

with local_run("run", embedded_store=False):
    silent()
"""


SIGNALS = {
    "SIGKILL": (signal.SIGKILL, False),
    "Ctrl-C": (signal.SIGINT, True),
    "closed terminal": (signal.SIGHUP, True),
}
"""Signal, and whether the whole process group gets it."""


@pytest.mark.takes(80)
def test_a_training_ends_with_the_local_process_of_its_pipeline(
    tmp_path, open_namespace, bucket, store_environment, trainer_image
):
    """The training prints nothing, so no write fails. All cases run at the same time, because they mostly wait."""

    def interrupt(name: str) -> None:
        folder = tmp_path / name.replace(" ", "-")
        folder.mkdir()
        kubeconfig = in_namespace(os.environ["KUBECONFIG"], open_namespace, folder)
        environment = {**os.environ, **store_environment, "KUBECONFIG": kubeconfig, "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-c", PIPELINE, f"s3://{bucket}/laptop", trainer_image]
        options = {"cwd": folder, "env": environment, "start_new_session": True}
        file = folder / "log"
        with file.open("w") as log, started(command, stdout=log, stderr=log, **options) as pipeline:
            # A container takes up to half a minute to end if its program has not started.
            begun = wait_until(lambda: " worker-0 begun" in file.read_text(), 240)
            assert begun, f"{name}: {file.read_text()}"
            job = re.search(rf"created Job {open_namespace}/(\S+)", file.read_text())[1]
            number, whole_group = SIGNALS[name]
            (os.killpg if whole_group else os.kill)(pipeline.pid, number)
            assert left_behind(SimpleNamespace(name=job, namespace=open_namespace)) == [], name

    with ThreadPoolExecutor(len(SIGNALS)) as pool:
        for result in [pool.submit(interrupt, name) for name in SIGNALS]:
            result.result()
    assert client.BatchV1Api().list_namespaced_job(open_namespace).items == []


def check_report(folder: Path, nodes: set[str], store_environment: dict[str, str]) -> None:
    """Check the replicas and the timeline of the report."""
    (file,) = folder.glob("artifacts/*/train/report")
    text = file.read_text()
    page = Page(text)
    replicas, timeline = page.table("node"), page.table("what happened")
    assert [row["replica"] for row in replicas] == ["worker-0", "worker-1"]
    for row in replicas:
        assert row["node"] in nodes
        assert row["restarts"] == "0"
    assert replicas[0]["state"] == "succeeded"
    # TensorFlow alone uses more.
    assert int(replicas[0]["peak memory"].removesuffix(" MiB")) > 100
    events = [row["what happened"] for row in timeline]
    order = ["checkpoints are stored", "created TFJob", "worker-0: running", "worker-0: succeeded", "the job succeeded"]
    indices = [next(index for index, event in enumerate(events) if part in event) for part in order]
    assert indices == sorted(indices), events
    assert (indices[0], indices[-1]) == (0, len(events) - 1), events
    assert any('"kind": "TFJob"' in text for text in page.texts)
    assert store_environment["AWS_SECRET_ACCESS_KEY"] not in text


def in_namespace(kubeconfig: str, namespace: str, folder: Path) -> str:
    """Copy a kubeconfig file with another namespace in its current context; return the path of the copy."""
    content = yaml.safe_load(Path(kubeconfig).read_text())
    current = content["current-context"]
    (context,) = (entry["context"] for entry in content["contexts"] if entry["name"] == current)
    context["namespace"] = namespace
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump(content))
    return str(file)
