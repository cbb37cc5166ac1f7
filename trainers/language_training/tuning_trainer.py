"""The Trainer of a fine-tuning: its model, rows and arguments."""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from accelerate.utils import DistributedType
from accelerate.utils.fsdp_utils import enable_fsdp_ram_efficient_loading
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers import PreTrainedModel, TrainingArguments

from kfp_distributed.trainers.language_training.adapters import adapter_config, check_targets, turn_dropout_off
from kfp_distributed.trainers.language_training.base_folder import base_folder
from kfp_distributed.trainers.language_training.base_loading import has_bfloat16, load_base
from kfp_distributed.trainers.language_training.objectives import OBJECTIVES, Tuning
from kfp_distributed.trainers.language_training.rank_checks import check_ranks
from kfp_distributed.trainers.language_training.tokenizer_checks import check_tokens, template_errors
from kfp_distributed.trainers.language_training.tuning_rows import tuning_rows
from kfp_distributed.trainers.programs.language_parameters import LanguageModelParameters, micro_batches
from kfp_distributed.trainers.runtime.workarounds.torch_internals import let_cpus_shard

_TENTH = 0.1

_SHARDED: Mapping[str, Any] = {
    "fsdp": True,
    # Rank 0 has the weights, and sends them to the others.
    "fsdp_config": {"cpu_ram_efficient_loading": True},
    # Otherwise a rank would have the gradients of all parameters until the last rows of an update.
    "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}},
}


def is_sharded(parameters: LanguageModelParameters, ranks: int) -> bool:
    """Return whether the parameters of the model are divided among the ranks."""
    return ranks > 1 and parameters.sharding == "fsdp"


def tuning_trainer(
    parameters: LanguageModelParameters,
    rows: Sequence[dict[str, Any]],
    validation: Sequence[dict[str, Any]],
    checkpoint_dir: str,
    ranks: int,
) -> Tuning:
    """Return the Trainer of a model.

    Args:
        parameters: The parameters.
        rows: All training rows, in each rank, as `language_rows` returns them.
        validation: Validation rows; [] for none.
        checkpoint_dir: Folder of its checkpoints.
        ranks: Number of ranks.

    Raises:
        ValueError: There is no model, or it, the rows and the parameters do not fit.
        RuntimeError: The ranks do not reach each other.
        StorageError: The model cannot be fetched.
    """
    arguments = tuning_arguments(parameters, checkpoint_dir, ranks, evaluates=bool(validation))
    check_ranks(arguments.device)
    arguments._n_gpu = min(1, arguments.n_gpu)  # With others, a rank would share its rows among them.
    if arguments.fsdp:
        let_shard(arguments, parameters.method)
    has_weights = not arguments.fsdp or arguments.process_index == 0
    folder = base_folder(parameters.base_model, has_weights=replica_has_weights(arguments))
    if json.loads((folder / "config.json").read_text()).get("quantization_config") and (
        parameters.method != "lora" or parameters.export != "adapter" or arguments.fsdp
    ):
        raise ValueError(
            'base_model has quantized weights: set method to "lora", export to "adapter", and sharding to "none"'
        )
    model, tokenizer = load_base(folder, parameters.chat_template, parameters.method, has_weights=has_weights)
    if parameters.adapts:
        check_targets(model, parameters.lora_target_modules)
    given, dropout = {}, {}
    if parameters.objective == "dpo":  # Otherwise the model would differ from its reference by chance.
        dropout = turn_dropout_off(model)
        if parameters.method == "full":
            given["ref_model"] = load_base(folder, "", "full")[0]
    with template_errors(tokenizer, rows, parameters.loss_on):
        trainer = OBJECTIVES[parameters.objective](
            model,
            args=arguments,
            train_dataset=tuning_rows(rows, parameters.objective),
            eval_dataset=tuning_rows(validation, parameters.objective) if validation else None,
            processing_class=tokenizer,
            peft_config=adapter_config(parameters),
            **given,
        )
    trainer.dropout_of_config = dropout
    for parameter in trainer.model.parameters():
        if parameter.requires_grad:  # trl gives 16 bits to adapters of quantized models, in which small updates vanish.
            parameter.data = parameter.data.float()
    if arguments.fsdp:
        plan_sharding(trainer, model)
    check_tokens(trainer)
    return trainer


def replica_has_weights(arguments: TrainingArguments) -> bool:
    """Return whether a rank of this replica reads the weights. Of a sharded model, rank 0 does.

    Args:
        arguments: Arguments of the Trainer.
    """
    return not arguments.fsdp or arguments.process_index < int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def plan_sharding(trainer: Tuning, model: PreTrainedModel) -> None:
    """Set which layers are sharded each by itself, and with which numbers.

    Args:
        trainer: The Trainer.
        model: Its model without an adapter.

    Raises:
        ValueError: accelerate cannot shard the model.
    """
    if buffers := sorted(model.state_dict().keys() - dict(model.named_parameters(remove_duplicate=False)).keys()):
        raise ValueError(
            f'sharding is "fsdp", and accelerate cannot divide a model with buffers in its files, such as {buffers[0]}'
            ': set sharding to "none"'
        )
    plugin, kinds = trainer.accelerator.state.fsdp_plugin, {type(module).__name__ for module in model.modules()}
    plugin.transformer_cls_names_to_wrap = [name for name in model._no_split_modules or () if name in kinds]
    if trainer.args.bf16:  # By default, gradients would be summed with 16 bits.
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        plugin.mixed_precision_policy = policy


def tuning_arguments(
    parameters: LanguageModelParameters,
    checkpoint_dir: str,
    ranks: int,
    *,
    evaluates: bool,
    mixes_precision: bool = True,
) -> TrainingArguments:
    """Return the arguments of a Trainer.

    Args:
        parameters: The parameters.
        checkpoint_dir: Folder of its checkpoints.
        ranks: Number of ranks.
        evaluates: Whether there are validation rows.
        mixes_precision: Whether weights of 32 bits are computed with bfloat16 where a GPU can. Default: true.
    """
    sharded = _SHARDED if is_sharded(parameters, ranks) else {}
    if sharded:  # It advises a checkpointing of activations that draws other dropout in the backward pass.
        logging.getLogger("transformers.training_args").setLevel(logging.ERROR)
    size, accumulation = micro_batches(parameters.batch_size, parameters.micro_batch_size, ranks)
    on_gpu = torch.cuda.is_available()
    objective = OBJECTIVES[parameters.objective]
    return objective.configuration(
        checkpoint_dir,
        num_train_epochs=parameters.epochs,
        per_device_train_batch_size=size,
        per_device_eval_batch_size=size,
        gradient_accumulation_steps=accumulation,
        learning_rate=parameters.rate,
        lr_scheduler_type="linear",
        warmup_steps=parameters.warmup_ratio,
        weight_decay=parameters.weight_decay,
        max_length=parameters.max_length,
        activation_checkpointing=parameters.activation_checkpointing,
        gradient_checkpointing=parameters.activation_checkpointing,
        eval_strategy="steps" if evaluates else "no",
        eval_steps=parameters.evaluate_steps or _TENTH,
        save_steps=parameters.checkpoint_steps or _TENTH,
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to="none",
        seed=parameters.seed,
        bf16=mixes_precision and has_bfloat16(),
        use_cpu=not on_gpu,
        ddp_backend=None if on_gpu or ranks == 1 else "gloo",  # accelerate prefers MPI on CPUs, and would train alone.
        ddp_find_unused_parameters=False,
        save_only_model=False,
        **objective.options(parameters),
        **sharded,
    )


def let_shard(arguments: TrainingArguments, method: str) -> None:
    """Let accelerate shard a model, before it is loaded.

    Args:
        arguments: Arguments of the Trainer, with fsdp.
        method: The parameter of this name.

    Raises:
        ValueError: This PyTorch cannot.
    """
    enable_fsdp_ram_efficient_loading()
    if not torch.cuda.is_available():  # On CPUs, accelerate would ignore it without a word.
        arguments.distributed_state.distributed_type = DistributedType.MULTI_GPU
        if not let_cpus_shard() and method == "full":
            raise ValueError(
                'sharding is "fsdp" and method is "full", which needs GPUs or PyTorch 2.15: set sharding to "none", or '
                'method to "lora"'
            )


def describe_tokens(trainer: Tuning, rows: Sequence[object], validation: Sequence[object]) -> str:
    """Return how many tokens the rows have, or the sequences into which they are packed, and which rows have no effect.

    Args:
        trainer: The Trainer.
        rows: All training rows.
        validation: Validation rows; [] for none.

    Raises:
        ValueError: No training row, or no validation row, has an effect.
    """
    longest, prepared = trainer.args.max_length, trainer.train_dataset
    splits = [(rows, prepared, "rows"), (validation, trainer.eval_dataset, "validation rows")]
    lost = [
        (len(given) - trainer.count_effective(dataset), len(given), what) for given, dataset, what in splits if given
    ]
    reason = f"{trainer.without_effect} among their first {longest:,} (max_length)"
    for number, total, what in lost:
        if number == total:
            raise ValueError(f"max_length is {longest}, and all {total:,} {what} have no effect: {reason}; increase it")
    lengths = np.array([max(map(len, sequences)) for sequences in trainer.sequences(prepared)])
    packed, whole = (
        (f"{len(rows):,} rows are packed into ", "sequences")
        if getattr(trainer.args, "packing", False)
        else ("", "rows")
    )
    text = f"{packed}{len(lengths):,} {whole} of {np.median(lengths):,.0f} tokens (median), {lengths.max():,} at most"
    cut = int((lengths >= longest).sum())
    if packed:
        text += f", {lengths.sum() / (len(lengths) * longest):.0%} of max_length {longest:,}"
    elif cut:
        text += f"; {cut:,} have max_length {longest:,} or are cut to it"
    parts = " and ".join(f"{number:,} of all {total:,} {what}" for number, total, what in lost if number)
    return f"{text}; {parts} have no effect: {reason}" if parts else text
