"""A model that replaces that of another job under the same address."""

from dataclasses import replace

from faulty_proxy import faulty_proxy

from kfp_distributed.storage import open_store
from kfp_distributed.storage.dataset import DatasetManifest
from kfp_distributed.storage.model import verify_model
from kfp_distributed.trainers.runtime.job_description import JobDescription
from kfp_distributed.trainers.runtime.outputs.results import save_model

FILES = 20


def test_the_server_copies_each_file_by_one_request(object_store, digits, tmp_path, monkeypatch):
    for name, value in object_store.environment().items():
        monkeypatch.setenv(name, value)
    root = "s3://bucket"
    open_store(root).make_bucket()
    job = JobDescription("first", {}, {}, "", "", f"{root}/model", "", f"{root}/metrics", "worker-0", ("worker-0",))
    manifest = DatasetManifest.from_json((digits.folder / "train" / "dataset.json").read_text())
    folder = tmp_path / "model"
    folder.mkdir()
    for number in range(FILES):
        (folder / f"{number:02}").write_text("first")
    save_model(job, manifest, folder, {})
    for number in range(1, FILES):
        (folder / f"{number:02}").write_text(f"second {number}")
    (folder / "00").unlink()
    with faulty_proxy(object_store.endpoint) as proxy, monkeypatch.context() as patch:
        for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
            patch.setenv(name, proxy.url)
        save_model(replace(job, name="second"), manifest, folder, {})
    files = [f"{number:02}" for number in range(1, FILES)]
    assert [request for request in proxy.requests if request.startswith("HEAD") and ".incoming" in request] == []
    model = open_store(job.model_uri)
    assert verify_model(model).job == "second"
    assert [entry.key for entry in model.list()] == [*files, "model.json"]
    assert [model.read(file).decode() for file in files] == [f"second {number}" for number in range(1, FILES)]
