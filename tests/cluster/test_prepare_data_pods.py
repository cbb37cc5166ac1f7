"""prepare_data with workers in pods that are killed, and with data in the object store that cannot be used."""

import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from cluster.jobs import Step, left_behind
from cluster.test_replica_faults import delete

from kfp_distributed.components.kfp_interface.delivery import IMAGE_VARIABLE
from kfp_distributed.components.prepare_data.preparation_pods.preparation_request import preparation_folder
from kfp_distributed.components.train.run.identity import identify_training
from kfp_distributed.components.train.run.training_request.request import job_name
from kfp_distributed.storage import credentials_from_environment, open_store

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600), pytest.mark.takes(60)]

_PROGRAM = Path(__file__).parent / "programs" / "prepare_step.py"


@pytest.fixture(scope="module")
def rows(bucket, store_environment, tmp_path_factory):
    """Address of a CSV file with 400,000 rows, which are several chunks and pieces."""
    generator = np.random.default_rng(0)
    size = 400_000
    table = {f"x{column}": generator.normal(size=size) for column in range(20)}
    file = tmp_path_factory.mktemp("rows") / "rows.csv"
    pyarrow.csv.write_csv(pa.table({**table, "label": generator.integers(0, 3, size)}), file)
    open_store(f"s3://{bucket}", credentials_from_environment(store_environment)).upload(file, "large/rows.csv")
    return f"s3://{bucket}/large/rows.csv"


@pytest.fixture
def start(bucket, store_environment, training_namespace, image_name):
    """A function that starts a step with two workers. Running steps are cancelled at the end of the test."""
    steps = []

    def start_one(source: str, folder: str = "") -> Step:
        folder = folder or f"s3://{bucket}/v2/artifacts/digits/{uuid.uuid4()}/prepare-data/{uuid.uuid4()}"
        request = {
            "namespace": training_namespace,
            "source": source,
            "folder": folder,
            "workers": 2,
            "settings": {"worker_memory": "1Gi"},
            "distribution_specification": {},
        }
        process = subprocess.Popen(
            [sys.executable, str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **store_environment, IMAGE_VARIABLE: image_name("steps")},
        )
        process.stdin.write(json.dumps(request))
        process.stdin.close()
        identity = identify_training(f"{folder}/train_dataset", {}, print)
        name = job_name(identity.task_name, (identity.run_id, *identity.distinction))
        steps.append(Step(process, name, training_namespace, request))
        return steps[-1]

    yield start_one
    for step in steps:
        step.process.terminate()
        step.end()


def stored(step: Step, store_environment: dict) -> list[str]:
    """Return the keys of what workers have stored and the step has not deleted."""
    folder = preparation_folder(f"{step.request['folder']}/train_dataset")
    return [entry.key for entry in open_store(folder, credentials_from_environment(store_environment)).list()]


def test_a_scheduler_and_a_worker_that_are_deleted_are_replaced(
    api, training_namespace, start, rows, store_environment
):
    step = start(rows)
    step.wait_for(r"\[scheduler-0\] all 2 workers are there", 300)
    delete(api, training_namespace, step.pod_of("worker-1"))
    step.wait_for(r"\[scheduler-0\] task: classification", 120)
    delete(api, training_namespace, step.pod_of("scheduler-0"))
    verdict = step.verdict(300)
    assert verdict == {"error": "", "rows": {"train": 320_000, "validation": 40_000, "test": 40_000}}, step.timed_log
    assert re.search(r"\[scheduler-0\] an earlier start has completed \d+ tasks", step.log), step.timed_log
    assert left_behind(step) == []
    assert stored(step, store_environment) == []
    folder = open_store(f"{step.request['folder']}/shards", credentials_from_environment(store_environment))
    assert len(folder.list("train_dataset/")) == 8


def test_a_cancelled_step_ends_its_pods_and_the_next_one_goes_on(start, rows, store_environment):
    first = start(rows)
    first.wait_for(r"\[scheduler-0\] task: classification", 300)
    first.process.terminate()
    first.end()
    assert left_behind(first) == []
    assert "scheduler.json" not in " ".join(stored(first, store_environment))
    second = start(rows, first.request["folder"])
    assert second.verdict(300)["rows"]["train"] == 320_000, second.timed_log
    assert re.search(r"\[scheduler-0\] an earlier start has completed \d+ tasks", second.log), second.timed_log
    assert left_behind(second) == []
    assert stored(second, store_environment) == []


def test_a_source_that_is_missing_is_named_by_the_step(start, bucket, store_environment):
    step = start(f"s3://{bucket}/large/missing.csv")
    assert "does not exist" in step.verdict(120)["error"], step.timed_log
    assert left_behind(step) == []
    assert stored(step, store_environment) == []
