"""A loaded model as a function of rows."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kfp_distributed.components.model_formats.load import load_model
from kfp_distributed.components.model_formats.model_inputs import plan_inputs
from kfp_distributed.components.model_formats.model_outputs import class_matrix, number_vector
from kfp_distributed.components.model_formats.model_signature import Model
from kfp_distributed.components.predict.asked_model.model_plan import ModelPlan

BATCH_BYTES = 2**26
"""Most bytes of the rows that the model gets at once, as float32."""

BATCH_ROWS = 4096
"""Most rows that the model gets at once."""

_TOLERANCE = 1e-3
"""Difference from the range of 0 to 1 up to which a number counts as a probability, for models of short floats."""


class ModelPredictor:
    """A model that answers rows.

    Args:
        plan: How the model is asked.
        model: The loaded model.

    Raises:
        ValueError: The model's inputs do not accept the columns.
    """

    def __init__(self, plan: ModelPlan, model: Model) -> None:
        self._plan, self._model = plan, model
        self._inputs = plan_inputs(model.signature, plan.columns)

    @property
    def by_column(self) -> bool:
        """Whether the model has an input for each column."""
        return self._inputs.by_column

    def answers(self, rows: Mapping[str, ArrayLike] | NDArray[np.float32], count: int) -> NDArray[np.float64]:
        """Return the answers for a batch: [n, classes] of a classifier, else [n]. They may be NaN.

        Args:
            rows: Raw values by column, see `ModelInputs.from_columns`, or the matrix of a dataset.
            count: Number of the rows, n.

        Raises:
            ValueError: The model fails, or returns no probabilities or numbers.
        """
        named = self._inputs.from_matrix(rows) if isinstance(rows, np.ndarray) else self._inputs.from_columns(rows)
        plan = self._plan
        output = self._model.run(named)[plan.output]
        if plan.kind == "number":
            return number_vector(output, count)
        values = class_matrix(output, count, plan.size)
        if ((values < -_TOLERANCE) | (values > 1 + _TOLERANCE)).any():
            raise ValueError(
                f"the model's output {plan.output!r} has values outside of the range from 0 to 1: save the model with "
                "probabilities, such as those of a softmax"
            )
        return values


@lru_cache(maxsize=1)
def loaded_model(folder: str) -> Model:
    """Return the model of a folder. A process loads it once."""
    return load_model(Path(folder))


@lru_cache(maxsize=1)
def loaded_predictor(plan: ModelPlan) -> ModelPredictor:
    """Return the model of a plan as a function of rows."""
    return ModelPredictor(plan, loaded_model(plan.folder))


@contextmanager
def forget_model() -> Iterator[None]:
    """Forget the loaded model when the block exits, because another model may get its folder."""
    try:
        yield
    finally:
        loaded_predictor.cache_clear()
        loaded_model.cache_clear()
