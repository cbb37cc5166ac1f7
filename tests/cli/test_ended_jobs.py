"""Trainings whose jobs are gone: `jobs --ended`, `logs` and `watch` read what their steps have stored."""

import re
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

import pytest
from click.testing import CliRunner
from kubernetes_api import KubernetesApi

from kfp_distributed.cli.jobs.ended_jobs import EndedRow, describe_end, ended_rows, read_summaries
from kfp_distributed.cli.main import main
from kfp_distributed.components.train.run.shown_progress.log_entry import LogEntry
from kfp_distributed.components.train.tell.stored_log import StoredLog
from kfp_distributed.components.train.tell.training_summary import TrainingSummary
from kfp_distributed.storage import open_store
from kfp_distributed.storage.model import ModelManifest
from kfp_distributed.storage.store import Store

pytestmark = pytest.mark.takes(3)

NOW = datetime(2026, 11, 23, 14, 10, 0, tzinfo=UTC)
CREATED = datetime(2026, 11, 23, 14, 0, 0, tzinfo=UTC).timestamp()
FAILED = TrainingSummary(
    name="tune-train-1-0123456789ab",
    type="TF",
    namespace="default",
    labels={"run": "4f5b0b1c", "task": "train", "sub-pipeline": "tune", "iteration": "1"},
    replicas=("worker-0", "worker-1"),
    created=CREATED,
    folder="s3://pipelines/root/checkpoints/tune-train-1-0123456789ab",
    model="s3://pipelines/root/model",
    state="failed",
    reason="worker-1 failed with exit code 3.",
    ended=CREATED + 70,
)
REMARK = "I0000 00:00:1.2 7 port.cc:153] oneDNN custom operations are on. You may see"
LOST = replace(
    FAILED, name="fit-1", type="Job", labels={}, created=CREATED + 60, state="running", ended=None, reason=""
)


def test_a_training_with_kubeflow_trainer_was_a_train_job():
    of_trainer = replace(FAILED, kind="TrainJob")
    assert [row.type for row in ended_rows([of_trainer], lambda summary: False, NOW)] == ["TrainJob"]
    assert describe_end(of_trainer, NOW, False)[0].startswith("TrainJob default/tune-train-1-0123456789ab failed")


def test_rows_of_ended_trainings():
    succeeded = replace(FAILED, type="MPI", state="succeeded")
    assert ended_rows([LOST, FAILED, succeeded], lambda summary: False, NOW) == [
        EndedRow("fit-1", "Job", "lost", "2", "", "", "", ""),
        EndedRow(FAILED.name, "TFJob", "failed", "2", "8 min 50 s ago", "1 min 10 s", "tune/train[1]", "4f5b0b1c"),
        EndedRow(FAILED.name, "MPIJob", "succeeded", "2", "8 min 50 s ago", "1 min 10 s", "tune/train[1]", "4f5b0b1c"),
    ]
    assert ended_rows([LOST], lambda summary: summary.name == "fit-1", NOW) == []


def test_the_end_of_a_training_is_described():
    assert describe_end(FAILED, NOW, has_report=True) == [
        "TFJob default/tune-train-1-0123456789ab failed 8 min 50 s ago: worker-1 failed with exit code 3.",
        f"Report: {FAILED.folder}/report.html",
        f"Checkpoints, metrics and log: {FAILED.folder}",
    ]
    assert describe_end(LOST, NOW, has_report=False) == [
        "Job default/fit-1 lost.",
        f"Checkpoints, metrics and log: {FAILED.folder}",
    ]


def test_summaries_are_read_from_the_newest_to_the_oldest(tmp_path):
    store = open_store(str(tmp_path))
    summaries = [replace(FAILED, name=f"job-{number}", created=CREATED + number) for number in range(5)]
    for summary in (*summaries, replace(FAILED, namespace="team")):
        store.write(summary.index_key, summary.to_json().encode())
    store.write(f"kfp-distributed/default/20261123T140009Z-{FAILED.name}.json", b"{}")
    assert list(read_summaries(store, "default", 3)) == summaries[:1:-1]
    assert list(read_summaries(store, "default", 9, "job-1")) == [summaries[1]]
    assert list(read_summaries(store, "absent", 9)) == []


class Commands(NamedTuple):
    """Runs commands with this API server, whose pipelines are stored in this root."""

    api: KubernetesApi
    root: Store

    def __call__(self, *words):
        return CliRunner().invoke(main, [*words])


@pytest.fixture
def invoke(pipelines, monkeypatch):
    """Return a function that runs a command on a namespace with one ended training, and without jobs."""
    root = pipelines.root
    monkeypatch.setenv("AWS_ENDPOINT_URL", root.endpoint)
    root.write(FAILED.index_key, FAILED.to_json().encode())
    open_store(FAILED.folder, pipelines.credentials).write("report.html", b"")
    log = StoredLog(lambda level, text: None)
    log.start(lambda: open_store(f"{FAILED.folder}/logs/1", pipelines.credentials))
    for replica, text in (("worker-0", REMARK), ("worker-0", "begins"), ("job", "failed")):
        log.add(LogEntry(CREATED, "INFO", replica, text))
    log.end(gives_up=True)
    assert log.is_stored(120)
    return Commands(pipelines.api, root)


def test_an_ended_training_is_read_through_the_api_server(invoke, monkeypatch):
    """As on a laptop, which does not reach the Service of the store."""
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    for words, text in (
        (("jobs", "--ended"), "tune/train[1]"),
        (("logs", FAILED.name), " INFO worker-0 begins\n"),
        (("watch", FAILED.name), "worker-1 failed with exit code 3."),
    ):
        result = invoke(*words)
        assert text in result.stdout
        assert result.stderr == "Reaching minio-service.default:9000 by a port-forward through the API server.\n"


def test_jobs_ended_lists_them(invoke):
    result = invoke("jobs", "--ended")
    header, row = result.output.splitlines()
    assert header.split() == ["NAME", "TYPE", "STATE", "REPLICAS", "ENDED", "DURATION", "TASK", "RUN"]
    assert row.startswith("tune-train-1-0123456789ab   TFJob   failed   2 ")
    assert row.endswith("   1 min 10 s   tune/train[1]   4f5b0b1c")


def test_logs_and_watch_of_an_ended_training(invoke):
    result = invoke("logs", FAILED.name)
    assert (result.exit_code, result.output) == (
        0,
        "2026-11-23T14:00:00Z INFO worker-0 begins\n2026-11-23T14:00:00Z INFO job failed\n",
    )
    assert invoke("logs", FAILED.name, "--replica", "worker-0").output == "2026-11-23T14:00:00Z INFO worker-0 begins\n"
    assert invoke("logs", FAILED.name, "--replica", "ps-0").exit_code == 2
    result = invoke("watch", FAILED.name)
    assert result.exit_code == 1
    assert result.output.splitlines()[1:] == describe_end(FAILED, NOW, has_report=True)[1:]


def test_a_training_is_lost_when_its_step_writes_no_heartbeat_any_more(invoke):
    """Between two creations of its job, and before it has stored its end, a step lives without a job."""
    heartbeat = "checkpoints/fit-1/heartbeat"
    running = replace(LOST, heartbeat=f"s3://pipelines/root/{heartbeat}")
    invoke.root.write(running.index_key, running.to_json().encode())
    invoke.root.write(heartbeat, str(int(time.time()) - 30).encode())
    assert "fit-1" not in invoke("jobs", "--ended").output
    result = invoke("watch", "fit-1")
    assert result.exit_code == 1
    assert re.search(r"Job default/fit-1 has no object at the moment, but its step wrote .* \d+ s ago", result.output)
    invoke.root.write(heartbeat, str(int(time.time()) - 300).encode())
    assert re.search(r"fit-1 +Job +lost ", invoke("jobs", "--ended").output)
    assert invoke("watch", "fit-1").output.startswith("Job default/fit-1 lost.")
    invoke.root.delete([heartbeat])
    assert re.search(r"fit-1 +Job +lost ", invoke("jobs", "--ended").output)


@pytest.mark.parametrize(("job", "state"), [("fit-1", "succeeded"), ("fit-2", "lost")])
def test_a_training_without_an_end_has_succeeded_if_its_model_is_complete(invoke, job, state):
    """Its step was killed before it had stored the end. Another job may have saved the model of an earlier run."""
    invoke.root.write(LOST.index_key, LOST.to_json().encode())
    invoke.root.write("model/model.json", ModelManifest(job=job).to_json().encode())
    assert re.search(rf"fit-1 +Job +{state} ", invoke("jobs", "--ended").output)
    result = invoke("watch", "fit-1")
    assert result.output.startswith(f"Job default/fit-1 {state}.")
    assert result.exit_code == int(state == "lost")


def test_jobs_ended_names_the_kinds_that_it_may_not_list(invoke):
    invoke.api.forbidden = {"LIST tfjobs"}
    result = invoke("jobs", "--ended")
    assert "Warning:" in result.output
    assert "tfjobs" in result.output
    assert FAILED.name in result.output


def test_records_that_cannot_be_read_are_those_of_a_training_that_was_found(invoke):
    elsewhere = replace(FAILED, name="fit-2", folder="s3://absent/fit-2")
    invoke.root.write(elsewhere.index_key, elsewhere.to_json().encode())
    result = invoke("logs", "fit-2")
    assert result.exit_code == 1
    assert result.output.startswith("Error: the records of fit-2 cannot be read: http://127.0.0.1")


def test_a_training_that_never_was_is_named(invoke):
    for command in ("logs", "watch"):
        result = invoke(command, "absent")
        assert result.exit_code == 1
        assert "there is no training 'absent' in namespace default; existing trainings: none" in result.output
        assert "has no ended training of this name" in result.output


def test_a_store_that_is_not_reached_is_named(invoke, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    result = invoke("jobs", "--ended")
    assert result.exit_code == 1
    assert "s3://pipelines/root cannot be reached from this machine at AWS_ENDPOINT_URL: " in result.output
    result = invoke("logs", FAILED.name)
    assert "Whether it has ended is not known: s3://pipelines/root cannot be reached" in result.output


def test_the_advice_repeats_the_command_with_its_options(invoke, monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    invoke.api.delete("pods/minio-0")
    for words in (("jobs", "--ended"), ("logs", FAILED.name)):
        result = invoke(*words, "--bucket", "s3://other/root", "--namespace", "default")
        assert result.exit_code == 1
        assert "Service default/minio-service has no ready pod" in result.output
        assert f"{' '.join(words)} --namespace default --bucket s3://other/root\n" in result.output
