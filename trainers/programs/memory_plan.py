"""What the memory of GPUs decides about a fine-tuning before it starts: what fits, and what the log says (pure)."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, Literal

from kfp_distributed.trainers.programs.language_parameters import (
    LARGEST_MICRO_BATCH,
    LanguageModelParameters,
    micro_batches,
)
from kfp_distributed.trainers.programs.memory_estimate import MemoryEstimate, memory_estimate
from kfp_distributed.trainers.programs.model_size import ModelSize

PARTS = (*MemoryEstimate._fields[:-1], "CUDA")
"""Names of the parts of a `MemoryEstimate` for users."""

_MICRO_BATCHES = (1, 2, 4, 8)
_SHORTEST = 256  # A smaller max_length cuts most rows.


def gibibytes(number: int) -> str:
    """Return a number of bytes in GiB, such as "18.3"."""
    return f"{number / 2**30:.1f}"


def describe_memory(size: ModelSize, parameters: LanguageModelParameters, ranks: int) -> str:
    """Return the numbers of parameters of a model, and the memory that its fine-tuning needs on each GPU.

    Args:
        size: Size of the base model.
        parameters: Parameters of the trainer.
        ranks: Number of ranks.
    """
    rows, _ = micro_batches(parameters.batch_size, parameters.micro_batch_size, ranks)
    adapter = size.adapter(parameters.lora_r, parameters.lora_target_modules)
    trained = "all" if parameters.method == "full" else f"{adapter:,} of an adapter"
    estimate = memory_estimate(size, parameters, ranks)
    sharded = f", divided among {ranks} ranks" if parameters.sharding == "fsdp" and ranks > 1 else ""
    return (
        f"base_model has {size.parameters:,} parameters{sharded}, and {trained} are trained; a GPU needs about "
        f"{gibibytes(estimate.total)} GiB for micro_batch_size {rows} and max_length {parameters.max_length}: "
        f"{_parts(estimate)} (an estimate)"
    )


def memory_choices(
    size: ModelSize, parameters: LanguageModelParameters, ranks: int
) -> Iterator[tuple[LanguageModelParameters, MemoryEstimate]]:
    """Yield choices of method, sharding, activation_checkpointing and micro_batch_size, with their estimates.

    Args:
        size: Size of the base model.
        parameters: All other parameters.
        ranks: Number of ranks.
    """
    rows = parameters.batch_size // ranks
    methods: tuple[Literal["lora", "qlora", "full"], ...] = ("lora", "qlora", "full")
    for method, sharding, saves, number in product(methods, ("none", "fsdp"), (True, False), _MICRO_BATCHES):
        may_shard = _may_shard(replace(parameters, method=method), ranks)
        if rows % number == 0 and (sharding == "none" or may_shard):
            change: Mapping[str, Any] = {"method": method, "sharding": sharding, "activation_checkpointing": saves}
            choice = replace(parameters, **change, micro_batch_size=number)
            yield choice, memory_estimate(size, choice, ranks)


def _may_shard(parameters: LanguageModelParameters, ranks: int) -> bool:
    return ranks > 1 and parameters.objective == "sft" and parameters.method != "qlora"


def _parts(estimate: MemoryEstimate) -> str:
    return ", ".join(f"{name} {gibibytes(part)}" for name, part in zip(PARTS, estimate, strict=True))


def fit_to_memory(
    size: ModelSize, parameters: LanguageModelParameters, ranks: int, memory: int
) -> LanguageModelParameters:
    """Return the parameters with a micro_batch_size. In place of 0 it is the largest that fits, up to 8.

    In place of "auto", sharding is "none" if something fits so, else "fsdp".

    Args:
        size: Size of the base model.
        parameters: Parameters of the trainer.
        ranks: Number of ranks.
        memory: Bytes of each GPU.

    Raises:
        ValueError: The fine-tuning needs more. The message has the estimate, and changes of the parameters that fit.
    """
    given = parameters.micro_batch_size
    shardings: list[Literal["auto", "none", "fsdp"]] = [parameters.sharding]
    if parameters.sharding == "auto" and ranks > 1:
        shardings = ["none", "fsdp"] if _may_shard(parameters, ranks) else ["none"]
    for parameters in (replace(parameters, sharding=sharding) for sharding in shardings):
        fitting = _largest_that_fits(size, parameters, ranks, memory)
        if fitting and given in (0, fitting.micro_batch_size):
            return fitting
    least = replace(parameters, micro_batch_size=given or 1)
    choices: list[str] = []
    for change in _changes(parameters, ranks):
        found = _largest_that_fits(size, replace(parameters, **change), ranks, memory)
        # Only the longest rows that fit are named, and 4 bits of a method full only where 16 do not fit.
        replaced = "max_length" if "max_length" in change else "method lora" if "qlora" in change.values() else "-"
        if found and not any(replaced in choice for choice in choices):
            if given not in (0, found.micro_batch_size):
                change = {**change, "micro_batch_size": found.micro_batch_size}
            words = " and ".join(f"{name} {str(value).lower()}" for name, value in change.items())
            choices.append(f"{words} ({gibibytes(memory_estimate(size, found, ranks).total)} GiB)")
    estimate = memory_estimate(size, least, ranks)
    sharded = " and sharding fsdp" if parameters.sharding == "fsdp" else ""
    raise ValueError(
        f"method {parameters.method}{sharded} with micro_batch_size {least.micro_batch_size} needs about "
        f"{gibibytes(estimate.total)} GiB on each GPU for rows of max_length {least.max_length} ({_parts(estimate)}), "
        f"and worker_gpu_memory is {gibibytes(memory)} GiB; "
        + (f"what fits: {', or '.join(choices)}" if choices else "use GPUs with more memory, or a smaller model")
    )


def _largest_that_fits(
    size: ModelSize, parameters: LanguageModelParameters, ranks: int, memory: int
) -> LanguageModelParameters | None:
    """Return the parameters with the largest micro_batch_size that fits, up to theirs; None if none does."""
    rows = parameters.batch_size // ranks
    numbers = range(parameters.micro_batch_size or LARGEST_MICRO_BATCH, 0, -1)
    tried = (replace(parameters, micro_batch_size=number) for number in numbers if rows % number == 0)
    return next((choice for choice in tried if memory_estimate(size, choice, ranks).total <= memory), None)


def _changes(parameters: LanguageModelParameters, ranks: int) -> Iterator[Mapping[str, Any]]:
    """Yield changes of parameters that take less memory, those first that change the least of the training."""
    checkpointing = {} if parameters.activation_checkpointing else {"activation_checkpointing": True}
    lora = {"method": "lora"} if parameters.method == "full" else {}
    if parameters.micro_batch_size > 1:
        yield {}
    if checkpointing:
        yield checkpointing
    if parameters.sharding == "none" and _may_shard(parameters, ranks):
        yield {"sharding": "fsdp", **checkpointing}
    if lora:
        yield lora
    if checkpointing and lora:
        yield {**lora, **checkpointing}
    if parameters.method != "qlora":
        sharding = {"sharding": "none"} if parameters.sharding == "fsdp" else {}
        yield {"method": "qlora", **sharding, **checkpointing}
    length = parameters.max_length
    while (length := length // 2) >= _SHORTEST:
        yield {"max_length": length}
