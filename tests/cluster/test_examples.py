"""The functions of examples/ on a real cluster, with the same specification as on one machine."""

import re
import uuid
from types import SimpleNamespace

import numpy as np
import pytest
from cluster.jobs import left_behind
from evaluations import evaluate_model
from partitioned_embedding import partitioned_embedding
from two_stage_classifier import two_stage_classifier

from kfp_distributed.components import prepare_data
from kfp_distributed.storage import credentials_from_environment, open_store
from kfp_distributed.trainers import train_specification

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.fixture
def accuracy(store_environment, tmp_path):
    """A function that returns the accuracy of a model on a dataset, both in the object store."""

    def find(model_uri, dataset_uri):
        credentials = credentials_from_environment(store_environment)
        for name, uri in {"model": model_uri, "data": dataset_uri}.items():
            open_store(uri, credentials).download_folder(tmp_path / name)
        return evaluate_model(tmp_path / "model", tmp_path / "data")[0].scores.accuracy

    return find


def test_two_stage_classifier_runs_in_two_pods(start, open_namespace, image_name, bucket, accuracy):
    # A "restricted" namespace refuses the init containers of the operator.
    uri = f"s3://{bucket}/models/{uuid.uuid4().hex}"
    step = start(
        train_specification(two_stage_classifier, image=image_name("pytorch")),
        {"distribution_type": "PyTorch", "number_of_workers": 1},
        {"epochs": 8, "batch_size": 130, "learning_rate": 0.01},
        namespace=open_namespace,
        model_uri=uri,
    )
    verdict = step.verdict(500)
    assert verdict["succeeded"], step.log
    stages = re.findall(r"^\[(.*)\] stage (\d) of 2 has (\d+) parameters", step.log, re.MULTILINE)
    first, second = 64 * 128 + 128, 128 * 64 + 64 + 64 * 10 + 10
    assert sorted(stages) == [("master-0", "0", str(first)), ("worker-0", "1", str(second))]
    assert verdict["metrics"]["master-0"][-1]["epoch"] == 8
    assert accuracy(uri, f"s3://{bucket}/test_dataset") >= 0.9
    assert left_behind(step) == []


@pytest.fixture
def users(bucket, store_environment, tmp_path):
    """A dataset of 400 users, each with its own class, prepared from CSV and stored in the object store."""
    random = np.random.default_rng(0)
    classes, user = random.integers(0, 3, 400), random.integers(0, 400, 6000)
    hours = user % 24
    rows = "".join(f"{row_user},{hour},class {classes[row_user]}\n" for row_user, hour in zip(user, hours, strict=True))
    (tmp_path / "users.csv").write_text("user,hour,label\n" + rows)
    splits = ("train_dataset", "validation_dataset", "test_dataset")
    outputs = {
        name: SimpleNamespace(path=str(tmp_path / name), uri=str(tmp_path / name), metadata={})
        for name in (*splits, "overview")
    }
    prepare_data.python_func(**outputs, source=str(tmp_path / "users.csv"))
    for split in splits:
        store = open_store(f"s3://{bucket}/users", credentials_from_environment(store_environment))
        store.upload_folder(tmp_path / split, split)
    return f"s3://{bucket}/users"


def test_partitioned_embedding_divides_its_table_among_parameter_servers(start, users, bucket, accuracy):
    uri = f"s3://{bucket}/models/{uuid.uuid4().hex}"
    step = start(
        train_specification(partitioned_embedding),
        {"distribution_type": "TF", "number_of_workers": 1, "number_of_parameter_servers": 2},
        {"column": "user", "table_rows": 1000, "epochs": 8},
        train_uri=f"{users}/train_dataset",
        validation_uri=f"{users}/validation_dataset",
        model_uri=uri,
    )
    verdict = step.verdict(500)
    assert verdict["succeeded"], step.log
    parts = re.findall(
        r"^\[chief-0\] part \d of the table: (\d+) of 1000 rows, /job:ps/.*/task:(\d)", step.log, re.MULTILINE
    )
    assert parts == [("500", "0"), ("500", "1")]
    assert verdict["metrics"]["chief-0"][-1]["epoch"] == 8
    assert accuracy(uri, f"{users}/test_dataset") >= 0.9
    assert left_behind(step) == []
