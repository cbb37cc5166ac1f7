"""Imports of language models: real stores, a server with the API of the Hub, and the fetch of the trainer."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from faulty_proxy import Fault, faulty_proxy
from forked_replicas import forked
from hugging_face_hub import commit_of, hub, safetensors

from kfp_distributed.components.import_model import model_copy
from kfp_distributed.components.import_model.origin import open_origin
from kfp_distributed.components.import_model.step import run_step
from kfp_distributed.storage.files import describe_folder
from kfp_distributed.storage.model import ModelIncomplete, ModelManifest, verify_model
from kfp_distributed.storage.object_stores.embedded import embedded_object_store
from kfp_distributed.storage.opener import open_store
from kfp_distributed.trainers.language_training.base_folder import base_folder, content_hash
from kfp_distributed.trainers.runtime.job_description import REPLICA_FOLDER_VARIABLE

pytestmark = pytest.mark.takes(30)

WEIGHTS = "model-00002-of-00002.safetensors"
MODEL = {
    "config.json": "{}",
    "model-00001-of-00002.safetensors": safetensors("1"),
    "model-00002-of-00002.safetensors": safetensors("2"),
    "model.safetensors.index.json": json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": WEIGHTS}}),
    "tokenizer.json": "[]",
}
OTHERS = {"pytorch_model.bin": "pickle", "modeling_tiny.py": "code", "onnx/config.json": "{}", "README.md": "# Tiny"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with embedded_object_store(tmp_path_factory.mktemp("objects")) as running:
        yield running


@pytest.fixture
def target(server, monkeypatch, request):
    """Address of a folder in an empty bucket of the test."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    bucket = f"s3://models-{abs(hash(request.node.name))}"
    open_store(bucket).make_bucket()
    return f"{bucket}/tiny"


@pytest.fixture
def source(tmp_path):
    """Folder of a model with files that are not copied."""
    folder = tmp_path / "source"
    for name, content in (MODEL | OTHERS).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def states(target):
    """Return what changes when an object is written again."""
    return open_store(target).states()


def save_tuned(target, base_model):
    """Save a model in the place of an imported one, as a training of all parameters does with base_model."""
    store = open_store(target)
    base = {"kind": "full", "base_model": base_model, "sha256": verify_model(store).base["sha256"]}
    store.write(WEIGHTS, safetensors("3").encode())
    files = [replace(file, sha256=sha256(store.read(file.path)).hexdigest()) for file in verify_model(store).files]
    store.write("model.json", ModelManifest("hugging_face", tuple(files), base=base).to_json().encode())


def keys(target):
    return [entry.key for entry in open_store(target).list()]


def test_the_trainer_fetches_an_imported_model(source, target, tmp_path, monkeypatch, capsys):
    assert run_step(source=str(source), target=target) == target
    model = verify_model(open_store(target))
    monkeypatch.setenv(REPLICA_FOLDER_VARIABLE, str(tmp_path))
    fetched = base_folder(target)
    assert ModelManifest.from_json((fetched / "model.json").read_text()) == model
    (fetched / "model.json").unlink()
    assert {file.name: file.read_text() for file in fetched.iterdir()} == MODEL
    assert (model.format, model.files) == ("hugging_face", describe_folder(fetched))
    assert model.base == {"kind": "full", "base_model": str(source), "sha256": content_hash(fetched)}
    assert keys(target) == sorted([*MODEL, "model.json"])
    before = states(target)
    run_step(source=str(source), target=target)
    assert states(target) == before
    assert capsys.readouterr().out.endswith(f"\n{target} already has the model {source}\n")


def test_a_target_with_something_else_stays_as_it_is(source, target, tmp_path):
    run_step(source=str(source), target=target)
    store, before = open_store(target), states(target)
    other = source.rename(tmp_path / "other")
    with pytest.raises(SystemExit, match=rf"has another model \({source}\): import {other} to another target, or "):
        run_step(source=str(other), target=target)
    other.rename(source)
    (source / WEIGHTS).write_text(safetensors("3"))
    with pytest.raises(SystemExit, match=f"has an earlier state of {source}: import"):
        run_step(source=str(source), target=target)
    assert states(target) == before
    (source / WEIGHTS).write_text(MODEL[WEIGHTS])
    save_tuned(target, str(source))
    with pytest.raises(SystemExit, match=r"has another model \(trained\): import"):
        run_step(source=str(source), target=target)
    store.write(WEIGHTS, MODEL[WEIGHTS].encode())
    store.delete(["model.json"])
    with pytest.raises(SystemExit, match=r"has other files, such as config\.json: name another target"):
        run_step(source=str(source), target=target)
    store.write("unfinished-import", b"s3://staging/base")
    with pytest.raises(SystemExit, match="has an unfinished import of s3://staging/base: name another target"):
        run_step(source=str(source), target=target)
    assert store.read(WEIGHTS) == MODEL[WEIGHTS].encode()


def test_a_model_of_a_store_is_checked_by_its_manifest(source, target):
    run_step(source=source.as_uri(), target=target)
    copy = f"{target}-copy"
    run_step(source=target, target=copy)
    stored = [verify_model(open_store(address)) for address in (target, copy)]
    assert stored[0].files == stored[1].files
    assert stored[1].base == {**stored[0].base, "base_model": target}
    open_store(target).write(WEIGHTS, safetensors("3").encode())
    with pytest.raises(SystemExit, match=f"OSError: {WEIGHTS} of {target} arrived damaged: it has the SHA-256"):
        run_step(source=target, target=f"{target}-damaged")
    # The trainer does not take these files for a model.
    assert not {"config.json", "model.json"} & {*keys(f"{target}-damaged")}


def test_weights_that_are_not_complete_are_named_before_they_are_stored(source, target):
    index, content = source / "model.safetensors.index.json", (source / WEIGHTS).read_bytes()
    (source / WEIGHTS).write_bytes(content[:-1])
    message = f"ValueError: source is '{source}', whose file {WEIGHTS} has 964 bytes, and is no complete safet"
    with pytest.raises(SystemExit, match=message):
        run_step(source=str(source), target=target)
    assert not {WEIGHTS, "config.json", "model.json"} & {*keys(target)}
    (source / WEIGHTS).rename(source / "weights")
    with pytest.raises(SystemExit, match=rf"whose file {index.name} names {WEIGHTS}, which is not there: save or"):
        run_step(source=str(source), target=f"{target}-shards")
    assert keys(f"{target}-shards") == ["unfinished-import"]
    (source / "weights").rename(source / WEIGHTS).write_bytes(content)
    run_step(source=str(source), target=target)


def test_a_file_that_grows_while_it_is_imported_is_named(source, target, monkeypatch):
    origin = open_origin(str(source))
    (source / "config.json").write_text('{"a": 1}')
    monkeypatch.setattr(model_copy, "open_origin", lambda source: origin)
    with pytest.raises(SystemExit, match=r"OSError: config\.json of .* has 8 bytes, and had 2 before: run the step"):
        run_step(source=str(source), target=target)
    assert not {"config.json", "model.json"} & {*keys(target)}


def test_the_files_of_a_model_are_those_of_its_manifest(source, target, tmp_path, monkeypatch):
    run_step(source=str(source), target=target)
    store = open_store(target)
    store.write("added_tokens.json", b"{}")
    monkeypatch.setenv(REPLICA_FOLDER_VARIABLE, str(tmp_path))
    assert {file.name for file in base_folder(target).iterdir()} == {*MODEL, "model.json"}
    run_step(source=target, target=f"{target}-copy")
    assert keys(f"{target}-copy") == sorted([*MODEL, "model.json"])
    store.write(WEIGHTS, safetensors("3").encode())
    monkeypatch.setenv(REPLICA_FOLDER_VARIABLE, str(source.parent / "damaged"))
    (source.parent / "damaged").mkdir()
    with pytest.raises(ValueError, match=rf"base_model is {target!r}: .*{WEIGHTS}.*was replaced.*: delete the folder"):
        base_folder(target)
    store.delete(["model-00001-of-00002.safetensors"])
    monkeypatch.setenv(REPLICA_FOLDER_VARIABLE, str(source))
    with pytest.raises(ModelIncomplete, match=rf"{target} is incomplete: missing .*: model-00001-of-00002"):
        base_folder(target)
    with pytest.raises(SystemExit, match=rf"{target} is incomplete: missing .*: model-00001-of-00002"):
        run_step(source=target, target=f"{target}-incomplete")


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("", "models/tiny", "target is 'models/tiny'; allowed is the address of a folder that the replicas can read"),
        ("", "s3://models", "target is 's3://models'; allowed"),
        ("", "hf://owner/tiny@main", "target is 'hf://owner/tiny@main'; allowed"),
        ("hf://owner/tiny", "", r"source is 'hf://owner/tiny'; write hf://OWNER/NAME@REVISION"),
        ("gs://models/tiny", "", r"source: 'gs://models' is not a storage address: .* Or use hf://"),
        (
            "team/tiny",
            "",
            r"source is 'team/tiny', .*; for a model of the Hugging Face Hub, write hf://team/tiny@REVISION$",
        ),
        ("/none", "", r"source is '/none', which has no config\.json and no weights"),
    ],
)
def test_an_address_that_cannot_be_used_is_named(tmp_path, source, target, message):
    with pytest.raises(SystemExit, match=f"ValueError: {message}"):
        run_step(source=source or str(tmp_path), target=target or f"file://{tmp_path}/models/tiny")
    assert [*tmp_path.iterdir()] == []


def test_a_missing_bucket_is_named(source, target):
    with pytest.raises(SystemExit, match="target='s3://models-none/tiny' names the bucket 'models-none', which"):
        run_step(source=str(source), target="s3://models-none/tiny")


PROGRAM = """
import sys
from kfp_distributed.components.import_model.step import run_step
for source in sys.argv[2:]:
    run_step(source=source, target=sys.argv[1])
"""


@pytest.mark.parametrize("where", [WEIGHTS, "config.json", "model.json"])
def test_a_killed_import_is_completed_by_the_next_one(server, source, target, where):
    with faulty_proxy(server.endpoint) as proxy:
        environment = {**os.environ, "AWS_ENDPOINT_URL": proxy.url, "AWS_ENDPOINT_URL_S3": proxy.url}
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, target, str(source)], env=environment)
        proxy.faults = [Fault(f"PUT /{target.removeprefix('s3://')}/{where}", before=process.kill, reset=True)]
        assert process.wait(60) == -signal.SIGKILL
    assert {"unfinished-import", "model-00001-of-00002.safetensors"} <= {*keys(target)}
    assert not {where, "model.json"} & {*keys(target)}
    # The source may have lost files since.
    open_store(target).write("generation_config.json", b"{}")
    run_step(source=str(source), target=target)
    assert keys(target) == sorted([*MODEL, "model.json"])
    assert {entry.path: entry.size for entry in verify_model(open_store(target)).files} == {
        name: len(content) for name, content in MODEL.items()
    }


def import_from(endpoint, target, home, *sources):
    """Return the exit code, and what was printed. The driver reads its variables when it is imported: a fork does."""
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "TMPDIR": str(home)}
    command = forked(sys.executable, "-c", PROGRAM, target, *sources)
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return ended.returncode, ended.stdout, ended.stderr


def test_a_model_of_the_hub(target, tmp_path):
    content = MODEL | OTHERS
    commit = commit_of(content)
    source = f"hf://team/tiny@{commit}"
    with hub("models", "tiny", content) as address, faulty_proxy(address) as proxy:
        proxy.faults = [
            Fault("/api/models", status=503),
            Fault(f"HEAD /team/tiny/resolve/{commit}/{WEIGHTS}", times=2, status=503),
            Fault(f"GET /team/tiny/resolve/{commit}/{WEIGHTS}", cut_after=100),
        ]
        code, printed, errors = import_from(proxy.url, target, tmp_path, "hf://team/tiny@main")
        assert (code, [fault.times for fault in proxy.faults]) == (0, [0, 0, 0]), errors
        assert "http" not in errors  # Addresses of files have signatures.
        model = verify_model(open_store(target))
        assert {file.path: open_store(target).read(file.path).decode() for file in model.files} == MODEL
        assert (model.base["base_model"], keys(target)) == (source, sorted([*MODEL, "model.json"]))
        assert [*tmp_path.rglob("*.safetensors")] == []
        code, printed, errors = import_from(proxy.url, target, tmp_path, "hf://team/tiny@main")
        assert (code, printed) == (0, f"{target} already has the model {source}\n"), errors
        content["config.json"] = '{"a": 1}'
        code, _, errors = import_from(proxy.url, target, tmp_path, "hf://team/tiny@main")
        assert code == 1
        assert f"has another model ({source}): import hf://team/tiny@{commit_of(content)} to another target" in errors
        code, _, errors = import_from(proxy.url, f"{target}-none", tmp_path, "hf://team/none@main")
        assert code == 1
        assert re.search(
            "OSError: source hf://team/none@main cannot be read: .*404.* Check the address and HF_T", errors
        )
        requests = len(proxy.requests)
        # Replicas without internet may run this: a model by its commit needs no request to the Hub.
        assert import_from(proxy.url, target, tmp_path, source)[0] == 0
        assert len(proxy.requests) == requests
        save_tuned(target, source)
        content["config.json"] = MODEL["config.json"]
        for address in (source, "hf://team/tiny@main"):
            code, _, errors = import_from(proxy.url, target, tmp_path, address)
            assert (code, "has another model (trained): import" in errors) == (1, True), errors


def test_a_file_of_the_hub_that_is_refused_or_damaged(target, tmp_path):
    with hub("models", "tiny", dict(MODEL)) as address, faulty_proxy(address) as proxy:
        proxy.faults = [Fault(f"/{WEIGHTS}", status=403)]
        code, _, errors = import_from(proxy.url, target, tmp_path, "hf://team/tiny@main")
        assert code == 1
        assert re.search(
            r"OSError: source hf://team/tiny@\w+ cannot be read: \w+: .*403 Forbidden.* HF_TOKEN\n$", errors
        )
        proxy.faults = [Fault(f"/{WEIGHTS}", times=9, change=lambda body: body.replace(b"2", b"3"))]
        code, _, errors = import_from(proxy.url, target, tmp_path, "hf://team/tiny@main")
    assert code == 1
    assert f"OSError: {WEIGHTS} of hf://team/tiny@" in errors
    assert "model.json" not in keys(target)
    assert not Path(tmp_path, "hub").exists()
