"""The upload and the location of a failed training's report."""

import re
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import pytest
from step_lines import brief_lines, into
from train.programs.jobs import make_job

from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.components.train.run import launch
from kfp_distributed.components.train.run.conclusions.status import begin
from kfp_distributed.components.train.run.facts import ReplicaChanged
from kfp_distributed.components.train.run.launch import follow_job, training_failure
from kfp_distributed.components.train.run.training_request.request import Request, plan_job
from kfp_distributed.components.train.step import run_step
from kfp_distributed.components.train.tell import failed_report
from kfp_distributed.components.train.tell.failed_report import describe_location, store_report
from kfp_distributed.storage import Credentials, embedded_object_store, open_store

pytestmark = pytest.mark.takes(4)

RUN = "v2/artifacts/digits/4f5b0b1c-5a1c-4a6e-9d4c-6c0f2f7f3a11/train/11111111-aaaa-4bbb-8ccc-dddddddddddd"
CAUSE = r"\n\[worker-0\] ZeroDivisionError: division by zero\nworker-0 failed with exit code 1, .*\n"


@dataclass
class Artifact:
    path: str
    uri: str


def failed_step(data, folder):
    """Return the last log lines of a step whose program fails and whose report is uploaded to an object store."""
    with pytest.raises(SystemExit) as end:
        run_step(
            train_dataset=Artifact(data, "minio://mlpipeline/data"),
            validation_dataset=None,
            model=Artifact(str(folder / "model"), f"minio://mlpipeline/{RUN}/model"),
            metrics=None,
            report=Artifact(str(folder / "report"), f"minio://mlpipeline/{RUN}/report"),
            runner="local",
            train_specification={"function": "fit", "source": "def fit(model_dir):\n    1 / 0\n"},
        )
    return "\n".join(brief_lines(end.value.code))


def point_to(monkeypatch, endpoint, access_key="key", secret_key="secret"):
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret_key)


def test_a_failed_step_stores_its_report_and_logs_its_location(data, tmp_path, monkeypatch):
    (tmp_path / "objects" / "mlpipeline").mkdir(parents=True)
    with embedded_object_store(tmp_path / "objects") as server:
        point_to(monkeypatch, server.endpoint, server.access_key, server.secret_key)
        text = failed_step(data, tmp_path)
        stored = open_store(f"s3://mlpipeline/{RUN}").read("report").decode()
    cause, _, location = text.partition("\nReport: ")
    assert re.search(CAUSE, cause + "\n")
    assert location == (
        f"minio://mlpipeline/{RUN}/report\n"
        f"  in a browser: ADDRESS_OF_THE_KFP_UI/artifacts/minio/mlpipeline/{RUN}/report?namespace=kubeflow\n"
        f"  as a file: aws s3 cp s3://mlpipeline/{RUN}/report report.html --endpoint-url {server.endpoint}"
    )
    assert stored == (tmp_path / "report").read_text()
    assert "ZeroDivisionError" in stored
    # The lines of the replica are above in the log. The report has no other place for the failing line.
    assert "line 2, in fit" in stored
    assert "line 2, in fit" not in text


def test_a_bucket_that_is_missing_does_not_hide_the_cause(data, tmp_path, monkeypatch):
    with embedded_object_store(tmp_path / "objects") as server:
        point_to(monkeypatch, server.endpoint, server.access_key, server.secret_key)
        text = failed_step(data, tmp_path)
    assert re.search(CAUSE, text)
    assert re.search(r"\nReport not stored: .*NoSuchBucket", text)


@contextmanager
def serving(answer):
    """Run an HTTP server that calls `answer` with the handler of each PUT and GET; yield its URL."""
    handler = type("Handler", (BaseHTTPRequestHandler,), {"do_PUT": answer, "do_GET": answer, "log_message": print})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    # Do not wait for the requests that are never answered.
    server.socket.close()


def never_answer(request):
    """Keep a request waiting for longer than the tests take."""
    Event().wait(600)


def test_a_stored_report_is_an_html_page_to_a_browser(monkeypatch):
    requests = []

    def store(request):
        body = request.rfile.read(int(request.headers["Content-Length"]))
        requests.append((request.path, request.headers["Content-Type"], body))
        request.send_response(200)
        request.send_header("ETag", '"0"')
        request.send_header("Content-Length", "0")
        request.end_headers()

    with serving(store) as endpoint:
        point_to(monkeypatch, endpoint)
        store_report("minio://mlpipeline/run/report", "<p>ü")
    assert requests == [("/mlpipeline/run/report", "text/html; charset=utf-8", "<p>ü".encode())]


def test_a_store_that_does_not_answer_delays_the_cause_by_seconds(data, tmp_path, monkeypatch):
    with serving(never_answer) as endpoint:
        point_to(monkeypatch, endpoint)
        monkeypatch.setattr(failed_report, "UPLOAD_SECONDS", 1.0)
        # A local training keeps its model on the disk. Only the report is uploaded.
        text = failed_step(data, tmp_path)
        # Without the limit, the text is the error after all retries of the store.
        assert "took longer than 1 s" in store_report(f"s3://mlpipeline/{RUN}/report", "<p>")
    assert re.search(CAUSE, text)
    last = text.splitlines()[-1]
    assert "not stored" in last
    assert f"minio://mlpipeline/{RUN}/report" in last
    assert "took longer than 1 s" in last


def test_metrics_that_cannot_be_read_do_not_delay_a_failure(data, tmp_path, monkeypatch):
    request = Request(
        train_uri=data,
        model_uri=str(tmp_path / "model"),
        train_specification={"command": ["false"]},
        identity=("run", "train"),
    )
    description = replace(plan_job(request).description, metrics_uri="s3://mlpipeline/metrics")
    status = begin(make_job(["unused"]), 0)
    monkeypatch.setattr(launch, "METRICS_SECONDS", 0.5)
    with serving(never_answer) as endpoint:
        point_to(monkeypatch, endpoint)
        begun = time.monotonic()
        error = training_failure("worker-0 failed.", status, description)
        seconds = time.monotonic() - begun
    assert (str(error), error.status, error.metrics) == ("worker-0 failed.", status, {})
    # Without the limit, the store's retries alone take half a minute.
    assert seconds < 20


def test_the_address_of_a_report_is_quoted_for_a_browser_and_for_a_shell():
    credentials = Credentials("s3.example.com", "key", "secret")
    store = open_store("s3://models/team a/report?endpoint=s3.example.com", credentials)
    assert describe_location(store, "team-a") == (
        "Report: s3://models/team a/report\n"
        "  in a browser: ADDRESS_OF_THE_KFP_UI/artifacts/s3/models/team%20a/report?namespace=team-a\n"
        "    (since KFP 2.17, the UI of a multi-user installation answers 403: not below private-artifacts/team-a/)\n"
        "  as a file: aws s3 cp 's3://models/team a/report' report.html --endpoint-url https://s3.example.com"
    )


@pytest.mark.parametrize(
    ("namespace", "key", "is_refused"),
    [
        ("team-a", "private-artifacts/team-a/v2/artifacts/report", False),
        ("team-a", "private-artifacts/team-ab/v2/artifacts/report", True),
        ("team-a", "v2/artifacts/report", True),
        ("kubeflow", "v2/artifacts/report", False),  # An installation for one user.
    ],
)
def test_an_address_that_a_multi_user_ui_refuses_is_marked(namespace, key, is_refused):
    store = open_store(f"minio://mlpipeline/{key}", Credentials("s3.example.com", "key", "secret"))
    assert ("answers 403" in describe_location(store, namespace)) == is_refused


class Refused:
    """A runner whose cluster refuses a request while the job runs."""

    def facts(self):
        yield ReplicaChanged(1, "worker-0", "running")
        raise ClusterError(403, "tfjobs.kubeflow.org is forbidden")


def test_a_cluster_that_refuses_a_running_job_fails_it_with_a_status():
    lines = []
    status = follow_job(Refused(), make_job(["unused"]), into(lines))
    assert (status.ended.succeeded, status.ended.reason) == (False, "tfjobs.kubeflow.org is forbidden.")
    assert lines[1:] == ["worker-0: running", "the job failed: tfjobs.kubeflow.org is forbidden."]
