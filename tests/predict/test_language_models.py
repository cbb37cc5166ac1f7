"""Language models, which predict does not take. They are not downloaded."""

import pytest

from kfp_distributed.components.model_formats.load import load_model
from kfp_distributed.components.predict.asked_model.model_folder import download_model
from kfp_distributed.storage.files import describe_folder
from kfp_distributed.storage.model import ModelManifest

pytestmark = pytest.mark.takes(1)

NAMES = ("config.json", "model.safetensors")


@pytest.mark.parametrize("has_manifest", [True, False])
def test_a_language_model_is_refused_before_its_download(tmp_path, has_manifest):
    model, downloaded = tmp_path / "model", tmp_path / "downloaded"
    model.mkdir()
    for name in NAMES:
        (model / name).touch()
    if has_manifest:
        manifest = ModelManifest("hugging_face", describe_folder(model))
        (model / "model.json").write_text(manifest.to_json())
    message = r"predict take no such model: score it with evaluate_language_model"
    with pytest.raises(ValueError, match=message):
        download_model(model.as_uri(), downloaded, is_artifact=not has_manifest)
    assert not downloaded.exists()
    with pytest.raises(ValueError, match=message):
        load_model(model)
