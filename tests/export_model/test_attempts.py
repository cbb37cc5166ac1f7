"""Attempts of one task: Kubeflow Pipelines and Argo start the step again, also after it has exported."""

import json
from pathlib import Path

import pytest
from faulty_proxy import faulty_proxy

from kfp_distributed.components.export_model.export import run_export
from kfp_distributed.components.kfp_interface.artifacts import Artifact
from kfp_distributed.components.model_versions.aliases import read_aliases
from kfp_distributed.components.model_versions.claims import LEASE_SECONDS, Claim, task_key
from kfp_distributed.components.model_versions.deletion import delete_version
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.opener import open_store

pytestmark = pytest.mark.takes(5)

RUN = "4f5b0b1c-5a1c-4a6e-9d4c-6c0f2f7f3a11"
TASK = f"minio://mlpipeline/v2/artifacts/digits/{RUN}/export-model/11111111-aaaa-4bbb-8ccc-dddddddddddd"
OTHER_TASK = TASK.replace("11111111", "22222222")
# On a busy machine, `rclone serve s3` lists a folder whose objects were deleted for another second.
FIRST = (1, 2)
OLD_FORM = TASK.rpartition("/")[0]


class Manifest:
    """Output artifact whose address is that of a pipeline root and whose file is local."""

    def __init__(self, task, path):
        self.uri, self.path, self.metadata = f"{task}/manifest", str(path), {}


@pytest.fixture
def attempt(bucket, tmp_path):
    """Return a function that exports a folder as an attempt of a task, and returns the version and the manifest."""

    def run(folder, task=TASK, name="digits", version=0, **options):
        manifest: Artifact = Manifest(task, tmp_path / "manifest")
        exported = run_export(str(folder), str(folder), name, bucket, version, {}, manifest, **options)
        return exported, Path(manifest.path).read_text()

    return run


@pytest.mark.parametrize("version", [0, 5])
def test_a_second_attempt_exports_nothing_and_returns_the_version(attempt, make_model, bucket, contents, version):
    model = make_model()
    first = attempt(model, version=version)
    assert json.loads(first[1])["source_task"] == TASK
    before = contents(bucket)
    assert attempt(model, version=version) == first
    assert contents(bucket) == before


def test_other_tasks_and_other_models_get_versions_of_their_own(attempt, make_model):
    model, other = make_model(), make_model("other", content=b"other graph")
    assert attempt(model)[0].version == 1
    assert attempt(model, OTHER_TASK)[0].version == 2
    assert attempt(model, name="words")[0].version == 1
    assert attempt(other)[0].version == 3


def test_a_backend_without_an_id_of_the_task_exports_each_time(attempt, make_model, bucket, contents):
    model = make_model()
    assert [attempt(model, OLD_FORM)[0].version for _ in range(2)] == [1, 2]
    assert not [key for key in contents(bucket) if key.startswith(".exports")]


def test_a_version_that_was_deleted_is_exported_again(attempt, make_model, bucket, contents):
    model, store = make_model(), open_store(f"s3://{bucket}")
    attempt(model)
    store.delete([entry.key for entry in store.list("digits/1/")])
    version = attempt(model)[0].version
    assert version in FIRST
    assert f"digits/{version}/saved_model.pb" in contents(bucket)


def test_an_attempt_that_failed_leaves_no_record(attempt, make_model, bucket, contents, monkeypatch):
    model, store = make_model(), type(open_store(f"s3://{bucket}"))
    copy = store.copy

    def fail(store, source, source_key, key, etag, size):
        if key.endswith("saved_model.pb"):
            raise StorageError("", "", key, "the server is away")
        copy(store, source, source_key, key, etag, size)

    with monkeypatch.context() as patch:
        patch.setattr(store, "copy", fail)
        with pytest.raises(StorageError, match="away"):
            attempt(model)
    assert contents(bucket) == {}
    assert attempt(model)[0].version in FIRST


def test_the_attempt_after_a_kill_takes_the_next_number_and_later_the_first_one_is_deleted(
    attempt, make_model, bucket, contents, clock
):
    model, store = make_model(), open_store(f"s3://{bucket}")
    killed = Claim("digits", 1, f"{clock.now:.0f}-ab", task="0" * 32)
    for key, text in ((f"{killed.folder}claim", f"run\n{killed.task}"), (killed.record, "1"), ("digits/1/part", "")):
        store.write(key, text.encode())
    assert attempt(model)[0].version == 2
    clock.now += LEASE_SECONDS + 2
    assert attempt(model)[0].version == 2
    left = contents(bucket)
    assert not [key for key in left if key.startswith("digits/1/")]
    assert [key for key in left if key.startswith(".exports/")] == [key for key in left if "/tasks/" in key]
    assert killed.record not in left


def test_a_version_of_another_task_is_not_taken_for_that_of_an_earlier_attempt(attempt, make_model, bucket):
    """Somebody deleted the claim of a killed attempt, as the error advises, and another task got the number."""
    model, store = make_model(), open_store(f"s3://{bucket}")
    store.write(Claim("digits", 1, task=task_key(TASK)).record, b"1")
    assert attempt(model, OTHER_TASK)[0].version == 1
    exported, manifest = attempt(model)
    assert exported.version == 2
    assert json.loads(manifest)["source_task"] == TASK


def test_the_record_of_a_version_under_another_number_stays(attempt, make_model, bucket, clock):
    model, store = make_model(), open_store(f"s3://{bucket}")
    attempt(model)
    (record,) = (entry.key for entry in store.list(".exports/digits/tasks/"))
    task = record.rpartition("/")[2]
    store.write(f"{Claim('digits', 7, '0-ab').folder}claim", f"{RUN}\n{task}".encode())
    assert attempt(model)[0].version == 1
    assert store.read(record) == b"1"
    assert not store.list(".exports/digits/7/")


def test_the_requests_of_an_export_do_not_grow_with_the_versions(server, bucket, make_model, export, monkeypatch):
    """To list all 6,000 objects takes six requests or more, for each number that is tried."""
    for version in (1, 2, 3):
        for number in range(2000):
            path = server.folder / bucket / "digits" / str(version) / "variables" / f"{number:04}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
    model = make_model()
    with faulty_proxy(server.endpoint) as proxy:
        for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
            monkeypatch.setenv(name, proxy.url)
        assert export(model, bucket).version == 4
    listings = [request for request in proxy.requests if request.startswith("GET") and "list-type" in request]
    assert len(listings) == 8
    assert not [request for request in listings if "digits%2F1" in request or "digits%2F3" in request]


def test_a_second_attempt_after_the_version_was_deleted_exports_again(attempt, make_model, bucket):
    model, store = make_model(), open_store(f"s3://{bucket}")
    assert attempt(model)[0].version == 1
    delete_version(store, "digits", 1)
    assert store.list(".exports/digits/tasks/") == []
    assert attempt(model)[0].version == 2


def test_a_second_attempt_moves_the_aliases_too(attempt, make_model, bucket):
    model, store = make_model(), open_store(f"s3://{bucket}")
    assert attempt(model)[0].version == 1
    assert attempt(model, aliases=["production"])[0].version == 1
    assert read_aliases(store, "digits") == {"production": 1}
