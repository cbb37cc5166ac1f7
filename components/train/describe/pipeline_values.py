"""Values of a builder that are known when the pipeline runs: parameters, outputs of tasks and items of a loop. Pure.

This module does not import kfp. It knows these values by their text, which is also what an f-string has of them.
"""

import re
from collections.abc import Iterator, Mapping

from kfp_distributed.components.train.describe.value_kinds import shown

_CHANNEL = re.compile(r"\{\{channel:task=[^;]*;name=[^;]*;type=([^;]*);\}\}")
_DICT_OR_LIST = re.compile(r"(?i)(dict|list|struct)\b")


def is_of_pipeline(value: object) -> bool:
    """Return whether a value is or has a value that is known in the run."""
    if isinstance(value, Mapping):
        return any(map(is_of_pipeline, value.values()))
    if isinstance(value, list):
        return any(map(is_of_pipeline, value))
    if isinstance(value, str):  # Such as f"{memory}Gi".
        return "{{channel:" in value
    return _is_of_kfp(value)


def refuse_what_kfp_cannot_insert(name: str, value: object) -> None:
    """Check that KFP can insert what the value of a key has of the pipeline.

    Raises:
        ValueError: It has a dict, a list, an artifact or a task. KFP inserts a dict or list as JSON into a JSON text
            without escaping its quotes.
    """
    for part in _parts(value):
        if not isinstance(part, str) and not _CHANNEL.search(str(part)):
            raise ValueError(
                f"{name} has the object {shown(part)} of kfp, which is not a value; use an output of the task, such as "
                "task.output"
            )
        for type_ in _CHANNEL.findall(str(part)):
            if _DICT_OR_LIST.match(type_):
                raise ValueError(
                    f"{name} has {shown(part)}, which is of the type {type_}. KFP cannot insert a dict or list into a "
                    "dict; use numbers, texts and bools, or one parameter for the whole dict"
                )
            if "@" in type_:
                raise ValueError(
                    f"{name} has {shown(part)}, which is an artifact; use a parameter, or an output that is a number, "
                    "a text or a bool"
                )


def _parts(value: object) -> Iterator[object]:
    """Yield the texts and the objects of kfp in a value."""
    if isinstance(value, Mapping):
        for entry in value.values():
            yield from _parts(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _parts(entry)
    elif isinstance(value, str) or _is_of_kfp(value):
        yield value


def _is_of_kfp(value: object) -> bool:
    return type(value).__module__.startswith("kfp.dsl.")
