import zipfile

import pytest

from kfp_distributed.storage.model_format import find_format


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["model.onnx", "saved_model.pb", "model.keras"], "onnx"),
        (["saved_model.pb", "model.keras"], "saved_model"),
        (["model.keras", "model.pt2"], "keras"),
        (["model.pt2", "model.safetensors"], "torch_export"),
        (["config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json"], "hugging_face"),
        (["adapter_config.json", "adapter_model.safetensors", "merged/config.json"], "hugging_face"),
        (["model.safetensors"], "safetensors"),
        (["config.json", "model.bin"], "custom"),
        (["model.pt"], "custom"),
        (["parts/model.onnx", "parts/model.safetensors"], "custom"),
    ],
)
def test_a_model_of_several_formats_has_the_first(tmp_path, files, expected):
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("content")
    assert find_format(tmp_path) == expected


@pytest.mark.parametrize(("members", "expected"), [(["constants.pkl", "code/x.py"], "torchscript"), ([], "custom")])
def test_weights_of_torch_save_are_not_torchscript(tmp_path, members, expected):
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        for name in ["data.pkl", "version", *members]:
            archive.writestr(f"archive/{name}", "")
    assert find_format(tmp_path) == expected
