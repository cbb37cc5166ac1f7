"""Values that are kept as JSON texts (pure)."""

import json
import math
from collections.abc import Callable
from datetime import date, time
from typing import Any

import pyarrow as pa

from kfp_distributed.components.prepare_data.columns.python_values import in_microseconds, python_values

OBJECTS = "list<object>"
"""Declared kind of a column of lists of objects, and the source_type of its texts in the manifest."""

SHOWN = 40
"""So many characters of a value are in an error."""

TOO_DEEP = "has lists or objects in too many others: write fewer levels, or leave the row out"


def texts_of_values(
    name: str, values: pa.Array, add: Callable[[int, str, str], object], text_of: Callable[[object], str | None]
) -> pa.StringArray:
    """Return values as JSON texts.

    Args:
        name: Name of the column.
        values: The values, or their JSON texts.
        add: Is called with the number, the column and the problem of each row that has no text.
        text_of: Function that returns the JSON text of a decoded value, or raises ValueError.
    """
    texts: list[str | None] = []
    for row, value in enumerate(python_values(in_microseconds(values), maps_are_dicts=True)):
        try:
            texts.append(text_of(decoded(value)))
        except RecursionError:
            texts.append(None)
            add(row, name, TOO_DEEP)
        except ValueError as error:
            texts.append(None)
            add(row, name, str(error))
    return pa.array(texts, pa.string())


def objects_text(name: str, value: object, *, can_declare: bool = False) -> str | None:
    """Return the JSON text of a list of objects, such as the tools that a model may call; None for a missing one.

    Args:
        name: Name of the column.
        value: The list.
        can_declare: Whether the user may declare the kind of the column. Default: false.

    Raises:
        ValueError: It is no list of objects.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    plain = json_value(value, "the list") if isinstance(value, list) else value
    if not isinstance(plain, list) or not all(isinstance(entry, dict) for entry in plain):
        as_text = f'set columns={{{name!r}: "text"}} if the source has texts'
        as_text = f", or {as_text}" * (name != "tools")  # A language model is not trained on such tools.
        advice = f"{as_text}, or leave the column out (drop_columns)" if can_declare else ""
        raise ValueError(f'is {value!r:.{SHOWN}}, and no list of objects: write [{{"name": ...}}, ...]{advice}')
    return text_of_json(plain)


def text_of_json(value: object) -> str:
    """Return the JSON text of a value.

    Raises:
        ValueError: It has half of a character.
    """
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"has {text[error.start]!a}, which is half of a character: write the whole character"
        ) from None
    return text


def decoded(value: object) -> object:
    """Return the value of a JSON text; else the value. A text in JSON Lines is the JSON text of a text."""
    for _ in range(2):
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                break
    return value


def json_value(value: object, where: str, *keys: str) -> Any:  # noqa: ANN401  (any JSON value)
    """Return a value as JSON has it: times as ISO texts.

    Keys without a value are left out, because Arrow adds the keys of other rows.

    Args:
        value: The value.
        where: What has the value, for errors, such as "message 3".
        keys: Keys of the objects in which the value is.

    Raises:
        ValueError: JSON has no such value.
    """
    if isinstance(value, dict):
        wrong = next((key for key in value if not isinstance(key, str | int)), None)
        if wrong is not None:
            raise ValueError(f"has the key {wrong!r:.{SHOWN}} in {where}, which JSON does not have: write a text")
        return {key: json_value(entry, where, *keys, str(key)) for key, entry in value.items() if entry is not None}
    if isinstance(value, tuple):  # `python_values` returns the pairs of such a map.
        raise ValueError(f"has a map in {where} in which a key occurs twice: leave one out")  # noqa: TRY004
    if isinstance(value, list):
        return [json_value(entry, where, *keys) for entry in value]
    if isinstance(value, date | time):
        return value.isoformat()
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(
        f"has {value!r:.{SHOWN}} in {'.'.join(keys)!r} of {where}, which JSON does not have: write a text or "
        "a number, or leave the key out"
    )
