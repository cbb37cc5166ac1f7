"""Experiment tracking: `train` and `export_model` with a real MLflow server."""

import os
import re
import tempfile
import threading
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from mlflow_server import PASSWORD, USERNAME, mlflow_server
from train.programs.jobs import make_job, wait_until

from kfp_distributed.components.export_model.step import run_step as run_export_step
from kfp_distributed.components.external_services import mlflow_client
from kfp_distributed.components.external_services.mlflow_client import (
    Metric,
    MlflowClient,
    read_connection,
)
from kfp_distributed.components.train.run.training_request.request import job_name
from kfp_distributed.components.train.step import run_step
from kfp_distributed.components.train.tell import mlflow_tracker
from kfp_distributed.components.train.tell.choose_tracker import choose_tracker
from kfp_distributed.components.train.tell.log_format import parse_line
from kfp_distributed.storage.files import describe_folder
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest

pytestmark = pytest.mark.takes(97)

# After each epoch, the function waits until the test has made the file EPOCH in the folder `gate`.
FIT = """
def fit(model_dir, metrics_dir, epochs: int = 2, gate: str = "", fails: bool = False):
    import time
    from pathlib import Path
    from kfp_distributed.trainers.sync import record_epoch
    for epoch in range(1, epochs + 1):
        values = {"loss": 1 / epoch, "val_loss": 2.0}
        record_epoch(Path(metrics_dir, "training.json"), "worker-0", epoch, epochs, values)
        while gate and not Path(gate, str(epoch)).exists():
            time.sleep(0.02)
    if fails:
        raise RuntimeError("out of luck")
    Path(model_dir, "weights").write_text("1")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder of the server, which keeps the runs when a server is started again."""
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture(scope="module")
def server(folder):
    with mlflow_server(folder) as running:
        yield running


@pytest.fixture
def set_variables(monkeypatch):
    def set_all(values):
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return set_all


@pytest.fixture(autouse=True)
def _environment(monkeypatch, tmp_path):
    """Hide the MLflow server of the machine, look for epochs often, and keep the job's files in the test's folder."""
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(mlflow_tracker, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@dataclass
class Artifact:
    """As much of a KFP artifact as the steps use."""

    path: str
    uri: str
    metadata: dict = field(default_factory=dict)

    def log_metric(self, name, value):
        self.metadata[name] = value


class TrainStep:
    """A `train` step that runs its function in one local process, and can be attempted again."""

    def __init__(self, data, folder):
        run_id = str(uuid.uuid4())
        uri = f"s3://bucket/pipeline/{run_id}/train/{uuid.uuid4()}"
        self.data, self.gate = data, folder / "gate"
        self.gate.mkdir()
        self.job = job_name("train", (run_id, uri))
        self.model = Artifact(str(folder / "model"), f"{uri}/model")
        self.metrics = Artifact(str(folder / "metrics"), f"{uri}/metrics")
        self.report = Artifact(str(folder / "report"), str(folder / "report"))

    def run(self, **parameters):
        self.outputs = run_step(
            train_dataset=Artifact(self.data, "s3://bucket/data"),
            validation_dataset=None,
            model=self.model,
            metrics=self.metrics,
            report=self.report,
            runner="local",
            train_specification={"function": "fit", "source": FIT},
            train_parameters=parameters,
            distribution_specification={"keep_job": True, "restart_limit": 0},
        )

    @contextmanager
    def stopping_after_each_epoch(self, watch):
        """Run the step with two epochs in the main thread, and `watch`, which opens the gate, in another one."""
        errors = []

        def work():
            try:
                watch()
            except BaseException as error:  # noqa: BLE001
                errors.append(error)
            finally:
                self.open_gate(1, 2)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            self.run(gate=str(self.gate))
        finally:
            thread.join()
        yield
        if errors:
            raise errors[0]

    def open_gate(self, *epochs):
        for epoch in epochs:
            (self.gate / str(epoch)).touch()


@pytest.fixture
def step(data, tmp_path):
    return TrainStep(data, tmp_path)


def warnings(text):
    """Return the messages of the log lines with the level WARNING."""
    entries = map(parse_line, text.splitlines())
    return [entry.message for entry in entries if entry and entry.level == "WARNING"]


def test_the_run_of_the_task_gets_each_epoch_while_the_training_runs(server, step, set_variables, tmp_path, capsys):
    run_id = server.create_run(**{"mlflow.parentRunId": "0123"})
    set_variables(server.variables(MLFLOW_RUN_ID=run_id, MLFLOW_EXPERIMENT_ID="0"))
    early = []

    def watch():
        wait_until(lambda: server.run(run_id).metrics)
        early.append(server.run(run_id).metrics)
        step.open_gate(1, 2)

    with step.stopping_after_each_epoch(watch):
        pass
    assert early == [{"training/loss": (1, 1.0), "training/val_loss": (1, 2.0)}]
    assert server.history(run_id, "training/loss") == [(1, 1.0), (2, 0.5)]
    run = server.run(run_id)
    # KFP's launcher ends the run, and logs the inputs of the step as parameters that ours must not contradict.
    assert run.status == "RUNNING"
    assert run.parameters.keys().isdisjoint({"train_parameters", "distribution_specification", "runner"})
    assert run.parameters["program.function"] == "fit"
    assert run.parameters["parameters.gate"] == str(step.gate)
    assert run.parameters["distribution.distribution_type"] == "Job"
    assert run.tags["kfp_distributed.job"] == step.job
    assert run.tags["kfp_distributed.model"] == step.model.path
    assert run.tags["kfp_distributed.report"] == step.report.uri
    assert step.model.metadata["mlflow_run_id"] == run_id
    assert step.outputs == (step.model.uri, run_id)
    page = server.request("GET", f"mlflow-artifacts/artifacts/0/{run_id}/artifacts/report.html")
    assert page == Path(step.report.path).read_text()
    # The password is nowhere: not in the job's files, the report or the log.
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert "job.json" in {path.name for path in files}
    assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == []
    captured = capsys.readouterr()
    assert PASSWORD not in captured.out + captured.err
    assert warnings(captured.out) == []


def test_without_a_run_one_is_created_and_a_retry_of_the_step_continues_it(server, step, set_variables):
    login = server.address.replace("://", f"://{USERNAME}:{PASSWORD}@")
    set_variables({"MLFLOW_TRACKING_URI": login, "MLFLOW_EXPERIMENT_NAME": "own runs"})
    with pytest.raises(SystemExit, match="out of luck"):
        step.run(fails=True)
    query = "mlflow/experiments/get-by-name?experiment_name=own%20runs"
    experiment = server.request("GET", query)["experiment"]["experiment_id"]

    def runs():
        answer = server.request("POST", "mlflow/runs/search", {"experiment_ids": [experiment]})
        return [server.run(run["info"]["run_id"]) for run in answer["runs"]]

    (failed,) = runs()
    assert failed.status == "FAILED"
    assert failed.tags["mlflow.runName"] == step.job
    page = server.request("GET", f"mlflow-artifacts/artifacts/{experiment}/{failed.id}/artifacts/report.html")
    assert "out of luck" in page
    step.run(epochs=3)
    (run,) = runs()
    assert (run.id, run.status) == (failed.id, "FINISHED")
    # The retry resumed nothing, so it trained all epochs. MLflow keeps the values of the first attempt.
    assert server.history(run.id, "training/loss") == [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3))]
    assert step.model.metadata["mlflow_run_id"] == run.id


def test_a_server_that_is_killed_does_not_affect_a_training(folder, step, set_variables, capsys, monkeypatch):
    monkeypatch.setattr(mlflow_tracker, "AWAY_SECONDS", 0.1)
    with mlflow_server(folder) as server:
        set_variables(server.variables(MLFLOW_RUN_ID=server.create_run()))

        def watch():
            wait_until(lambda: server.run(os.environ["MLFLOW_RUN_ID"]).metrics)
            server.process.kill()
            server.process.wait()
            step.open_gate(1, 2)

        with step.stopping_after_each_epoch(watch):
            pass
    assert Path(step.model.path, "weights").exists()
    assert step.metrics.metadata == {"loss": 0.5, "val_loss": 2.0}
    messages = warnings(capsys.readouterr().out)
    # The first one is missing if the training ends before the next look for epochs.
    assert [line.partition(": ")[0] for line in messages][-2:] in (
        ["The MLflow run gets the metrics later", "The MLflow run is not complete"],
        ["The MLflow run is not complete"],
    )


def test_a_server_that_hangs_delays_the_end_of_a_step_by_a_bounded_time(server, monkeypatch):
    monkeypatch.setattr(mlflow_tracker, "END_SECONDS", 0.5)
    messages = []
    tracker = choose_tracker(server.variables(MLFLOW_RUN_ID="0"), lambda level, text: messages.append(text))
    with server.hanging():
        tracker.start(make_job(["true"]))
        begin = time.monotonic()
        tracker.finish("FINISHED", {})
        assert time.monotonic() - begin < mlflow_client.REQUEST_SECONDS
    assert messages == ["The MLflow run is not complete: no answer within 0.5 s"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"MLFLOW_TRACKING_PASSWORD": "wrong"}, "answers 401 "),
        ({"MLFLOW_RUN_ID": "missing"}, "answers 404 RESOURCE_DOES_NOT_EXIST: .*missing"),
        ({"MLFLOW_TRACKING_URI": "http://127.0.0.1:1"}, "not complete: http://127.0.0.1:1 does not answer: .*refused"),
        (
            {"MLFLOW_TRACKING_URI": f"sqlite://me:{PASSWORD}@/runs.db"},
            "MLFLOW_TRACKING_URI with the scheme 'sqlite' is not",
        ),
    ],
)
def test_a_wrong_setting_is_a_warning(server, monkeypatch, changed, message):
    monkeypatch.setattr(mlflow_tracker, "AWAY_SECONDS", 0.1)
    messages = []
    tracker = choose_tracker(
        {**server.variables(MLFLOW_RUN_ID="0"), **changed}, lambda level, text: messages.append(f"{level} {text}")
    )
    tracker.start(make_job(["true"]))
    tracker.finish("FINISHED", {"worker-0": [{"epoch": 1, "loss": 1}]})
    # The first request may fail before the end of the training or after it.
    assert len(messages) <= 2
    assert re.match(f"WARNING .*{message}", messages[-1])
    assert not any(PASSWORD in line for line in messages)


def test_a_request_with_content_that_mlflow_refuses_is_left_out(server):
    run_id, messages = server.create_run(), []
    MlflowClient(read_connection(server.variables())).log_parameters(run_id, {"distribution.restart_limit": "7"})
    tracker = choose_tracker(server.variables(MLFLOW_RUN_ID=run_id), lambda level, text: messages.append(text))
    tracker.start(make_job(["true"]))
    tracker.finish("FINISHED", {"worker-0": [{"epoch": 1, "loss": 1}]})
    (text,) = messages
    assert "INVALID_PARAMETER_VALUE" in text
    assert server.run(run_id).metrics == {"training/loss": (1, 1.0)}
    assert server.run(run_id).parameters == {"distribution.restart_limit": "7"}


def test_large_runs_are_sent_in_batches(server):
    client, run_id = MlflowClient(read_connection(server.variables())), server.create_run()
    client.log_metrics(run_id, [Metric("m", step / 3, step, 1.0) for step in range(2500)])
    client.log_metrics(run_id, [Metric("nan", float("nan"), 1, 1.0), Metric("inf: +", float("inf"), 1, 1.0)])
    client.log_parameters(run_id, {f"p.{number}": "x" * 7000 for number in range(150)})
    client.set_tags(run_id, {"long": "x" * 9000})
    run = server.run(run_id)
    assert run.metrics["m"] == (2499, 833.0)
    assert run.metrics["nan"] == (1, "NaN")
    assert run.metrics["inf_ _"][1] > 1e300
    assert {len(value) for value in run.parameters.values()} == {6000}
    assert len(run.parameters) == 150
    assert len(run.tags["long"]) == 5000


def test_the_exported_version_is_linked_to_the_run_of_the_training(server, set_variables, tmp_path, capsys):
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.onnx").write_bytes(b"graph")
    (model / MODEL_MANIFEST).write_text(ModelManifest("onnx", describe_folder(model)).to_json())

    def export(model_uri="", run_of_training="", **metadata):
        manifest = Artifact(str(tmp_path / "manifest"), str(tmp_path / "run-1" / "export-model" / "manifest"))
        return run_export_step(
            model=None if model_uri else Artifact(str(model), str(model), metadata),
            model_uri=model_uri,
            mlflow_run_id=run_of_training,
            model_name="digits",
            bucket=str(tmp_path / "models"),
            manifest=manifest,
            version=0,
            metrics=None,
        )

    training_run, own_run = server.create_run(), server.create_run()
    set_variables(server.variables(MLFLOW_RUN_ID=own_run))
    first = export(mlflow_run_id=training_run)
    assert {
        "kfp_distributed.exported_model": "digits",
        "kfp_distributed.exported_version": "1",
        "kfp_distributed.exported_uri": first.uri,
    }.items() <= server.run(training_run).tags.items()
    # A model that was trained elsewhere has no run, so the export's own run gets the link.
    export()
    assert server.run(own_run).tags["kfp_distributed.exported_version"] == "2"
    assert "WARNING" not in capsys.readouterr().out
    export(str(model), training_run)
    assert server.run(training_run).tags["kfp_distributed.exported_version"] == "3"
    set_variables({"MLFLOW_TRACKING_URI": "http://127.0.0.1:1"})
    assert export().version == 4
    assert capsys.readouterr().out.count("WARNING") == 1
