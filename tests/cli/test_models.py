"""The command models, on exports in a folder."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from kfp_distributed.cli.main import main
from kfp_distributed.components.export_model.export import run_export
from kfp_distributed.storage.files import describe_folder
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest

SIGNATURE = {
    "inputs": {"size": {"dtype": "float32", "shape": [None, 1]}},
    "outputs": {"probabilities": {"dtype": "float32", "shape": None}},
}


@pytest.fixture
def root(tmp_path):
    """Folder with three versions of the model digits."""
    root = tmp_path / "exports"
    root.mkdir()
    for number in (1, 2, 3):
        model = tmp_path / f"model{number}"
        model.mkdir()
        (model / "saved_model.pb").write_bytes(b"x" * number)
        trained = ({"source": "digits", "content": f"c{number}"},)
        manifest = ModelManifest(files=describe_folder(model), job="job", training_data=trained, signature=SIGNATURE)
        (model / MODEL_MANIFEST).write_text(manifest.to_json())
        output = SimpleNamespace(uri=f"/p/run-{number}/export/manifest", path=str(tmp_path / "manifest"), metadata={})
        metrics = {"accuracy": number / 4}
        run_export(str(model), str(model), "digits", str(root), 0, metrics, output)
    return str(root)


def run(*words, code=0):
    done = CliRunner().invoke(main, ["models", *words])
    assert done.exit_code == code, done.output
    return done.output


def test_versions_and_models_are_listed(root):
    run("alias", f"{root}/digits/2", "production")
    versions = json.loads(run("list", root, "digits", "--output", "json"))
    assert [(one["version"], one["state"], one["aliases"], one["metrics"]) for one in versions] == [
        (3, "complete", [], {"accuracy": 0.75}),
        (2, "complete", ["production"], {"accuracy": 0.5}),
        (1, "complete", [], {"accuracy": 0.25}),
    ]
    assert run("list", root, "digits").splitlines()[2].split()[::3] == ["2", "production", "accuracy=0.5"]
    assert json.loads(run("list", root, "--output", "json")) == [
        {"model": "digits", "versions": "3", "latest": "3", "aliases": "production=2"}
    ]


def test_a_place_without_models_or_versions_is_named(root, tmp_path):
    (tmp_path / "empty").mkdir()
    for folder in ("empty", "missing"):
        assert run("list", f"{tmp_path}/{folder}").startswith(f"no models in {tmp_path}/{folder}: ")
        assert json.loads(run("list", f"{tmp_path}/{folder}", "--output", "json")) == []
    assert run("list", f"{tmp_path}/missing").endswith("does not exist\n")
    assert run("list", root, "digit").startswith(f"no versions in {root}/digit: ")


def test_an_alias_moves_and_is_removed(root):
    assert run("alias", f"{root}/digits@latest", "production") == f"production is {root}/digits/3\n"
    assert run("show", f"{root}/digits@production").splitlines()[:2] == [
        f"uri: {root}/digits/3",
        "aliases: production",
    ]
    assert run("alias", f"{root}/digits", "production", "--remove") == "removed production\n"
    assert "has no alias 'production'" in run("show", f"{root}/digits@production", code=1)


def test_a_version_that_does_not_exist_is_not_of_another_tool(root):
    run("delete", f"{root}/digits/1")
    for number in (1, 7):
        for options in ((), ("--dry-run",)):
            output = run("delete", f"{root}/digits/{number}", *options, code=1)
            assert f"digits/{number} does not exist: kfp-distributed models list shows the versions" in output


def test_only_aliases_that_exist_are_offered(root):
    assert "digits has no alias 'new'; it has latest\n" in run("show", f"{root}/digits@new", code=1)
    error = f"{root}/digit has no alias 'new' and no complete version: kfp-distributed models list shows the models"
    assert error in run("show", f"{root}/digit@new", code=1)


@pytest.mark.parametrize("manifest", ["[]", '{"files": [], "metrics": {}}', '{"files": [{"path": "saved_model.pb"}]}'])
def test_a_version_with_the_manifest_of_another_tool_is_listed(root, manifest):
    Path(root, "digits/9").mkdir()
    Path(root, "digits/9/saved_model.pb").write_bytes(b"graph")
    Path(root, "digits/9/export.json").write_text(manifest)
    assert run("list", root, "digits").splitlines()[1].split() == ["9", "other", "tool"]
    assert "digits/9 is not a complete version of export_model" in run("verify", f"{root}/digits/9", code=1)


def test_an_export_json_that_is_not_json_is_no_version_of_another_tool(root):
    Path(root, "digits/3/export.json").write_text('{"files": [')
    listed = run("list", root, "digits").splitlines()
    assert listed[1].split() == ["3", "unreadable"]
    problem = f"{root}/digits/3/export.json is not JSON (Expecting value: line 1 column 12 (char 11))"
    assert listed[-1].startswith(problem)
    assert json.loads(run("list", root, "digits", "--output", "json"))[0]["problem"].startswith(problem)
    for command in ("show", "verify"):
        assert run(command, f"{root}/digits/3", code=1).startswith(f"Error: {problem}")


def test_the_inputs_and_outputs_of_a_model_are_shown(root):
    lines = run("show", f"{root}/digits/3").splitlines()
    assert {"input size: float32 [n, 1]", "output probabilities: float32 any shape"} <= {*lines}


def test_a_damaged_file_is_found(root):
    assert run("verify", f"{root}/digits/3", "--content") == f"{root}/digits/3 is intact\n"
    Path(root, "digits/3/saved_model.pb").write_bytes(b"xyz")
    assert "is intact" in run("verify", f"{root}/digits/3")
    assert "saved_model.pb has the SHA-256" in run("verify", f"{root}/digits/3", "--content", code=1)
    Path(root, "digits/3/saved_model.pb").write_bytes(b"x")
    assert "saved_model.pb has 1 bytes instead of 3" in run("verify", f"{root}/digits/3", code=1)


def test_a_file_that_export_json_does_not_list_is_named(root):
    Path(root, "digits/3/assets").mkdir()
    Path(root, "digits/3/assets/model.onnx").write_bytes(b"notes")
    unlisted = "assets/model.onnx is not listed in export.json: the steps of this library ignore it"
    assert run("verify", f"{root}/digits/3") == f"{unlisted}\n{root}/digits/3 is intact\n"


@pytest.mark.parametrize("name", ["model.onnx", "model.pt"])
def test_an_unlisted_file_that_model_servers_load_is_damage(root, name):
    Path(root, "digits/3", name).write_bytes(b"weights")
    output = run("verify", f"{root}/digits/3", code=1)
    assert f"{name} is not listed in export.json, and model servers may load it: delete it\n" in output


def test_versions_are_deleted(root):
    run("alias", f"{root}/digits/1", "production")
    assert run("delete", f"{root}/digits", "--keep", "1", "--dry-run") == f"would delete {root}/digits/2\n"
    assert run("delete", f"{root}/digits", "--keep", "1") == f"deleted {root}/digits/2\n"
    assert "has the alias production: move or remove it first" in run("delete", f"{root}/digits/1", code=1)
    assert run("delete", f"{root}/digits/3") == f"deleted {root}/digits/3\n"
    assert [one["version"] for one in json.loads(run("list", root, "digits", "--output", "json"))] == [1]


def test_two_versions_are_compared(root):
    rows = {
        row["what"]: row for row in json.loads(run("diff", f"{root}/digits/1", f"{root}/digits/3", "--output", "json"))
    }
    assert rows["metric accuracy"] == {
        "what": "metric accuracy",
        "first": "0.25",
        "second": "0.75",
        "difference": "+0.5",
    }
    assert (rows["run"]["first"], rows["run"]["second"]) == ("run-1", "run-3")
    assert (rows["dataset"]["first"], rows["content"]["second"]) == ("digits", "c3")
    assert "file saved_model.pb" in rows


@pytest.mark.parametrize(
    ("words", "address", "code"),
    [
        (["show", "exports/digits/1"], "./exports/digits/1", 1),
        (["verify", "exports/digits@latest"], "./exports/digits@latest", 1),
        (["list", "exports"], "./exports", 1),
        (["diff", "./exports/digits/1", "exports/digits/2"], "./exports/digits/2", 1),
        (["show", "exports"], "./exports", 2),
    ],
)
def test_an_address_without_a_dot_that_is_a_local_folder_too_gets_a_hint(root, monkeypatch, words, address, code):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "KFP_DISTRIBUTED_OBJECT_STORE_SECRET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(Path(root).parent)
    assert f"exports was taken for a bucket. For the local folder exports, give {address}\n" in run(*words, code=code)


def test_the_address_of_a_bucket_without_a_local_folder_gets_no_hint(root, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.chdir(root)
    assert "was taken for" not in run("show", "exports/digits/1", code=1)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["show", "/srv/digits"], "names no version"),
        (["show", "models"], "is not the address of a model or a version"),
        (["alias", "/srv/digits/1", "latest"], "alias 'latest' always means"),
        (["alias", "/srv/digits/1", "production", "--remove"], "give ROOT/MODEL with --remove"),
        (["delete", "/srv/digits"], "give ROOT/MODEL with --keep"),
        (["delete", "/srv/digits/1", "--keep", "2"], "give ROOT/MODEL with --keep"),
    ],
)
def test_wrong_arguments(words, error):
    assert error in run(*words, code=2)
