"""The step `tune` in a pod, whose trials are TFJobs."""

import json
import re
import uuid

import pytest
from cluster.step_pods import StepContainer, image_of, logs_of
from cluster.test_compiled_steps import with_launcher
from compiled import Run, step_command
from kubernetes import client
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import load_study

from kfp_distributed.storage import credentials_from_environment, open_store

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.takes(90)]

TRIALS = 3


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
    (journal,) = (key for key in keys if key.endswith("/study.journal"))
    (tmp_path / "study").write_bytes(store.read(journal))
    study = load_study(study_name=None, storage=JournalStorage(JournalFileBackend(str(tmp_path / "study"))))
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
