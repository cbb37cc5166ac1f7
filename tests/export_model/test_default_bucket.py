"""Exports of a step that names no bucket: beside the artifacts of the pipeline root, and nowhere else."""

from pathlib import Path

import pytest
from faulty_proxy import faulty_proxy

from kfp_distributed.components.export_model.export import Exported, run_export
from kfp_distributed.storage.opener import open_store

TASK = "v2/artifacts/digits/4f5b0b1c-5a1c-4a6e-9d4c-6c0f2f7f3a11/export-model/11111111-aaaa-4bbb-8ccc-dddddddddddd"


class Manifest:
    """Output artifact whose address is that of a pipeline root and whose file is local."""

    def __init__(self, root, path, task=TASK):
        self.uri, self.path, self.metadata = f"{root}/{task}/manifest", str(path), {}


@pytest.mark.parametrize("prefix", ["", "/private-artifacts/team"])
def test_versions_aliases_and_retention_stay_in_the_folder_beside_the_artifacts(
    bucket, make_model, contents, tmp_path, prefix
):
    root, model = f"minio://{bucket}{prefix}", str(make_model())
    others = ["digits/1/saved_model.pb", ".exports/digits/1/1-dead/claim", f"{prefix}/models-2/digits/1/a".strip("/")]
    others += [f"{prefix}/v2/artifacts/digits/1/a".strip("/")]
    for key in others:
        open_store(f"s3://{bucket}").write(key, b"of others")
    for number in (1, 2, 3):
        manifest = Manifest(root, tmp_path / "manifest", TASK.replace("1111-", f"111{number}-"))
        exported = run_export(model, model, "digits", "", 0, {}, manifest, ["production"], keep=1)
        assert exported == Exported(f"{root}/models/digits/{number}", number)
    stored, models = contents(bucket), f"{prefix}/models/".strip("/") + "/"
    assert {key for key in stored if not key.startswith(models)} == {*others}
    assert {*open_store(f"{root}/models/digits").children()} == {"3/"}
    assert stored[f"{models}.exports/digits/aliases/production"] == b"3"


def test_an_account_that_may_only_use_its_folder_exports(server, bucket, make_model, tmp_path, monkeypatch):
    """The account of a profile may not ask whether the bucket exists."""
    root, model = f"minio://{bucket}/private-artifacts/team", str(make_model())
    with faulty_proxy(server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        exported = run_export(model, model, "digits", "", 0, {}, Manifest(root, tmp_path / "manifest"))
    assert exported.uri == f"{root}/models/digits/1"
    assert [request for request in proxy.requests if "private-artifacts" not in request] == []


def test_on_this_machine_the_folder_is_beside_the_artifacts(make_model, export, tmp_path):
    model = make_model()
    exported = [export(model, "", run_id=f"artifacts/run-{number}") for number in (1, 2)]
    assert exported == [Exported(f"{tmp_path}/models/digits/{number}", number) for number in (1, 2)]
    assert Path(exported[1].uri, "saved_model.pb").exists()
