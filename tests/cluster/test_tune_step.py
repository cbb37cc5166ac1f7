"""The step `tune` in a pod, whose trials are TFJobs."""

import json
import os
import re
import signal
import uuid
from pathlib import Path

import pytest
import yaml
from cluster.step_pods import StepContainer, image_of, logs_of
from cluster.test_compiled_steps import with_launcher
from compiled import Run, step_command
from kubernetes import client
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import load_study
from tune.search_step import FOLDER, Step, fit

from kfp_distributed.storage import credentials_from_environment, open_store
from kfp_distributed.trainers import train_specification

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.takes(90)]

TRIALS = 3


def read_study(store, keys, folder):
    (journal,) = (key for key in keys if key.endswith("/study.journal"))
    (folder / "study").write_bytes(store.read(journal))
    return load_study(study_name=None, storage=JournalStorage(JournalFileBackend(str(folder / "study"))))


def test_the_trials_of_a_search_are_jobs_of_the_operator(
    training_namespace, api, run_in_pod, bucket, store_environment, image_specs, trainer_image, tmp_path
):
    run = Run(f"s3://{bucket}", str(uuid.uuid4()))
    datasets = {f"{name}_dataset": f"prepare_data/{name}_dataset" for name in ("train", "validation")}
    parameters = {
        "prepare_data": ({"source": "digits"}, {}),
        "tune": (
            {
                "train_specification": {"trainer": "keras_classifier", "image": trainer_image},
                "train_parameters": {"epochs": 2, "hidden_units": [16]},
                "search_space": {"learning_rate": {"low": 1e-3, "high": 1e-1, "log": True}},
                "distribution_specification": {
                    "distribution_type": "TF",
                    "number_of_workers": 1,
                    "number_of_parameter_servers": 0,
                },
                "trials": TRIALS,
                "parallel_trials": 2,
            },
            datasets,
        ),
    }
    commands = {step: step_command(step, run, *given, specs=image_specs) for step, given in parameters.items()}
    steps = [StepContainer(step, image_of(image_specs, step), command) for step, command in commands.items()]
    log = logs_of(api, run_in_pod("tune", with_launcher(steps, run, bucket)))["tune"]
    assert "Wrote executor output file" in log, log[-6000:]
    store = open_store(f"s3://{bucket}", credentials_from_environment(store_environment))
    folder = run.uri("tune/model").removeprefix(f"{store.uri}/").rpartition("/")[0]
    keys = [entry.key for entry in store.list(f"{folder}/")]
    study = read_study(store, keys, tmp_path)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * TRIALS
    model = json.loads(store.read(f"{folder}/model/model.json"))
    assert model["metrics"]["val_loss"] == pytest.approx(study.best_value)
    assert [key for key in keys if key.endswith("/model.json")] == [f"{folder}/model/model.json"]
    for number in range(TRIALS):
        assert len(re.findall(rf" trial-{number} worker-0: epoch \d/2 ", log)) == 2, log
        assert f"trial-{number} job: created TFJob {training_namespace}/tune-{number}-" in log
    jobs = client.CustomObjectsApi().list_namespaced_custom_object("kubeflow.org", "v1", training_namespace, "tfjobs")
    assert not jobs["items"], "the jobs of the trials are deleted"
    assert store_environment["AWS_SECRET_ACCESS_KEY"] not in log


def test_a_killed_step_adopts_the_jobs_of_its_trials(
    training_namespace, bucket, store_environment, trainer_image, tmp_path
):
    """The second attempt starts no job twice, and its trials train no epoch twice."""
    configuration = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    for context in configuration["contexts"]:
        context["context"]["namespace"] = training_namespace
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(configuration))
    run = str(uuid.uuid4())
    uri = f"s3://{bucket}/v2/artifacts/digits/{run}/tune/{uuid.uuid4()}"
    step = Step(f"s3://{bucket}/train_dataset", tmp_path / FOLDER, uri)
    given = {
        "variables": {**store_environment, "KUBECONFIG": str(tmp_path / "kubeconfig")},
        "runner": "kubernetes",
        "train_specification": {**train_specification(fit), "image": trainer_image},
        "train_parameters": {"slow": True, "epochs": 40},
        "trials": 2,
    }
    first = step.start(**given)
    begun = set()
    for line in first.stdout:
        begun |= {*re.findall(r"trial-(\d) worker-0: epoch [3-9]/40", line)}
        if len(begun) == 2:
            break
    first.send_signal(signal.SIGKILL)
    first.communicate()
    code, output, found = step.run(**given)
    assert code == 0, output
    for number in range(2):
        assert f"trial-{number} job: created" not in output, output
        assert len(re.findall(rf"trial-{number} worker-0: begins after epoch 0\n", output)) <= 1
    store = open_store(f"s3://{bucket}", credentials_from_environment(store_environment))
    study = read_study(store, [entry.key for entry in store.list(f"{uri.removeprefix(f's3://{bucket}/')}/")], tmp_path)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 2
    assert [len(trial.intermediate_values) for trial in study.trials] == [40, 40]
    assert found[2] == pytest.approx(study.best_value)
