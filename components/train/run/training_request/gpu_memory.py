"""The memory that a fine-tuning needs on each GPU: estimated by the config.json of its model, before it starts."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from kfp_distributed.components.train.describe.value_kinds import bytes_of
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.opener import open_store
from kfp_distributed.trainers.programs.base_model import is_in_store
from kfp_distributed.trainers.programs.language_parameters import LanguageModelParameters
from kfp_distributed.trainers.programs.memory_plan import describe_memory, fit_to_memory
from kfp_distributed.trainers.programs.model_size import ModelSize, model_size


def read_size(address: str) -> ModelSize | None:
    """Return the size of a base_model of a store or of a folder of this machine.

    None means that it is unknown: it is of the Hugging Face Hub or of a folder that only replicas have, its config.json
    cannot be read, or its model_type is none that `model_size` knows.
    """
    with suppress(StorageError, OSError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        if is_in_store(address):
            return model_size(json.loads(open_store(address).read("config.json")))
        return model_size(json.loads(Path(address, "config.json").read_bytes()))
    return None


def plan_memory(parameters: Mapping[str, Any], ranks: int, gpu_memory: str | None) -> tuple[dict[str, Any], str]:
    """Return the parameters of `language_model` for the memory of a GPU, and a line for the log; "" for none.

    With a known memory of the GPUs and a known model, micro_batch_size is set.

    Args:
        parameters: Its parameters, which are checked.
        ranks: Number of ranks.
        gpu_memory: worker_gpu_memory; None if it is unknown.

    Raises:
        ValueError: The training needs more memory. The message has the estimate and what fits.
    """
    size = read_size(parameters["base_model"])
    if not size:
        unknown = "config.json of base_model cannot be read by the step, or its model_type is unknown"
        return {**parameters}, f"worker_gpu_memory {gpu_memory} is not checked: {unknown}" if gpu_memory else ""
    planned = LanguageModelParameters(**parameters)
    if not gpu_memory:
        return {**parameters}, describe_memory(size, planned, ranks)
    planned = fit_to_memory(size, planned, ranks, bytes_of(gpu_memory))
    return {**parameters, "micro_batch_size": planned.micro_batch_size}, describe_memory(size, planned, ranks)
