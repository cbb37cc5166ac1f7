"""The whole pipeline, its steps on this machine and its training on the cluster, beside a run that is local alone."""

import json
import os
from pathlib import Path

import pytest
import yaml

from kfp_distributed.pipelines.local_run import local_run
from kfp_distributed.pipelines.train_and_export import train_and_export
from kfp_distributed.storage import credentials_from_environment, open_store

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

DISTRIBUTION = {"distribution_type": "TF", "number_of_workers": 2, "number_of_parameter_servers": 0}
PARAMETERS = {"epochs": 12, "seed": 1}


def outputs(folder: Path, step: str) -> dict:
    (file,) = folder.glob(f"artifacts/*/{step}/executor_output.json")
    return json.loads(file.read_text())


def test_steps_here_and_training_there(
    tmp_path, training_namespace, bucket, store_environment, trainer_image, monkeypatch
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
    # The same data, seed and replicas: what differs is the order in which numbers are added.
    assert accuracies["cluster"] == pytest.approx(accuracies["local"], abs=0.05), accuracies
    assert accuracies["local"] > 0.93
    keys = [each.key for each in open_store(f"s3://{bucket}", credentials_from_environment(store_environment)).list()]
    assert "pipeline-models/digits/1/saved_model.pb" in keys
    assert not [key for key in keys if "/staged/" in key]


def in_namespace(kubeconfig: str, namespace: str, folder: Path) -> str:
    """A copy of a kubeconfig file, whose context names another namespace."""
    content = yaml.safe_load(Path(kubeconfig).read_text())
    (context,) = (each["context"] for each in content["contexts"] if each["name"] == content["current-context"])
    context["namespace"] = namespace
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump(content))
    return str(file)
