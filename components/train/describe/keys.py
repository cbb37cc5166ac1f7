"""Declares the keys of a dict as the fields of a dataclass: their checks, descriptions and JSON Schema. Pure."""

from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple

from kfp_distributed.components.train.describe.value_kinds import Kind, is_blank, read_entry, shown


class Key(NamedTuple):
    """A key of a dict, as `dict_key` declares it.

    Attributes:
        kind: Kind of its value.
        meaning: Description in one sentence.
        default: Value of a key that is not set, unless `default_text` says otherwise; None for none.
        default_text: Description of a default that is no constant; "" for the constant.
        name: Name in the dict; "" for that of the field.
        is_required: Whether the dict must have the key.
    """

    kind: Kind
    meaning: str
    default: object = None
    default_text: str = ""
    name: str = ""
    is_required: bool = False


def dict_key(kind: Kind, meaning: str, default: object = None, default_text: str = "", name: str = "") -> Any:  # noqa: ANN401
    """Return a dataclass field for a key. None means that the key is not set. The arguments are those of `Key`."""
    return field(default=None, metadata={"key": Key(kind, meaning, default, default_text, name)})


def required(kind: Kind, meaning: str) -> dict[str, Key]:
    """Return the metadata of a dataclass field for a key that each dict must have.

    It is no field, because type checkers take a function of ours in its place for a default.
    """
    return {"key": Key(kind, meaning, is_required=True)}


def keys_of(described: Any) -> dict[str, Key]:  # noqa: ANN401 - a dataclass or an object of one
    """Return the keys of a dict that a dataclass describes by `dict_key`, by name."""
    keys = [(entry.name, entry.metadata["key"]) for entry in fields(described)]
    return {declared.name or name: declared for name, declared in keys}


def entries_of(described: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the dict that an object of such a dataclass describes: the keys that are set."""
    values = [(entry.metadata["key"].name or entry.name, getattr(described, entry.name)) for entry in fields(described)]
    return {name: _plain(value) for name, value in values if not is_blank(value)}


def _plain(value: Any) -> Any:  # noqa: ANN401
    """Return a value as JSON can hold it, if it has objects of dataclasses, tuples or values of NumPy."""
    if is_dataclass(value):
        return entries_of(value)
    if isinstance(value, list | tuple):  # kfp takes no None, which in the dicts of a list is a key that is not set.
        return [
            {name: _plain(part) for name, part in entry.items() if part is not None}
            if isinstance(entry, Mapping)
            else _plain(entry)
            for entry in value
        ]
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    return value.tolist() if type(value).__module__ == "numpy" else value


def schema_of(keys: Mapping[str, Key]) -> dict[str, Any]:
    """Return the JSON Schema of a dict with some of the keys and no others."""
    properties = {}
    for name, declared in keys.items():
        description = (
            f"{declared.meaning} Default: {declared.default_text}." if declared.default_text else declared.meaning
        )
        default = {} if declared.default is None or declared.default_text else {"default": declared.default}
        properties[name] = {"description": description, **declared.kind.schema, **default}
    names = [name for name, declared in keys.items() if declared.is_required]
    return {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        **({"required": names} if names else {}),
    }


def read_keys(entries: Mapping[Any, object], keys: Mapping[str, Key]) -> dict[str, Any]:
    """Parse the entries of a dict. Entries with the value None or "" are left out.

    Raises:
        ValueError: A key is unknown, or its value is not allowed.
    """
    for name, value in entries.items():
        if name not in keys:
            raise ValueError(f"{shown(name)} = {shown(value)} is not a known key; {_suggestion(name, keys)}")
    return {name: read_entry(name, keys[name].kind, value) for name, value in entries.items() if not is_blank(value)}


def _suggestion(name: object, known: Mapping[str, Key]) -> str:
    similar = similar_keys(name, known)
    return f"did you mean {' or '.join(similar)}?" if similar else f"known keys: {', '.join(known)}"


def similar_keys(name: object, known: Mapping[str, Key]) -> list[str]:
    """Return the known keys that an unknown one may stand for: those that have it as a part, else the nearest two."""
    word = shown(name).strip("'").lower()
    return [key for key in known if len(word) > 2 and word in key] or get_close_matches(word, known, 2)
