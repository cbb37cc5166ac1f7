"""Compares a checkpoint with the network and the data of a built-in trainer, before a training resumes from it."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple, NoReturn

import numpy as np

from kfp_distributed.storage.dataset import Column, DatasetManifest


class Architecture(NamedTuple):
    """Architecture of a network, in terms of the user's parameters and data.

    Attributes:
        hidden_units: Sizes of the hidden layers.
        inputs: Number of input values of a row.
        categories: Number of values of each category, including "missing".
        classes: Number of classes.
    """

    hidden_units: list[int]
    inputs: int
    categories: list[int]
    classes: int


def architecture(embeddings: Iterable[Sequence[int]], layers: Iterable[Sequence[int]]) -> Architecture | None:
    """Return the architecture of a network from the shapes of its weights.

    Args:
        embeddings: Shape of each embedding, [values, size].
        layers: Shape of each fully connected layer, [inputs, outputs], the output layer last.

    Returns:
        The architecture. None if there is no layer, as in the checkpoint of another program.
    """
    tables, weights = [tuple(map(int, shape)) for shape in embeddings], [tuple(map(int, shape)) for shape in layers]
    if not weights:
        return None
    sizes = [outputs for _, outputs in weights]
    inputs = weights[0][0] - sum(size for _, size in tables)
    return Architecture(sizes[:-1], inputs, [count for count, _ in tables], sizes[-1])


def record_data(manifest: DatasetManifest) -> str:
    """Return the JSON text that a checkpoint has about its training data: the columns and what is predicted.

    A checkpoint of an earlier version is of a classification and has only the columns and the names of the classes.
    """
    label = manifest.label
    target = {"task": label.task, "classes": label.classes, "mean": label.mean, "std": label.std}
    return json.dumps({"columns": [asdict(column) for column in manifest.columns], **target})


def keep_scales(checkpoint: str, manifest: DatasetManifest, leads: bool) -> DatasetManifest:
    """Return the manifest with which a training continues.

    A column of numbers keeps whether its logarithms are scaled, which are other inputs. Numbers to predict keep the
    mean and the standard deviation of the checkpoint, because its last layer predicts numbers that are scaled with
    them. With others, the model would suddenly predict other numbers.

    Args:
        checkpoint: What `record_data` returned for the data of the checkpoint; "" for none.
        manifest: Manifest of the training dataset.
        leads: Whether this process prints how the data of the checkpoint differs.

    Raises:
        SystemExit: The checkpoint is of another task. The exit code is 1, which is not retried.
    """
    if not checkpoint:
        return manifest
    saved, label = json.loads(checkpoint), manifest.label
    if (task := saved.get("task", "classification")) != label.task:
        refuse(f"was made for the task {task!r}, now {label.task!r}", f"pass a dataset with the task {task!r}")
    manifest = replace(manifest, columns=_with_scales_of(saved.get("columns", ()), manifest.columns, leads))
    if task != "regression":
        return manifest
    mean, std = saved["mean"], saved["std"]
    # In the unit in which the network predicts, because a mean may be much larger than the deviation.
    if leads and max(abs(mean - label.mean), abs(std - label.std)) > 1e-6 * std:
        print(
            f"the checkpoint was made with other data; {label.name} keeps its mean {mean:.10g} (of the new data "
            f"{label.mean:.10g}) and standard deviation {std:g} ({label.std:g}), in which the network predicts",
            flush=True,
        )
    return replace(manifest, label=replace(label, mean=mean, std=std))


def _with_scales_of(saved: Sequence[dict[str, Any]], columns: Sequence[Column], leads: bool) -> tuple[Column, ...]:
    """Return columns of which those are scaled by their logarithms that a checkpoint scales so."""
    before = {column["name"]: {name: column[name] for name in _LOGARITHM if name in column} for column in saved}
    kept = []
    for column in columns:
        scale = before.get(column.name, {})
        if column.name in before and (scale.get("log_unit") is None) != (column.log_unit is None):
            column = replace(column, **{"log_unit": None, **scale})
            if leads:
                how = "are not scaled" if column.log_unit is None else "stay scaled"
                print(
                    f"the checkpoint was made with other data; numbers of {column.name} {how} by logarithms", flush=True
                )
        kept.append(column)
    return tuple(kept)


def end_if_other_network(checkpoint: Architecture | None, network: Architecture | None) -> None:
    """End a training that would resume from a checkpoint of another network. Nothing has changed by then.

    Args:
        checkpoint: Architecture of the checkpoint; None for that of another program.
        network: Architecture of the network that is about to train.

    Raises:
        SystemExit: The architectures differ. The exit code is 1, which is not retried.
    """
    if checkpoint is None or network is None:
        refuse("was made by another program, which has no layers of this trainer", "resume from one of this trainer")
    if checkpoint.hidden_units != network.hidden_units:
        refuse(
            f"was made with hidden_units {checkpoint.hidden_units}, now {network.hidden_units}",
            f"set hidden_units to {checkpoint.hidden_units}",
        )
    for name, before, now in zip(Architecture._fields, checkpoint, network, strict=True):
        if before != now:
            count = "the numbers of values of the categories" if name == "categories" else f"the number of {name}"
            refuse(f"was made with {before} as {count}, now {now}", "pass a dataset of the same columns and classes")


def end_if_other_data(checkpoint: str, data: str) -> str:
    """End a training that would resume from a checkpoint whose inputs or outputs have another meaning.

    Args:
        checkpoint: What `record_data` returned for the data of the checkpoint; "" if the checkpoint has no record.
        data: What it returns for the data of this training.

    Returns:
        A line for the log if a mean or standard deviation differs, with which the network scales numbers; else "".

    Raises:
        SystemExit: The columns, a vocabulary or the classes differ. The exit code is 1, which is not retried.
    """
    if not checkpoint:
        return ""
    before, now = json.loads(checkpoint), json.loads(data)
    for what, read in _MEANINGS.items():
        old, new = read(before), read(now)
        if old != new:
            refuse(f"was made with the {what} {_first_difference(old, new)}", f"pass a dataset with the same {what}")
    pairs = zip(before["columns"], now["columns"], strict=True)
    scaled = []
    for old, new in pairs:
        names = ("mean", "std") if new.get("log_unit") is None else _LOGARITHM
        if not all(_are_close(old[name], new[name]) for name in names):
            changes = (f"{name} {_short(old[name])}, now {_short(new[name])}" for name in names)
            scaled.append(f"{new['name']} ({'; '.join(changes)})")
    if not scaled:
        return ""
    return f"the checkpoint was made with other data; inputs are scaled with the new values: {', '.join(scaled)}"


_LOGARITHM = ("log_unit", "log_mean", "log_std")

_MEANINGS: dict[str, Callable[[dict[str, Any]], list[Any]]] = {
    "columns": lambda data: [column["name"] for column in data["columns"]],
    "types": lambda data: [[column["name"], column["kind"], column["shape"]] for column in data["columns"]],
    "vocabularies": lambda data: [[column["name"], column["vocabulary"]] for column in data["columns"]],
    "classes": lambda data: list(data["classes"]),
}
"""What each weight of the first and the last layer belongs to, by its name in messages."""


def _are_close(old: float | list[float], new: float | list[float]) -> bool:
    """Return whether the numbers of a column, or of the elements of a tensor, are equal up to rounding."""
    return np.shape(old) == np.shape(new) and np.allclose(old, new, rtol=1e-6, atol=1e-12)


def _short(numbers: float | list[float]) -> str:
    """Return a number as text, and the range of several."""
    low, high = np.min(numbers), np.max(numbers)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _first_difference(old: list[Any], new: list[Any]) -> str:
    if len(old) != len(new):
        return f"{old!r:.300}, now {new!r:.300}"
    return next(f"{before!r:.300}, now {now!r:.300}" for before, now in zip(old, new, strict=True) if before != now)


def end_if_other_program(files: Sequence[str]) -> None:
    """End a training whose checkpoint folder has files, but no checkpoint of this trainer. It would start from nothing.

    Args:
        files: Names of the files; none if there is a checkpoint of this trainer or none at all.

    Raises:
        SystemExit: There are files. The exit code is 1, which is not retried.
    """
    if files:
        refuse(f"was made by another program: its files are {list(files)!r:.300}", "resume from one of this trainer")


def has_epochs_left(done: int, epochs: int, leads: bool) -> bool:
    """Return whether there is an epoch to train. If not, the leader says so: the model is saved as it is.

    Args:
        done: Number of finished epochs in the checkpoint.
        epochs: Number of the last epoch.
        leads: Whether this process prints the line.
    """
    if done >= epochs and leads:
        print(
            f"the checkpoint has {done} finished epochs and epochs is {epochs}: nothing to train; the model is saved "
            f"as it is (set epochs above {done} to train further)",
            flush=True,
        )
    return done < epochs


def refuse(difference: str, remedy: str) -> NoReturn:
    """End a training that cannot resume from its checkpoint.

    Args:
        difference: What the checkpoint has, as the end of "the checkpoint ...".
        remedy: What the user can do, besides a new training.

    Raises:
        SystemExit: Always. The exit code is 1, which is not retried.
    """
    raise SystemExit(
        f"the checkpoint {difference}: {remedy}, or start without resume_from. The checkpoint is unchanged."
    )
