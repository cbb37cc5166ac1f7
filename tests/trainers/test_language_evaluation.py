"""The evaluation of a language model by a job: its scores, whatever the ranks are, its answers, and what is refused."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import make_tiny_llama
import pytest
from environments import environment
from forked_replicas import forked
from step_lines import into

from kfp_distributed.components import evaluate_language_model, prepare_data
from kfp_distributed.components.evaluate_language_model.scored_model import read_model
from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.training_request.gpu_memory import plan_evaluation
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest
from kfp_distributed.trainers import train_specification

pytestmark = pytest.mark.takes(25)

TASK = "s3://b/chats/4f5b0b1c-5a1c-4a6e-9d4c-6c0f2f7f3a11/score/11111111-aaaa-4bbb-8ccc-{:012d}/evaluation"
COLOURS = ["r", "g"]
"""Of one token, because the tiny model learns no end of an answer."""
TWO_RANKS = {"distribution_type": "PyTorch", "number_of_workers": 1}


def conversation(number):
    said = [("user", f"{number}: say a colour"), ("assistant", COLOURS[bool(number % 4)])]
    return {"messages": [{"role": role, "content": content} for role, content in said]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with the splits of conversations, with tiny-llama, and with a model that was trained for a short time."""
    folder = tmp_path_factory.mktemp("chats")
    rows = [json.dumps(conversation(number)) for number in range(60)]
    (folder / "chats.jsonl").write_text("\n".join(rows))
    (folder / "texts.csv").write_text("message,team\n" + "".join(f'"{row[:60]}",x\n' for row in map(repr, rows)))
    names = ("train_dataset", "validation_dataset", "test_dataset", "overview")
    outputs = {name: SimpleNamespace(path=str(folder / name), uri=str(folder / name), metadata={}) for name in names}
    prepare_data.python_func(
        **outputs, source=str(folder / "chats.jsonl"), split={"validation_fraction": 0.1, "test_fraction": 0.2}
    )
    program = [make_tiny_llama.__file__, folder / "texts.csv", folder / "tiny-llama"]
    subprocess.run(forked(environment("torch2"), *program), check=True)
    request = Request(
        train_uri=str(folder / "train_dataset"),
        model_uri=str(folder / "model"),
        checkpoint_uri=str(folder / "checkpoints"),
        train_specification=train_specification("language_model"),
        train_parameters={
            "base_model": str(folder / "tiny-llama"),
            "batch_size": 16,
            "learning_rate": 2e-2,
            "epochs": 30,
            "export": "both",
            "loss_on": "assistant",
        },
        identity=("chats",),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KFP_DISTRIBUTED_LANGUAGE_MODEL_PYTHON", str(environment("torch2")))
        launch(request, LocalRunner(), into([]))
    return folder


@pytest.fixture
def evaluate(folder, tmp_path, monkeypatch):
    """A function that evaluates, and returns the verdict, the metrics, the answers, and the report."""
    monkeypatch.setenv("KFP_DISTRIBUTED_LANGUAGE_MODEL_PYTHON", str(environment("torch2")))
    count = iter(range(100))

    def run(model, dataset="test_dataset", parameters=None, **inputs):
        place, logged = tmp_path / str(number := next(count)), {}
        artifacts = {
            name: SimpleNamespace(
                path=str(place / name), uri=TASK.format(number), metadata={}, log_metric=logged.__setitem__
            )
            for name in ("evaluation", "metrics", "report")
        }
        place.mkdir()
        verdict = evaluate_language_model.python_func(
            dataset=SimpleNamespace(path=str(folder / dataset), uri=""),
            model_uri=str(model),
            **artifacts,
            evaluation_parameters={"loss_on": "assistant", "answer_tokens": 3, **(parameters or {})},
            runner="local",
            **inputs,
        )
        lines = (place / "evaluation" / "answers.jsonl").read_text().splitlines()
        return verdict, logged, [json.loads(line) for line in lines], (place / "report").read_text()

    return run


LOSS = """
import json, sys, torch
from pathlib import Path
from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer
from kfp_distributed.trainers.language_rows import language_rows
folder, base, rows = sys.argv[1:]
file = Path(folder, "adapter_config.json")
file.write_text(json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": base}))
model, tokenizer = AutoPeftModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
total = tokens = 0
for row in language_rows(rows):
    texts = [tokenizer.apply_chat_template(row["messages"][:count], add_generation_prompt=count == 1, tokenize=False)
             for count in (1, 2)]
    prompt, whole = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts)
    end = len(tokenizer(texts[1].rstrip(), add_special_tokens=False)["input_ids"])
    labels = torch.tensor(whole)
    labels[:len(prompt)], labels[end:] = -100, -100
    count = int((labels[1:] >= 0).sum())
    loss = model(torch.tensor([whole]), labels=labels[None]).loss.item()
    total, tokens = total + loss * count, tokens + count
print(json.dumps([total / tokens, tokens]))
"""


def test_the_loss_is_that_of_each_token_of_the_answers(folder, evaluate, library_archive, capsys):
    copied = folder / "copied"
    subprocess.run(["cp", "-r", folder / "model", copied], check=True)
    program = forked(environment("torch2"), "-c", LOSS, copied, folder / "tiny-llama", folder / "test_dataset")
    process = subprocess.run(
        program, check=True, capture_output=True, text=True, env={"PYTHONPATH": str(library_archive)}
    )
    loss, tokens = json.loads(process.stdout.splitlines()[-1])
    verdict, metrics, answers, report = evaluate(folder / "model", metric="loss", bound=loss + 1e-3)
    assert "checkpoint" not in capsys.readouterr().out
    assert metrics["loss"] == pytest.approx(loss, rel=1e-5)
    assert (metrics["tokens"], metrics["rows"], metrics["prompts"]) == (tokens, 12, 12)
    assert verdict == (metrics["loss"], True)
    assert metrics["exact_match"] == sum(answer["is_exact"] for answer in answers) / 12
    assert all(answer["is_exact"] == (answer["answer"] == answer["reference"]) for answer in answers)
    assert {answer["reference"] for answer in answers} <= {*COLOURS}
    assert metrics["exact_match"] > 0
    assert metrics["longer_references"] == 0
    assert answers[0]["prompt"] in report
    assert f"score={loss:.6g} (loss) is good enough: the bound is at most {loss + 1e-3:.6g}" in report


TASK_OF_HARNESS = """
task: colours
dataset_path: json
dataset_kwargs: {data_files: {test: colours.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{['r', 'g'] if answer else ['rrrg', 'gggr']}}"
doc_to_target: "{{answer}}"
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: brier_score, aggregation: brier_score, higher_is_better: false}
"""


GENERATION = """
task: answers
dataset_path: json
dataset_kwargs: {data_files: {test: colours.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["r", "g", "e"], max_gen_toks: 12, do_sample: false}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
"""
"""Ranks end at other tokens."""


GROUP = """
group: group
task: [colours, answers]
"""


LOAD = """
import sys
from kfp_distributed.trainers.language_scoring.harness import load_tasks
from kfp_distributed.trainers.programs.evaluation_parameters import LanguageEvaluationParameters
folder, task, sharding, ranks = sys.argv[1:]
parameters = LanguageEvaluationParameters("", harness_tasks=[task], harness_folder=folder, sharding=sharding)
try:
    load_tasks(parameters, int(ranks))
except ValueError as error:
    print(error)
"""


OF_ROWS = ("rows", "tokens", "loss", "perplexity")


HARNESS = {"harness_tasks": ["colours"]}


@pytest.fixture
def harness(tmp_path):
    """Address of a folder with tasks of lm-evaluation-harness, and their data."""
    folder = tmp_path / "harness" / "tasks"
    folder.mkdir(parents=True)
    rows = [{"question": f"{number}: say a colour ", "answer": number % 2} for number in range(7)]
    (folder.parent / "colours.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "colours.yaml").write_text(TASK_OF_HARNESS)
    (folder / "answers.yaml").write_text(GENERATION)
    (folder / "group.yaml").write_text(GROUP)
    return f"file://{folder.parent}"


def test_tasks_of_the_harness_are_scored_by_all_ranks(folder, evaluate, harness, tmp_path):
    parameters = {"answers": 0, "harness_tasks": ["colours", "answers"], "harness_folder": harness}
    verdict, alone, *_ = evaluate(folder / "model", parameters=parameters, metric="colours/acc", bound=0.0)
    assert verdict == (alone["colours/acc"], True)
    assert alone["colours/acc"] in {count / 7 for count in range(8)}
    parameters |= {"sharding": "fsdp"}
    options = {"distribution_specification": TWO_RANKS, "metric": "colours/brier_score", "bound": 0.0}
    verdict, together, _, report = evaluate(folder / "model", parameters=parameters, **options)
    lower = json.loads((tmp_path / "1" / "evaluation" / "evaluation.json").read_text())["lower_is_better"]
    assert together == pytest.approx(alone, rel=1e-5)
    assert verdict == (together["colours/brier_score"], False)
    assert "(colours/brier_score) is not good enough: the bound is at most 0" in report
    assert lower == ["loss", "perplexity", "colours/brier_score"]
    # The names of metrics are not known before the job has ended.
    with pytest.raises(SystemExit, match=r"the metric 'colours/accuracy' is undefined .* such as .*colours/acc"):
        evaluate(folder / "model", parameters={**parameters, "sharding": "none"}, metric="colours/accuracy")
    assert "the metric &#39;colours/accuracy&#39; is undefined" in (tmp_path / "2" / "report").read_text()
    assert set(together) == {*OF_ROWS, "colours/acc", "colours/brier_score", "answers/exact_match"}


@pytest.mark.parametrize(
    ("task", "sharding", "ranks", "refused"),
    [
        ("arc_easy", "none", 1, r"harness_tasks has arc_easy; file://.*/harness has answers, broken, colours, empty"),
        ("group", "fsdp", 2, r"harness_tasks has group; file://.* has .*colours, empty; name the tasks of a group one"),
        ("empty", "none", 1, r"empty in harness_tasks cannot be .*: StopIteration.*; these files are empty: e.jsonl$"),
        ("of_empty", "none", 1, r"of_empty in harness_tasks cannot be loaded: .*; these files are empty: e.jsonl$"),
        ("broken", "none", 1, r"broken in harness_tasks cannot be loaded: ArrowInvalid\('JSON parse error"),
        ("group", "none", 8, r"the task colours in harness_tasks has 7 samples for 8 ranks: use fewer workers"),
    ],
)
def test_tasks_that_ranks_cannot_share_are_refused_before_the_model_is_fetched(
    harness, tmp_path, library_archive, task, sharding, ranks, refused
):
    for name, file, text in (("empty", "e", ""), ("broken", "b", "{")):
        (tmp_path / "harness" / f"{file}.jsonl").write_text(text)
        task_of_file = TASK_OF_HARNESS.replace("colours.jsonl", f"{file}.jsonl").replace("colours", name)
        (tmp_path / "harness" / f"{file}.yaml").write_text(task_of_file)
    (tmp_path / "harness" / "g.yaml").write_text("group: of_empty\ntask: [empty]\n")
    program = forked(environment("torch2"), "-c", LOAD, harness, task, sharding, str(ranks))
    variables = {**os.environ, "PYTHONPATH": str(library_archive)}
    process = subprocess.run(program, capture_output=True, text=True, check=False, cwd=tmp_path, env=variables)
    assert re.search(refused, process.stdout.splitlines()[-1]), process.stdout + process.stderr


def test_a_task_that_the_folder_does_not_define_is_refused_by_the_step(folder, evaluate, harness):
    parameters = {"harness_tasks": ["colours", "arc_easy"], "harness_folder": harness}
    for address in (harness, harness.removeprefix("file://")):
        with pytest.raises(SystemExit, match=r"harness', and no YAML file in it has arc_easy; allowed"):
            evaluate(folder / "model", parameters=parameters | {"harness_folder": address})


@pytest.mark.parametrize("sharding", ["none", "fsdp"])
def test_ranks_and_sharding_change_nothing(folder, evaluate, sharding):
    """The ranks have different numbers of rows and prompts. One evaluates the adapter, the other the merged model."""
    adapter = folder / "adapter"
    if not adapter.exists():
        subprocess.run(["cp", "-r", folder / "model", adapter], check=True)
        manifest = ModelManifest.from_json((adapter / MODEL_MANIFEST).read_text())
        files = tuple(file for file in manifest.files if not file.path.startswith("merged/"))
        described = json.loads(manifest.to_json()) | {"base": {**manifest.base, "kind": "adapter"}}
        described["files"] = [entry for entry in described["files"] if entry["path"] in {file.path for file in files}]
        (adapter / MODEL_MANIFEST).write_text(json.dumps(described))
    _, expected, answers, _ = evaluate(folder / "model", parameters={"answers": 7})
    parameters = {"answers": 7, "batch_size": 3, "sharding": sharding}
    _, found, texts, _ = evaluate(adapter, parameters=parameters, distribution_specification=TWO_RANKS)
    assert found == pytest.approx(expected, rel=1e-5)
    assert texts == answers


def test_rows_that_are_too_long_have_no_effect(folder, evaluate):
    """trl drops them if no token of an answer is left."""
    rows = [conversation(number) for number in range(6)]
    rows += [{"messages": [{"role": "user", "content": "x" * 500}, rows[0]["messages"][1]]} for _ in range(3)]
    rows += [{"messages": [rows[0]["messages"][0], {"role": "assistant", "content": "zqxw" * 25}]}]
    (folder / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = ("train_dataset", "validation_dataset", "test_dataset", "overview")
    outputs = {
        name: SimpleNamespace(path=str(folder / "long" / name), uri=str(folder / "long" / name), metadata={})
        for name in names
    }
    split = {"validation_fraction": 0, "test_fraction": 0}
    prepare_data.python_func(**outputs, source=str(folder / "long.jsonl"), split=split)
    parameters = {"max_length": 64, "answer_tokens": 128}
    _, metrics, *_ = evaluate(folder / "model", dataset="long/train_dataset", parameters=parameters)
    assert (metrics["rows"], metrics["prompts"]) == (7, 10)
    assert metrics["longer_references"] == 1, "an answer has half of max_length, at most"


@pytest.mark.parametrize(
    ("inputs", "refused"),
    [
        ({"dataset": "train_dataset"}, "shards of the dataset trained the model"),
        ({"parameters": {"answer": 5}}, "evaluation_parameters has no 'answer'; allowed are batch_size, max_length"),
        ({"parameters": {"base_model": "x"}}, "evaluation_parameters has no 'base_model'"),
        ({"parameters": {"batch_size": 0}}, "evaluation_parameters: batch_size is 0; allowed is more than 0"),
        ({"parameters": {"sharding": "fsdp"}}, 'sharding is "fsdp", and the job has one rank: use several workers'),
        ({"parameters": {"loss_on": "completion"}}, "evaluation_parameters: loss_on is 'completion', and the dataset"),
        ({"parameters": {"answers": 0}, "metric": "exact_match"}, "answers is 0"),
        ({"parameters": {"harness_tasks": ["arc_easy"]}}, "set both, or none"),
        ({"parameters": HARNESS | {"harness_folder": "tasks"}}, "harness_folder is 'tasks', which is no full path; "),
        (
            {"parameters": HARNESS | {"harness_folder": "hf://a/b@c"}},
            "harness_folder is 'hf://a/b@c', which is no full",
        ),
        ({"parameters": HARNESS | {"harness_folder": "/no"}}, "harness_folder is '/no', and there is no such folder"),
        ({"parameters": HARNESS | {"harness_folder": "file:///no"}}, "is 'file:///no', and it has no files; allowed"),
        ({"metric": "exact_match", "bound": 10.0}, "bound 10.0 of exact_match is more than 1"),
        ({"metric": "arc_easy/acc"}, "is not a metric of language models"),
        ({"metric": "accuracy"}, "is not a metric of language models: allowed are loss, perplexity, exact_match"),
        ({"model": "/nowhere/model"}, "model_uri is '/nowhere/model', and there is no such folder"),
        ({"model": ""}, "model_uri is empty: set the address of a model, such as s3://bucket/model, or the path of a"),
        ({"model": "owner/name"}, "write hf://owner/name@REVISION"),
        ({"distribution_specification": {"distribution_type": "TF"}}, "language_evaluation is for Job, PyTorch"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(folder, evaluate, inputs, refused):
    with pytest.raises(SystemExit, match=refused):
        evaluate(**{"model": folder / "model", **inputs})


@pytest.mark.parametrize("form", ["file://{}/first", "{}/first", "file://{}/first/merged"])
def test_rows_that_trained_the_base_model_are_refused(folder, evaluate, tmp_path, form):
    """It may be named by its folder merged, which has no manifest. If it is gone, there is a warning."""
    base = json.loads((folder / "model" / MODEL_MANIFEST).read_text())
    for name, address in (("first", "hf://owner/name@main"), ("second", form.format(tmp_path))):
        (tmp_path / name / "merged").mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
        described = {**base, "base": {"kind": "both", "base_model": address, "sha256": ""}}
        described["files"] = [{"path": "config.json", "size": 2, "sha256": ""}]
        described["training_data"] = base["training_data"] if name == "first" else []
        (tmp_path / name / MODEL_MANIFEST).write_text(json.dumps(described))
    assert read_model(str(tmp_path / "second")).training_data == tuple(base["training_data"])
    with pytest.raises(SystemExit, match="trained the model"):
        evaluate(tmp_path / "second", dataset="train_dataset")
    (tmp_path / "first").rename(tmp_path / "gone")
    assert read_model(str(tmp_path / "second")).training_data == ({},)


@pytest.mark.parametrize(("kind", "changed"), [("both", "sha256"), ("adapter", "adapter_sha256")])
def test_a_model_that_has_changed_is_another_one(folder, tmp_path, kind, changed):
    """So that a step that runs again does not take the scores of the model before it."""
    both, merged = (read_model(str(folder / "model" / name)) for name in ("", "merged"))
    assert both == merged
    assert both.parameters["base_model"] == str(folder / "model" / "merged")
    manifest = json.loads((folder / "model" / MODEL_MANIFEST).read_text())
    other = shutil.copytree(folder / "model", tmp_path / "other")
    manifest["base"]["kind"] = kind
    (other / MODEL_MANIFEST).write_text(json.dumps(manifest))
    before = read_model(str(other)).parameters
    for file in manifest["files"]:
        if file["path"] in ("merged/model.safetensors", "adapter_model.safetensors"):
            file["sha256"] = "0" * 64
    (other / MODEL_MANIFEST).write_text(json.dumps(manifest))
    after = read_model(str(other)).parameters
    assert {name for name in before if after[name] != before[name]} == {changed}


def test_a_folder_merged_in_another_model_is_a_model_of_its_own(folder, tmp_path):
    inner, described = tmp_path / "merged", json.loads((folder / "model" / MODEL_MANIFEST).read_text())
    shutil.copytree(folder / "model" / "merged", inner)
    described["base"]["kind"] = "full"
    described["files"] = [{"path": "merged/config.json", "size": (inner / "config.json").stat().st_size, "sha256": ""}]
    (tmp_path / MODEL_MANIFEST).write_text(json.dumps(described))
    assert read_model(str(inner)) == ({"base_model": str(inner)}, ())


def test_an_adapter_of_another_base_model_is_refused(folder, evaluate, tmp_path):
    adapter = Path(subprocess.run(["cp", "-r", folder / "model", tmp_path / "m"], check=True) and tmp_path / "m")
    described = json.loads((adapter / MODEL_MANIFEST).read_text())
    described["base"] |= {"kind": "adapter", "sha256": "0" * 64}
    (adapter / MODEL_MANIFEST).write_text(json.dumps(described))
    with pytest.raises(SystemExit, match="or the training of its adapter, names 0000"):
        evaluate(adapter)


@pytest.mark.parametrize("kind", ["adapter", "both"])
def test_a_model_with_a_damaged_file_is_not_scored(folder, evaluate, tmp_path, kind):
    """The file has the right size. The address is a path, of which no file is fetched."""
    model = shutil.copytree(folder / "model", tmp_path / "m")
    described = json.loads((model / MODEL_MANIFEST).read_text())
    described["base"]["kind"] = kind
    (model / MODEL_MANIFEST).write_text(json.dumps(described))
    weights = model / ("adapter_model.safetensors" if kind == "adapter" else "merged/model.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(SystemExit, match=r"another SHA-256 than in its model\.json|has the SHA-256 .*, and its model"):
        evaluate(model)


@pytest.mark.parametrize(
    ("memory", "ranks", "sharding"), [(None, 2, "none"), ("24Gi", 2, "none"), ("12Gi", 2, "fsdp"), ("12Gi", 1, None)]
)
def test_the_memory_of_the_gpus_decides_about_sharding(tmp_path, memory, ranks, sharding):
    """A model of 8 billion parameters has 15 GiB with 16 bits."""
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
    config = {"model_type": "llama", **sizes, "num_key_value_heads": 8, "vocab_size": 128256}
    (tmp_path / "config.json").write_text(json.dumps(config))
    if sharding:
        assert plan_evaluation({"base_model": str(tmp_path)}, ranks, memory)["sharding"] == sharding
        return
    with pytest.raises(
        ValueError, match=r"worker_gpu_memory is 12Gi, and the weights of the model alone have 15.0 GiB"
    ):
        plan_evaluation({"base_model": str(tmp_path)}, ranks, memory)
