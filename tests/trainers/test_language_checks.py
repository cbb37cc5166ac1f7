"""What `language_model` finds before and while it trains: models, names of layers and losses that are wrong."""

import json
import os
import subprocess

import pytest
from environments import environment
from forked_replicas import forked

pytestmark = pytest.mark.takes(20)

PROGRAM = """
import json, math, sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PreTrainedTokenizerFast

from kfp_distributed.trainers.language_scoring.harness import load_tasks
from kfp_distributed.trainers.language_training.adapters import check_targets
from kfp_distributed.trainers.language_training.base_loading import load_base
from kfp_distributed.trainers.language_training.tuning_trainer import tuning_trainer
from kfp_distributed.trainers.language_training.tuning_updates import EndIfDiverged
from kfp_distributed.trainers.programs.evaluation_parameters import LanguageEvaluationParameters
from kfp_distributed.trainers.programs.language_parameters import LanguageModelParameters

folder, rows = Path("base").absolute(), [{"text": f"{i % 7} 1 2 3 4"} for i in range(3)]
config = LlamaConfig(
    hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=16, pad_token_id=10,
    eos_token_id=11, bos_token_id=12, max_position_embeddings=32,
)
AutoModelForCausalLM.from_config(config).save_pretrained(folder)
tokens = Tokenizer(models.WordLevel({str(i): i for i in range(20)}, unk_token="0"))
tokens.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="10", eos_token="11").save_pretrained(folder)

table = Path("table").absolute()
gpt = GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=32, vocab_size=20, eos_token_id=11)
AutoModelForCausalLM.from_config(gpt).save_pretrained(table)
PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="10", eos_token="11").save_pretrained(table)

def result(function, *arguments):
    try:
        return function(*arguments)
    except (ValueError, SystemExit) as error:
        return str(error)

def tune(rows, folder=folder, **options):
    tuning_trainer(LanguageModelParameters(str(folder), **options), rows, [], "checkpoints", 1)

def train(rate=1e-2, **options):
    parameters = LanguageModelParameters(str(folder), method="full", learning_rate=rate, **options)
    trainer = tuning_trainer(parameters, rows, [], "checkpoints", 1)
    trainer.add_callback(EndIfDiverged())
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train()
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
    return rates, not all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())

turns = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]
chat = {"messages": turns}
CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "1", "arguments": {}}}]}
TRIMS = {"chat_template": "{% for m in messages %}{{ m.content.strip() }} {% endfor %}"}
ADDS = {"chat_template": "{% for m in messages %}{{ m.content + ' ' }}{% endfor %}"}
TAKES = "{% for m in messages %}{{ m.content or '' }} {% endfor %}"
MARKED = "{% for m in messages %}{% generation %} {{ m.content }} {% endgeneration %}{% endfor %}"
found = {
    "one update": result(train),
    "warm-up": result(lambda: train(epochs=8, batch_size=3, warmup_ratio=0.4)),
    "diverged": result(lambda: train(1e9, epochs=8, batch_size=3)),
    "no template": [result(tune, [row]) for row in (chat, {"prompt": turns, "completion": turns[1:]})],
    "no marker": result(lambda: tune([chat], chat_template="{{ messages }}", loss_on="assistant")),
    "marker": result(lambda: tune([chat], chat_template=MARKED, loss_on="assistant")),
    "too long": result(lambda: tune([{"text": "1 19 2"}])),
    "call": [result(lambda: tune([chat, {"messages": [turns[0], {**CALL, **content}, turns[1]]}], **options))
             for content in ({}, {"content": None}) for options in (TRIMS, ADDS, {**TRIMS, "chat_template": TAKES})],
    "tools": [result(lambda: tune([chat, {**chat, "tools": value}, {**chat, "tools": []}], chat_template=template))
              for value, template in (([{"name": "1"}], TAKES), ([{"name": "1"}], TAKES + "{{ tools }}"), ([], TAKES))],
    "no tasks": result(load_tasks, LanguageEvaluationParameters("", harness_tasks=["a"], harness_folder="/no"), 1),
    "refused": result(lambda: tune([chat], chat_template="{{ raise_exception('no') }}")),
    "preference": result(lambda: tune([{"prompt": turns[:1], "chosen": [CALL], "rejected": turns[1:]}], **TRIMS,
                                      objective="dpo")),
    "no positions": [result(lambda: tune([{"text": "1 " * 9}] * 3 + [{"text": "1 " * length}], table, **options))
                     for length, options in ((40, {}), (40, {"max_length": 32}), (9, {"packing": True}))],
    **{name: result(check_targets, load_base(folder, "", "full")[0], name)
       for name in ("all-linear", "q_proj, mlp.up_proj", "q_proj,v_porj", "q_proj,,", "all-linear,q_proj", "proj")},
}
tied = AutoModelForCausalLM.from_config(LlamaConfig(**{**config.to_dict(), "tie_word_embeddings": True}))
found["tied"] = result(check_targets, tied, "embed_tokens")
weights = load_file(folder / "model.safetensors")
for name, changed in (
    ("fewer", {key: value for key, value in weights.items() if "layers.1" not in key}),
    ("more", {**weights, "model.layers.2.mlp.up_proj.weight": torch.zeros(32, 16)}),
    ("other biases", {**weights, "model.layers.0.self_attn.q_proj.bias": torch.zeros(16)}),
    ("other layer", {**weights, "model.layers.2.c_attn.bias": torch.zeros(16)}),
    ("old buffer", {**weights, "model.layers.0.self_attn.masked_bias": torch.zeros(1)}),
    ("images", {**weights, "vision_model.embeddings.weight": torch.zeros(1)}),
):
    save_file(changed, folder / "model.safetensors", {"format": "pt"})
    found[name] = result(lambda: load_base(folder, "", "full")[0] and "")
save_file(weights, folder / "model.safetensors", {"format": "pt"})
save_file({key: value * math.nan for key, value in weights.items()}, folder / "model.safetensors", {"format": "pt"})
found["not finite"] = result(train)
save_file(weights, folder / "model.safetensors", {"format": "pt"})
(folder / "tokenizer.json").write_text("{ damaged")
found["no tokenizer"] = result(load_base, folder, "", "full")
PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="18", eos_token="11").save_pretrained(folder)
trainer = tuning_trainer(LanguageModelParameters(str(folder), batch_size=2), rows, [], "checkpoints", 1)
largest = next(iter(trainer.get_train_dataloader()))["input_ids"].max().item()
found["padding"] = largest, trainer.model.config.pad_token_id
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory, library_archive):
    program = forked(environment("torch2"), "-c", PROGRAM)
    variables = {**os.environ, "PYTHONPATH": str(library_archive)}
    folder = tmp_path_factory.mktemp("checks")
    process = subprocess.run(program, check=False, capture_output=True, text=True, cwd=folder, env=variables)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


def test_each_update_changes_the_model_also_the_only_one(found):
    assert found["one update"] == [[1e-2], True]
    assert found["warm-up"][0] == pytest.approx(
        [1e-2 * part for part in (1 / 4, 2 / 4, 3 / 4, 1, 4 / 5, 3 / 5, 2 / 5, 1 / 5)]
    )


def test_a_training_that_diverges_fails(found):
    assert found["diverged"].startswith("the training diverged in step ")
    assert "Set a smaller learning_rate (now 1e+09)" in found["diverged"]
    assert found["not finite"].startswith("the loss of step 1, before any update, is nan: base_model has weights that")


def test_a_damaged_tokenizer_is_named(found):
    assert found["no tokenizer"].startswith("the tokenizer of the model cannot be read: JSONDecodeError(")


def test_the_parameters_for_a_chat_template_are_named(found):
    problem = "the tokenizer of base_model has no chat template, which conversations need: set chat_template"
    assert found["no template"] == [problem, problem]
    assert found["no marker"].startswith('loss_on is "assistant", and the chat template marks no answers with {% gene')
    assert found["marker"] is None


def test_a_row_that_the_chat_template_does_not_take_is_named(found):
    """A message that calls a tool has no content, or null. Templates take it as a text."""
    for problem in (*(found["call"][i] for i in (0, 1, 3, 4)), found["preference"]):
        assert problem.startswith('the chat template does not take the row {"')
        assert '"tool_calls": [{"function": {"name": "1"' in problem
        assert ". Set chat_template to one that does. " in problem
    assert found["call"][2] is found["call"][5] is None
    assert ": no. Set chat_template" in found["refused"]


def test_tools_that_the_chat_template_leaves_out_are_refused(found):
    problem = "rows have tools, and the chat template leaves them out: set chat_template, or drop tools"
    assert found["tools"] == [problem, None, None]


def test_a_folder_of_tasks_that_the_replica_does_not_have_is_named(found):
    assert found["no tasks"].startswith("harness_folder is '/no', and the replica has no such folder: ")


def test_a_token_that_the_model_does_not_have_is_named(found):
    """Models may lack tokens of their tokenizer that no row has."""
    assert found["too long"] == (
        "the rows have the token 19 of the tokenizer, and base_model has the tokens 0 to 15: save the model with the "
        "tokenizer that belongs to it"
    )


def test_a_row_that_the_model_has_no_positions_for_is_refused(found):
    """Of max_length, the default is more than some models have. Packed rows begin at the first position."""
    problem, *none = found["no positions"]
    assert problem.startswith("the longest row has 41 tokens, and the model has positions for 32 tokens")
    assert none == [None, None]


def test_embeddings_that_share_the_weight_of_the_head_are_not_adapted(found):
    """The adapter would be merged into the head, too."""
    assert "no layer whose weight is not also that of the head has the name 'embed_tokens'" in found["tied"]
    assert found["tied"].endswith(": down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj")


@pytest.mark.parametrize("targets", ["all-linear", "q_proj, mlp.up_proj"])
def test_the_names_of_layers_are_those_of_the_model(found, targets):
    assert found[targets] is None


@pytest.mark.parametrize(
    ("targets", "wrong"),
    [("q_proj,v_porj", "v_porj"), ("q_proj,,", ""), ("all-linear,q_proj", "all-linear"), ("proj", "proj")],
)
def test_a_name_of_no_layer_is_refused(found, targets, wrong):
    assert found[targets].startswith(
        f"lora_target_modules is {targets!r}, and no layer whose weight is not also that of the head has the name "
        f"{wrong!r}; allowed"
    )
    assert found[targets].endswith(": down_proj, embed_tokens, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj")


@pytest.mark.parametrize(
    ("weights", "key"),
    [
        ("fewer", "missing: model.layers.1."),
        ("more", "unexpected: model.layers.2"),
        ("other biases", "unexpected: model.layers.0.self_attn.q_proj.bias"),
        ("other layer", "unexpected: model.layers.2.c_attn.bias"),
    ],
)
def test_weights_of_another_model_are_refused(found, weights, key):
    assert found[weights].startswith(f"the weights of base_model are not those of its config.json ({key}")
    assert found["old buffer"] == found["images"] == ""


def test_padding_that_the_model_does_not_have_is_the_end_of_a_text(found):
    """A model of fewer tokens than its padding cannot be loaded again."""
    assert found["padding"] == [11, 11]


RANKS = """
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from kfp_distributed.trainers.language_training import base_loading

base_loading.has_bfloat16 = lambda: True
sizes = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 32,
    "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}
moe = sizes | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
latent = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16}
kinds = {
    "llama": sizes, "gemma3_text": sizes, "minimax": sizes | {"num_local_experts": 4},
    "gptj": {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "n_positions": 64, "vocab_size": 32},
    "openai-gpt": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 32},
    "deepseek_v2": sizes | latent | {
        "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 2, "topk_group": 1,
        "head_dim": 16, "first_k_dense_replace": 1,
    },
    "laguna": moe, "ernie4_5_moe": sizes | {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32},
}

def parts(folder, has_weights):
    model, _ = base_loading.load_base(folder, "", "lora", has_weights=has_weights)
    parameters = [(name, str(one.dtype), one.requires_grad, one.shape) for name, one in model.named_parameters()]
    buffers = [(name, str(one.dtype), one.device.type, one.tolist()) for name, one in model.named_buffers()]
    return [str(model.config.dtype), parameters, buffers]

found = {}
for kind, values in kinds.items():
    folder = Path(kind).absolute()
    AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **values)).save_pretrained(folder)
    tokens = Tokenizer(models.WordLevel({str(i): i for i in range(20)}, unk_token="0"))
    PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="0", eos_token="2").save_pretrained(folder)
    found[kind] = [parts(folder, has_weights) for has_weights in (True, False)]
print(json.dumps(found))
"""


def test_the_model_of_a_rank_without_weights_is_that_of_rank_0(tmp_path, library_archive):
    """Ranks that differ in a dtype, or in what is trained, would send each other different tensors."""
    program = forked(environment("torch2"), "-c", RANKS)
    variables = {**os.environ, "PYTHONPATH": str(library_archive)}
    process = subprocess.run(program, check=False, capture_output=True, text=True, cwd=tmp_path, env=variables)
    assert process.returncode == 0, process.stderr
    found = json.loads(process.stdout.splitlines()[-1])
    assert len(found) == 8
    assert {name for name, (read, unread) in found.items() if read != unread} == set()
