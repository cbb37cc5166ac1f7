"""A replica whose object store is away."""

import contextlib
import json
import shutil
import socket
import threading
import time
from dataclasses import replace

import pytest
from faster_retries import FASTER, SPEED
from faulty_proxy import Fault, faulty_proxy

from kfp_distributed.components.train.run.runners.local.ports import free_ports
from kfp_distributed.storage import open_store
from kfp_distributed.storage.model import verify_model
from kfp_distributed.trainers import train_specification
from kfp_distributed.trainers.runtime.checkpoints.stored_checkpoints import complete_checkpoints
from kfp_distributed.trainers.runtime.job_description import STORE_FAILED, STORE_UNREACHED

pytestmark = pytest.mark.takes(38)


class Gate:
    """A port that forwards to a server while it is open, and refuses connections while it is closed."""

    def __init__(self, address):
        self._address, self._listener = address, None
        # Of the ports that outgoing connections do not use while the gate is closed.
        (self._port,) = free_ports(1)
        self._pairs = []

    def open(self):
        self._listener = socket.create_server(("127.0.0.1", self._port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()
        return f"http://127.0.0.1:{self._port}"

    def close(self):
        for connection in [self._listener, *self._pairs]:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._pairs = []

    def _accept(self, listener):
        with contextlib.suppress(OSError):
            while True:
                ends = [listener.accept()[0], socket.create_connection(self._address)]
                self._pairs += ends
                for source, target in (ends, ends[::-1]):
                    threading.Thread(target=self._forward, args=(source, target), daemon=True).start()

    def _forward(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


OUTAGE_SECONDS = 300


def train_two_epochs(model_dir, checkpoint_dir, metrics_dir):
    from pathlib import Path

    from kfp_distributed.trainers.sync import record_epoch

    for epoch in (1, 2):
        Path(checkpoint_dir, "state").write_text(str(epoch))
        record_epoch(Path(metrics_dir, "training.json"), "worker-0", epoch, 2, {"loss": 1 / epoch})
    Path(model_dir, "weights").write_text("2")


@pytest.fixture
def make_outage(make_replicas, digits, tmp_path, object_store):
    """Return a function that makes replicas whose store is away from the first request with each given text on."""
    (tmp_path / "faster").mkdir()
    (tmp_path / "faster" / "sitecustomize.py").write_text(FASTER)
    data = tmp_path / "objects" / "bucket" / "data"
    shutil.copytree(digits.folder, data)

    with faulty_proxy(object_store.endpoint) as proxy:

        def make(program, parameters, roles, *places):
            remaining = list(places)

            def begin():
                proxy.faults = [Fault("", times=10**9, reset=True)]
                threading.Timer(OUTAGE_SECONDS / SPEED, await_next).start()

            def await_next():
                proxy.faults = [Fault(remaining.pop(0), before=begin, reset=True)] if remaining else []

            await_next()
            environment = object_store.environment() | {
                "AWS_ENDPOINT_URL": proxy.url,
                "AWS_ENDPOINT_URL_S3": proxy.url,
                "PYTHONPATH": str(tmp_path / "faster"),
            }
            replicas = make_replicas(program, parameters, roles, digits, "s3://bucket/run", environment)
            uris = {f"{split}_uri": f"s3://bucket/data/{split}" for split in ("train", "validation")}
            replicas.job = replace(replicas.job, **uris)
            replicas.start_all()
            return replicas

        yield make
    assert proxy.faults == []


@pytest.mark.parametrize(
    "places",
    [
        (
            "GET /bucket/data/train/part",
            "HEAD /bucket/run/metrics",
            "prefix=run%2Fcheckpoints",
            "PUT /bucket/run/model/weights",
        ),
        ("PUT /bucket/run/metrics/training.json", "PUT /bucket/run/checkpoints/0000000"),
    ],
    ids=["start and end", "epochs"],
)
def test_outages_of_five_minutes_end_no_training(make_outage, object_store, places):
    replicas = make_outage(train_specification(train_two_epochs), {}, {"worker": 1}, *places)
    assert replicas.wait("worker-0") == 0, replicas.text("worker-0")
    credentials = object_store.credentials()
    assert verify_model(open_store(replicas.job.model_uri, credentials)).metrics == {"loss": 0.5}
    (newest, *_) = complete_checkpoints(open_store(replicas.job.checkpoint_uri, credentials))
    assert open_store(replicas.job.checkpoint_uri, credentials).read(f"{newest}/state") == b"2"
    metrics = json.loads(open_store(replicas.job.metrics_uri, credentials).read("training.json"))
    assert [epoch["epoch"] for epoch in metrics["epochs"]] == [1, 2]


def test_two_outages_of_five_minutes_end_no_evaluator(make_outage, object_store):
    places = "GET /bucket/run/checkpoints/0", "PUT /bucket/run/metrics/evaluator.json"
    replicas = make_outage({"trainer": "keras_classifier"}, {"epochs": 1}, {"worker": 1, "evaluator": 1}, *places)
    assert [replicas.wait(name) for name in replicas.names()] == [0, 0], replicas.text("evaluator-0")
    metrics = json.loads(open_store(replicas.job.metrics_uri, object_store.credentials()).read("evaluator.json"))
    assert [epoch["epoch"] for epoch in metrics["epochs"]] == [1]


def test_a_replica_whose_store_never_answers_is_restarted(make_replicas, digits, tmp_path):
    """The exit code is one of those after which a replica is restarted."""
    (tmp_path / "faster").mkdir()
    (tmp_path / "faster" / "sitecustomize.py").write_text(FASTER.replace(f"/ {SPEED}", "/ 9999"))
    (port,) = free_ports(1)
    environment = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "PYTHONPATH": str(tmp_path / "faster"),
    }
    specification = train_specification(train_two_epochs)
    replicas = make_replicas(specification, {}, {"worker": 1}, digits, "s3://bucket/run", environment)
    replicas.start_all()
    assert replicas.wait("worker-0") == STORE_UNREACHED


def test_a_request_that_the_store_refuses_is_no_outage(make_replicas, digits, object_store):
    """The restarts after code 140 have no limit."""
    with faulty_proxy(object_store.endpoint) as proxy:
        proxy.faults = [Fault("", times=10**9, status=403)]
        environment = {
            **object_store.environment(),
            "AWS_ENDPOINT_URL": proxy.url,
            "AWS_ENDPOINT_URL_S3": proxy.url,
        }
        specification = train_specification(train_two_epochs)
        replicas = make_replicas(specification, {}, {"worker": 1}, digits, "s3://bucket/run", environment)
        uris = {f"{split}_uri": f"s3://bucket/data/{split}" for split in ("train", "validation")}
        replicas.job = replace(replicas.job, **uris)
        replicas.start_all()
        assert replicas.wait("worker-0") == STORE_FAILED, replicas.text("worker-0")


def read_another_store(model_dir):
    from kfp_distributed.storage import open_store

    print("begins", flush=True)
    open_store("s3://elsewhere", retry_seconds=0).read("rows")


def test_a_store_of_the_program_that_does_not_answer_is_no_outage(make_replicas, digits):
    """The replicas would restart without a limit."""
    environment = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    specification = train_specification(read_another_store)
    replicas = make_replicas(specification, {}, {"worker": 1}, digits, environment=environment)
    replicas.start_all()
    assert replicas.wait("worker-0") == STORE_FAILED, replicas.text("worker-0")
    assert "begins" in replicas.text("worker-0")


def wait_to_end(model_dir, go: str):
    import time
    from pathlib import Path

    Path(model_dir, "weights").write_text("x" * 100_000)
    print("trained", flush=True)
    while not Path(go).exists():
        time.sleep(0.05)


def test_the_model_is_saved_when_the_object_store_is_back(make_replicas, digits, tmp_path, object_store):
    host, port = object_store.endpoint.removeprefix("http://").split(":")
    gate = Gate((host, int(port)))
    endpoint = gate.open()
    environment = object_store.environment() | {"AWS_ENDPOINT_URL": endpoint, "AWS_ENDPOINT_URL_S3": endpoint}
    parameters = {"go": str(tmp_path / "go")}
    replicas = make_replicas(
        train_specification(wait_to_end), parameters, {"worker": 1}, digits, "s3://bucket/run", environment
    )
    data = tmp_path / "data"
    shutil.copytree(digits.folder / "train", data)
    replicas.job = replace(replicas.job, train_uri=str(data))
    replicas.start_all()
    replicas.wait_for("worker-0", "trained")
    gate.close()
    shutil.rmtree(data)  # It may lie in the same store.
    (tmp_path / "go").touch()
    time.sleep(3)  # Time for the leader to try, which fails at once.
    assert replicas.running["worker-0"].poll() is None
    gate.open()
    assert replicas.wait("worker-0") == 0, replicas.text("worker-0")
    gate.close()
    assert verify_model(open_store(replicas.job.model_uri, object_store.credentials())).files[0].size == 100_000
    assert object_store.secret_key not in replicas.text("worker-0")
