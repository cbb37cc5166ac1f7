"""Replicas that never reach their object store, as real processes of the local runner."""

import os
import signal
import subprocess
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from environments import trainer_python
from faulty_proxy import Fault, faulty_proxy
from train.programs.jobs import make_job

from kfp_distributed.components.train.run.facts import JobEnded, JobEvent, LogLine, ReplicaChanged
from kfp_distributed.components.train.run.runners.local.ports import free_ports
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.library.archive import ARCHIVE_KEY, make_archive
from kfp_distributed.library.content import REPLICA_PACKAGES, read_library
from kfp_distributed.storage.object_stores.embedded import embedded_object_store
from kfp_distributed.trainers import train_specification
from kfp_distributed.trainers.runtime.job_description import JOB_VARIABLE, STORE_AWAY, STORE_UNREACHED
from kfp_distributed.trainers.runtime.monitoring.samples import split_sample

pytestmark = pytest.mark.takes(20)

# Ten minutes of attempts take less than a second.
WITHOUT_PAUSES = """
import time, types
import urllib3.util.retry as retry
retry.time = types.SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None})
"""


def train(model_dir, once: str):
    import os
    import signal
    import time
    from pathlib import Path

    if not Path(once).exists():
        Path(once).touch()
        while not Path(f"{once}-sampled").exists():
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)
    Path(model_dir, "weights").touch()


def make_training(folder, environment, data="", **distribution):
    """Return a job of one replica with the real entry program. Its object store is that of the variables."""
    (folder / "faster").mkdir()
    (folder / "faster" / "sitecustomize.py").write_text(WITHOUT_PAUSES)
    variables = {**environment, "PYTHONPATH": str(folder / "faster")}
    job = make_job((), distribution, program=train_specification(train), **variables)
    root = "s3://bucket/run"
    description = replace(
        job.description,
        parameters={"once": str(folder / "once")},
        train_uri=data,
        model_uri=f"{root}/model",
        checkpoint_uri=f"{root}/checkpoints",
        metrics_uri=f"{root}/metrics",
    )
    return replace(job, description=description)


def variables_of(endpoint, access_key="a", secret_key="b"):
    urls = {"AWS_ENDPOINT_URL": endpoint, "AWS_ENDPOINT_URL_S3": endpoint}
    return {**urls, "AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret_key}


def follow(job, at_failure=lambda number: None, most_failures=6):
    """Run a job to its end, or to a number of failures; return the failures, the restarts, and the last fact.

    The program waits for its first sample, which says that the store has answered.
    """
    runner, failures, restarts = LocalRunner(), [], []
    try:
        runner.check(job)
        runner.start(job)
        for fact in runner.facts():
            if isinstance(fact, LogLine) and split_sample(fact.line)[1]:
                Path(f"{job.description.parameters['once']}-sampled").touch()
            if isinstance(fact, ReplicaChanged) and fact.state == "failed":
                failures.append(fact.exit_code or -fact.signal)
                at_failure(len(failures))
                if len(failures) == most_failures:
                    break
            if isinstance(fact, JobEvent) and fact.text.startswith("restart"):
                restarts.append(fact.text)
        return failures, restarts, fact
    finally:
        runner.stop()


@pytest.mark.parametrize("is_proxied", [False, True], ids=["refuses connections", "a proxy answers 503"])
def test_a_store_that_never_answers_ends_the_training_at_the_restart_limit(tmp_path, is_proxied):
    """A service mesh answers 503 for a store that its network does not let it reach."""
    with faulty_proxy("http://127.0.0.1:9") if is_proxied else nullcontext() as proxy:
        if proxy:
            proxy.faults = [Fault("", times=10**9, status=503)]
        endpoint = proxy.url if proxy else f"http://127.0.0.1:{free_ports(1)[0]}"
        failures, restarts, end = follow(make_training(tmp_path, variables_of(endpoint), restart_limit=2))
    assert failures == [STORE_UNREACHED] * 3
    assert restarts == [f"restart {number} of 2: all replicas (worker-0 failed)" for number in (1, 2)]
    assert isinstance(end, JobEnded)
    assert (end.succeeded, end.reason) == (False, "Restart limit reached (restart_limit=2).")


def test_an_outage_does_not_end_a_training_whose_store_has_answered_an_earlier_start(tmp_path, data):
    """The first start is killed, which counts. Its samples say that the store has answered."""
    (tmp_path / "objects" / "bucket").mkdir(parents=True)
    with embedded_object_store(tmp_path / "objects") as server, faulty_proxy(server.endpoint) as proxy:

        def at_failure(number):
            proxy.faults = [Fault("", times=10**9, reset=True)] if number <= 3 else []

        variables = server.environment() | variables_of(proxy.url, server.access_key, server.secret_key)
        failures, restarts, end = follow(make_training(tmp_path, variables, data, restart_limit=1), at_failure)
    assert failures == [-signal.SIGKILL, *[STORE_UNREACHED] * 3]
    away = "restart: all replicas (worker-0: the object store did not answer)"
    assert restarts == ["restart 1 of 1: all replicas (worker-0 failed)", *[away] * 3]
    assert isinstance(end, JobEnded)
    assert end.succeeded, end.reason


def test_ranks_that_get_no_answer_end_a_replica_whose_store_has_answered_it(tmp_path):
    """The parent process of the ranks has looked for a model. The outage begins when a rank requests its data."""
    (tmp_path / "objects" / "bucket").mkdir(parents=True)
    with embedded_object_store(tmp_path / "objects") as server, faulty_proxy(server.endpoint) as proxy:

        def begin():
            proxy.faults = [Fault("", times=10**9, reset=True)]

        proxy.faults = [Fault("/bucket/run/data", before=begin, reset=True)]
        variables = server.environment() | variables_of(proxy.url, server.access_key, server.secret_key)
        job = make_training(tmp_path, variables, "s3://bucket/run/data")
        (tmp_path / "job.json").write_text(job.description.to_json())
        (tmp_path / ARCHIVE_KEY).write_bytes(make_archive(read_library(REPLICA_PACKAGES)))
        environment = os.environ | job.environment | {"PET_NPROC_PER_NODE": "2", "PET_NNODES": "1"}
        environment[JOB_VARIABLE] = str(tmp_path / "job.json")
        environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path / ARCHIVE_KEY), job.environment["PYTHONPATH"]])
        command = [trainer_python("pytorch"), "-m", "kfp_distributed.trainers.runtime.entry"]
        end = subprocess.run(
            command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    assert f"exitcode: {STORE_UNREACHED})" in end.stdout, end.stdout
    assert end.returncode == STORE_AWAY, end.stdout
