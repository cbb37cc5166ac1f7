"""The parameters of `language_model`, and how an update is divided among ranks (pure)."""

from __future__ import annotations  # The type of a field is its text, as in the signature of a user's function.

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Literal

LEARNING_RATES = {
    "sft": {"lora": 2e-4, "qlora": 2e-4, "full": 2e-5},
    "dpo": {"lora": 5e-6, "qlora": 5e-6, "full": 5e-7},
}
"""Learning rate of each objective and method if none is set. With "sft", that of the adapters in QLoRA (Dettmers et al.
2023), and of most models of up to 13 billion parameters that were fine-tuned with all of them. With "dpo", those of the
script dpo.py of trl."""

_WITH_DPO: Mapping[str, tuple[object, ...]] = {
    "loss_on": ("auto", "completion"),
    "packing": (False,),
    "lora_dropout": (0,),
    "sharding": ("auto", "none"),
}
"""Values that parameters may have with the objective "dpo". trl turns dropout off, and has no packing for it."""

LARGEST_MICRO_BATCH = 8
"""Rows that a rank computes at once if micro_batch_size is 0, at most."""


@dataclass(frozen=True)
class LanguageModelParameters:
    """Parameters of the trainer `language_model`, the values of train_parameters.

    Attributes:
        base_model: The model, with config.json, weights as safetensors, and a tokenizer: an address such as
            s3://bucket/model, hf://OWNER/NAME@REVISION, or the full path of a folder of each replica.
        objective: "sft" trains to write the answers of the rows (supervised fine-tuning), "dpo" to prefer their chosen
            answers to the rejected ones (direct preference optimization, Rafailov et al. 2023). Default: "sft".
        beta: With "dpo", how much a deviation from the base model counts: the larger, the nearer the model stays to it.
            Default: 0.1.
        method: "lora" trains an adapter, "qlora" one of a base model of which the linear layers have 4 bits (NF4) for
            each parameter in the memory of the GPU, and "full" all parameters. Default: "lora".
        epochs: Number of passes over all rows, including those of a checkpoint. Default: 1.
        batch_size: Rows in one update of the weights, or sequences with packing, over all ranks. If there are fewer,
            some are repeated in the update. Default: 32.
        micro_batch_size: Rows that a rank computes at once. 0 is the largest number up to 8 that divides the rows of a
            rank and, with worker_gpu_memory, fits. Default: 0.
        learning_rate: Learning rate of the AdamW optimizer after the warm-up, from which it falls to 0 in a line. 0 is
            0.0002 for "lora" and "qlora" and 0.00002 for "full", with "dpo" 0.000005 and 0.0000005. Default: 0.
        warmup_ratio: Fraction of the updates, rounded down, before the first with the whole learning rate, from 0 to
            less than 1. Default: 0.03.
        weight_decay: Weight decay of the optimizer. Default: 0.
        max_length: Tokens of a row, of which more are cut off. Default: 2048.
        packing: Whether to join short rows to sequences of max_length tokens. Default: false.
        loss_on: Tokens whose loss counts: "completion" of a prompt, those of the "assistant" in messages, or "all".
            "auto" is "completion" for rows with a prompt, as always with "dpo", and else "all". Default: "auto".
        chat_template: Jinja template of conversations in place of the tokenizer's. Default: "", the tokenizer's.
        lora_r: Rank of the matrices that the adapter adds to a layer. Default: 16.
        lora_alpha: Their sum is multiplied by lora_alpha / lora_r. Default: 32.
        lora_dropout: Fraction of their inputs that is dropped. Default: 0.
        lora_target_modules: Layers that get them: "all-linear" but the last one, or the ends of names, separated by
            commas. Default: "all-linear".
        activation_checkpointing: Whether activations are computed again in the backward pass, which takes less memory
            and a third more time. Default: true.
        sharding: "fsdp" divides weights, gradients and the state of the optimizer among the ranks, which send each
            other those of each layer; "none" keeps all of them in each rank. "auto" is "fsdp" where, with
            worker_gpu_memory, nothing fits otherwise, else "none". Default: "auto".
        evaluate_steps: Updates between two evaluations on the validation rows. 0 is a tenth of all. Default: 0.
        checkpoint_steps: Updates between two checkpoints. 0 is a tenth of all. Default: 0.
        export: What becomes the model: the "adapter", the "merged" model, or "both". Default: "adapter".
        seed: Seed of the adapter, of dropout and of the order of the rows. Default: 0.
        may_be_zero: Parameters that may be 0. All other numbers must be more than 0.
        below: Parameters that must be less than a number.
    """

    may_be_zero: ClassVar = (
        *("micro_batch_size", "learning_rate", "warmup_ratio", "weight_decay", "lora_dropout", "evaluate_steps"),
        *("checkpoint_steps", "seed"),
    )
    below: ClassVar = {"warmup_ratio": 1, "lora_dropout": 1, "seed": 1 << 32}

    base_model: str
    objective: Literal["sft", "dpo"] = "sft"
    beta: float = 0.1
    method: Literal["lora", "qlora", "full"] = "lora"
    epochs: int = 1
    batch_size: int = 32
    micro_batch_size: int = 0
    learning_rate: float = 0.0
    warmup_ratio: float = 0.03
    weight_decay: float = 0.0
    max_length: int = 2048
    packing: bool = False
    loss_on: Literal["auto", "completion", "assistant", "all"] = "auto"
    chat_template: str = ""
    lora_r: int = 16
    lora_alpha: float = 32.0
    lora_dropout: float = 0.0
    lora_target_modules: str = "all-linear"
    activation_checkpointing: bool = True
    sharding: Literal["auto", "none", "fsdp"] = "auto"
    evaluate_steps: int = 0
    checkpoint_steps: int = 0
    export: Literal["adapter", "merged", "both"] = "adapter"
    seed: int = 0

    @property
    def adapts(self) -> bool:
        """Whether an adapter is trained."""
        return self.method != "full"

    @property
    def rate(self) -> float:
        """The learning rate after the warm-up."""
        return self.learning_rate or LEARNING_RATES[self.objective][self.method]


def _defaults(prefix: str) -> Iterator[tuple[str, object]]:
    """Yield names and defaults of the parameters whose names begin so."""
    return ((field.name, field.default) for field in fields(LanguageModelParameters) if field.name.startswith(prefix))


def check_together(parameters: Mapping[str, object]) -> None:
    """Check that an objective or method does not ignore other parameters, and that the model can be divided.

    Args:
        parameters: Those of LanguageModelParameters that are set.

    Raises:
        ValueError: One is ignored, or the model cannot be divided among ranks.
    """
    if parameters.get("method") == "qlora" and parameters.get("sharding") == "fsdp":
        raise ValueError('method is "qlora", whose model is not divided: set sharding to "none", or method to "lora"')
    if parameters.get("method") == "full":
        of_adapter = {**{name: (value,) for name, value in _defaults("lora_")}, "export": ("adapter", "merged")}
        for name in parameters:
            if name in of_adapter and parameters[name] not in of_adapter[name]:
                value = json.dumps(parameters[name])
                raise ValueError(f'{name} is {value}, and method is "full", which trains no adapter: leave {name} out')
    if parameters.get("objective", "sft") != "dpo":
        if "beta" in parameters:
            raise ValueError(f'beta is {parameters["beta"]}, and objective is "sft", which has none: leave beta out')
        return
    for name, allowed in _WITH_DPO.items():
        if name in parameters and parameters[name] not in allowed:
            values = ", ".join(json.dumps(value) for value in allowed)
            given = json.dumps(parameters[name])
            raise ValueError(f'{name} is {given}; allowed with the objective "dpo": {values}')


def check_sharding(parameters: Mapping[str, object], ranks: int) -> None:
    """Check that there are ranks to divide a model among.

    Args:
        parameters: Those of `language_model` or `language_evaluation` that are set.
        ranks: Number of ranks.

    Raises:
        ValueError: There is one rank.
    """
    if parameters.get("sharding") == "fsdp" and ranks == 1:
        raise ValueError('sharding is "fsdp", and the job has one rank: use several workers, or leave sharding out')


def micro_batches(batch_size: int, micro_batch_size: int, ranks: int) -> tuple[int, int]:
    """Return how many rows a rank computes at once, and how often it does so in an update.

    Args:
        batch_size: Rows in one update, over all ranks.
        micro_batch_size: Rows that a rank computes at once; 0 for the largest number that divides its rows, up to
            `LARGEST_MICRO_BATCH`.
        ranks: Number of ranks.

    Raises:
        ValueError: batch_size is no multiple of ranks * micro_batch_size. The message has the nearest values.
    """
    unit = ranks * (micro_batch_size or 1)
    if batch_size % unit:
        lower, upper = batch_size // unit * unit, (batch_size // unit + 1) * unit
        of_rows = f" that compute {micro_batch_size} rows at once" if micro_batch_size else ""
        raise ValueError(
            f"batch_size is {batch_size}, which cannot be divided among {ranks} ranks{of_rows}; the nearest values are "
            f"{f'{lower} and ' if lower else ''}{upper}"
        )
    rows = batch_size // ranks
    size = micro_batch_size or next(size for size in range(LARGEST_MICRO_BATCH, 0, -1) if rows % size == 0)
    return size, rows // size
