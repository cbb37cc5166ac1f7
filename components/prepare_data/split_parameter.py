"""The parameter `split` of `prepare_data`: typed builder, checks and JSON Schema. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kfp_distributed.components.train.describe.builder import Builder
from kfp_distributed.components.train.describe.keys import (
    Key,
    dict_key,
    entries_of,
    keys_of,
    read_keys,
    schema_of,
    similar_keys,
)
from kfp_distributed.components.train.describe.pipeline_values import is_of_pipeline, refuse_what_kfp_cannot_insert
from kfp_distributed.components.train.describe.value_kinds import (
    FRACTION,
    MAPPING,
    Kind,
    integer,
    is_blank,
    read_entry,
    shown,
)

MAXIMUM_SEED = 2**53 - 1
"""Highest seed: the highest whole number that JSON keeps."""


def _read_text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError


_FRACTION = FRACTION._replace(allowed="a number from 0 to less than 1 (1 only with like)")
_COLUMN = Kind("the name of a column", _read_text, {"type": "string"})
_SOURCE = Kind("a path or an address", _read_text, {"type": "string"})


@dataclass(frozen=True, kw_only=True)
class Split(Builder):
    """How `prepare_data` divides the rows into a training, a validation and a test dataset.

    None stands for a key that is not set, so that its default applies. A value may be a parameter of the pipeline or an
    output of a task, which the step checks when the pipeline runs. KFP does not replace them in an argument of a
    pipeline. Pass an object to `prepare_data`, `train_and_export` or `train_and_deploy`, or `to_dict()` where a dict is
    needed, such as the default of a pipeline's parameter.

    Raises:
        ValueError: A value is not allowed, or two values contradict each other. The message names the key, the value
            and what is allowed.
    """

    components, parameter = ("prepare_data",), "split"

    validation_fraction: float | str | None = dict_key(
        _FRACTION, "Fraction of the rows for the validation dataset, which is empty with 0.", 0.1
    )
    test_fraction: float | str | None = dict_key(
        _FRACTION, "Fraction of the rows for the test dataset, which is empty with 0.", 0.1
    )
    validation_source: str | None = dict_key(
        _SOURCE, "Rows of the validation dataset, in place of its fraction.", default_text="none"
    )
    test_source: str | None = dict_key(
        _SOURCE, "Rows of the test dataset, in place of its fraction.", default_text="none"
    )
    group_column: str | None = dict_key(
        _COLUMN, "Column whose equal values come into one dataset.", default_text="none"
    )
    time_column: str | None = dict_key(
        _COLUMN, "Column of times, whose newest rows become the test dataset.", default_text="none"
    )
    seed: int | str | None = dict_key(integer(0, MAXIMUM_SEED), "Seed of the random split.", 0)

    def __post_init__(self) -> None:
        entries = self.to_dict()
        try:
            for name, value in entries.items():
                refuse_what_kfp_cannot_insert(name, value)
        except ValueError as error:
            raise ValueError(f"split: {error}") from None
        known = {name: value for name, value in entries.items() if not is_of_pipeline(value)}
        values = _read(known)
        if known == entries:  # Whether other values contradict each other is known in the run.
            check_split({**_DEFAULTS, **values}, may_be_1=True)

    def to_dict(self) -> dict[str, Any]:
        """Return the parameter `split`: the keys that are set."""
        return entries_of(self)


KEYS: Mapping[str, Key] = keys_of(Split)
"""All keys of the parameter, by name."""

_DEFAULTS = {name: "" if key.default is None else key.default for name, key in KEYS.items()}


def parse_split(split: Mapping[str, object] | str | None) -> dict[str, Any]:
    """Return the value of each key of the parameter, with the defaults; "" for no source and no column.

    Args:
        split: The dict or its JSON text. None, "" and {} mean the defaults, and so does a key with the value None or
            "". A number may be 5, 5.0, "5" or "5.0", because KFP converts numbers inside dicts.

    Raises:
        ValueError: A key is unknown or has an invalid value. The message names it and what is allowed.
    """
    entries = {} if is_blank(split) else read_entry("split", MAPPING, split)
    return {**_DEFAULTS, **_read(entries)}


def check_split(values: Mapping[str, Any], *, may_be_1: bool) -> None:
    """Check keys that exclude each other.

    Args:
        values: Values of both fractions and both columns.
        may_be_1: Whether the datasets may have no training rows.

    Raises:
        ValueError: Two keys contradict each other.
    """
    validation, test = values["validation_fraction"], values["test_fraction"]
    if validation + test >= 1 and not (may_be_1 and validation + test == 1):
        raise ValueError(
            f"split: validation_fraction {validation:g} and test_fraction {test:g}: their sum must be below 1 (1 only "
            "with like)"
        )
    if values["group_column"] and values["time_column"]:
        raise ValueError(
            f"split: group_column {values['group_column']!r} and time_column {values['time_column']!r}: a split "
            "follows one of them, so leave the other one out"
        )


def split_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the parameter.

    It accepts all dicts that `prepare_data` accepts, except for keys that are None. It does not check numbers in texts,
    and whether two values contradict each other.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "split",
        "description": (Split.__doc__ or "").partition("\n")[0],
        **schema_of(KEYS),
    }


def _read(entries: Mapping[str, object]) -> dict[str, Any]:
    """Return the parsed values of the keys that are set."""
    for name, value in entries.items():
        if name not in KEYS:
            similar = similar_keys(name, KEYS)
            nearest = f"did you mean {' or '.join(similar)}? " if similar else ""
            raise ValueError(
                f"split: {shown(name)} = {shown(value)} is not a known key; {nearest}Known keys: {', '.join(KEYS)}"
            )
    try:
        return read_keys(entries, KEYS)
    except ValueError as error:
        raise ValueError(f"split: {error}") from None
