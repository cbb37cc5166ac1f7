"""Where a person finds the report of a training that failed: KFP's launcher uploads nothing of a failed step."""

import re
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from train.programs.jobs import make_job

from kfp_distributed.components.train.failed_report import UPLOAD_SECONDS, describe_location, store_report
from kfp_distributed.components.train.launch import _follow
from kfp_distributed.components.train.runners.protocol import ClusterError, ReplicaChanged
from kfp_distributed.components.train.step import run_step
from kfp_distributed.storage import Credentials, embedded_object_store, open_store

RUN = "v2/artifacts/digits/run-7/train/0c5f"
CAUSE = r"\n\[worker-0\] ZeroDivisionError: division by zero\nworker-0 failed with exit code 1, .*\n"


@dataclass
class Artifact:
    path: str
    uri: str


def failed_step(data, folder):
    """The last lines of a step whose program fails; its report goes to an object store."""
    with pytest.raises(SystemExit) as end:
        run_step(
            train_dataset=Artifact(data, "minio://mlpipeline/data"),
            validation_dataset=None,
            model=Artifact(str(folder / "model"), f"minio://mlpipeline/{RUN}/model"),
            metrics=None,
            report=Artifact(str(folder / "report"), f"minio://mlpipeline/{RUN}/report"),
            runner="local",
            run_id="run-7",
            train_specification={"function": "fit", "source": "def fit(model_dir):\n    1 / 0\n"},
        )
    return end.value.code


def point_to(monkeypatch, endpoint, access_key="key", secret_key="secret"):
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret_key)


def test_a_failed_step_stores_its_report_and_says_where(data, tmp_path, monkeypatch):
    (tmp_path / "objects" / "mlpipeline").mkdir(parents=True)
    with embedded_object_store(tmp_path / "objects") as server:
        point_to(monkeypatch, server.endpoint, server.access_key, server.secret_key)
        text = failed_step(data, tmp_path)
        stored = open_store(f"s3://mlpipeline/{RUN}").read("report").decode()
    cause, _, location = text.partition("\n\n")
    assert re.search(CAUSE, cause + "\n")
    assert location == (
        f"Report: minio://mlpipeline/{RUN}/report\n"
        f"  in a browser: ADDRESS_OF_THE_KFP_UI/artifacts/minio/mlpipeline/{RUN}/report?namespace=kubeflow\n"
        f"  as a file: aws s3 cp s3://mlpipeline/{RUN}/report report.html --endpoint-url {server.endpoint}"
    )
    assert stored == (tmp_path / "report").read_text()
    assert "ZeroDivisionError" in stored


def test_a_bucket_that_is_missing_does_not_hide_the_cause(data, tmp_path, monkeypatch):
    with embedded_object_store(tmp_path / "objects") as server:
        point_to(monkeypatch, server.endpoint, server.access_key, server.secret_key)
        text = failed_step(data, tmp_path)
    assert re.search(CAUSE, text)
    assert re.search(r"\nReport not stored: .*no such bucket", text)


class Silent(BaseHTTPRequestHandler):
    """Takes each connection and never answers."""

    def do_PUT(self):
        time.sleep(60)

    do_GET = do_HEAD = do_PUT


def test_a_store_that_does_not_answer_delays_the_cause_by_seconds(data, tmp_path, monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Silent)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    point_to(monkeypatch, f"http://127.0.0.1:{server.server_port}")
    # A local training keeps its model on the disk, so only the report goes to the store.
    text = failed_step(data, tmp_path)
    assert re.search(CAUSE, text)
    assert text.endswith(f"\nReport not stored: minio://mlpipeline/{RUN}/report was not written within 5 s.")
    begun = time.monotonic()
    store_report(f"s3://mlpipeline/{RUN}/report", "<p>")
    assert time.monotonic() - begun < UPLOAD_SECONDS + 2
    server.shutdown()
    server.server_close()


def test_the_address_of_a_report_is_quoted_for_a_browser_and_for_a_shell():
    credentials = Credentials("s3.example.com", "key", "secret")
    store = open_store("s3://models/team a/report?endpoint=s3.example.com", credentials)
    assert describe_location(store, "team-a") == (
        "Report: s3://models/team a/report\n"
        "  in a browser: ADDRESS_OF_THE_KFP_UI/artifacts/s3/models/team%20a/report?namespace=team-a\n"
        "  as a file: aws s3 cp 's3://models/team a/report' report.html --endpoint-url https://s3.example.com"
    )


class Refused:
    """A runner whose cluster refuses a request while the job runs."""

    def facts(self):
        yield ReplicaChanged(1, "worker-0", "running")
        raise ClusterError(403, "tfjobs.kubeflow.org is forbidden")


def test_a_cluster_that_refuses_a_running_job_fails_it_with_a_status():
    lines = []
    status = _follow(Refused(), make_job(["unused"]), lines.append)
    assert (status.ended.succeeded, status.ended.reason) == (False, "tfjobs.kubeflow.org is forbidden.")
    assert lines == ["worker-0: running", "the job failed: tfjobs.kubeflow.org is forbidden."]
