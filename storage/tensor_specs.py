"""The named inputs and outputs of a model (pure)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

STRING = "string"
"""The `dtype` of texts. Arrays of them have the numpy type `object` and `str` values, or `bytes` in UTF-8 as inputs."""


@dataclass(frozen=True)
class TensorSpec:
    """An input or an output.

    Attributes:
        name: Name of the tensor in the signature. Any text.
        dtype: Type of the values, as numpy names it, such as "float32" or "int64", or `STRING`.
        shape: Shape with the axis of the rows. None stands for a free size. None instead of the shape means that the
            number of axes is free, or that the file does not have it.
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

    inputs: Mapping[str, TensorSpec] = field(default_factory=dict)
    outputs: Mapping[str, TensorSpec] = field(default_factory=dict)

    @classmethod
    def of(cls, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> "Signature":
        """Return the signature of tensors that have different names."""
        return cls({spec.name: spec for spec in inputs}, {spec.name: spec for spec in outputs})

    def to_dict(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return the signature as model.json has it: "inputs" and "outputs", each with "dtype" and "shape" by name."""
        ends = {"inputs": self.inputs, "outputs": self.outputs}
        return {
            end: {name: {"dtype": spec.dtype, "shape": _list(spec.shape)} for name, spec in specs.items()}
            for end, specs in ends.items()
        }


def _list(shape: tuple[int | None, ...] | None) -> list[int | None] | None:
    return None if shape is None else [*shape]


def shape_text(shape: Sequence[int | None] | None) -> str:
    """Return a shape as people read it, such as "[n, 3]". An "n" stands for a free size."""
    return "any shape" if shape is None else f"[{', '.join('n' if size is None else str(size) for size in shape)}]"
