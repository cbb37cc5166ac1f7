"""The named inputs and outputs of a model (pure)."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

STRING = "string"
"""The `dtype` of texts. Arrays of them have the numpy type `object` and `str` values, or `bytes` in UTF-8 as inputs."""


@dataclass(frozen=True)
class TensorSpec:
    """An input or an output.

    Attributes:
        name: Name of the tensor in the signature. Any text.
        dtype: Type of the values, as numpy names it, such as "float32" or "int64", or `STRING`.
        shape: Shape with the axis of the rows. None stands for a free size. None instead of the shape means that the
            number of axes is free.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs by name.

    Attributes:
        inputs: The inputs.
        outputs: The outputs.
    """

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]


class Model(Protocol):
    """A loaded model."""

    @property
    def signature(self) -> Signature:
        """Inputs and outputs."""

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Return all outputs by name, for all inputs by name.

        Raises:
            ValueError: The model fails. The message is one line.
        """


def pick_output(names: Collection[str], preferred: str) -> str:
    """Return the name of an output of a signature: the preferred name, else the only one.

    Raises:
        ValueError: There are several other names, or none.
    """
    if preferred not in names and len(names) != 1:
        raise ValueError(
            f"the model's signature has the outputs {sorted(names)}, where one is needed, or one named {preferred!r}."
        )
    return preferred if preferred in names else min(names)
