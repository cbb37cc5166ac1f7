"""Experiment tracking without a real MLflow server: outages, wrong answers, and the content of the requests."""

import json
import math
import re
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from train.programs.jobs import make_job, wait_until

from kfp_distributed.components.export_model import bounded_delay
from kfp_distributed.components.export_model.mlflow_version import record_in_mlflow
from kfp_distributed.components.export_model.version_record import VersionRecord
from kfp_distributed.components.external_services.mlflow_client import Metric
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings, read_task_settings
from kfp_distributed.components.train.describe.manifests.pod import environment as replica_variables
from kfp_distributed.components.train.tell import mlflow_tracker
from kfp_distributed.components.train.tell.choose_tracker import choose_tracker
from kfp_distributed.components.train.tell.mlflow_tracker import new_metrics, run_parameters, run_tags

pytestmark = pytest.mark.takes(18)


@pytest.fixture(autouse=True)
def _frequent_looks(monkeypatch):
    monkeypatch.setattr(mlflow_tracker, "LOOK_SECONDS", 0.1)


RUN = {"run": {"info": {"run_id": "r", "artifact_uri": "s3://bucket/1"}, "data": {}}}


class _Handler(BaseHTTPRequestHandler):
    """Records the requests of a client, and answers with what `reply` returns for their paths and bodies."""

    requests: list
    reply: staticmethod

    def do_GET(self):
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path, body = self.path.removeprefix("/api/2.0/mlflow/"), json.loads(data or "{}")
        self.requests.append((path, body, self.headers))
        status, answer = self.reply(path, body)
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", answer.decode())
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_GET

    def log_message(self, *arguments):
        pass


@contextmanager
def stub_server(reply):
    """A server that answers with the status and the text that `reply` returns. Yields its address and the requests.

    The text of a redirect is its target.
    """
    handler = type("Handler", (_Handler,), {"requests": [], "reply": staticmethod(reply)})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as stub:
        threading.Thread(target=stub.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{stub.server_port}", handler.requests
        finally:
            stub.shutdown()


def unavailable_server():
    """A server with a short outage: it answers 503 to the first three requests, and then as MLflow does."""
    outage = iter([503] * 3)
    return stub_server(lambda path, body: (next(outage, 200), json.dumps(RUN).encode()))


@contextmanager
def trickling_server():
    """A server whose answer never ends: it sends a byte every 0.05 s. Yields its address."""
    closed = threading.Event()

    def answer():
        with listener.accept()[0] as connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            while not closed.wait(0.05):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield "http://127.0.0.1:{1}".format(*listener.getsockname())
        finally:
            closed.set()
            thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>Log in</html>",
        b"[]",
        b"null",
        b"{}",
        b'{"run": "r"}',
        b'{"run": {"info": {"run_id": "r"}, "data": {"metrics": [1]}}}',
        b"[" * 100_000,
    ],
)
def test_a_wrong_answer_ends_the_tracking_with_one_warning(answer):
    messages = []
    with stub_server(lambda path, body: (200, answer)) as (address, requests):
        tracker = choose_tracker(
            {"MLFLOW_TRACKING_URI": address, "MLFLOW_RUN_ID": "r"}, lambda *line: messages.append(line)
        )
        tracker.start(make_job(["true"]))
        wait_until(lambda: messages)
        tracker.finish("FINISHED", {"worker-0": [{"epoch": 1, "loss": 1}]})
    assert messages == [("WARNING", f"The MLflow run is not complete: {address} does not answer as MLflow does")]
    assert len(requests) == 1


def test_a_redirect_is_not_followed_and_ends_the_tracking_with_one_warning():
    """It could lead the metrics to another host, or to a page for login that answers 200 to everything."""
    messages = []
    with (
        stub_server(lambda path, body: (200, json.dumps(RUN).encode())) as (other, received),
        stub_server(lambda path, body: (307, f"{other}/{path}".encode())) as (address, requests),
    ):
        variables = {"MLFLOW_TRACKING_URI": address, "MLFLOW_RUN_ID": "r", "MLFLOW_TRACKING_TOKEN": "secret"}
        tracker = choose_tracker(variables, lambda level, text: messages.append(text))
        tracker.start(make_job(["true"]))
        wait_until(lambda: messages)
        tracker.finish("FINISHED", {"worker-0": [{"epoch": 1, "loss": 1}]})
    (text,) = messages
    assert text.startswith(f"The MLflow run is not complete: {address} answers 307 ")
    assert (len(requests), received) == (1, [])


def test_an_answer_that_trickles_delays_a_step_by_a_bounded_time(monkeypatch, capsys):
    monkeypatch.setattr(mlflow_tracker, "END_SECONDS", 0.3)
    monkeypatch.setattr(bounded_delay, "DELAY_SECONDS", 0.3)
    messages, begin = [], time.monotonic()
    with trickling_server() as address:
        variables = {"MLFLOW_TRACKING_URI": address, "MLFLOW_RUN_ID": "r"}
        tracker = choose_tracker(variables, lambda level, text: messages.append(text))
        tracker.start(make_job(["true"]))
        tracker.finish("FINISHED", {})
    with trickling_server() as address:
        record = VersionRecord("digits", 1, "s3://models/digits/1", "onnx", "run-1", {}, ())
        record_in_mlflow({"MLFLOW_TRACKING_URI": address}, "r", record)
    # Without a limit, each of the two waits for an answer that never ends.
    assert time.monotonic() - begin < 120
    assert messages == ["The MLflow run is not complete: no answer within 0.3 s"]
    assert "MLflow has no complete record of s3://models/digits/1: no answer within 0.3 s" in capsys.readouterr().out


def test_an_unexpected_error_is_named_without_its_message():
    """A message may have a password. `no answer` would send its reader to the server."""

    def fail():
        raise RuntimeError("Invalid header value b'Bearer secret'")

    text = bounded_delay.run_bounded(fail)
    assert re.fullmatch(rf"unexpected RuntimeError in fail \({re.escape(__file__)}, line \d+\)", text)


def test_nothing_is_logged_after_the_tracker_has_given_up(monkeypatch):
    """A daemon thread that prints while the interpreter ends may abort the process."""
    monkeypatch.setattr(mlflow_tracker, "END_SECONDS", 0.1)
    messages, answers = [], threading.Event()

    def reply(path, body):
        answers.wait(120)
        return 500, b"Internal Server Error"

    with stub_server(reply) as (address, requests):
        tracker = choose_tracker(
            {"MLFLOW_TRACKING_URI": address, "MLFLOW_RUN_ID": "r"}, lambda level, text: messages.append(text)
        )
        tracker.start(make_job(["true"]))
        wait_until(lambda: requests)
        tracker.finish("FINISHED", {})
        answers.set()
        wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name == "mlflow"])
    assert messages == ["The MLflow run is not complete: no answer within 0.1 s"]


@pytest.mark.parametrize("status", [400, 413, 422])
def test_each_kind_of_refused_request_is_logged_once(tmp_path, status):
    """For example the metrics of a run that was deleted, or a request that is too large for a proxy."""

    def reply(path, body):
        return (status, b"<html>Refused</html>") if "metrics" in body else (200, json.dumps(RUN).encode())

    messages, job = [], make_job(["true"])
    job = replace(job, description=replace(job.description, metrics_uri=str(tmp_path)))
    with stub_server(reply) as (address, requests):
        tracker = choose_tracker(
            {"MLFLOW_TRACKING_URI": address, "MLFLOW_RUN_ID": "r"}, lambda level, text: messages.append(text)
        )
        tracker.start(job)
        for losses in ((3,), (3, 2), (3, 2, 1)):
            epochs = record(tmp_path, *losses)
            wait_until(lambda: sum("metrics" in body for _, body, _ in requests) == len(losses))  # noqa: B023
        tracker.finish("FINISHED", epochs)
    (text,) = messages
    assert text.startswith("MLflow refused metrics: ")


def record(folder, *losses):
    """Write training.json as a leader does, and return its epochs by replica."""
    epochs = [{"epoch": number, "loss": loss} for number, loss in enumerate(losses, 1)]
    file = folder / "new.json"
    file.write_text(json.dumps({"replica": "worker-0", "epochs": epochs}))
    file.rename(folder / "training.json")
    return {"worker-0": epochs}


def test_a_server_that_is_overloaded_gets_everything_once_it_answers():
    messages = []
    with unavailable_server() as (address, requests):
        variables = {
            "MLFLOW_TRACKING_URI": f"{address}/",
            "MLFLOW_RUN_ID": "r",
            "MLFLOW_WORKSPACE": "team",
            "MLFLOW_TRACKING_TOKEN": "secret",
        }
        tracker = choose_tracker(variables, lambda level, text: messages.append(text))
        tracker.start(make_job(["true"]))
        wait_until(lambda: messages)  # No line tells of an outage that begins after the end.
        tracker.finish("FINISHED", {"worker-0": [{"epoch": 1, "loss": 1}]}, "<h1>report</h1>", "s3://b/report")
    assert len(messages) == 1
    assert "503" in messages[0]
    assert "secret" not in messages[0]
    assert [path for path, _, _ in requests[:3]] == ["runs/get?run_id=r"] * 3
    assert {(headers["X-MLFLOW-WORKSPACE"], headers["Authorization"]) for _, _, headers in requests} == {
        ("team", "Bearer secret")
    }
    # The clients of this server write artifacts to S3 themselves, so the report is a tag alone.
    sent = [key for _, body, _ in requests for key in body if key != "run_id"]
    assert sent == ["tags", "params", "metrics", "tags"]


def test_a_server_that_answers_again_gets_the_epochs_that_it_missed(tmp_path):
    def sent():
        metrics = [metric for _, body, _ in requests for metric in body.get("metrics", [])]
        return [(metric["key"], metric["step"], metric["value"]) for metric in metrics]

    messages, job = [], make_job(["true"])
    job = replace(job, description=replace(job.description, metrics_uri=str(tmp_path)))
    record(tmp_path, 3, 2)
    with unavailable_server() as (address, requests):
        variables = {"MLFLOW_TRACKING_URI": address, "MLFLOW_RUN_ID": "r"}
        tracker = choose_tracker(variables, lambda level, text: messages.append(text))
        tracker.start(job)
        wait_until(lambda: len(sent()) == 2)
        epochs = record(tmp_path, 3, 2, 1)
        wait_until(lambda: len(sent()) == 3)
        tracker.finish("FINISHED", epochs)
    assert sent() == [("training/loss", 1, 3.0), ("training/loss", 2, 2.0), ("training/loss", 3, 1.0)]
    (text,) = messages
    assert text.startswith("The MLflow run gets the metrics later: ")


def test_without_the_variable_no_client_is_imported():
    program = (
        "import os, sys\n"
        "from kfp_distributed.components.export_model import step\n"
        "from kfp_distributed.components.train import step\n"
        "from kfp_distributed.components.train.tell.experiment_tracker import ExperimentTracker\n"
        "from kfp_distributed.components.train.tell.choose_tracker import choose_tracker\n"
        "assert type(choose_tracker(os.environ, print)) is ExperimentTracker\n"
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
    entries = [{"name": "MLFLOW_RUN_ID", "value": "0123"}, *references]
    settings = ClusterSettings("kubeflow", "image", task=read_task_settings({"env": entries}))
    assert [entry for entry in replica_variables(make_job(["true"]), settings) if entry in entries] == entries


def test_only_new_epochs_are_logged():
    epochs = {
        "worker-0": [{"epoch": 1, "loss": 3, "note": 1}, {"epoch": 2.0, "loss": 2.5, "large": 10**400}],
        "evaluator-0": [{"epoch": 1, "loss": math.inf}],
    }
    assert list(new_metrics(epochs, {"training/loss": 1}, 7.0)) == [
        Metric("training/note", 1.0, 1, 7.0),
        Metric("training/loss", 2.5, 2, 7.0),
        Metric("evaluator/loss", math.inf, 1, 7.0),
    ]


def test_steps_are_logged_beside_epochs_of_the_same_name():
    stored = {"worker-0": [{"epoch": 1.0, "loss": 0.5}, {"step": 10.0, "loss": 0.75}, {"step": 20.0, "loss": 0.25}]}
    assert list(new_metrics(stored, {"training_steps/loss": 10}, 7.0)) == [
        Metric("training/loss", 0.5, 1, 7.0),
        Metric("training_steps/loss", 0.25, 20, 7.0),
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


def test_the_page_about_mlflow_names_all_variables_and_tags():
    root = Path(__file__).parents[2]
    page = (root / "docs" / "how-to" / "mlflow.md").read_text()
    files = [*root.glob("components/**/mlflow_*.py"), *root.glob("components/**/choose_tracker.py")]
    used = {name for file in files for name in re.findall(r'"(MLFLOW_\w+|kfp_distributed\.\w+)"', file.read_text())}
    assert {"MLFLOW_RUN_ID", "MLFLOW_WORKSPACE", "kfp_distributed.exported_uri"} < used
    assert [name for name in sorted({*used, *run_tags(make_job(["true"]))}) if f"`{name}`" not in page] == []
