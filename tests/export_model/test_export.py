import hashlib
import json
import math
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import pytest
from exported_program import SIGNATURE, write_program

from kfp_distributed.components.export_model.export import Exported, publish
from kfp_distributed.components.export_model.model_source import EXPORT_MANIFEST, open_source
from kfp_distributed.components.model_versions.claims import LEASE_SECONDS, Claim, LeaseLost
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.files import describe_folder, list_files
from kfp_distributed.storage.model import ModelIncomplete, ModelManifest, verify_model_folder
from kfp_distributed.storage.opener import open_store

pytestmark = pytest.mark.takes(5)


def files_of(folder, prefix):
    return {f"{prefix}/{path}": (folder / path).read_bytes() for path in list_files(folder)}


def without_manifests(objects):
    return {key: content for key, content in objects.items() if not key.endswith("/export.json")}


def test_versions_are_numbered_and_described(bucket, make_model, export, contents, tmp_path):
    model = make_model()
    first = export(model, bucket, metrics={"accuracy": 0.75, "loss": math.nan, "display_name": "metrics", "ok": True})
    second = export(model, bucket, run_id="run-2")
    assert [first, second] == [Exported(f"s3://{bucket}/digits/{number}", number) for number in (1, 2)]
    objects = contents(bucket)
    assert without_manifests(objects) == files_of(model, "digits/1") | files_of(model, "digits/2")
    manifest = json.loads(objects["digits/1/export.json"])
    assert datetime.fromisoformat(manifest.pop("exported_at")).utcoffset().total_seconds() == 0
    assert manifest == {
        "model_name": "digits",
        "version": 1,
        "files": [
            {"path": key.removeprefix("digits/1/"), "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for key, data in sorted(files_of(model, "digits/1").items())
        ],
        "metrics": {"accuracy": 0.75},
        "source_run": "run-1",
        "source_task": str(tmp_path / "run-1" / "export-model"),
        "source_uri": str(model),
    }
    open_store(first.uri).download_folder(tmp_path / "served")
    assert verify_model_folder(tmp_path / "served").job == "job"


def test_export_to_a_folder(tmp_path, make_model, export, contents):
    model, root = make_model(), tmp_path / "exports"
    assert export(model, str(root)) == Exported(f"{root}/digits/1", 1)
    assert without_manifests(contents(str(root))) == files_of(model, "digits/1")


def bytes_written():
    """Return the number of bytes that this process has written to files."""
    return int(re.search("^wchar: ([0-9]+)", Path("/proc/self/io").read_text(), re.MULTILINE)[1])


def test_an_export_to_a_folder_writes_each_byte_once(tmp_path, make_model, export, contents):
    model, root, size = make_model(), tmp_path / "exports", 30_000_000
    (model / "variables" / "large").write_bytes(bytes(size))
    (model / "model.json").unlink()
    (model / "model.json").write_text(ModelManifest(files=describe_folder(model)).to_json())
    before = bytes_written()
    version = Path(export(model, str(root)).uri)
    assert size < bytes_written() - before < 1.1 * size
    assert without_manifests(contents(str(root))) == files_of(model, "digits/1")
    assert {path.stat().st_nlink for path in version.rglob("*") if path.is_file()} == {1}, "nothing is shared"


def test_an_existing_version_is_never_overwritten(bucket, make_model, export, contents):
    export(make_model(), bucket, version=3)
    before = contents(bucket)
    with pytest.raises(
        ValueError, match=rf"s3://{bucket}/digits/3 exists already and is never overwritten: give another"
    ):
        export(make_model("other", content=b"other graph"), bucket, version=3)
    assert contents(bucket) == before
    assert export(make_model("third"), bucket).version == 4


def test_files_of_other_tools_are_kept(bucket, make_model, export, contents):
    store = open_store(f"s3://{bucket}")
    store.make_bucket()
    store.write("digits/5/variables/variables.index", b"on its way by another tool")
    with pytest.raises(ValueError, match="digits/5 exists already"):
        export(make_model(), bucket, version=5)
    assert export(make_model("other"), bucket).version == 6
    assert contents(bucket)["digits/5/variables/variables.index"] == b"on its way by another tool"


@pytest.fixture
def root(request, bucket, tmp_path):
    return bucket if request.param == "bucket" else str(tmp_path / "exports")


@pytest.mark.parametrize("root", ["folder", "bucket"], indirect=True)
def test_exports_at_the_same_time_get_different_numbers(root, make_model, export, contents):
    models = [make_model(f"model{number}") for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        exported = list(threads.map(lambda model: export(model, root), models))
    assert len({version for _, version in exported}) == 8
    expected = {}
    for model, (_, version) in zip(models, exported, strict=True):
        expected |= files_of(model, f"digits/{version}")
    assert without_manifests(contents(root)) == expected


def test_a_failed_export_deletes_its_files(tmp_path, make_model, export, contents):
    root = tmp_path / "exports"
    root.mkdir()
    (root / "digits").write_text("a file where the model's folder should be")
    with pytest.raises(StorageError, match="Not a directory"):
        export(make_model(), str(root))
    assert list(contents(str(root))) == ["digits"]


def test_one_of_two_exports_of_the_same_version_wins(tmp_path, make_model, export, contents):
    models, root = [make_model("first"), make_model("second")], str(tmp_path / "exports")
    with ThreadPoolExecutor(2) as threads:
        futures = [threads.submit(export, model, root, version=5) for model in models]
    winners = [model for model, future in zip(models, futures, strict=True) if not future.exception()]
    assert len(winners) == 1
    assert without_manifests(contents(root)) == files_of(winners[0], "digits/5")


def test_an_export_that_lost_its_lease_does_not_become_visible(tmp_path, make_model):
    store, model = open_store(str(tmp_path / "exports")), make_model()
    slow = Claim("digits", 1, f"{time.time() - LEASE_SECONDS / 2 - 2:.0f}-ab")
    with pytest.raises(LeaseLost, match="export again"):
        publish(store, slow, open_source(str(model), str(model), store), {})
    assert store.list("digits/") == []


def test_a_file_that_changed_since_it_was_checked(tmp_path, make_model):
    store, model = open_store(str(tmp_path / "exports")), make_model()
    source = open_source(str(model), str(model), store)
    (model / "assets" / "words001.txt").write_text("changed")
    with pytest.raises(ModelIncomplete, match=r"changed while they were read: \['assets/words001.txt'\]"):
        publish(store, Claim("digits", 1), source, {})
    assert store.list("digits/") == []


def damaged(folder):
    (folder / "saved_model.pb").write_bytes(b"grapH")


def incomplete(folder):
    (folder / "variables" / "variables.index").unlink()


def empty(folder):
    for name in ("model.json", "saved_model.pb"):
        (folder / name).unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (damaged, r"saved_model\.pb"),
        (incomplete, r"variables/variables\.index"),
        (empty, r"has no model\.json, .* none of the files model\.onnx, saved_model\.pb"),
    ],
)
def test_a_damaged_model_is_refused_before_anything_is_written(tmp_path, make_model, export, spoil, message):
    model = make_model()
    spoil(model)
    with pytest.raises(ModelIncomplete, match=message):
        export(model, str(tmp_path / "exports"))
    assert not (tmp_path / "exports").exists()


def test_a_model_without_a_manifest_gets_one_in_the_version(tmp_path, make_model, export):
    model, exports = make_model(), tmp_path / "exports"
    (model / "model.json").unlink()
    files = describe_folder(model)
    version = Path(export(model, str(exports)).uri)
    assert describe_folder(model) == files
    assert verify_model_folder(version).format == "saved_model"
    listed = json.loads((version / EXPORT_MANIFEST).read_text())["files"]
    assert listed == [asdict(entry) for entry in describe_folder(version) if entry.path != EXPORT_MANIFEST]
    assert {*files} == {*verify_model_folder(version).files}


def test_the_manifest_of_a_torch_export_program_has_its_signature(tmp_path, export):
    model = write_program(tmp_path / "model").parent
    version = Path(export(model, str(tmp_path / "exports")).uri)
    assert verify_model_folder(version).signature == SIGNATURE


def test_a_file_with_the_name_of_the_manifest_is_not_overwritten(tmp_path, make_model, export):
    model = make_model()
    (model / EXPORT_MANIFEST).write_text("a file of the user's")
    (model / "model.json").unlink()
    (model / "model.json").write_text(ModelManifest("saved_model", describe_folder(model)).to_json())
    with pytest.raises(ValueError, match=r"has a file export\.json"):
        export(model, str(tmp_path / "exports"))
    assert not (tmp_path / "exports").exists()


def test_a_link_out_of_the_model_is_refused_before_anything_is_written(tmp_path, make_model, export):
    model = make_model()
    (tmp_path / "secret").write_text("secret")
    (model / "assets" / "secret.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match=r"secret\.txt is a link to .*, which is not inside"):
        export(model, str(tmp_path / "exports"))
    assert not (tmp_path / "exports").exists()


def test_wrong_credentials_are_named_without_the_secret(bucket, make_model, export, monkeypatch, server):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret-of-this-server")
    with pytest.raises(StorageError) as caught:
        export(make_model(), bucket)
    text = str(caught.value)
    assert server.endpoint in text
    assert bucket in text
    assert "not-the-secret-of-this-server" not in text


def test_both_formats_of_a_model_are_copied_after_the_manifest(tmp_path, export, monkeypatch):
    folder, written = tmp_path / "model", []
    folder.mkdir()
    for name in ("model.onnx", "notes.txt", "saved_model.pb", "z"):
        (folder / name).write_text(name)
    (folder / "model.json").write_text(ModelManifest("onnx", describe_folder(folder)).to_json())
    server = type(open_store(str(tmp_path)))
    write, copy = server.write_from, server.copy

    def note(store, key, *content, **callbacks):
        written.append(key)
        return write(store, key, *content, **callbacks)

    def fail_at_the_second_format(store, source, source_key, key, etag, size):
        if key == "digits/1/saved_model.pb":
            raise StorageError("", "", key, "the disk is full")
        written.append(key)
        copy(store, source, source_key, key, etag, size)

    monkeypatch.setattr(server, "write_from", note)
    monkeypatch.setattr(server, "copy", fail_at_the_second_format)
    with pytest.raises(StorageError, match="disk is full"):
        export(folder, str(tmp_path / "served"))
    of_version = [key.removeprefix("digits/1/") for key in written if key.startswith("digits/1/")]
    assert (set(of_version[:-2]), of_version[-2:]) == ({"model.json", "notes.txt", "z"}, ["export.json", "model.onnx"])
    assert open_store(str(tmp_path / "served")).list() == []
