"""Cancelled, refused and retried steps of the Kubernetes runner, and the objects that they delete."""

import hashlib
import os
import shutil
import signal
from dataclasses import replace
from http import HTTPStatus

import pytest
from kubernetes_api import KubernetesApi
from train.programs.jobs import workers
from train.test_choose_operator import TRAIN_JOBS
from train.test_kubernetes_runner import state

from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.run.launch import TrainingFailed, launch
from kfp_distributed.components.train.run.runners.kubernetes.logs import last_lines
from kfp_distributed.components.train.run.runners.kubernetes.runner import KubernetesRunner
from kfp_distributed.components.train.run.training_request.request import Request, job_name, plan_job
from kfp_distributed.components.train.tell.log_format import log
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.files import FileEntry
from kfp_distributed.storage.model import ModelManifest
from kfp_distributed.storage.opener import open_store


@pytest.fixture
def api(monkeypatch):
    # The server runs no pods, so the wait for their last lines would always last its full time.
    monkeypatch.setattr(last_lines, "LAST_LINES_SECONDS", 0.1)
    with KubernetesApi() as server:
        yield server


NAME = job_name("train", ("run", "train", "1"))


@pytest.fixture
def training(data, tmp_path):
    return Request(
        train_uri=data,
        model_uri=str(tmp_path / "model"),
        train_specification={"command": ["unused"]},
        identity=("run", "train", "1"),
        distribution_specification=workers(2),
    )


def run(api, training):
    launch(training, KubernetesRunner(api.connect(), ClusterSettings("default"), log), print)


def test_a_step_whose_output_is_not_read_deletes_its_job(api, training):
    """For example, the process of a pipeline on a laptop was killed, and its training prints nothing."""
    output, (reader, writer) = os.dup(1), os.pipe()
    os.dup2(writer, 1)
    os.close(reader)
    try:
        with pytest.raises(TrainingFailed, match=r"^Nobody reads the output of this step any more\.$"):
            launch(training, KubernetesRunner(api.connect(), ClusterSettings("default"), log), lambda line: None)
    finally:
        os.dup2(output, 1)
        os.close(writer)
        os.close(output)
    assert f"POST tfjobs/{NAME}" in api.requests
    assert list(api.objects) == []


def create_previous_job(api, training, **metadata):
    """Create the job of a previous attempt that was killed, with changed metadata."""
    runner = KubernetesRunner(api.connect(), ClusterSettings("default"), lambda level, text: None)
    job = plan_job(training)
    runner.check(job)
    runner.start(job)
    created = dict(api.objects)
    runner.stop()  # Ends its threads. A step that is killed leaves its objects.
    for key, content in created.items():
        changes = metadata if key == f"tfjobs/{NAME}" else {}
        api.put(key, {**content, "metadata": {**content["metadata"], **changes}})
    del api.requests[:]


MOMENTS = ["MAY create tfjobs", f"GET configmaps/{NAME}-code", "WATCH tfjobs"]


OTHER = {"annotations": {"kfp-distributed/spec-hash": "another"}}


def run_and_cancel(api, training, moment, cancel):
    """Run a step that is cancelled while it waits for the response to a request."""
    api.before = lambda request: cancel() if request == moment else None
    with pytest.raises(SystemExit) as end:
        run(api, training)
    assert end.value.code == 128 + signal.SIGTERM


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_retried_step_that_is_cancelled_deletes_its_job(api, training, cancel, capsys, moment):
    create_previous_job(api, training)
    run_and_cancel(api, training, moment, cancel)
    assert api.objects == {}
    assert capsys.readouterr().out.endswith(f"deleted TFJob default/{NAME}\n")


TRAIN_JOB_MOMENTS = [f"POST trainingruntimes/{NAME}", f"POST trainjobs/{NAME}", f"PATCH trainingruntimes/{NAME}"]


@pytest.mark.parametrize("moment", TRAIN_JOB_MOMENTS)
def test_a_step_that_is_cancelled_while_it_creates_a_train_job_leaves_no_objects(api, training, cancel, moment):
    api.served, api.train_job_fields = TRAIN_JOBS, ["runtimePatches"]
    run_and_cancel(api, training, moment, cancel)
    assert api.objects == {}


@pytest.mark.parametrize(
    "moment", [*MOMENTS, f"TRY tfjobs/{NAME}", f"POST configmaps/{NAME}-code", f"POST tfjobs/{NAME}"]
)
def test_a_step_that_is_cancelled_leaves_no_objects(api, training, cancel, moment):
    run_and_cancel(api, training, moment, cancel)
    assert api.objects == {}


@pytest.mark.parametrize("moment", MOMENTS[:1])
def test_a_cancelled_step_does_not_change_a_job_with_another_specification(api, training, cancel, capsys, moment):
    create_previous_job(api, training, **OTHER)
    before = state(api)
    run_and_cancel(api, training, moment, cancel)
    assert state(api) == before
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("metadata", "remaining"), [({}, []), (OTHER, [f"tfjobs/{NAME}"])])
def test_a_retried_step_that_is_refused_deletes_only_its_own_job(api, training, metadata, remaining):
    create_previous_job(api, training, **metadata)
    api.denied.add("create configmaps")
    with pytest.raises(ValueError, match=r"^the account of this step .*default: create configmaps;"):
        run(api, training)
    assert [key for key in api.objects if key.startswith("tfjobs/")] == remaining


def test_a_retried_step_that_cannot_use_the_store_deletes_its_job(api, training, tmp_path):
    create_previous_job(api, training)
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "checkpoints").write_text("not a folder")
    with pytest.raises(StorageError):
        run(api, training)
    assert api.objects == {}


def test_a_step_that_is_refused_in_its_first_attempt_deletes_nothing(api, training):
    api.denied |= {"get tfjobs", "create configmaps"}
    with pytest.raises(ValueError, match=r"default: get tfjobs\.kubeflow\.org, create configmaps;"):
        run(api, training)
    assert [request for request in api.requests if request.startswith("DELETE")] == []


def test_a_step_does_not_delete_the_job_of_its_successor(api, training):
    """Another attempt of the step has replaced the job before this one ends."""
    runner, job = KubernetesRunner(api.connect(), ClusterSettings("default"), log), plan_job(training)
    runner.check(job)
    runner.start(job)
    key = f"tfjobs/{NAME}"
    deleted = api.delete(key)
    metadata = {**deleted["metadata"], "uid": "the successor's", "ownerReferences": []}
    successor = api.put(key, {**deleted, "metadata": metadata})
    runner.stop()
    assert api.objects == {key: successor}


def save_model(training):
    """Save a complete model as the leader of a job does."""
    store = open_store(training.model_uri)
    store.write("weights", b"1")
    request = plan_job(training).description.request
    files = (FileEntry("weights", 1, hashlib.sha256(b"1").hexdigest()),)
    store.write("model.json", ModelManifest("files", files, job=NAME, request=request).to_json().encode())


ENDED = {"status": {"conditions": [{"type": "Failed", "status": "True", "message": "worker-1 failed"}]}}
SUCCEEDED = {"status": {"conditions": [{"type": "Succeeded", "status": "True"}]}}


@pytest.mark.parametrize("change", [{}, ENDED, SUCCEEDED, None], ids=["running", "failed", "succeeded", "gone"])
def test_a_repeated_step_returns_the_model_of_its_job_whatever_happened_to_the_job(api, training, change):
    create_previous_job(api, training)
    save_model(training)
    key = f"tfjobs/{NAME}"
    if change is None:
        api.delete(key)
    else:
        api.put(key, {**api.objects[key], **change})
    if change == {}:  # The job ends while the step follows it.
        api.before = lambda request: request == "WATCH tfjobs" and api.put(key, {**api.objects[key], **SUCCEEDED})
    outcome = launch(training, KubernetesRunner(api.connect(), ClusterSettings("default"), log), print)
    assert (outcome.model.job, outcome.status.ended.succeeded) == (NAME, True)
    assert [request for request in api.requests if request.startswith(("POST tfjobs", "TRY"))] == []
    assert api.objects == {}


@pytest.mark.parametrize("change", [ENDED, SUCCEEDED], ids=["failed", "succeeded"])
def test_a_repeated_step_that_finds_its_model_keeps_the_ended_job_that_keep_job_kept(api, training, change):
    training = replace(training, distribution_specification=workers(2, keep_job=True))
    create_previous_job(api, training)
    save_model(training)
    key = f"tfjobs/{NAME}"
    api.put(key, {**api.objects[key], **change})
    assert launch(training, KubernetesRunner(api.connect(), ClusterSettings("default"), log), print).model.job == NAME
    assert key in api.objects


def test_a_repeated_step_returns_the_model_of_its_job_if_the_api_server_refuses_all_requests(api, training, capsys):
    save_model(training)
    api.refuses = HTTPStatus.FORBIDDEN
    outcome = launch(training, KubernetesRunner(api.connect(), ClusterSettings("default"), log), print)
    assert outcome.model.job == NAME
    assert "an earlier attempt of this step has the results; nothing is run again" in capsys.readouterr().out


def test_a_repeated_step_returns_the_model_of_its_job_if_the_operator_was_uninstalled(api, training):
    save_model(training)
    api.served.clear()
    outcome = launch(training, KubernetesRunner(api.connect(), ClusterSettings("default"), log), print)
    assert outcome.model.job == NAME
