"""The memory that a fine-tuning needs on each GPU: estimated by the config.json of its model, before it starts."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from kfp_distributed.components.train.describe.value_kinds import bytes_of
from kfp_distributed.storage.errors import KeyNotFound
from kfp_distributed.storage.opener import open_store
from kfp_distributed.trainers.programs.base_model import hub_hint, is_in_store, parse_hub
from kfp_distributed.trainers.programs.language_parameters import LanguageModelParameters
from kfp_distributed.trainers.programs.memory_estimate import CONTEXT
from kfp_distributed.trainers.programs.memory_plan import describe_memory, fit_to_memory
from kfp_distributed.trainers.programs.model_size import MODEL_TYPES, ModelSize, model_size

_CONFIG = "config.json"


def read_config(address: str) -> Mapping[str, Any]:
    """Return the content of the config.json of a base_model of a store or of a folder of this machine.

    Raises:
        ValueError: It is not valid.
        OSError: The folder has none.
        StorageError: The store has none, or cannot be read.
    """
    path = Path(address, _CONFIG)
    try:
        content = open_store(address).read(_CONFIG) if is_in_store(address) else path.read_bytes()
    except OSError as error:
        raise OSError(
            f"base_model is {address!r}, and {path} cannot be read: {error.strerror}{hub_hint(address)}"
        ) from None
    try:
        return {**json.loads(content)}
    except (RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"{_CONFIG} of {address} is not valid: {error!r}") from None


def read_size(address: str) -> ModelSize:
    """Return the size of a base_model of a store or of a folder of this machine.

    Raises:
        ValueError: It is of the Hugging Face Hub, its model_type is none of MODEL_TYPES, its weights are quantized, or
            its config.json is not valid.
        OSError: There is no such folder, or it has no config.json.
        StorageError: The store has none, or cannot be read.
    """
    if hub := parse_hub(address):
        raise ValueError(
            f"{address} is not read here: run `hf download {hub.name} config.json --revision {hub.revision} "
            "--local-dir FOLDER`, and pass the folder"
        )
    config = read_config(address)
    try:
        size = model_size(config)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{_CONFIG} of {address} is not valid: {error!r}") from None
    if not size and config.get("quantization_config"):
        raise ValueError(f"{address} has quantized weights, for which there is no estimate")
    if not size:
        kind = config.get("model_type")
        raise ValueError(
            f"{address} has the model_type {kind!r:.200}; those with an estimate are {', '.join(MODEL_TYPES)}"
        )
    return size


def plan_evaluation(parameters: Mapping[str, Any], ranks: int, gpu_memory: str | None) -> dict[str, Any]:
    """Return the parameters of `language_evaluation`, with the sharding that the memory of a GPU needs for the weights.

    Args:
        parameters: Its parameters, which are checked.
        ranks: Number of ranks.
        gpu_memory: worker_gpu_memory; None if it is unknown.

    Raises:
        ValueError: No GPU holds the part of a rank.
        StorageError: The store cannot be read. Another attempt of the step must plan the same job.
    """
    sharding, size = parameters.get("sharding", "auto"), None
    if gpu_memory:
        with suppress(KeyNotFound, OSError, ValueError):  # Then the size is unknown.
            size = read_size(parameters["base_model"])
    needed = 2 * size.parameters if size else 0
    room = bytes_of(gpu_memory) - CONTEXT if gpu_memory else 0
    if sharding == "auto":
        sharding = "fsdp" if needed > room and ranks > 1 else "none"
    if needed > room * (ranks if sharding == "fsdp" else 1):
        raise ValueError(
            f"worker_gpu_memory is {gpu_memory}, and the weights of the model alone have {needed / 2**30:.1f} GiB: set "
            'sharding to "fsdp" and use more workers'
        )
    return {**parameters, "sharding": sharding}


def plan_memory(parameters: Mapping[str, Any], ranks: int, gpu_memory: str | None) -> tuple[dict[str, Any], str]:
    """Return the parameters of `language_model` for the memory of a GPU, and a line for the log; "" for none.

    With a known memory of the GPUs and a known size of the model, micro_batch_size and sharding are set. The size is
    unknown for a folder that only replicas have, and for others of which `read_size` knows none. This is no error.

    Args:
        parameters: Its parameters, which are checked.
        ranks: Number of ranks.
        gpu_memory: worker_gpu_memory; None if it is unknown.

    Raises:
        ValueError: The training needs more memory, of which the message has the estimate and what fits, or
            lora_target_modules names no layer.
        StorageError: The store cannot be read. Another attempt of the step must plan the same job.
    """
    try:
        size = read_size(parameters["base_model"])
    except (KeyNotFound, OSError, ValueError) as error:
        return {**parameters}, f"worker_gpu_memory {gpu_memory} is not checked: {error}" if gpu_memory else ""
    planned = LanguageModelParameters(**parameters)
    if not gpu_memory:
        return {**parameters}, describe_memory(size, planned, ranks)
    planned = fit_to_memory(size, planned, ranks, bytes_of(gpu_memory))
    chosen = {"micro_batch_size": planned.micro_batch_size, "sharding": planned.sharding}
    return {**parameters, **chosen}, describe_memory(size, planned, ranks)
