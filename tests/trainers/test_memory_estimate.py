"""The size of a language model by its config.json, and the memory of its fine-tuning, compared with transformers."""

import json
import os
import subprocess
from dataclasses import replace

import pytest
from environments import environment
from forked_replicas import forked

from kfp_distributed.trainers.programs.language_parameters import LanguageModelParameters
from kfp_distributed.trainers.programs.memory_estimate import MemoryEstimate, memory_estimate
from kfp_distributed.trainers.programs.memory_plan import describe_memory, fit_to_memory
from kfp_distributed.trainers.programs.model_size import model_size


def config(hidden, inner, layers, heads, keys, vocabulary, kind="llama", **others):
    return {
        "model_type": kind,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "vocab_size": vocabulary,
        **others,
    }


LLAMA_3_8B = config(4096, 14336, 32, 32, 8, 128256)
QWEN_7B = config(3584, 18944, 28, 28, 4, 152064, kind="qwen2")


def test_published_numbers_of_parameters():
    llama, qwen = model_size(LLAMA_3_8B), model_size(QWEN_7B)
    assert (llama.parameters, qwen.parameters) == (8_030_261_248, 7_615_616_512)
    assert llama.adapter(16, "all-linear") == 41_943_040
    assert llama.adapter(8, "q_proj, v_proj") == 3_407_872
    assert llama.adapter(8, "self_attn.q_proj,v_proj") == 3_407_872
    assert llama.adapter(8, "31.self_attn.q_proj, v_proj, embed_tokens") == 8 * (8192 + 32 * 5120 + 128256 + 4096)
    with pytest.raises(ValueError, match=r"has the name 'proj'; .*: down_proj, embed_tokens, gate_proj, k_proj, "):
        llama.adapter(8, "q_proj,proj")
    with pytest.raises(ValueError, match="has the name 'embed_tokens'; allowed"):
        llama._replace(is_tied=True).adapter(8, "embed_tokens")


@pytest.mark.parametrize(
    "unknown",
    [
        {},
        {**LLAMA_3_8B, "model_type": "mixtral"},
        {"model_type": "gemma3", "text_config": LLAMA_3_8B},
        {**LLAMA_3_8B, "quantization_config": {"quant_method": "bitsandbytes"}},
    ],
)
def test_other_models_have_no_size(unknown):
    assert model_size(unknown) is None


def test_a_config_without_a_number_is_refused():
    with pytest.raises(KeyError, match="hidden_size"):
        model_size({"model_type": "llama"})


def estimate(ranks=1, **parameters):
    values = {"batch_size": 8, "micro_batch_size": 1, **parameters}
    return memory_estimate(model_size(LLAMA_3_8B), LanguageModelParameters("x", **values), ranks)


def test_the_parts_of_an_estimate():
    """An adapter of 32 bits and 16 bits of all others, or 32 bits of all. AdamW has two moments of what is trained."""
    every, adapter = 8_030_261_248, 41_943_040
    lora, full = estimate(), estimate(method="full")
    assert (lora.weights, lora.gradients, lora.optimizer) == (2 * every + 4 * adapter, 4 * adapter, 8 * adapter)
    assert (full.weights, full.gradients, full.optimizer) == (4 * every, 4 * every, 8 * every)
    assert lora.total == sum(lora)
    assert isinstance(lora, MemoryEstimate)
    assert estimate(ranks=2).gradients == lora.gradients + 4 * adapter
    assert estimate(micro_batch_size=4).activations > 3 * lora.activations
    assert estimate(activation_checkpointing=False).activations > 8 * lora.activations
    assert estimate(max_length=4096).total > lora.total


def test_preferences_have_two_answers_and_maybe_the_base_model_twice():
    every = 8_030_261_248
    lora, full = (estimate(objective="dpo", method=method) for method in ("lora", "full"))
    assert lora == estimate(micro_batch_size=2)
    assert full.weights == 8 * every
    assert full.optimizer == 8 * every
    given = LanguageModelParameters("x", objective="dpo", method="full")
    with pytest.raises(ValueError, match="what fits: method lora "):
        fit_to_memory(model_size(LLAMA_3_8B), given, 8, 80 * 2**30)


def test_a_sharded_model_is_divided_among_the_ranks():
    """A rank has some layers of the others for a while, and the table of tokens, or gradients of these."""
    every, adapter = 8_030_261_248, 41_943_040
    layer, table = 218_103_808, 128256 * 4096
    lora, full = (estimate(ranks=8, sharding="fsdp", method=method) for method in ("lora", "full"))
    assert lora.weights == (2 * every + 4 * adapter) // 8 + 2 * table + 2 * layer
    assert full.weights == 4 * every // 8 + 2 * table + 2 * layer
    assert full.gradients == 4 * every // 8 + 6 * table
    assert (lora.optimizer, full.optimizer) == (8 * adapter // 8, 8 * every // 8)
    assert estimate(sharding="fsdp") == estimate()


def test_the_line_for_the_log():
    size, parameters = model_size(LLAMA_3_8B), LanguageModelParameters("x", micro_batch_size=1)
    assert describe_memory(size, parameters, 4) == (
        "base_model has 8,030,261,248 parameters, and 41,943,040 of an adapter are trained; a GPU needs about 18.4 GiB "
        "for micro_batch_size 1 and max_length 2048: weights 15.1, gradients 0.3, optimizer 0.3, activations 1.2, "
        "logits 0.0, CUDA 1.5 (an estimate)"
    )
    full = describe_memory(size, LanguageModelParameters("x", method="full"), 1)
    assert full.startswith("base_model has 8,030,261,248 parameters, and all are trained; a GPU needs about 142.9 GiB ")


@pytest.mark.parametrize(
    ("parameters", "gib", "rows"),
    [({}, 80, 8), ({}, 24, 4), ({"batch_size": 30}, 24, 5), ({"micro_batch_size": 2}, 24, 2)],
)
def test_the_largest_micro_batch_that_fits(parameters, gib, rows):
    given = LanguageModelParameters("x", **parameters)
    fitting = fit_to_memory(model_size(LLAMA_3_8B), given, 1, gib * 2**30)
    assert fitting == replace(given, micro_batch_size=rows)


def test_a_quantized_model_has_4_bits_in_its_linear_layers():
    every, adapter, layer = 8_030_261_248, 41_943_040, 218_103_808
    found = estimate(method="qlora")
    linear, largest = 32 * layer, 4096 * 14336
    constants = linear // 64 + 4 * linear // (64 * 256)
    assert found.weights == linear // 2 + constants + 2 * (every - linear + largest) + 4 * adapter
    assert found[1:] == estimate()[1:]


def test_sharding_is_chosen_where_nothing_fits_without_it():
    size, given = model_size(LLAMA_3_8B), LanguageModelParameters("x", method="full")
    fitting = fit_to_memory(size, given, 8, 80 * 2**30)
    assert fitting == replace(given, micro_batch_size=4, sharding="fsdp")
    assert describe_memory(size, fitting, 8).startswith(
        "base_model has 8,030,261,248 parameters, divided among 8 ranks, and all are trained; a GPU needs about "
    )
    assert fit_to_memory(size, given, 8, 200 * 2**30).sharding == "none"
    assert fit_to_memory(size, given, 1, 200 * 2**30).sharding == "auto"
    with pytest.raises(ValueError, match=r"what fits: sharding fsdp \(\d\d\.\d GiB\), or method lora"):
        fit_to_memory(size, replace(given, sharding="none"), 8, 80 * 2**30)
    with pytest.raises(ValueError, match=r"what fits: method qlora and sharding none \(8.9 GiB\)$"):
        fit_to_memory(size, LanguageModelParameters("x"), 2, 10 * 2**30)
    with pytest.raises(ValueError, match=r"^method full and sharding fsdp with micro_batch_size 1 needs about "):
        fit_to_memory(size, given, 2, 24 * 2**30)


@pytest.mark.parametrize(
    ("parameters", "gib", "needed", "choices"),
    [
        ({}, 16, "18.3", "what fits: method qlora (12.3 GiB)"),
        ({}, 6, "18.3", "use GPUs with more memory, or a smaller model"),
        ({"method": "full"}, 80, "135.3", "what fits: method lora (26.5 GiB)"),
        (
            {"method": "full", "activation_checkpointing": False},
            80,
            "150.4",
            "what fits: method lora (76.0 GiB), or method lora and activation_checkpointing true (26.5 GiB)",
        ),
        (
            {"micro_batch_size": 32},
            24,
            "54.7",
            "what fits: micro_batch_size 4 (21.8 GiB), or method qlora and micro_batch_size 8 (17.0 GiB), or "
            "max_length 1024 and micro_batch_size 8 (21.8 GiB)",
        ),
        ({"max_length": 32768}, 24, "36.0", "what fits: max_length 8192 (21.8 GiB)"),
    ],
)
def test_what_needs_more_memory_is_refused_with_what_fits(parameters, gib, needed, choices):
    given = LanguageModelParameters("x", **parameters)
    with pytest.raises(ValueError, match=f" needs about {needed} GiB on each GPU ") as error:
        fit_to_memory(model_size(LLAMA_3_8B), given, 1, gib * 2**30)
    assert str(error.value).endswith(f"and worker_gpu_memory is {gib}.0 GiB; {choices}")


COUNTED = """
import json, sys, tempfile, torch
from pathlib import Path
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM
from kfp_distributed.trainers.programs.model_size import MODEL_TYPES, model_size

small = dict(hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=1000, pad_token_id=0, eos_token_id=1, bos_token_id=2)
lines = {}
for kind in MODEL_TYPES:
    for extra in ({}, {"tie_word_embeddings": True}, {"attention_bias": True}, {"mlp_bias": True}, {"head_dim": 32}):
        folder = tempfile.mkdtemp(dir=".")
        config = AutoConfig.for_model(kind, **small, **extra)
        config.save_pretrained(folder)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        size = model_size(json.loads(Path(folder, "config.json").read_text()))
        counts = [sum(weight.numel() for weight in model.parameters())]
        model = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"))
        counts.append(sum(weight.numel() for weight in model.parameters() if weight.requires_grad))
        lines[f"{kind} {extra}"] = [counts, [size.parameters, size.adapter(8, "all-linear")]]
print(json.dumps(lines))
"""

MEASURED = """
import json, sys, tempfile, torch, weakref
import trl.kernels.chunked_logprob as chunked
from pathlib import Path
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast
from kfp_distributed.trainers.language_training import base_loading, tuning_trainer as tuning
from kfp_distributed.trainers.programs.language_parameters import LanguageModelParameters
from kfp_distributed.trainers.programs.memory_estimate import memory_estimate
from kfp_distributed.trainers.programs.model_size import model_size

torch.set_num_threads(1)
chunked.TOKEN_CHUNK_SIZE = 16
base_loading.has_bfloat16 = tuning.has_bfloat16 = lambda: True

class Peak(TorchDispatchMode):
    "Counts the bytes of the storages of all tensors that are alive."

    def __init__(self, tensors):
        super().__init__()
        self.bytes, self.peak, self.known = 0, 0, set()
        for tensor in tensors:
            self.add(tensor)

    def add(self, tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in self.known and tensor.device.type == "cpu":
            self.known.add(storage._cdata)
            self.bytes += storage.nbytes()
            self.peak = max(self.peak, self.bytes)
            weakref.finalize(storage, self.remove, storage._cdata, storage.nbytes())

    def remove(self, key, size):
        self.known.remove(key)
        self.bytes -= size

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.add(leaf)
        return result

ratios = {}
for sizes, parameters in json.loads(sys.argv[1]):
    folder = tempfile.mkdtemp(dir=".")
    model = AutoModelForCausalLM.from_config(LlamaConfig(**sizes, pad_token_id=0, eos_token_id=1, bos_token_id=2))
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({str(word): word for word in range(sizes["vocab_size"])}, unk_token="0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="1", pad_token="0").save_pretrained(folder)
    given = LanguageModelParameters(folder, loss_on="all", lora_r=8, checkpoint_steps=100, **parameters)
    text = " ".join(str(3 + place % 200) for place in range(given.max_length))
    preference = {"prompt": text[:3], "chosen": text[3:], "rejected": text[3:][::-1]}
    row = preference if given.objective == "dpo" else {"text": text}
    trainer = tuning.tuning_trainer(given, [row] * 2 * given.batch_size, [], tempfile.mkdtemp(dir="."), 1)
    del model
    known = [each for each in (trainer.model, getattr(trainer, "ref_model", None)) if each]
    peak = Peak([tensor for each in known for tensor in (*each.parameters(), *each.buffers())])
    with peak:
        trainer.train()
    size = model_size(json.loads(Path(folder, "config.json").read_text()))
    found = memory_estimate(size, given, 1, at_once=16)
    ratios[f"{sizes} {parameters}"] = (found.total - found.context) / peak.peak
print(json.dumps(ratios))
"""


def output_of(program, library_archive, folder, *arguments):
    variables = {**os.environ, "PYTHONPATH": str(library_archive), "TQDM_DISABLE": "1"}
    process = subprocess.run(
        forked(environment("torch2"), "-c", program, *arguments),
        check=False,
        capture_output=True,
        text=True,
        env=variables,
        cwd=folder,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


def test_sizes_are_those_of_transformers_and_peft(library_archive, tmp_path):
    counted = output_of(COUNTED, library_archive, tmp_path)
    assert len(counted) == 60
    assert {name: found for name, (counts, found) in counted.items() if found != counts} == {}


@pytest.mark.takes(20)
def test_estimates_are_those_of_the_tensors_of_trainings(library_archive, tmp_path):
    """trl computes the logits of few tokens at once here, because these models are small.

    There are as many heads of keys as of queries. PyTorch's attention on CPUs takes other memory for fewer.
    """
    wide, deep = config(128, 384, 4, 4, 4, 256), config(96, 192, 6, 4, 4, 1000)
    runs = [
        (sizes, {"method": method, "batch_size": rows, "activation_checkpointing": saves})
        for sizes, method, rows, saves in (
            (wide, "lora", 2, True),
            (wide, "lora", 2, False),
            (wide, "full", 2, True),
            (wide, "full", 2, False),
            (deep, "lora", 3, True),
            (deep, "full", 1, False),
        )
    ]
    runs += [(deep, {"method": method, "batch_size": 3, "micro_batch_size": 1}) for method in ("lora", "full")]
    runs += [
        (sizes, {"objective": "dpo", "method": method, "batch_size": 1, "activation_checkpointing": saves})
        for sizes, method, saves in (
            (wide, "lora", True),
            (wide, "full", True),
            (deep, "lora", False),
            (deep, "full", False),
        )
    ]
    runs = [(sizes, {"max_length": 384, **parameters}) for sizes, parameters in runs]
    ratios = output_of(MEASURED, library_archive, tmp_path, json.dumps(runs))
    assert len(ratios) == len(runs)
    assert {name: ratio for name, ratio in ratios.items() if not 0.9 <= ratio <= 1.15} == {}
