"""The addresses of language models, and the files that they need."""

import re
from dataclasses import replace

import pytest

from kfp_distributed.components.train.run.training_request.request import Request, plan_job
from kfp_distributed.storage.dataset import DATASET_MANIFEST, Column, DatasetManifest, Label, Shard
from kfp_distributed.trainers.programs.base_model import check_files, is_fetched, parse_hub

MODEL = ("config.json", "model-00001-of-00002.safetensors", "tokenizer.json")


def test_an_address_of_the_hub_has_a_revision():
    assert parse_hub("hf://owner/a-model.1@0123abc") == ("owner/a-model.1", "0123abc")
    assert parse_hub("s3://bucket/model") is None
    for address in ("hf://owner/model", "hf://model@main", "hf://owner/model@"):
        with pytest.raises(ValueError, match=re.escape(f"base_model is {address!r}; write hf://OWNER/NAME@REVISION")):
            parse_hub(address)


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        (0, "no config.json"),
        (1, "no weights as *.safetensors"),
        (2, "no tokenizer (tokenizer.json or tokenizer.model)"),
    ],
)
def test_a_missing_file_of_a_model_is_named(missing, named):
    check_files("/models/base", MODEL)
    with pytest.raises(ValueError, match=re.escape(f"base_model is '/models/base', which has {named}: save the model")):
        check_files("/models/base", {*MODEL} - {MODEL[missing]} | {"pytorch_model.bin"})


def test_neither_pickles_nor_code_nor_subfolders_are_fetched():
    paths = ["config.json", "model.safetensors", "chat_template.jinja", "tokenizer.model", "merges.txt"]
    assert [*filter(is_fetched, [*paths, "pytorch_model.bin", "modeling.py", "onnx/model.json"])] == paths


@pytest.mark.parametrize(
    ("base_model", "problem"),
    [
        ("models/base", "base_model is 'models/base'; allowed are an address such as s3://bucket/model, "),
        ("hf://owner/model", "base_model is 'hf://owner/model'; write hf://OWNER/NAME@REVISION"),
        ("file://{folder}/pickled", "base_model is 'file://{folder}/pickled', which has no weights as *.safetensors"),
    ],
)
def test_the_step_refuses_a_model_that_cannot_be_fetched(tmp_path, base_model, problem):
    for folder, weights in (("good", MODEL[1]), ("pickled", "pytorch_model.bin")):
        (tmp_path / folder).mkdir()
        for name in ("config.json", weights, "tokenizer.json"):
            (tmp_path / folder / name).touch()
    columns, shards = (Column("messages", "kept", "string", source_type="conversation"),), (Shard("0", 9, 9, "0" * 64),)
    manifest = DatasetManifest("train", columns, Label("", task="none"), shards, (), 0, "chats.jsonl", shuffled=True)
    (tmp_path / DATASET_MANIFEST).write_text(manifest.to_json())
    request = Request(
        str(tmp_path),
        str(tmp_path / "model"),
        {"trainer": "language_model"},
        ("run",),
        train_parameters={"base_model": base_model.format(folder=tmp_path)},
    )
    with pytest.raises(ValueError, match=re.escape(problem.format(folder=tmp_path))):
        plan_job(request)
    for address in (f"file://{tmp_path}/good", "/models/base", "hf://owner/model@main"):
        plan_job(replace(request, train_parameters={"base_model": address}))
