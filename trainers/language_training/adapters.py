"""Adapters of language models, by peft."""

from contextlib import AbstractContextManager

import torch
from peft import LoraConfig, PeftModel
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from kfp_distributed.trainers.programs.language_parameters import LanguageModelParameters
from kfp_distributed.trainers.programs.model_size import target_ends


def adapter_config(parameters: LanguageModelParameters) -> LoraConfig | None:
    """Return the configuration of the adapter; None if all parameters are trained."""
    if not parameters.adapts:
        return None
    modules = parameters.lora_target_modules
    return LoraConfig(
        r=parameters.lora_r,
        lora_alpha=parameters.lora_alpha,
        lora_dropout=parameters.lora_dropout,
        target_modules=modules if modules == "all-linear" else [name.strip() for name in modules.split(",")],
        task_type="CAUSAL_LM",
    )


def check_targets(model: PreTrainedModel, targets: str) -> None:
    """Check that a model has a layer of each name of lora_target_modules.

    Raises:
        ValueError: It has not.
    """
    kinds, head = (torch.nn.Linear, torch.nn.Embedding, Conv1D), model.get_output_embeddings()
    # trl adapts no head. An adapter of embeddings that share its weight would be merged into the head, too.
    shared = head.weight if head else None
    known = {name for name, layer in model.named_modules() if isinstance(layer, kinds) and layer.weight is not shared}
    target_ends(targets, known)


def turn_dropout_off(model: PreTrainedModel) -> dict[str, float]:
    """Set all dropout of a model to 0: that of layers, and numbers that attention takes from the configuration.

    Returns:
        What the configuration had, which is to be saved.
    """
    before = {name: value for name, value in vars(model.config).items() if _is_dropout(name, value)}
    for module in (*model.modules(), model.config):
        for name, value in vars(module).items():
            if _is_dropout(name, value):
                setattr(module, name, 0.0)
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return before


def _is_dropout(name: str, value: object) -> bool:
    return any(part in name for part in ("dropout", "pdrop", "layerdrop")) and isinstance(value, float)


def without_adapter(model: PeftModel) -> AbstractContextManager[None]:
    """Return a context in which a model answers as the base model."""
    return model.disable_adapter()  # type: ignore[no-any-return]  # Its types are those of an optional package.
