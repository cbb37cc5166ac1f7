import os
import time
import uuid
from pathlib import Path

import pytest
from kfp import dsl

from kfp_distributed.components.export_model.export import run_export
from kfp_distributed.components.model_versions import claims
from kfp_distributed.storage.files import describe_folder
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest
from kfp_distributed.storage.object_stores.embedded import embedded_object_store
from kfp_distributed.storage.opener import open_store


@pytest.fixture(scope="session")
def server(request, tmp_path_factory):
    """A real S3 server. Each test uses its own bucket. `on_each_store` parametrizes it."""
    serve = getattr(request, "param", embedded_object_store)
    with serve(tmp_path_factory.mktemp("object-store")) as store:
        yield store


@pytest.fixture
def bucket(server, monkeypatch):
    """Name of an empty bucket. The environment has the address of a real S3 server."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    name = f"bucket-{uuid.uuid4().hex}"
    open_store(f"s3://{name}").make_bucket()
    return name


class Clock:
    """Clock of claims. Only a test moves it."""

    def __init__(self):
        self.now = float(int(time.time()))

    def time(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """Replace the clock of claims, so that hours can pass at once."""
    clock = Clock()
    monkeypatch.setattr(claims, "time", clock)
    return clock


@pytest.fixture
def make_model(tmp_path):
    """Return a function that makes a folder like a SavedModel, with its model.json, and returns the path."""

    def make(name="model", assets=3, content=b"graph"):
        folder = tmp_path / name
        (folder / "variables").mkdir(parents=True)
        (folder / "assets").mkdir()
        (folder / "saved_model.pb").write_bytes(content)
        (folder / "variables" / "variables.index").write_bytes(b"index")
        (folder / "variables" / "variables.data-00000-of-00001").write_bytes(os.urandom(100_000))
        for number in range(assets):
            (folder / "assets" / f"words{number:03}.txt").write_text(str(number))
        manifest = ModelManifest(files=describe_folder(folder), metrics={"val_accuracy": 0.9}, job="job")
        (folder / MODEL_MANIFEST).write_text(manifest.to_json())
        return folder

    return make


@pytest.fixture
def export(tmp_path):
    """Return a function that exports a folder as a version of the model "digits"."""

    def run(folder, bucket, version=0, uri="", metrics=None, run_id="run-1", name="digits", **options):
        manifest = dsl.Artifact(uri=str(tmp_path / run_id / "export-model" / "manifest"))
        Path(manifest.path).parent.mkdir(parents=True, exist_ok=True)
        return run_export(str(folder), uri or str(folder), name, bucket, version, metrics or {}, manifest, **options)

    return run


@pytest.fixture
def contents():
    """Return a function that reads all objects of a bucket: bytes by key."""

    def read(bucket):
        store = open_store(bucket if "/" in bucket else f"s3://{bucket}")
        return {entry.key: store.read(entry.key) for entry in store.list()}

    return read
