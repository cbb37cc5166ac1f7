"""Loads a model as a function of a dataset's rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.components.model_formats.load import load_model
from kfp_distributed.components.model_formats.model_inputs import ModelInputs, plan_inputs
from kfp_distributed.components.model_formats.model_signature import Model, pick_output
from kfp_distributed.storage.dataset import Column

ModelFunction = Callable[[NDArray[np.float32]], NDArray[np.floating]]
"""Returns the output of a model for rows, [n, width]. A suitable classifier returns [n, classes], a suitable regression
model [n] or [n, 1]."""


@dataclass(frozen=True)
class LoadedFunction:
    """A loaded model as a `ModelFunction`. It raises ValueError if the model fails.

    Attributes:
        model: The model.
        inputs: How its inputs are made of rows.
        output: Name of the output to return.
    """

    model: Model
    inputs: ModelInputs
    output: str

    def __call__(self, features: NDArray[np.float32]) -> NDArray[np.floating]:
        """Return the output for rows, [n, width]."""
        return self.model.run(self.inputs.from_matrix(features))[self.output]


def load_model_function(folder: Path, columns: Sequence[Column], output: str) -> LoadedFunction:
    """Load a model as a function of rows, see `load_model`.

    Args:
        folder: Folder of the model.
        columns: Columns of the dataset, in the order of the rows' values. See `plan_inputs`.
        output: Name of the output: "probabilities" or "prediction". A single output may have any name.

    Returns:
        The model as a function.

    Raises:
        ValueError: There is no such model, it cannot be loaded, it has no such signature or output, or its inputs do
            not accept the rows.
    """
    model = load_model(folder)
    return LoadedFunction(model, plan_inputs(model.signature, columns), pick_output(model.signature.outputs, output))
