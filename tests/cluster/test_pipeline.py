"""The whole pipeline, its steps on this machine and its training on the cluster."""

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

DISTRIBUTION = {"distribution_type": "TF", "number_of_workers": 3, "number_of_parameter_servers": 0}
PARAMETERS = {"epochs": 12, "seed": 1}


def outputs(folder: Path, step: str) -> dict:
    (file,) = folder.glob(f"artifacts/*/{step}/executor_output.json")
    return json.loads(file.read_text())


@pytest.mark.takes(80)
def test_steps_here_and_training_there(
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
    # As tests/pipelines/test_train_and_export.py has it of a run without a cluster.
    assert outputs(tmp_path / "cluster", "evaluate")["parameterValues"]["accuracy"] > 0.93
    check_report(tmp_path / "cluster", {each.metadata.name for each in api.list_node().items}, store_environment)
    store = open_store(f"s3://{bucket}", credentials_from_environment(store_environment))
    assert store.exists("pipeline-models/digits/1/saved_model.pb")
    # A killed step of another test leaves its own.
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
        train_specification={"command": ["sh", "-c", "echo begun; sleep 1000"]},
        runner="kubernetes",
        checkpoint_uri=sys.argv[1],
    )

with local_run("run", embedded_store=False):
    silent()
"""


ENDS = {
    "its process is told to end": (signal.SIGTERM, False),
    "is killed": (signal.SIGKILL, False),
    "is interrupted": (signal.SIGINT, False),
    "Ctrl-C": (signal.SIGINT, True),
    "its terminal closes": (signal.SIGHUP, True),
}


@pytest.mark.takes(80)
def test_a_training_does_not_outlive_the_pipeline_of_a_laptop(tmp_path, open_namespace, bucket, store_environment):
    """One that prints nothing any more: no line fails to be written then. All side by side, for they mostly wait."""

    def end_in_the_middle(name: str) -> None:
        folder = tmp_path / name.replace(" ", "-")
        folder.mkdir()
        kubeconfig = in_namespace(os.environ["KUBECONFIG"], open_namespace, folder)
        environment = {**os.environ, **store_environment, "KUBECONFIG": kubeconfig}
        command = [sys.executable, "-c", PIPELINE, f"s3://{bucket}/laptop"]
        options = {"cwd": folder, "env": environment, "start_new_session": True}
        file = folder / "log"
        with file.open("w") as log, started(command, stdout=log, stderr=log, **options) as pipeline:
            # Before its program has begun a container may take half a minute to end.
            begun = wait_until(lambda: "[worker-0] begun" in file.read_text(), 240)
            assert begun, f"{name}: {file.read_text()}"
            job = re.search(rf"Job {open_namespace}/(\S+) ", file.read_text())[1]
            number, whole_group = ENDS[name]
            (os.killpg if whole_group else os.kill)(pipeline.pid, number)
            assert left_behind(SimpleNamespace(name=job, namespace=open_namespace)) == [], name

    with ThreadPoolExecutor(len(ENDS)) as pool:
        for ended in [pool.submit(end_in_the_middle, name) for name in ENDS]:
            ended.result()
    assert client.BatchV1Api().list_namespaced_job(open_namespace).items == []


def check_report(folder: Path, nodes: set[str], store_environment: dict[str, str]) -> None:
    """What the step tells people of its job."""
    (file,) = folder.glob("artifacts/*/train/report")
    text = file.read_text()
    page = Page(text)
    replicas, timeline = page.table("node"), page.table("what happened")
    assert [row["replica"] for row in replicas] == ["worker-0", "worker-1", "worker-2"]
    for row in replicas:
        assert row["node"] in nodes
        assert row["restarts"] == "0"
    assert replicas[0]["state"] == "succeeded"
    # TensorFlow alone is more.
    assert int(replicas[0]["peak memory"].removesuffix(" MiB")) > 100
    events = [row["what happened"] for row in timeline]
    order = ["checkpoints are stored in", "is created", "worker-0: running", "worker-0: succeeded", "the job succeeded"]
    indices = [next(index for index, event in enumerate(events) if part in event) for part in order]
    assert indices == sorted(indices), events
    assert (indices[0], indices[-1]) == (0, len(events) - 1), events
    assert any('"kind": "TFJob"' in shown for shown in page.texts)
    assert store_environment["AWS_SECRET_ACCESS_KEY"] not in text


def in_namespace(kubeconfig: str, namespace: str, folder: Path) -> str:
    """A copy of a kubeconfig file, whose context names another namespace."""
    content = yaml.safe_load(Path(kubeconfig).read_text())
    (context,) = (each["context"] for each in content["contexts"] if each["name"] == content["current-context"])
    context["namespace"] = namespace
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump(content))
    return str(file)
