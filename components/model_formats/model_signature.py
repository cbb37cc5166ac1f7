"""A loaded model, and which of its outputs a step reads (pure)."""

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from kfp_distributed.storage.tensor_specs import Signature


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
