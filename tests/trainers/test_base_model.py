"""The addresses of language models, and the files that they need."""

import json
import os
import re
import subprocess
from contextlib import nullcontext
from dataclasses import replace
from hashlib import sha256

import pytest
from environments import environment
from hugging_face_hub import Hub, commit_of, hub, safetensors

from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.training_request.request import Request, plan_job
from kfp_distributed.storage.dataset import DATASET_MANIFEST, Column, DatasetManifest, Label, Shard
from kfp_distributed.storage.files import FileEntry, describe_file
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest
from kfp_distributed.trainers.language_training.base_folder import base_folder, content_hash
from kfp_distributed.trainers.programs.base_model import check_files, is_fetched, model_hash, parse_hub
from kfp_distributed.trainers.programs.weight_files import check_weight_file

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
        check_files("/models/base", {*MODEL} - {MODEL[missing]} | {"pytorch_model.bin", f"sub/{MODEL[missing]}"})


def test_an_adapter_is_no_base_model():
    with pytest.raises(ValueError, match=r"is '/models/base', which has an adapter: .*merged"):
        check_files("/models/base", [*MODEL, "adapter_config.json"])


def test_neither_pickles_nor_code_nor_subfolders_are_fetched():
    paths = ["config.json", "model.safetensors", "chat_template.jinja", "tokenizer.model", "merges.txt"]
    assert [*filter(is_fetched, [*paths, "pytorch_model.bin", "modeling.py", "onnx/model.json", "model.json"])] == paths


CUT = f"has 964 bytes, and is no complete safetensors file, which has {len(safetensors('1'))}"


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.safetensors", safetensors("1"), ""),
        ("a.safetensors", safetensors("1")[:-1], CUT),
        ("a.safetensors", f"{safetensors('1')}1", CUT.replace("964", "966")),
        ("a.safetensors", "", "has 0 bytes, and is no complete safetensors file: save or download"),
        ("a.safetensors", safetensors("1")[:20], "has 20 bytes, and is no complete safetensors file: save"),
        ("a.safetensors", "version https://git-lfs.github.com/spec/v1", "has 42 bytes, and is no complete safetensors"),
        ("model.safetensors.index.json", '{"weight_map": {"x": "a.safetensors"}}', ""),
        ("model.safetensors.index.json", '{"weight_map": {"x": "a.safetensors", "y": "b"}}', "names b, which is not"),
        ("model.safetensors.index.json", "{}", "names no files of weights (weight_map)"),
        ("config.json", "", ""),
    ],
)
def test_files_of_weights_are_complete(tmp_path, name, content, problem):
    for file in ("config.json", "tokenizer.json"):
        (tmp_path / file).touch()
    (tmp_path / "a.safetensors").write_text(safetensors("1"))
    (tmp_path / name).write_text(content)
    if not problem:
        assert base_folder(str(tmp_path)) == tmp_path
        return
    with pytest.raises(ValueError, match=re.escape(f"base_model is '{tmp_path}', whose file {name} {problem}")):
        base_folder(str(tmp_path))


def test_the_files_of_a_folder_have_the_hashes_of_its_manifest(tmp_path):
    """They are checked once for all ranks of a replica."""
    (folder := tmp_path / "model").mkdir()
    content = {"config.json": "{}", "tokenizer.json": "{}", "a.safetensors": safetensors("1")}
    for name, text in content.items():
        (folder / name).write_text(text)
    files = tuple(describe_file(folder / name, name) for name in content)
    (folder / MODEL_MANIFEST).write_text(ModelManifest("hugging_face", files).to_json())
    (folder / "a.safetensors").write_text(safetensors("2"))
    (replica := tmp_path / "replica").mkdir()
    with pytest.raises(ValueError, match=r"has a file a\.safetensors with another SHA-256 than in its model\.json"):
        base_folder(str(folder), replica)
    assert base_folder(str(folder), replica, has_weights=False) == folder
    (folder / "a.safetensors").write_text(safetensors("1"))
    assert base_folder(str(folder), replica) == base_folder(str(folder), replica) == folder
    (folder / "notes.txt").write_text("Files beside those of the manifest are no part of the model.")
    (other := tmp_path / "other").mkdir()
    assert content_hash(folder) == content_hash(base_folder(f"file://{folder}", other)) == model_hash(files)


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_model_json_of_another_library_is_no_manifest(tmp_path, form):
    (folder := tmp_path / "model").mkdir()
    for name, text in {"config.json": "{}", "tokenizer.json": "{}", "a.safetensors": safetensors("1")}.items():
        (folder / name).write_text(text)
    (folder / MODEL_MANIFEST).write_text('{"modelTopology": {}, "weightsManifest": []}')
    (replica := tmp_path / "replica").mkdir()
    names = ("config.json", "tokenizer.json", "a.safetensors")
    assert content_hash(base_folder(form.format(folder), replica)) == model_hash(
        describe_file(folder / name, name) for name in names
    )


def test_an_index_beside_a_file_with_all_weights_is_not_read(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    check_weight_file("", tmp_path / "model.safetensors.index.json", ["model.safetensors"])


FETCHED = """
import sys
from pathlib import Path
from kfp_distributed.trainers.language_training.base_folder import base_folder, content_hash
folder = base_folder("hf://team/tiny@main")
print(content_hash(folder), *sorted(file.name for file in folder.iterdir() if file.is_file()))
"""


@pytest.mark.takes(5)
def test_a_model_of_the_hub_is_fetched_without_subfolders_also_if_the_hub_fails_meanwhile(
    tmp_path, monkeypatch, library_archive
):
    content = {name: f"content of {name}" for name in (*MODEL, "README.md", "model.py", f"original/{MODEL[1]}")}
    content[MODEL[1]] = safetensors("1")
    answer, failing = Hub.do_GET, {f"/team/tiny/resolve/{commit_of(content)}/{MODEL[1]}", "/api/models/team/tiny/"}

    def fail_once(self):
        for path in [path for path in failing if self.path.startswith(path)]:
            failing.remove(path)
            self.send_response(503)
            self.send_header("Content-Length", "0")
            return self.end_headers()
        assert "original" not in self.path
        return answer(self)

    monkeypatch.setattr(Hub, "do_GET", fail_once)
    program = [environment("torch2"), "-c", FETCHED]  # huggingface_hub reads the variable when it is imported.
    with hub("models", "tiny", content) as address:
        variables = os.environ | {"HF_ENDPOINT": address, "PYTHONPATH": str(library_archive)}
        done = subprocess.run(program, check=False, capture_output=True, text=True, cwd=tmp_path, env=variables)
    assert done.returncode == 0, done.stderr
    assert not failing
    assert f"main is the commit {commit_of(content)}" in done.stdout
    hashes = "".join(f"{sha256(content[name].encode()).hexdigest()}  {name}\n" for name in sorted(MODEL))
    assert done.stdout.splitlines()[-1].split() == [sha256(hashes.encode()).hexdigest(), *sorted(MODEL)]


@pytest.mark.takes(5)
def test_the_signature_of_a_file_of_the_hub_is_not_printed(tmp_path, monkeypatch, library_archive):
    """The Hub redirects to a signed address, which opens the file without a token. Errors of its driver have it."""
    content, answer, statuses = {name: name for name in MODEL}, Hub.do_GET, [*[503] * 7, 403]  # It tries seven times.

    def sign(self):
        is_signed = self.path.startswith("/signed")
        if not (is_signed or self.path.endswith(MODEL[1])):
            return answer(self)
        self.send_response(statuses.pop(0) if is_signed else 302)
        self.send_header("ETag", '"e"')
        self.send_header("X-Linked-Size", "1")
        self.send_header("X-Repo-Commit", commit_of(content))
        self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/signed?X-Amz-Signature=5ecret&Id=1")
        self.send_header("Content-Length", "0")
        return self.end_headers()

    monkeypatch.setattr(Hub, "do_GET", sign)
    with hub("models", "tiny", content) as address:
        variables = os.environ | {"HF_ENDPOINT": address, "PYTHONPATH": str(library_archive)}
        program = [environment("torch2"), "-c", f"import time; time.sleep = lambda seconds: None{FETCHED}"]
        done = subprocess.run(program, check=False, capture_output=True, text=True, cwd=tmp_path, env=variables)
    assert "5ecret" not in done.stdout + done.stderr
    assert statuses == []
    assert re.search(r"the Hub is not available \(.*503.*/signed\?\*\*\*'?.*\); next attempt in 1 s", done.stdout)
    failed = r"OSError: base_model hf://team/tiny@main cannot be fetched: \w+: .*403.*/signed\?\*\*\*"
    assert re.match(failed, done.stderr.splitlines()[-1])


@pytest.fixture
def request_of_chats(tmp_path):
    """A request to fine-tune a model with the rows of a manifest."""
    columns, shards = (Column("messages", "kept", "string", source_type="conversation"),), (Shard("0", 9, 9, "0" * 64),)
    manifest = DatasetManifest("train", columns, Label("", task="none"), shards, (), 0, "chats.jsonl", shuffled=True)
    (tmp_path / DATASET_MANIFEST).write_text(manifest.to_json())
    return Request(str(tmp_path), str(tmp_path / "model"), {"trainer": "language_model"}, ("run",))


@pytest.mark.parametrize(
    ("base_model", "problem"),
    [
        ("models/base", "base_model is 'models/base'; allowed are an address such as s3://bucket/model, "),
        ("owner/model", "; for a model of the Hugging Face Hub, write hf://owner/model@REVISION"),
        ("hf://owner/model", "base_model is 'hf://owner/model'; write hf://OWNER/NAME@REVISION"),
        ("file://{folder}/lost", "the model file://{folder}/lost is incomplete: missing files"),
        ("file://{folder}/pickled", "base_model is 'file://{folder}/pickled', which has no weights as *.safetensors"),
    ],
)
def test_the_step_refuses_a_model_that_cannot_be_fetched(tmp_path, request_of_chats, base_model, problem):
    for folder, weights in (("good", MODEL[1]), ("lost", MODEL[1]), ("pickled", "pytorch_model.bin")):
        (tmp_path / folder).mkdir()
        for name in ("config.json", weights, "tokenizer.json"):
            (tmp_path / folder / name).touch()
    lost = FileEntry("chat_template.jinja", 9, "0" * 64)
    (tmp_path / "lost" / MODEL_MANIFEST).write_text(ModelManifest(files=(lost,)).to_json())
    request = replace(request_of_chats, train_parameters={"base_model": base_model.format(folder=tmp_path)})
    with pytest.raises(ValueError, match=re.escape(problem.format(folder=tmp_path))):
        plan_job(request)
    for address in (f"file://{tmp_path}/good", "/models/base", "hf://owner/model@main"):
        plan_job(replace(request, train_parameters={"base_model": address}))


def test_a_max_length_beyond_what_the_model_is_made_for_gives_a_warning(tmp_path, request_of_chats):
    for name, text in {
        "config.json": '{"max_position_embeddings": 64}',
        "a.safetensors": "",
        "tokenizer.json": "",
    }.items():
        (tmp_path / name).write_text(text)
    given = {"base_model": f"file://{tmp_path}", "max_length": 65}
    assert "the model is made for 64 tokens" in plan_job(replace(request_of_chats, train_parameters=given)).warnings[0]


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("a\n{% for", "line 2: unexpected"),
        ("{{ messages | last_one }}", "line 1: No filter named"),
        ("{% break %}", "'break' outside loop"),
        ("{% for m in messages %}{% generation %}{% break %}{% endgeneration %}{% endfor %}", "'break' outside loop"),
    ],
)
def test_the_step_refuses_a_chat_template_that_transformers_does_not_compile(request_of_chats, template, problem):
    given = {"base_model": "/m", "chat_template": template}
    error = re.escape(f"train_parameters of language_model: chat_template is no template of Jinja: {problem}")
    with pytest.raises(ValueError, match=error):
        plan_job(replace(request_of_chats, train_parameters=given))
    good = "{% for m in messages %}{% generation %}{{ m | tojson }}{% endgeneration %}{% break %}{% endfor %}"
    given = {**given, "chat_template": f"{good}{{{{ raise_exception(strftime_now('%Y')) }}}}"}
    assert plan_job(replace(request_of_chats, train_parameters=given)).description.parameters == given


CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


def test_a_local_run_with_4_bits_needs_gpus(request_of_chats, monkeypatch):
    """Other trainings run without the GPUs that they request."""
    monkeypatch.setenv("KFP_DISTRIBUTED_LANGUAGE_MODEL_PYTHON", str(environment("torch2")))
    ranks = {"distribution_type": "PyTorch", "number_of_workers": 1, "worker_gpus": 1}
    for method, visible, is_refused in (("qlora", "0,1", False), ("qlora", "0", True), ("lora", "0", False)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        given = {"base_model": "hf://owner/model@main", "method": method}
        job = plan_job(replace(request_of_chats, train_parameters=given, distribution_specification=ranks))
        refused = 'method is "qlora", which needs GPUs with CUDA: 2 requested, 1 found .* set CUDA_VISIBLE_DEVICES=0 '
        with pytest.raises(ValueError, match=refused) if is_refused else nullcontext():
            LocalRunner().check(job)


@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_local_run_needs_a_folder_with_a_model(tmp_path, request_of_chats, monkeypatch, method):
    """Pods may have another folder of this name, of which the step checks nothing."""
    monkeypatch.setenv("KFP_DISTRIBUTED_LANGUAGE_MODEL_PYTHON", str(environment("torch2")))
    folder = tmp_path / "base"
    (folder / "other.safetensors").mkdir(parents=True)  # Only files count.
    given = {"base_model": str(folder), "method": method}
    job = plan_job(replace(request_of_chats, train_parameters=given))

    def refused(problem):
        return pytest.raises(
            ValueError, match=f"^train_parameters of language_model: base_model is '{folder}', {problem}"
        )

    for name, content in (("config.json", "{}"), ("tokenizer.json", "{}"), (MODEL[1], safetensors("1")[:-1])):
        with refused("which has no "):
            LocalRunner().check(job)
        (folder / name).write_text(content)
    with refused(f"whose file {MODEL[1]} has 964 bytes, and is no complete safetensors file"):
        LocalRunner().check(job)
    (folder / MODEL[1]).write_text(safetensors("1"))
    LocalRunner().check(job)
    folder.rename(tmp_path / "other")
    with refused("and this machine has no such folder"):
        LocalRunner().check(job)


def test_the_step_estimates_and_checks_the_memory_of_gpus(tmp_path, request_of_chats):
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_text(json.dumps(CONFIG))

    def planned(memory, address=f"file://{tmp_path}", gpus=1, **parameters):
        distribution = {"worker_gpus": gpus, **({"worker_gpu_memory": memory} if memory else {})}
        given = {"base_model": address, **parameters}
        job = plan_job(replace(request_of_chats, train_parameters=given, distribution_specification=distribution))
        return job.description.parameters, job.notes

    for address in (f"file://{tmp_path}", str(tmp_path)):
        parameters, (note,) = planned("", address)
        assert parameters == {"base_model": address}
        assert note.startswith("base_model has 8,030,261,248 parameters, and 41,943,040 of an adapter are trained; ")
    parameters, (note,) = planned("24Gi")
    assert parameters == {"base_model": f"file://{tmp_path}", "micro_batch_size": 4, "sharding": "auto"}
    assert "a GPU needs about 21.8 GiB for micro_batch_size 4 " in note
    refused = r"^train_parameters of language_model: method full .* 135.3 GiB .*80.0 GiB; what fits: method lora \(26.5"
    with pytest.raises(ValueError, match=refused):
        planned("80Gi", method="full")
    with pytest.raises(ValueError, match=r"worker_gpu_memory is '80Gi', and there are no GPUs: set worker_gpus, too"):
        planned("80Gi", gpus=0)
    for options, problem in (
        ({"gpus": 0}, 'which needs GPUs: set worker_gpus, or set method to "lora"'),
        ({"sharding": "fsdp"}, 'whose model is not divided: set sharding to "none", or method to "lora"'),
    ):
        with pytest.raises(ValueError, match=f'^train_parameters of language_model: method is "qlora", {problem}$'):
            planned("", method="qlora", **options)
    contents = ["", "[]", "[" * 100_000, '{"model_type": []}', '{"model_type": "llama"}', '{"model_type": "mamba"}']
    contents += [json.dumps({**CONFIG, "num_attention_heads": number}) for number in (0, -1, 1e400, 10**4000)]
    for content in contents:
        (tmp_path / "config.json").write_text(content)
        assert planned("") == ({"base_model": f"file://{tmp_path}"}, ())
        assert planned("80Gi")[1][0].startswith("worker_gpu_memory 80Gi is not checked: ")
    for address in ("hf://owner/model@main", "/models/base"):
        assert planned("", address) == ({"base_model": address}, ())
        assert planned("80Gi", address)[0] == {"base_model": address}
