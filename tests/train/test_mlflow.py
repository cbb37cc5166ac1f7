"""Experiment tracking: `train` and `export_model` with a real MLflow server."""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from mlflow_server import PASSWORD, USERNAME, mlflow_server
from train.programs.jobs import make_job, wait_until

from kfp_distributed.components import mlflow_client
from kfp_distributed.components.export_model.step import run_step as run_export_step
from kfp_distributed.components.mlflow_client import (
    Metric,
    MlflowClient,
    read_connection,
    valid_key,
)
from kfp_distributed.components.train import mlflow_tracker
from kfp_distributed.components.train.launch import job_name
from kfp_distributed.components.train.log_format import parse_line
from kfp_distributed.components.train.manifests.cluster_settings import ClusterSettings, read_task_settings
from kfp_distributed.components.train.manifests.pod import environment as replica_variables
from kfp_distributed.components.train.mlflow_tracker import new_metrics, run_parameters, run_tags
from kfp_distributed.components.train.step import run_step
from kfp_distributed.components.train.tracking import open_tracker
from kfp_distributed.storage.files import describe_folder
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest

pytestmark = pytest.mark.takes(30)

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
        run_step(
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
    page = server.request("GET", f"mlflow-artifacts/artifacts/0/{run_id}/artifacts/report.html")
    assert page == Path(step.report.path).read_text()
    # The password is nowhere: not in the job's files, the report or the log.
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert "job.json" in {path.name for path in files}
    assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == []
    said = capsys.readouterr()
    assert PASSWORD not in said.out + said.err
    assert warnings(said.out) == []


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


def test_a_server_that_is_killed_costs_a_training_nothing(folder, step, set_variables, capsys, monkeypatch):
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
    said = warnings(capsys.readouterr().out)
    # The first one is missing if the training ends before the next look for epochs.
    assert [line.partition(": ")[0] for line in said][-2:] in (
        ["The MLflow run gets the metrics later", "The MLflow run is not complete"],
        ["The MLflow run is not complete"],
    )


def test_a_server_that_hangs_delays_the_end_of_a_step_by_a_bounded_time(server, monkeypatch):
    monkeypatch.setattr(mlflow_tracker, "END_SECONDS", 0.5)
    said = []
    tracker = open_tracker(server.variables(MLFLOW_RUN_ID="0"), lambda level, text: said.append(text))
    with server.hanging():
        tracker.start(make_job(["true"]))
        begin = time.monotonic()
        tracker.finish("FINISHED", {})
        assert time.monotonic() - begin < mlflow_client.REQUEST_SECONDS
    assert said == ["The MLflow run is not complete: no answer within 0.5 s"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"MLFLOW_TRACKING_PASSWORD": "wrong"}, "answers 401 "),
        ({"MLFLOW_RUN_ID": "missing"}, "answers 404 RESOURCE_DOES_NOT_EXIST: .*missing"),
        ({"MLFLOW_TRACKING_URI": "http://127.0.0.1:1"}, "not complete: http://127.0.0.1:1 does not answer: .*refused"),
        ({"MLFLOW_TRACKING_URI": f"sqlite://me:{PASSWORD}@/runs.db"}, "MLFLOW_TRACKING_URI has sqlite, but must be"),
    ],
)
def test_a_wrong_setting_is_a_warning(server, monkeypatch, changed, message):
    monkeypatch.setattr(mlflow_tracker, "AWAY_SECONDS", 0.1)
    said = []
    tracker = open_tracker(
        {**server.variables(MLFLOW_RUN_ID="0"), **changed}, lambda level, text: said.append(f"{level} {text}")
    )
    tracker.start(make_job(["true"]))
    tracker.finish("FINISHED", {"worker-0": [{"epoch": 1, "loss": 1}]})
    # The first request may fail before the end of the training or after it.
    assert len(said) <= 2
    assert re.match(f"WARNING .*{message}", said[-1])
    assert not any(PASSWORD in line for line in said)


class _Unavailable(BaseHTTPRequestHandler):
    """Answers 503 to the first three requests, and then as the server does to a step that logs to a run."""

    requests: list

    def do_GET(self):
        self.answer(b'{"run": {"info": {"run_id": "r", "artifact_uri": "s3://bucket/1"}, "data": {}}}')

    def do_POST(self):
        self.answer(b"{}")

    def answer(self, body):
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.requests.append((self.path.removeprefix("/api/2.0/mlflow/"), json.loads(data or "{}"), self.headers))
        self.send_response(503 if len(self.requests) <= 3 else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@contextmanager
def unavailable_server():
    """A server with a short outage. Yields its address and the requests that it got."""
    handler = type("Handler", (_Unavailable,), {"requests": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as stub:
        threading.Thread(target=stub.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{stub.server_port}", handler.requests
        finally:
            stub.shutdown()


def test_a_server_that_is_overloaded_gets_everything_once_it_answers():
    said = []
    with unavailable_server() as (address, requests):
        variables = {
            "MLFLOW_TRACKING_URI": f"{address}/",
            "MLFLOW_RUN_ID": "r",
            "MLFLOW_WORKSPACE": "team",
            "MLFLOW_TRACKING_TOKEN": "secret",
        }
        tracker = open_tracker(variables, lambda level, text: said.append(text))
        tracker.start(make_job(["true"]))
        tracker.finish("FINISHED", {"worker-0": [{"epoch": 1, "loss": 1}]}, "<h1>report</h1>", "s3://b/report")
    assert len(said) == 1
    assert "503" in said[0]
    assert "secret" not in said[0]
    assert [path for path, _, _ in requests[:3]] == ["runs/get?run_id=r"] * 3
    assert {(headers["X-MLFLOW-WORKSPACE"], headers["Authorization"]) for _, _, headers in requests} == {
        ("team", "Bearer secret")
    }
    # The clients of this server write artifacts to S3 themselves, so the report is a tag alone.
    sent = [key for _, body, _ in requests for key in body if key != "run_id"]
    assert sent == ["tags", "params", "metrics", "tags"]


def test_a_server_that_answers_again_gets_the_epochs_that_it_missed(tmp_path):
    def record(*losses):
        epochs = [{"epoch": number, "loss": loss} for number, loss in enumerate(losses, 1)]
        file = tmp_path / "new.json"
        file.write_text(json.dumps({"replica": "worker-0", "epochs": epochs}))
        file.rename(tmp_path / "training.json")
        return {"worker-0": epochs}

    def sent():
        metrics = [metric for _, body, _ in requests for metric in body.get("metrics", [])]
        return [(metric["key"], metric["step"], metric["value"]) for metric in metrics]

    said, job = [], make_job(["true"])
    job = replace(job, description=replace(job.description, metrics_uri=str(tmp_path)))
    record(3, 2)
    with unavailable_server() as (address, requests):
        variables = {"MLFLOW_TRACKING_URI": address, "MLFLOW_RUN_ID": "r"}
        tracker = open_tracker(variables, lambda level, text: said.append(text))
        tracker.start(job)
        wait_until(lambda: len(sent()) == 2)
        epochs = record(3, 2, 1)
        wait_until(lambda: len(sent()) == 3)
        tracker.finish("FINISHED", epochs)
    assert sent() == [("training/loss", 1, 3.0), ("training/loss", 2, 2.0), ("training/loss", 3, 1.0)]
    (text,) = said
    assert text.startswith("The MLflow run gets the metrics later: ")


def test_a_request_with_content_that_mlflow_refuses_is_left_out(server):
    run_id, said = server.create_run(), []
    MlflowClient(read_connection(server.variables())).log_parameters(run_id, {"distribution.restart_limit": "7"})
    tracker = open_tracker(server.variables(MLFLOW_RUN_ID=run_id), lambda level, text: said.append(text))
    tracker.start(make_job(["true"]))
    tracker.finish("FINISHED", {"worker-0": [{"epoch": 1, "loss": 1}]})
    (text,) = said
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

    def export(**metadata):
        manifest = Artifact(str(tmp_path / "manifest"), str(tmp_path / "run-1" / "export-model" / "manifest"))
        return run_export_step(
            model=Artifact(str(model), str(model), metadata),
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
    set_variables({"MLFLOW_TRACKING_URI": "http://127.0.0.1:1"})
    assert export().version == 3
    assert capsys.readouterr().out.count("WARNING") == 1


def test_without_the_variable_no_client_is_imported():
    program = (
        "import os, sys\n"
        "from kfp_distributed.components.export_model import step\n"
        "from kfp_distributed.components.train import step\n"
        "from kfp_distributed.components.train.tracker import Tracker\n"
        "from kfp_distributed.components.train.tracking import open_tracker\n"
        "assert type(open_tracker(os.environ, print)) is Tracker\n"
        "print([name for name in sys.modules if 'mlflow' in name])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_credentials_reach_the_replicas_by_reference():
    """KFP 2.17 passes the variables that it sets in the step on to a component with a TaskConfig."""
    references = [
        {
            "name": f"MLFLOW_TRACKING_{name}",
            "valueFrom": {"secretKeyRef": {"name": "kfp-mlflow-credentials", "key": name.lower()}},
        }
        for name in ("USERNAME", "PASSWORD")
    ]
    given = [{"name": "MLFLOW_RUN_ID", "value": "0123"}, *references]
    settings = ClusterSettings("kubeflow", "image", task=read_task_settings({"env": given}))
    assert [entry for entry in replica_variables(make_job(["true"]), settings) if entry in given] == given


HOST = "https://mlflow.example.com"


@pytest.mark.parametrize(
    ("variables", "address", "headers"),
    [
        ({"MLFLOW_TRACKING_URI": f"{HOST}/prefix/"}, f"{HOST}/prefix", {}),
        ({"MLFLOW_TRACKING_URI": f"https://me:p%40ss@{HOST[8:]}"}, HOST, {"Authorization": "Basic bWU6cEBzcw=="}),
        (
            {
                "MLFLOW_TRACKING_URI": HOST,
                "MLFLOW_TRACKING_USERNAME": "me",
                "MLFLOW_TRACKING_PASSWORD": "p\u00fc",
                "MLFLOW_TRACKING_TOKEN": "unused",
            },
            HOST,
            {"Authorization": "Basic bWU6cMO8"},
        ),
        (
            {"MLFLOW_TRACKING_URI": HOST, "MLFLOW_TRACKING_TOKEN": "secret-token", "MLFLOW_WORKSPACE": "team"},
            HOST,
            {"Authorization": "Bearer secret-token", "X-MLFLOW-WORKSPACE": "team"},
        ),
        (
            {"MLFLOW_TRACKING_URI": HOST, "MLFLOW_TRACKING_AUTH": "kubernetes"},
            HOST,
            {"Authorization": "Bearer of the pod"},
        ),
        (
            {"MLFLOW_TRACKING_URI": HOST, "MLFLOW_TRACKING_AUTH": "kubernetes-namespaced"},
            HOST,
            {"Authorization": "Bearer of the pod", "X-MLFLOW-WORKSPACE": "kubeflow-user"},
        ),
    ],
)
def test_a_connection_is_read_from_the_variables_of_mlflow(tmp_path, monkeypatch, variables, address, headers):
    (tmp_path / "token").write_text("of the pod\n")
    (tmp_path / "namespace").write_text("kubeflow-user")
    monkeypatch.setattr(mlflow_client, "_SERVICE_ACCOUNT", tmp_path)
    connection = read_connection(variables)
    assert (connection.address, connection.headers()) == (address, headers)
    assert not any(secret in repr(connection) for secret in ("bWU6cEBzcw==", "bWU6cMO8", "secret-token"))


def test_only_new_epochs_are_logged():
    epochs = {
        "worker-0": [{"epoch": 1, "loss": 3, "note": 1}, {"epoch": 2.0, "loss": 2.5, "large": 10**400}],
        "evaluator-0": [{"epoch": 1, "loss": 4.0}],
    }
    assert list(new_metrics(epochs, {"training/loss": 1}, 7.0)) == [
        Metric("training/note", 1.0, 1, 7.0),
        Metric("training/loss", 2.5, 2, 7.0),
        Metric("evaluator/loss", 4.0, 1, 7.0),
    ]


def test_parameters_are_texts_without_those_that_are_not_set():
    distribution = {"distribution_type": "TF", "number_of_workers": 2, "number_of_parameter_servers": 1}
    job = make_job(["true"], distribution, program={"trainer": "keras_classifier", "image": "registry/image:1"})
    values = run_parameters(job)
    assert values["program.trainer"] == "keras_classifier"
    assert values["program.image"] == "registry/image:1"
    assert values["distribution.number_of_workers"] == "2"
    assert values["distribution.evaluator"] == "false"
    assert "distribution.worker_cpus" not in values


def test_keys_have_no_characters_that_mlflow_refuses():
    assert valid_key("training/top-5 (val): \u00e4" + "x" * 300) == ("training/top-5 _val__ \u00e4" + "x" * 300)[:250]


def test_the_page_about_mlflow_names_all_variables_and_tags():
    root = Path(__file__).parents[2]
    page = (root / "docs" / "how-to" / "mlflow.md").read_text()
    files = [*root.glob("components/mlflow_*.py"), *root.glob("components/*/*track*.py")]
    used = {name for file in files for name in re.findall(r'"(MLFLOW_\w+|kfp_distributed\.\w+)"', file.read_text())}
    assert {"MLFLOW_RUN_ID", "MLFLOW_WORKSPACE", "kfp_distributed.exported_uri"} < used
    assert [name for name in sorted({*used, *run_tags(make_job(["true"]))}) if f"`{name}`" not in page] == []
