"""A replica whose object store is away."""

import contextlib
import shutil
import socket
import threading
import time
from dataclasses import replace

import pytest

from kfp_distributed.components.train.runners.local.ports import free_ports
from kfp_distributed.storage import open_store
from kfp_distributed.storage.model import verify_model
from kfp_distributed.trainers import train_specification

pytestmark = pytest.mark.takes(8)


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
    time.sleep(3)  # By now the leader has tried.
    assert replicas.running["worker-0"].poll() is None
    gate.open()
    assert replicas.wait("worker-0") == 0, replicas.text("worker-0")
    gate.close()
    assert verify_model(open_store(replicas.job.model_uri, object_store.credentials())).files[0].size == 100_000
    assert object_store.secret_key not in replicas.text("worker-0")
