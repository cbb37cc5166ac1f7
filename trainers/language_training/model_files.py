"""The files of a tuned model, whose parameters may be divided among ranks. All of them call these functions then."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from huggingface_hub import split_torch_state_dict_into_shards
from peft import PeftModel
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME

PART_BYTES = 2 << 30
"""Bytes of a file of a model whose parameters are divided, at most, and of rank 0's memory for it."""


def save_adapter(model: PeftModel, folder: Path, writes: bool) -> None:
    """Write the adapter of a model.

    Args:
        model: The model.
        folder: The folder.
        writes: Whether this rank writes.
    """
    # Those of the base model are not gathered.
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    values = {name: _whole(tensor, writes) for name, tensor in model.state_dict().items() if name in trained}
    if writes:
        model.save_pretrained(folder, state_dict=values)


def _whole(tensor: torch.Tensor, writes: bool) -> torch.Tensor | None:
    """Return a tensor in the memory of the host, None in a rank that does not write."""
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole.cpu().contiguous() if writes else None


def save_merged(model: PreTrainedModel | PeftModel, folder: Path, writes: bool) -> PreTrainedModel:
    """Write and return a complete model. An adapter is merged into the weights of the model that it belongs to.

    Args:
        model: The model.
        folder: The folder.
        writes: Whether this rank writes.
    """
    model.state_dict()  # Answers may have left whole weights, whose changes would be lost: it divides them again.
    merged = model.merge_and_unload() if isinstance(model, PeftModel) else model
    if not any(isinstance(tensor, DTensor) for tensor in merged.parameters()):
        if writes:
            merged.save_pretrained(folder)
    elif _is_converted(merged):
        values = get_model_state_dict(merged, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        merged.save_pretrained(folder, state_dict=values, is_main_process=writes)
    else:
        _save_parts(merged, folder, writes)
    return merged


def _is_converted(model: PreTrainedModel) -> bool:
    """Return whether transformers has joined tensors of the files, such as those of experts. Rank 0 has read them."""
    answer = [bool(getattr(model, "_weight_conversions", None))]
    dist.broadcast_object_list(answer, src=0)
    return answer[0]


def save_merged_into(base: PreTrainedModel, model: PeftModel, folder: Path) -> None:
    """Write a complete model with an adapter of a quantized one. Merged there, it would be rounded to 4 bits.

    Args:
        base: The base model as it is not quantized, which is changed.
        model: The quantized model with the adapter.
        folder: The folder.
    """
    base.config.pad_token_id = model.config.pad_token_id
    with TemporaryDirectory() as adapter:
        model.save_pretrained(adapter)
        PeftModel.from_pretrained(base, adapter).merge_and_unload().save_pretrained(folder)


def _save_parts(model: PreTrainedModel, folder: Path, writes: bool) -> None:
    """Write a model file by file, so that no rank has all of its parameters at once."""
    # Of tensors that have two names, such as those of the embedding and of the head, one is written.
    others = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    others -= {name for name, _ in model.named_parameters()}
    tensors: dict[str, Any] = {name: tensor for name, tensor in model.state_dict().items() if name not in others}
    sizes = {name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for name, tensor in tensors.items()}
    split = split_torch_state_dict_into_shards(sizes, max_shard_size=PART_BYTES)
    if writes:
        model.config.architectures = [type(model).__name__.removeprefix("FSDP")]
        model.config.save_pretrained(folder)
        model.generation_config.save_pretrained(folder)
    for file, names in split.filename_to_tensors.items():
        part = {name: _whole(tensors[name], writes) for name in names}
        if writes:
            save_file(part, folder / file, metadata={"format": "pt"})
    if writes and split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / SAFE_WEIGHTS_INDEX_NAME).write_text(json.dumps(index, indent=2, sort_keys=True))
