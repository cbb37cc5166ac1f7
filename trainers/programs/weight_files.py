"""Checks that the files of a language model's weights are complete, which costs no more than reading their headers."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

INDEX = "model.safetensors.index.json"
"""The file that names the files of weights that are divided among several."""

_LARGEST_HEADER = 100_000_000


def check_weight_file(address: str, file: Path, names: Collection[str], parameter: str = "base_model") -> None:
    """Check that a local file of a model is complete, if it has weights, or that the files that it names are there.

    Args:
        address: Address of the model, for the error.
        file: A file of the model.
        names: Names of all files of the model.
        parameter: Name of the parameter that has the address, for the error. Default: "base_model".

    Raises:
        ValueError: It is not, or a file is missing.
    """
    problem = ""
    if file.suffix == ".safetensors":
        size = file.stat().st_size
        with file.open("rb") as content:
            expected = _expected_size(content)
        if not expected or size != expected:
            complete = f", which has {expected:,}" if expected else ""
            problem = f"has {size:,} bytes, and is no complete safetensors file{complete}"
    elif file.name == INDEX and "model.safetensors" not in names:  # With that file, the index is not read.
        missing = sorted(_named_files(file) - {*names})
        if missing:
            problem = f"names {', '.join(missing[:3])}{', ...' * (len(missing) > 3)}, which is not there"
    if problem:
        raise ValueError(
            f"{parameter} is {address!r}, whose file {file.name} {problem}: save or download the model again"
        )


def _expected_size(content: BinaryIO) -> int:
    """Return how many bytes a safetensors file has by its header; 0 if it has none."""
    length = int.from_bytes(content.read(8), "little")
    try:
        tensors = json.loads(content.read(length) if length <= _LARGEST_HEADER else "")
        ends = [tensor["data_offsets"][1] for name, tensor in tensors.items() if name != "__metadata__"]
        return int(8 + length + max(ends, default=0)) if length else 0
    except (ArithmeticError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return 0


def _named_files(file: Path) -> set[str]:
    try:
        return {*map(str, json.loads(file.read_bytes())["weight_map"].values())}
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return {"no files of weights (weight_map)"}
