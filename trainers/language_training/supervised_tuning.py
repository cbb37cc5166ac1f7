"""Supervised fine-tuning of language models, by trl."""

import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import torch
from accelerate.utils import DistributedType
from accelerate.utils.fsdp_utils import enable_fsdp_ram_efficient_loading
from datasets import Dataset
from datasets.table import InMemoryTable
from numpy.typing import NDArray
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Sampler
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
)
from trl import SFTConfig, SFTTrainer

from kfp_distributed.trainers.epochs.divergence import end_if_diverged
from kfp_distributed.trainers.language_training.adapters import adapter_config, check_targets
from kfp_distributed.trainers.language_training.base_folder import base_folder
from kfp_distributed.trainers.language_training.rank_checks import check_ranks
from kfp_distributed.trainers.language_training.tokenizer_checks import check_tokens, template_errors
from kfp_distributed.trainers.language_training.tuning_checkpoints import TuningCheckpoints
from kfp_distributed.trainers.language_training.update_order import update_order
from kfp_distributed.trainers.programs.language_parameters import LanguageModelParameters, micro_batches
from kfp_distributed.trainers.runtime.workarounds.torch_internals import let_cpus_shard

_TENTH = 0.1
_OLD_BUFFERS = re.compile(
    r"(^|\.)((self_)?(attn|attention)\.(masked_)?bias|inv_freq|position_ids|(cos|sin)_cached|decoder\.version"
    r"|embed_positions\.weights)$"
)
"""Weights in files of earlier versions that no model has any more."""
_FORMS = (("messages", "tools"), ("prompt", "completion", "tools"), ("text",))


_SHARDED: Mapping[str, Any] = {
    "fsdp": True,
    # One process of a node reads the weights.
    "fsdp_config": {"cpu_ram_efficient_loading": True},
    # Otherwise a rank would have the gradients of all parameters until the last rows of an update.
    "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}},
}


def is_sharded(parameters: LanguageModelParameters, ranks: int) -> bool:
    """Return whether the parameters of the model are divided among the ranks."""
    return ranks > 1 and parameters.sharding == "fsdp"


class UpdateSampler(Sampler[int]):  # type: ignore[misc]  # Its types are those of an optional package.
    """The rows in the order of `update_order`, which accelerate divides among the ranks.

    The number of the epoch is that of the next update. A sampler with `set_epoch` would not always be told: accelerate
    does not forward it if batches of an epoch are skipped after a restart and there are several ranks.

    Args:
        rows: Number of all rows.
        batch_size: Rows of an update, over all ranks.
        seed: Seed of the order.
        updates: Returns the number of updates so far.
    """

    def __init__(self, rows: int, batch_size: int, seed: int, updates: Callable[[], int]) -> None:
        self._rows, self._batch_size, self._seed, self._updates = rows, batch_size, seed, updates

    def __iter__(self) -> Iterator[int]:
        epoch = self._updates() * self._batch_size // len(self)
        yield from update_order(self._rows, self._batch_size, self._seed, epoch).tolist()

    def __len__(self) -> int:
        return math.ceil(self._rows / self._batch_size) * self._batch_size


class SupervisedTuning(TuningCheckpoints, SFTTrainer):  # type: ignore[misc]  # Its types are those of an optional package.
    """The Trainer of trl, whose updates have rows that depend on batch_size and seed alone."""

    def _get_train_sampler(self, train_dataset: Any = None) -> UpdateSampler:  # noqa: ANN401
        rows = len(self.train_dataset if train_dataset is None else train_dataset)
        arguments = self.args
        size = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
        return UpdateSampler(rows, size, arguments.seed, lambda: self.state.global_step)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:  # noqa: ANN401
        """Return the learning rates. Those of transformers begin with 0, so that the first rows would train nothing."""
        updates, warmup = num_training_steps, int(num_training_steps * self.args.warmup_steps)

        def rate(done: int) -> float:
            return min((done + 1) / (warmup + 1), (updates - done) / (updates - warmup))

        self.lr_scheduler, self._created_lr_scheduler = LambdaLR(optimizer or self.optimizer, rate), True
        return self.lr_scheduler


class EndIfDiverged(TrainerCallback):  # type: ignore[misc]  # Its types are those of an optional package.
    """Ends a training whose loss or gradients become NaN or infinite, before its model is saved."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **_: Any) -> None:  # noqa: ANN401
        """End the training, in each rank, since all log the same. See `end_if_diverged`."""
        if "loss" in logs:
            is_finite = math.isfinite(logs.get("grad_norm", 0.0))
            end_if_diverged(f"step {state.global_step}", logs["loss"], is_finite, args.learning_rate, "gradients")


def load_base(folder: Path, chat_template: str, method: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the model and the tokenizer of a folder. Nothing is downloaded, and no code of the folder runs.

    Weights that are not trained have 16 bits on a GPU that computes with bfloat16, and else 32 bits.

    Raises:
        ValueError: The weights are not those of the model that config.json describes.
    """
    kind = torch.bfloat16 if method != "full" and has_bfloat16() else torch.float32
    known = {"local_files_only": True, "trust_remote_code": False}
    # As in QLoRA (Dettmers et al. 2023): NF4, and constants of 8 bits.
    bits = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=kind
    )
    quantized = {"quantization_config": bits} if method == "qlora" else {}
    model, loaded = AutoModelForCausalLM.from_pretrained(
        folder, dtype=kind, use_safetensors=True, output_loading_info=True, **known, **quantized
    )
    # Files may have more than the language model, such as a part that sees images.
    own = {key for key in loaded["unexpected_keys"] if hasattr(model, key.partition(".")[0])}
    unexpected = {key for key in own if not _OLD_BUFFERS.search(key)}
    keys = {"missing": loaded["missing_keys"], "unexpected": unexpected}
    if wrong := {name: sorted(found) for name, found in keys.items() if found}:
        names = "; ".join(f"{name}: {', '.join(keys[:3])}{', ...' * (len(keys) > 3)}" for name, keys in wrong.items())
        raise ValueError(f"the weights of base_model are not those of its config.json ({names}): save both together")
    tokenizer = AutoTokenizer.from_pretrained(folder, **known)
    tokenizer.chat_template = chat_template or tokenizer.chat_template
    if (tokenizer.pad_token_id or 0) >= model.get_input_embeddings().weight.shape[0]:
        tokenizer.pad_token = tokenizer.eos_token  # As trl does where a tokenizer has none.
    return model, tokenizer


def has_bfloat16() -> bool:
    """Return whether there is a GPU that computes with bfloat16."""
    return bool(torch.cuda.is_available() and torch.cuda.is_bf16_supported())


class _Rows(Dataset):  # type: ignore[misc]  # Its types are those of an optional package.
    """Rows whose values are JSON texts in Arrow, and are decoded for each function.

    A column of Arrow has one type: it would add the keys of other rows to an object, such as the arguments of other
    calls, and refuse contents of which some are texts and others lists. `datasets.Json` rounds floats.
    """

    def __iter__(self) -> Iterator[Any]:
        rows = super().__iter__()
        return rows if self.format["type"] else map(_decoded, rows)  # `map` reads tables of Arrow.

    def map(self, function: Callable[..., dict[str, Any]], **options: Any) -> Dataset:  # noqa: ANN401
        return super().map(lambda row, **others: function(_decoded(row), **others), **options)


def _decoded(row: Mapping[str, str]) -> dict[str, Any]:
    return {name: json.loads(text) for name, text in row.items()}


def _dataset(rows: Sequence[dict[str, Any]]) -> Dataset:
    """Return rows with the columns that trl takes. Any others may have names that it takes for something else."""
    used = [name for name in next(form for form in _FORMS if {*form} - {"tools"} <= {*rows[0]}) if name in rows[0]]
    table = pa.table({name: [json.dumps(row[name]) for row in rows] for name in used})
    # With a fingerprint, because datasets 5.2 would pickle the table for one, and cannot with pyarrow 25.
    return _Rows(InMemoryTable(table), fingerprint=uuid4().hex)


def supervised_tuning(
    parameters: LanguageModelParameters,
    rows: Sequence[dict[str, Any]],
    validation: Sequence[dict[str, Any]],
    checkpoint_dir: str,
    ranks: int,
) -> SupervisedTuning:
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
    arguments = _arguments(parameters, checkpoint_dir, ranks, evaluates=bool(validation))
    check_ranks(arguments.device)
    arguments._n_gpu = min(1, arguments.n_gpu)  # With others, a rank would share its rows among them.
    if arguments.fsdp:
        _let_shard(arguments, parameters.method)
    model, tokenizer = load_base(base_folder(parameters.base_model), parameters.chat_template, parameters.method)
    if parameters.adapts:
        check_targets(model, parameters.lora_target_modules)
    with template_errors(tokenizer, rows[0], parameters.loss_on):
        trainer = SupervisedTuning(
            model,
            args=arguments,
            train_dataset=_dataset(rows),
            eval_dataset=_dataset(validation) if validation else None,
            processing_class=tokenizer,
            peft_config=adapter_config(parameters),
        )
    if arguments.fsdp and arguments.bf16:  # By default, gradients would be summed with 16 bits.
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        trainer.accelerator.state.fsdp_plugin.mixed_precision_policy = policy
    check_tokens(trainer)
    return trainer


def _arguments(parameters: LanguageModelParameters, checkpoint_dir: str, ranks: int, *, evaluates: bool) -> SFTConfig:
    sharded = _SHARDED if is_sharded(parameters, ranks) else {}
    if sharded:  # It advises a checkpointing of activations that draws other dropout in the backward pass.
        logging.getLogger("transformers.training_args").setLevel(logging.ERROR)
    size, accumulation = micro_batches(parameters.batch_size, parameters.micro_batch_size, ranks)
    on_gpu = torch.cuda.is_available()
    return SFTConfig(
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
        packing=parameters.packing,
        assistant_only_loss=parameters.loss_on == "assistant",
        completion_only_loss={"completion": True, "all": False}.get(parameters.loss_on),
        activation_checkpointing=parameters.activation_checkpointing,
        gradient_checkpointing=parameters.activation_checkpointing,
        eval_strategy="steps" if evaluates else "no",
        eval_steps=parameters.evaluate_steps or _TENTH,
        save_steps=parameters.checkpoint_steps or _TENTH,
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to="none",
        seed=parameters.seed,
        bf16=has_bfloat16(),
        use_cpu=not on_gpu,
        ddp_backend=None if on_gpu or ranks == 1 else "gloo",  # accelerate prefers MPI on CPUs, and would train alone.
        ddp_find_unused_parameters=False,
        save_only_model=False,
        **sharded,
    )


def _let_shard(arguments: SFTConfig, method: str) -> None:
    """Let accelerate shard a model, before it is loaded.

    Raises:
        ValueError: This PyTorch cannot.
    """
    enable_fsdp_ram_efficient_loading()
    if not torch.cuda.is_available():  # On CPUs, accelerate would ignore it without a word.
        arguments.distributed_state.distributed_type = DistributedType.MULTI_GPU
        if not let_cpus_shard() and method == "full":
            raise ValueError(
                'sharding is "fsdp" and method is "full", which needs GPUs, or PyTorch 2.7 or newer: set sharding to '
                '"none", or method to "lora"'
            )


def describe_tokens(trainer: SupervisedTuning, rows: Sequence[object], validation: Sequence[object]) -> str:
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
    lost = [(len(given) - _counting(dataset), len(given), what) for given, dataset, what in splits if given]
    reason = f"no token whose loss counts is among their first {longest:,} (max_length)"
    for number, total, what in lost:
        if number == total:
            raise ValueError(f"max_length is {longest}, and all {total:,} {what} have no effect: {reason}; increase it")
    lengths = np.array([len(tokens) for tokens in prepared["input_ids"]])
    packed, whole = (f"{len(rows):,} rows are packed into ", "sequences") if trainer.args.packing else ("", "rows")
    text = f"{packed}{len(lengths):,} {whole} of {np.median(lengths):,.0f} tokens (median), {lengths.max():,} at most"
    cut = int((lengths >= longest).sum())
    if packed:
        text += f", {lengths.sum() / (len(lengths) * longest):.0%} of max_length {longest:,}"
    elif cut:
        text += f"; {cut:,} have max_length {longest:,} or are cut to it"
    parts = " and ".join(f"{number:,} of all {total:,} {what}" for number, total, what in lost if number)
    return f"{text}; {parts} have no effect: {reason}" if parts else text


def _counting(dataset: Dataset) -> int:
    """Return how many rows of a prepared dataset have a token that counts. The first one of a row does not."""
    rows: Iterable[NDArray[np.int64]] = map(np.array, dataset["labels"])
    if "seq_lengths" in dataset.column_names:
        packed = zip(rows, dataset["seq_lengths"], strict=True)
        rows = (row for labels, lengths in packed for row in np.split(labels, np.cumsum(lengths)[:-1]))
    return sum(bool((row[1:] >= 0).any()) for row in rows)
