"""Compares the columns and classes of datasets and models, and brings a dataset's columns into another order (pure)."""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from kfp_distributed.storage.dataset import JSON_KINDS, DatasetManifest

# What must be equal. Mean and deviation need not be: those of the training data count.
_COMPARED = ("kind", "dtype", "shape", "vocabulary")


def align(manifest: DatasetManifest, columns: Sequence[Mapping[str, Any]], label: Mapping[str, Any]) -> DatasetManifest:
    """Return a manifest whose columns are in the order of the training data.

    The shards stay as they are, because they are read by the names of the columns.

    Args:
        manifest: Manifest of the dataset.
        columns: Columns of the training data, as JSON objects of its manifest.
        label: Label of the training data, as a JSON object of its manifest.

    Raises:
        ValueError: The dataset has another task, or other columns, types, vocabularies or classes. Its classes and
            categories are numbers in the shards, which would mean other values, even if the shapes fit.
    """
    trained = {column["name"]: _compared(column) for column in columns}
    own = {column.name: (column, _compared(asdict(column))) for column in manifest.columns}
    task, classes = label.get("task", "classification"), label.get("classes", ())
    if task != manifest.label.task:
        raise ValueError(f"the task is {manifest.label.task!r}, in the training data {task!r}")
    if [*classes] != [*manifest.label.classes]:
        raise ValueError(_difference("the classes are", manifest.label.classes, classes))
    if trained.keys() != own.keys():
        added, missing = sorted(own.keys() - trained.keys()), sorted(trained.keys() - own.keys())
        raise ValueError(
            " and ".join(
                f"the {'column' if len(names) == 1 else 'columns'} {', '.join(map(repr, names[:10]))} {problem}"
                for names, problem in ((added, "did not exist"), (missing, "is missing"))
                if names
            )
        )
    for name, values in trained.items():
        for key, value in values.items():
            if own[name][1][key] != value:
                raise ValueError(_difference(f"the {key} of column {name!r} is", own[name][1][key], value))
    for column in columns:
        other = own[column["name"]][0]
        if _meaning(column, other.source_type) != _meaning(column, column.get("source_type", other.source_type)):
            what = f"the source_type of column {column['name']!r} is"
            raise ValueError(_difference(what, other.source_type, column["source_type"]))
    return replace(manifest, columns=tuple(own[name][0] for name in trained))


def _compared(column: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: list(column[key]) if isinstance(column[key], list | tuple) else column[key]
        for key in _COMPARED
        if key in column
    }


def _meaning(column: Mapping[str, Any], source_type: str) -> str:
    """Return what the values are that have the type of others: JSON texts, or days; "" for what they look like."""
    if column["kind"] == "number":
        return "date" * source_type.startswith("date")
    return source_type if source_type in JSON_KINDS else ""


def _difference(what: str, value: object, trained: object) -> str:
    short = reprlib.Repr()
    short.maxlist = short.maxtuple = 12
    texts = [short.repr([*item] if isinstance(item, list | tuple) else item) for item in (value, trained)]
    if texts[0] == texts[1]:  # They differ after the first values.
        return f"{what} others than those of the training data, which begin with {texts[1]}"
    return f"{what} {texts[0]}, in the training data {texts[1]}"
