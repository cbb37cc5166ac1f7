"""Loads a language model and its tokenizer from a folder."""

import re
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

_OLD_BUFFERS = re.compile(
    r"(^|\.)((self_)?(attn|attention)\.(masked_)?bias|inv_freq|position_ids|(cos|sin)_cached|decoder\.version"
    r"|embed_positions\.weights)$"
)
"""Weights in files of earlier versions that no model has any more."""


def load_base(
    folder: Path, chat_template: str, method: str, *, has_weights: bool = True, tokenizer_folder: Path | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the model and the tokenizer of a folder. Nothing is downloaded, and no code of the folder runs.

    Weights that are not trained have 16 bits on a GPU that computes with bfloat16, and else 32 bits.

    Args:
        folder: The folder.
        chat_template: Template in place of the tokenizer's; "" for the tokenizer's.
        method: The parameter of this name.
        has_weights: Whether the weights are read. Otherwise they have any values. Default: true.
        tokenizer_folder: Folder of the tokenizer. Default: None, that of the model.

    Raises:
        ValueError: The weights are not those of the model that config.json describes.
    """
    kind = torch.bfloat16 if method != "full" and has_bfloat16() else torch.float32
    known = {"local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder or folder, **known)
    except ImportError:  # Of a package that it needs.
        raise
    except Exception as error:  # tokenizers raises nothing more special.
        raise ValueError(f"the tokenizer of the model cannot be read: {error!r}. Save it again") from error
    tokenizer.chat_template = chat_template or tokenizer.chat_template
    if has_weights:
        model = _read_model(folder, method, dtype=kind, **known)
    else:
        model = _model_without_weights(AutoConfig.from_pretrained(folder, **known), kind)
    if (tokenizer.pad_token_id or 0) >= model.get_input_embeddings().weight.shape[0]:
        tokenizer.pad_token = tokenizer.eos_token  # As trl does where a tokenizer has none.
    return model, tokenizer


def _model_without_weights(configuration: PreTrainedConfig, kind: torch.dtype) -> PreTrainedModel:
    """Return a model whose weights have any values. Nothing writes them, so that they have addresses but no memory."""
    with init_empty_weights():
        # Like transformers, which computes buffers with 32 bits and casts them.
        values = dict(AutoModelForCausalLM.from_config(configuration, dtype=torch.float32).named_buffers())
        model = AutoModelForCausalLM.from_config(configuration, dtype=kind)
    for name, buffer in model.named_buffers():
        buffer.copy_(values[name])
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            # Some models keep parameters with 32 bits. Reading weights makes all of them trainable.
            setattr(module, name, torch.nn.Parameter(torch.empty_like(parameter, device="cpu")))
    model.tie_weights()
    return model


def _read_model(folder: Path, method: str, **options: Any) -> PreTrainedModel:  # noqa: ANN401
    # As in QLoRA (Dettmers et al. 2023): NF4, and constants of 8 bits.
    bits = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=options["dtype"],
    )
    quantized = {"quantization_config": bits} if method == "qlora" else {}
    model, loaded = AutoModelForCausalLM.from_pretrained(
        folder, use_safetensors=True, output_loading_info=True, **options, **quantized
    )
    # Files may have more than the language model, such as a part that sees images.
    own = {key for key in loaded["unexpected_keys"] if hasattr(model, key.partition(".")[0])}
    unexpected = {key for key in own if not _OLD_BUFFERS.search(key)}
    keys = {"missing": loaded["missing_keys"], "unexpected": unexpected}
    if wrong := {name: sorted(found) for name, found in keys.items() if found}:
        names = "; ".join(f"{name}: {', '.join(keys[:3])}{', ...' * (len(keys) > 3)}" for name, keys in wrong.items())
        raise ValueError(f"the weights of base_model are not those of its config.json ({names}): save both together")
    return model


def has_bfloat16() -> bool:
    """Return whether there is a GPU that computes with bfloat16."""
    return bool(torch.cuda.is_available() and torch.cuda.is_bf16_supported())
