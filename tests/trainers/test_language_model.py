"""The fine-tuning of a language model: one and two ranks, with and without accumulation, killed, and what it saves."""

import json
import os
import re
import subprocess
from types import SimpleNamespace

import make_tiny_llama
import pytest
from environments import environment
from forked_replicas import forked
from step_lines import into

from kfp_distributed.components import prepare_data
from kfp_distributed.components.train.run.launch import TrainingFailed, launch
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.storage.files import describe_folder
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest
from kfp_distributed.trainers import train_specification

pytestmark = pytest.mark.takes(40)

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


def conversation(number):
    one, other = number % 7, number // 7 % 6
    said = [("system", "You add."), ("user", f"What is {WORDS[one]} plus {WORDS[other]}? {number}")]
    said.append(("assistant", f"It is {WORDS[one + other]}."))
    return {"messages": [{"role": role, "content": content} for role, content in said]}


def killed(
    train_dir: str,
    validation_dir: str,
    model_dir: str,
    checkpoint_dir: str,
    metrics_dir: str,
    dies: str = "",
    code: int = 0,
    **parameters: object,
) -> None:
    """Train. The last rank kills itself in step 7 once, or exits with a code, once `dies` has the checkpoint of step 6.

    A model whose parameters are divided among the ranks is saved in several files.
    """
    import os as system
    import signal
    import time
    from pathlib import Path

    from kfp_distributed.trainers import hugging_face, language_model
    from kfp_distributed.trainers.language_training import model_files
    from kfp_distributed.trainers.programs.language_parameters import LanguageModelParameters

    def is_stored() -> bool:
        manifests = Path(dies).glob("checkpoints/*/checkpoints/*.json")
        return any('"step": 6,' in manifest.read_text() for manifest in manifests)

    class DyingMetrics(hugging_face.StoredMetrics):
        def on_step_end(self, args: object, state: object, control: object, **others: object) -> object:
            marker = Path(f"{dies}/died")
            if state.global_step == 7 and system.environ["RANK"] == "1" and not marker.exists():
                while not is_stored():
                    time.sleep(0.05)
                marker.touch()
                if code:
                    raise SystemExit(code)
                system.kill(system.getpid(), signal.SIGKILL)
            return super().on_step_end(args, state, control, **others)

    class LateAnswers(language_model.HeldOutAnswers):
        def ask(self, *arguments: object) -> None:
            assert system.environ["RANK"] != "0" or Path(model_dir, "adapter_model.safetensors").exists()
            super().ask(*arguments)

    language_model.HeldOutAnswers = LateAnswers
    model_files.PART_BYTES = 200_000
    if dies:
        language_model.StoredMetrics = DyingMetrics
    folders = train_dir, validation_dir, model_dir, checkpoint_dir, metrics_dir
    language_model.language_model(*folders, LanguageModelParameters(**parameters))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with the splits of 80 conversations, and with tiny-llama."""
    folder = tmp_path_factory.mktemp("chats")
    rows = [json.dumps(conversation(number)) for number in range(80)]
    (folder / "chats.jsonl").write_text("\n".join(rows))
    (folder / "texts.csv").write_text("message,team\n" + "".join(f'"{row[:60]}",x\n' for row in map(repr, rows)))
    names = ("train_dataset", "validation_dataset", "test_dataset", "overview")
    outputs = {name: SimpleNamespace(path=str(folder / name), uri=str(folder / name), metadata={}) for name in names}
    prepare_data.python_func(
        **outputs, source=str(folder / "chats.jsonl"), split={"validation_fraction": 0.2, "test_fraction": 0}
    )
    program = [make_tiny_llama.__file__, folder / "texts.csv", folder / "tiny-llama"]
    subprocess.run(forked(environment("torch2"), *program), check=True)
    (folder / "tiny-llama" / "README.md").touch()
    manifest = ModelManifest(files=describe_folder(folder / "tiny-llama"))
    (folder / "tiny-llama" / MODEL_MANIFEST).write_text(manifest.to_json())
    return folder


@pytest.fixture(scope="module")
def train(folder):
    """A function that trains with so many ranks, and returns the metrics, the model, the log and the rest."""

    def run(ranks=1, *, dies=False, place=None, **parameters):
        place = place or folder / f"training-{len([*folder.iterdir()])}"
        place.mkdir(exist_ok=True)
        request = Request(
            train_uri=str(folder / "train_dataset"),
            validation_uri=str(folder / "validation_dataset"),
            model_uri=str(place / "model"),
            checkpoint_uri=str(place / "checkpoints"),
            train_specification=train_specification(killed, rows="all")
            if dies
            else train_specification("language_model"),
            train_parameters={
                "base_model": str(folder / "tiny-llama"),
                "batch_size": 16,
                "learning_rate": 1e-2,
                "warmup_ratio": 0.0,
                "checkpoint_steps": 2,
                "evaluate_steps": 2,
                **({"dies": str(place)} if dies else {}),
                **parameters,
            },
            distribution_specification={"distribution_type": "PyTorch", "number_of_workers": 1}
            if ranks == 2
            else {"distribution_type": "Job"},
            identity=(str(place),),
        )
        lines = []
        with pytest.MonkeyPatch.context() as patch:
            for image in ("PYTORCH", "LANGUAGE_MODEL"):
                patch.setenv(f"KFP_DISTRIBUTED_{image}_PYTHON", str(environment("torch2")))
            outcome = launch(request, LocalRunner(), into(lines))
        (rows,) = outcome.metrics.values()
        return rows, place / "model", "\n".join(lines), outcome.fine_tuning

    return run


@pytest.fixture(scope="module")
def of_two_ranks(train):
    return train(2, lora_dropout=0.1, epochs=2, micro_batch_size=4)


def losses(rows):
    return [row["loss"] for row in rows], [row["val_loss"] for row in rows if "val_loss" in row]


def test_ranks_and_accumulation_change_nothing(train):
    """Of an evaluation, the loss is the mean of those of its batches, which have as many rows as those of training."""
    alone, accumulated, together = (
        losses(train(ranks, micro_batch_size=size)[0]) for ranks, size in ((1, 16), (1, 4), (2, 4))
    )
    assert alone[0] == pytest.approx(accumulated[0], rel=1e-5)
    assert alone[0] == pytest.approx(together[0], rel=1e-5)
    assert accumulated[1] == pytest.approx(together[1], rel=1e-5)
    assert alone[1][-1] < alone[1][0]


def test_a_training_with_a_killed_rank_ends_as_if_nothing_had_happened(train, of_two_ranks):
    """It is killed within the second epoch, whose order of rows it must keep."""
    rows, _, log, _ = train(2, dies=True, lora_dropout=0.1, epochs=2, micro_batch_size=4)
    assert "signal 9" in log
    assert "continues after checkpoint-6" in log
    expected = of_two_ranks[0]
    assert "16 answers of the base model took" in log
    assert len(re.findall(r"step 8/8 .*\bloss=.* val_loss=", log)) == log.count("step 8/8 ") == 1
    assert losses(rows) == losses(expected)
    assert [row["tokens"] for row in rows] == [row["tokens"] for row in expected]


def test_a_sharded_training_with_a_killed_rank_is_as_one_of_whole_models(train, of_two_ranks, folder):
    """It gathers the adapter, and the parts of the merged model one after another. Rank 0 alone reads the weights."""
    base = f"file://{folder}/tiny-llama"
    options = {"base_model": base, "sharding": "fsdp", "lora_dropout": 0.1, "epochs": 2, "micro_batch_size": 4}
    rows, model, log, (_, answers) = train(2, dies=True, export="both", **options)
    assert "signal 9" in log
    assert "continues after checkpoint-6" in log
    fetched = {f"[master-0] fetching the model {base}", f"[worker-0] fetching the model {base} without its weights"}
    assert {*re.findall(r"\S+ fetching the model .*", log)} == fetched
    for found, expected in zip(losses(rows), losses(of_two_ranks[0]), strict=True):
        assert found == pytest.approx(expected, rel=1e-5)
    assert [row["tokens"] for row in rows] == [row["tokens"] for row in of_two_ranks[0]]
    norms, expected = ([row["grad_norm"] for row in of if "grad_norm" in row] for of in (rows, of_two_ranks[0]))
    assert len(norms) == len(losses(rows)[0])
    assert norms == pytest.approx(expected, rel=1e-3)
    assert answers == of_two_ranks[3].answers
    found = merged_files(model, str(folder / "tiny-llama"))
    assert found["difference"] < 1e-5
    assert {"merged/model.safetensors.index.json", "merged/model-00001-of-00003.safetensors"} <= {*found["files"]}


def test_all_ranks_of_a_sharded_training_that_diverges_end_at_once(train):
    with pytest.raises(
        TrainingFailed, match=r"-0 failed with exit code 1, .* Then failed \w+-0 with exit code 1\."
    ) as of:
        train(2, sharding="fsdp", lora_alpha=1e38)
    assert "the training diverged in step 1: the gradients are not finite" in of.value.cause


OUTSIDE = """
import sys
from pathlib import Path
from shutil import copy
from transformers import AutoConfig, AutoModelForCausalLM, OPTConfig
base, folder = map(Path, sys.argv[1:])
size = AutoConfig.from_pretrained(base).vocab_size
sizes = {"hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "word_embed_proj_dim": 16}
sizes["tie_word_embeddings"] = False
config = OPTConfig(**sizes, vocab_size=size, pad_token_id=1, do_layer_norm_before=False)
AutoModelForCausalLM.from_config(config).save_pretrained(folder)
for file in [*base.glob("tokenizer*"), *base.glob("chat_template*")]:
    copy(file, folder)
"""


def test_adapters_of_layers_outside_of_the_decoder_of_a_sharded_model_are_merged(train, folder, tmp_path):
    """Those of project_in and project_out belong to the whole model, which the answers leave gathered."""
    subprocess.run(forked(environment("torch2"), "-c", OUTSIDE, folder / "tiny-llama", tmp_path / "opt"), check=True)
    _, model, *_ = train(2, sharding="fsdp", export="both", base_model=str(tmp_path / "opt"))
    assert merged_files(model, str(tmp_path / "opt"))["difference"] < 1e-5


def test_one_rank_continues_after_a_checkpoint_of_two(train, folder):
    options = {"epochs": 2, "place": folder / "training-with-other-ranks"}
    with pytest.raises(TrainingFailed, match="exit code 3"):
        train(2, dies=True, code=3, sharding="fsdp", micro_batch_size=4, **options)
    rows, _, log, _ = train(1, **options)
    assert "loaded checkpoint 00000003 of step 6, saved by 2 ranks: rank 0 of 1 " in log
    for found, expected in zip(losses(rows), losses(train(2, epochs=2)[0]), strict=True):
        assert found == pytest.approx(expected, rel=1e-5)


MERGED = """
import json, sys, torch
from pathlib import Path
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM
tokens = torch.tensor([[5, 6, 7, 8, 9]])
adapted = AutoPeftModelForCausalLM.from_pretrained(sys.argv[1])(tokens).logits
merged = AutoModelForCausalLM.from_pretrained(f"{sys.argv[1]}/merged")(tokens).logits
files = sorted(str(file.relative_to(sys.argv[1])) for file in Path(sys.argv[1]).rglob("*") if file.is_file())
print(json.dumps({"difference": (adapted - merged).abs().max().item(), "files": files}))
"""


def merged_files(model, base):
    """Return the names of the files, and the difference between the adapter and the merged model."""
    configuration = json.loads((model / "adapter_config.json").read_text())
    (model / "adapter_config.json").write_text(json.dumps(configuration | {"base_model_name_or_path": base}))
    program = forked(environment("torch2"), "-c", MERGED, model)
    return json.loads(subprocess.run(program, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def test_the_merged_model_answers_as_the_adapter_and_nothing_is_a_pickle(train, folder):
    address = f"file://{folder}/tiny-llama"
    _, model, log, _ = train(export="both", base_model=address)
    assert f"fetching the model {address}" in log
    assert " of an adapter are trained; a GPU needs about 1.6 GiB for micro_batch_size 8 and max_length 2048" in log
    manifest = json.loads((model / "model.json").read_text())
    described = {"kind": "both", "base_model": address, "sha256": content_hash(folder / "tiny-llama")}
    assert (manifest["format"], manifest["base"]) == ("hugging_face", described)
    configuration = json.loads((model / "adapter_config.json").read_text())
    assert configuration["base_model_name_or_path"] == address
    found = merged_files(model, str(folder / "tiny-llama"))
    assert found["difference"] < 1e-5
    assert {"adapter_model.safetensors", "merged/model.safetensors", "merged/tokenizer.json"} <= {*found["files"]}
    assert not any(name.endswith("README.md") for name in found["files"])
    assert [name for name in found["files"] if name.endswith((".bin", ".pt", ".pth", ".pkl"))] == []


def test_all_parameters_can_be_trained(train):
    rows, model, *_ = train(method="full", learning_rate=1e-3, packing=True, max_length=64)
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert (model / "model.safetensors").exists()
    assert not (model / "adapter_model.safetensors").exists()


COUNTED = """
import json, sys
from transformers import TrainingArguments
from kfp_distributed.trainers.language_rows import language_rows
from kfp_distributed.trainers.programs.language_parameters import LanguageModelParameters
from kfp_distributed.trainers.language_training.tuning_trainer import tuning_trainer
rows = language_rows(sys.argv[1])[:2]
prompts = [{"prompt": row["messages"][:2], "completion": row["messages"][2:]} for row in rows]
texts, own_device, asked = {}, TrainingArguments.device.fget, set()

def device_of_two_gpus(arguments):
    device = own_device(arguments)
    if id(arguments) not in asked:
        asked.add(id(arguments))
        arguments._n_gpu = 2
    return device

TrainingArguments.device = property(device_of_two_gpus)
for name, given, loss_on in (("auto", rows, "auto"), ("all", rows, "all"), ("assistant", rows, "assistant"),
                             ("completion", prompts, "auto"), ("prompts", prompts, "all")):
    parameters = LanguageModelParameters(sys.argv[2], batch_size=2, loss_on=loss_on)
    trainer = tuning_trainer(parameters, given, [], "checkpoints", 1)
    assert asked and trainer.args.n_gpu < 2
    labels = next(iter(trainer.get_train_dataloader()))["labels"]
    texts[name] = sorted(trainer.processing_class.decode(row[row >= 0]) for row in labels)
print(json.dumps([texts, [row["messages"] for row in rows]]))
"""


def test_the_tokens_whose_loss_counts(folder, tmp_path, library_archive):
    program = forked(environment("torch2"), "-c", COUNTED, folder / "train_dataset", folder / "tiny-llama")
    variables = {**os.environ, "PYTHONPATH": str(library_archive)}
    process = subprocess.run(program, check=False, capture_output=True, text=True, cwd=tmp_path, env=variables)
    assert process.returncode == 0, process.stderr
    texts, conversations = json.loads(process.stdout.splitlines()[-1])
    answers = sorted(f"{messages[-1]['content']}<|im_end|>" for messages in conversations)
    assert [text.strip() for text in texts["assistant"]] == answers
    assert [text.strip() for text in texts["completion"]] == answers
    for name in ("auto", "all", "prompts"):
        assert all("You add." in text and "It is" in text for text in texts[name]), name


EXACT = """
import json, sys
from kfp_distributed.trainers.programs.language_parameters import LanguageModelParameters
from kfp_distributed.trainers.language_training.tuning_trainer import tuning_trainer
rows, template = json.loads(sys.argv[1]), "{{ messages | tojson }}{{ tools | tojson }}"
parameters = LanguageModelParameters(sys.argv[2], batch_size=1, max_length=4096, chat_template=template)
trainer = tuning_trainer(parameters, rows, [], "checkpoints", 1)
tokenizer = trainer.processing_class
given = [(row.get("messages") or row["prompt"] + row["completion"], row["tools"]) for row in rows]
print(json.dumps([
    [tokenizer.apply_chat_template(messages, tools=tools)["input_ids"] for messages, tools in given],
    [row["input_ids"] for row in trainer.train_dataset],
]))
"""


def called(**arguments):
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    return [{"role": "user", "content": "Go"}, {"role": "assistant", "tool_calls": [call]}]


@pytest.mark.parametrize("form", ["messages", "prompts"])
def test_the_tokens_are_those_of_each_row_alone(form, folder, tmp_path, library_archive):
    rows = [called(city="Rome"), called(a=1.2345678901234567, b={"c": 2**70}), called(a="Rome")]
    rows.append([{"role": "user", "content": [{"type": "text", "text": "Go"}]}, {"role": "assistant", "content": "x"}])
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "number"}}}}}]
    given = [{"messages": row} if form == "messages" else {"prompt": row[:1], "completion": row[1:]} for row in rows]
    given = [{**row, "tools": value, "image": 3} for row, value in zip(given, (tools, [], None, tools), strict=True)]
    program = forked(environment("torch2"), "-c", EXACT, json.dumps(given), folder / "tiny-llama")
    variables = {**os.environ, "PYTHONPATH": str(library_archive)}
    process = subprocess.run(program, check=False, capture_output=True, text=True, cwd=tmp_path, env=variables)
    assert process.returncode == 0, process.stderr
    expected, found = json.loads(process.stdout.splitlines()[-1])
    assert found == expected


CUT = """
import json, sys
from kfp_distributed.trainers.programs.language_parameters import LanguageModelParameters
from kfp_distributed.trainers.language_training.tuning_trainer import describe_tokens, tuning_trainer
prompts, talks = json.loads(sys.argv[1])
for rows, validation, options in (
    (prompts, prompts[:3], {}),
    (prompts, prompts[:3], {"packing": True}),
    (talks, [], {"loss_on": "assistant"}),
    (talks, [], {}),
    (prompts[:1], [], {}),
    (prompts[:1], [], {"packing": True}),
    (prompts, prompts[:1], {}),
    (prompts, prompts[:1], {"packing": True}),
):
    parameters = LanguageModelParameters(sys.argv[2], batch_size=1, max_length=26, **options)
    try:
        print(describe_tokens(tuning_trainer(parameters, rows, validation, "checkpoints", 1), rows, validation))
    except ValueError as error:
        print(f"ValueError: {error}")
"""


def test_rows_without_a_token_that_counts_before_max_length_are_named(folder, tmp_path, library_archive):
    """The prompts of the first, third and fifth row have more than 26 tokens."""
    prompts = [{"prompt": "one " * (1 if number % 2 else 40), "completion": "two"} for number in range(5)]
    roles = {"prompt": "user", "completion": "assistant"}
    talks = [{"messages": [{"role": roles[key], "content": text} for key, text in row.items()]} for row in prompts]
    program = forked(environment("torch2"), "-c", CUT, json.dumps([prompts, talks]), folder / "tiny-llama")
    variables = {**os.environ, "PYTHONPATH": str(library_archive)}
    process = subprocess.run(program, check=False, capture_output=True, text=True, cwd=tmp_path, env=variables)
    assert process.returncode == 0, process.stderr
    plain, packed, assistant, everything, *refused = process.stdout.splitlines()[-8:]
    without = "have no effect: no token whose loss counts is among their first 26 (max_length)"
    lost = "3 of all 5 rows and 2 of all 3 validation rows"
    assert re.match(rf"2 rows of .*; {lost} ", plain)
    assert re.match(rf"5 rows are packed into \d sequences of .*; {lost} ", packed)
    assert re.match(r"2 rows of .*; 3 of all 5 rows ", assistant)
    assert all(line.endswith(without) for line in (plain, packed, assistant))
    assert re.fullmatch(r"5 rows of .*; 5 have max_length 26 or are cut to it", everything)
    for number, line in enumerate(refused):
        what = "validation rows" if number > 1 else "rows"
        assert line.startswith(f"ValueError: max_length is 26, and all 1 {what} {without[:14]}"), line


def test_a_tuned_model_can_be_tuned_and_is_checked(train):
    """A model of `train` has the SHA-256 of its files, and answers as it did at the end of its training."""
    _, model, _, (_, adapted) = train(export="merged")
    rows, tuned, log, (tokens, answers) = train(base_model=f"file://{model}", method="full", learning_rate=1e-2)
    assert re.match(r"\d+ rows of ", tokens)
    assert f"{tokens}; 1 ranks" in log
    assert len(answers) == 16
    assert [answer.base for answer in answers] == [answer.tuned for answer in adapted]
    for known in (adapted, answers):
        assert [answer.base for answer in known] != [answer.tuned for answer in known]
    assert all(re.fullmatch(r"system: You add\.\nuser: What is .*\?.*", answer.prompt) for answer in answers)
    assert all(re.fullmatch(r"It is \w+\.", answer.reference) for answer in answers)
    assert re.search(r"16 answers of the tuned model took .*\n.*16 answers of the base model took", log)
    assert json.loads((tuned / "model.json").read_text())["base"]["kind"] == "full"
    assert rows[-1]["loss"] < rows[0]["loss"]
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")  # It was 3F of 1.0.
    with pytest.raises(Exception, match=r"model\.safetensors.*the object is damaged or was replaced"):
        train(base_model=f"file://{model}")


DOCUMENTED = (
    "ls | grep -E '[.](json|safetensors|jinja|txt|model)$' | grep -vx model.json | LC_ALL=C sort | xargs sha256sum"
    " | sha256sum"
)


def content_hash(folder):
    """Return the SHA-256 that a manifest has of a model, as the reference says."""
    lines = subprocess.run(DOCUMENTED, shell=True, check=True, capture_output=True, text=True, cwd=folder)
    return lines.stdout.split()[0]


ANSWERED = """
import json, sys, time
from pathlib import Path
from peft import LoraConfig, get_peft_model
from kfp_distributed.trainers.language_training import held_out_answers
from kfp_distributed.trainers.language_training.held_out_answers import HeldOutAnswers
from kfp_distributed.trainers.language_training.base_loading import load_base
rows = json.loads(sys.argv[1])
model, tokenizer = load_base(Path(sys.argv[2]), "", "full")
own = model.generation_config
for size, base in ((1, model), (2, model), (3, model), (2, None)):
    if size == 3:
        model = get_peft_model(model, LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM"))
        own.update(
            suppress_tokens=list(range(300)), encoder_repetition_penalty=9.0, repetition_penalty=9.0, min_length=50,
            num_return_sequences=2, num_beams=2, penalty_alpha=0.6, top_k=4, stop_strings=["e"], output_scores=True,
            return_dict_in_generate=True,
        )
        values = own.to_dict()
    answers = HeldOutAnswers(rows, tokenizer, size, 512)
    answers.ask("tuned", lambda: model)
    answers.ask("base", lambda: base)
    print(json.dumps([answer._asdict() for answer in answers.answers]))
assert model.generation_config is own and own.to_dict() == values
held_out_answers.SECONDS = 0.1
forward = model.forward

def slow(*arguments, **options):
    time.sleep(0.04)
    return forward(*arguments, **options)

model.forward = slow
HeldOutAnswers(rows, tokenizer, 2, 512).ask("tuned", lambda: model)
"""


def test_a_batch_is_answered_as_each_prompt_alone_and_a_failure_only_leaves_the_answers_out(
    folder, tmp_path, library_archive
):
    rows = [conversation(1), {"prompt": "one", "completion": " two"}, conversation(40), {"text": "none"}]
    rows.append({"prompt": conversation(5)["messages"][:2], "completion": conversation(5)["messages"][2:]})
    rows += [conversation(number) for number in range(30)]
    program = forked(environment("torch2"), "-c", ANSWERED, json.dumps(rows), folder / "tiny-llama")
    variables = {**os.environ, "PYTHONPATH": str(library_archive)}
    process = subprocess.run(program, check=False, capture_output=True, text=True, cwd=tmp_path, env=variables)
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    alone, together, whatever_is_configured, failed = (json.loads(line) for line in lines if line.startswith("["))
    assert together == whatever_is_configured == alone
    assert len(alone) == 19
    assert alone[1] | {"base": "", "tuned": ""} == {"prompt": "one", "reference": "two", "base": "", "tuned": ""}
    assert all(answer["base"] == answer["tuned"] != "" for answer in alone)
    assert failed == []
    assert re.match(r"0 answers of the tuned model took 0\.[1-9] s", lines[-1])
    assert lines[-3].startswith("the base model cannot answer held-out prompts: AttributeError: 'NoneType'")
