"""How a model is asked for rows, and what its answers are (pure)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kfp_distributed.components.model_formats.model_outputs import count_classes
from kfp_distributed.components.model_formats.model_signature import pick_output
from kfp_distributed.storage.dataset import Column
from kfp_distributed.storage.model import ModelManifest
from kfp_distributed.storage.tensor_specs import STRING, Signature, TensorSpec


@dataclass(frozen=True)
class ModelPlan:
    """How a model is asked, and what it answers.

    Attributes:
        folder: Folder of the model.
        columns: Columns that the model takes, in the order in which it was trained with them.
        output: Name of the output of the signature.
        kind: "classes": the output has a probability for each class. "number": it has one number for each row.
        classes: Names of the classes in the order of the output; () if they are unknown.
        size: Number of classes; 0 if it is unknown.
        are_kept: Whether undeclared columns keep their types, as in a dataset of the task "none".
    """

    folder: str
    columns: tuple[Column, ...]
    output: str
    kind: Literal["classes", "number"]
    classes: tuple[str, ...]
    size: int
    are_kept: bool = False


def plan_model(folder: str, manifest: ModelManifest, signature: Signature) -> ModelPlan:
    """Return how a model is asked.

    Args:
        folder: Folder of the model.
        manifest: Its manifest. Without columns, those are the inputs of the signature. Without classes or a task, the
            output decides: "probabilities", or several values of a row, are those of classes.
        signature: Its signature.

    Raises:
        ValueError: The manifest has invalid columns, or the output is none that the step can use.
    """
    label = manifest.label
    classes = tuple(label.get("classes", ()))
    task = label.get("task") or ("classification" if classes else "none")
    columns = tuple(_column(entry) for entry in manifest.columns) or _columns_of(signature)
    if task == "classification":
        output = pick_output(signature.outputs, "probabilities")
        size = len(classes) or count_classes(signature.outputs[output])
        return ModelPlan(folder, columns, output, "classes", classes, size)
    if task == "regression":
        return ModelPlan(folder, columns, pick_output(signature.outputs, "prediction"), "number", (), 0)
    preferred = "prediction" if "prediction" in signature.outputs else "probabilities"
    output = pick_output(signature.outputs, preferred)
    shape = signature.outputs[output].shape
    has_classes = output == "probabilities" or (shape is not None and len(shape) == 2 and shape[1] != 1)
    kind: Literal["classes", "number"] = "classes" if has_classes and output != "prediction" else "number"
    size = count_classes(signature.outputs[output]) if kind == "classes" else 0
    return ModelPlan(folder, columns, output, kind, (), size, are_kept=bool(manifest.columns))


def _column(entry: Mapping[str, Any]) -> Column:
    values: dict[str, Any] = {key: tuple(item) if isinstance(item, list) else item for key, item in entry.items()}
    try:
        return Column(**values)
    except TypeError as error:
        raise ValueError(f"model.json has an invalid column {dict(entry)!r}: {error}. Train the model again") from None


def _columns_of(signature: Signature) -> tuple[Column, ...]:
    """Return the columns that a model without columns in its manifest takes: one for each input, of the same name."""
    return tuple(_column_of(spec) for spec in signature.inputs.values())


def _column_of(spec: TensorSpec) -> Column:
    row = (spec.shape or (None,))[1:]
    if spec.dtype == STRING:
        return Column(spec.name, "category", "int32")
    if None in row:
        raise ValueError(
            f"the model's input {spec.name!r} has the shape {spec.shape}, and model.json has no columns: save the "
            "model with inputs of a known size of each row, or set dataset instead of source"
        )
    shape = tuple(size for size in row if size is not None)
    if math.prod(shape) == 1:
        return Column(spec.name, "number", "float32")
    return Column(spec.name, "tensor", "uint8" if spec.dtype == "uint8" else "float32", shape)
