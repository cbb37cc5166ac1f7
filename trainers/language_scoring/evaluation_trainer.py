"""The Trainer of an evaluation: it prepares the rows, has the model, and computes the losses."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils.fsdp_utils import fsdp2_prepare_model
from peft import PeftModel
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, TrainingArguments

from kfp_distributed.trainers.language_training.base_folder import base_folder, content_hash
from kfp_distributed.trainers.language_training.base_loading import load_base
from kfp_distributed.trainers.language_training.objectives import SupervisedTuning, Tuning
from kfp_distributed.trainers.language_training.rank_checks import check_ranks
from kfp_distributed.trainers.language_training.tokenizer_checks import check_tokens, template_errors
from kfp_distributed.trainers.language_training.tuning_rows import tuning_rows
from kfp_distributed.trainers.language_training.tuning_trainer import (
    let_shard,
    plan_sharding,
    replica_has_weights,
    tuning_arguments,
)
from kfp_distributed.trainers.programs.evaluation_parameters import LanguageEvaluationParameters
from kfp_distributed.trainers.programs.language_parameters import LanguageModelParameters


def evaluation_trainer(
    parameters: LanguageEvaluationParameters, rows: Sequence[dict[str, Any]], folder: str, ranks: int
) -> tuple[Tuning, PreTrainedModel]:
    """Return a Trainer whose training rows are those of an evaluation, and the model on the device of this rank.

    Args:
        parameters: The parameters.
        rows: All rows, in each rank, as `language_rows` returns them.
        folder: Folder for files of the Trainer, of which it writes none.
        ranks: Number of ranks.

    Raises:
        ValueError: There is no model, or it, the rows and the parameters do not fit.
        RuntimeError: The ranks do not reach each other.
        StorageError: The model cannot be fetched.
    """
    tuning = LanguageModelParameters(
        parameters.base_model,
        batch_size=parameters.batch_size * ranks,
        micro_batch_size=parameters.batch_size,
        max_length=parameters.max_length,
        loss_on=parameters.loss_on,
        activation_checkpointing=False,
        sharding=parameters.sharding,
    )
    arguments = tuning_arguments(tuning, folder, ranks, evaluates=False, mixes_precision=False)
    check_ranks(arguments.device)
    arguments._n_gpu = min(1, arguments.n_gpu)
    if arguments.fsdp:
        let_shard(arguments, tuning.method)
    model, tokenizer = _load(parameters, arguments)
    with template_errors(tokenizer, rows, parameters.loss_on):
        trainer = SupervisedTuning(
            model, args=arguments, train_dataset=tuning_rows(_with_completions(rows), "sft"), processing_class=tokenizer
        )
    check_tokens(trainer)
    if arguments.fsdp:
        plan_sharding(trainer, model.get_base_model() if parameters.adapter else model)
        # FSDP takes other precisions, such as that of routers, for parameters that are not trained alone.
        return trainer, fsdp2_prepare_model(trainer.accelerator, model.requires_grad_(False)).eval()
    if model.device != arguments.device:  # bitsandbytes has put its weights there, and does not move them.
        model = model.to(arguments.device)
    return trainer, model.eval()


def _load(parameters: LanguageEvaluationParameters, arguments: TrainingArguments) -> tuple[Any, Any]:
    has_weights, is_fetched = not arguments.fsdp or arguments.process_index == 0, replica_has_weights(arguments)
    folder = base_folder(parameters.base_model, has_weights=is_fetched)
    adapter = base_folder(parameters.adapter, is_adapter=True) if parameters.adapter else None
    if is_fetched:
        _check_hash(parameters.base_model, folder, parameters.sha256)
    if adapter:
        _check_hash(parameters.adapter, adapter, parameters.adapter_sha256)
    if arguments.fsdp and json.loads((folder / "config.json").read_text()).get("quantization_config"):
        raise ValueError('the model has quantized weights, which cannot be divided among ranks: set sharding to "none"')
    model, tokenizer = load_base(
        folder, parameters.chat_template, "lora", has_weights=has_weights, tokenizer_folder=adapter
    )
    if adapter:  # With the precision of the model, as FSDP needs it, and as the training computes it.
        model = PeftModel.from_pretrained(model, adapter, autocast_adapter_dtype=False)
    return model, tokenizer


def _check_hash(address: str, folder: Path, expected: str) -> None:
    """Check that a model is the one that the step has seen, or the one that an adapter was trained with."""
    if expected and (found := content_hash(folder)) != expected:
        raise ValueError(
            f"the model {address} has the SHA-256 {found}, and its model.json, or the training of its adapter, names "
            f"{expected}: store that model again"
        )


def _with_completions(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of preferences with the chosen answer as the completion, others as they are."""
    return [{**row, "completion": row["chosen"]} if "chosen" in row else row for row in rows]


def row_losses(trainer: Tuning, model: PreTrainedModel, numbers: Sequence[int]) -> list[tuple[float, int]]:
    """Return the sum of the losses of the tokens of each row that count, and their number.

    Args:
        trainer: The Trainer that has prepared the rows.
        model: The model, in the mode of evaluation.
        numbers: Numbers of the rows in the prepared dataset, which are computed at once.
    """
    batch = trainer.data_collator([trainer.train_dataset[number] for number in numbers])
    labels = batch.pop("labels").to(model.device)[:, 1:]
    with torch.no_grad():
        logits = model(**{name: tensor.to(model.device) for name, tensor in batch.items()}).logits[:, :-1]
        # Row by row: with 32 bits, those of all rows may take more memory than the model.
        losses = [
            cross_entropy(row.float(), wanted, reduction="sum") for row, wanted in zip(logits, labels, strict=True)
        ]
    return list(zip(torch.stack(losses).tolist(), (labels >= 0).sum(dim=1).tolist(), strict=True))
