"""The whole pipeline, its steps on this machine and its training on the cluster, beside a run that is local alone."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from cluster.jobs import left_behind
from kubernetes import client
from pages import Page
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
    with local_run("local"):
        train_and_export(
            train_parameters=PARAMETERS,
            distribution_specification=DISTRIBUTION,
            runner="local",
            checkpoint_uri="s3://checkpoints",
        )
    accuracies = {
        where: outputs(tmp_path / where, "evaluate")["parameterValues"]["accuracy"] for where in ("cluster", "local")
    }
    # The same data, seed and replicas, which are synchronous: what differs is the order in which numbers are added.
    assert accuracies["cluster"] == pytest.approx(accuracies["local"], abs=0.05), accuracies
    assert accuracies["local"] > 0.93
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


@pytest.mark.parametrize(
    ("number", "whole_group"),
    [
        (signal.SIGTERM, False),
        (signal.SIGKILL, False),
        (signal.SIGINT, False),
        (signal.SIGINT, True),
        (signal.SIGHUP, True),
    ],
    ids=["its process is told to end", "is killed", "is interrupted", "Ctrl-C", "its terminal closes"],
)
def test_a_training_does_not_outlive_the_pipeline_of_a_laptop(
    tmp_path, open_namespace, bucket, store_environment, number, whole_group
):
    """One that prints nothing any more: no line fails to be written then."""
    kubeconfig = in_namespace(os.environ["KUBECONFIG"], open_namespace, tmp_path)
    environment = {**os.environ, **store_environment, "KUBECONFIG": kubeconfig}
    command = [sys.executable, "-c", PIPELINE, f"s3://{bucket}/laptop"]
    file = tmp_path / "log"
    with (
        file.open("w") as log,
        subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True
        ) as pipeline,
    ):
        try:
            # Before its program has begun a container may take half a minute to end.
            begun = wait_until(lambda: "[worker-0] begun" in file.read_text(), 120)
            assert begun, file.read_text()
            job = re.search(rf"Job {open_namespace}/(\S+) ", file.read_text())[1]
            (os.killpg if whole_group else os.kill)(pipeline.pid, number)
            assert left_behind(SimpleNamespace(name=job, namespace=open_namespace)) == []
            assert client.BatchV1Api().list_namespaced_job(open_namespace).items == []
        finally:
            pipeline.kill()


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
