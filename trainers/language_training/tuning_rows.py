"""Rows for language models as the datasets that trl prepares."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from uuid import uuid4

import pyarrow as pa
from datasets import Dataset
from datasets.table import InMemoryTable
from jinja2 import TemplateError

_FORMS = {
    "sft": (("messages", "tools"), ("prompt", "completion", "tools"), ("text",)),
    "dpo": (("prompt", "chosen", "rejected", "tools"),),
}


class _Rows(Dataset):  # type: ignore[misc]  # Its types are those of an optional package.
    """Rows whose values are JSON texts in Arrow, and are decoded for each function.

    A column of Arrow has one type: it would add the keys of other rows to an object, such as the arguments of other
    calls, and refuse contents of which some are texts and others lists. `datasets.Json` rounds floats.
    """

    def __iter__(self) -> Iterator[Any]:
        rows = super().__iter__()
        return rows if self.format["type"] else map(_decoded, rows)  # `map` reads tables of Arrow.

    def map(self, function: Callable[..., dict[str, Any]], **options: Any) -> Dataset:  # noqa: ANN401
        return super().map(lambda row, **others: _tokenized(function, _decoded(row), **others), **options)


def _tokenized(function: Callable[..., dict[str, Any]], row: dict[str, Any], **others: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return what a function of trl makes of a row.

    Raises:
        ValueError: The chat template does not take the row.
    """
    try:
        return function(row, **others)
    except (TemplateError, TypeError) as error:  # Python raises one for None + "", in a template, too.
        if "messages" not in row and not isinstance(row.get("prompt"), list):  # No template is used.
            raise
        raise ValueError(
            f"the chat template does not take the row {json.dumps(row, ensure_ascii=False):.500}: {error}. Set "
            "chat_template to one that does. Messages that only call tools have no content, or null"
        ) from error


def _decoded(row: Mapping[str, str]) -> dict[str, Any]:
    return {name: json.loads(text) for name, text in row.items()}


def tuning_rows(rows: Sequence[dict[str, Any]], objective: str) -> Dataset:
    """Return rows with the columns that trl takes. Any others may have names that it takes for something else."""
    form = next(form for form in _FORMS[objective] if {*form} - {"tools"} <= {*rows[0]})
    used = [name for name in form if name in rows[0]]
    table = pa.table({name: [json.dumps(row[name]) for row in rows] for name in used})
    # With a fingerprint, because datasets 5.2 would pickle the table for one, and cannot with pyarrow 25.
    return _Rows(InMemoryTable(table), fingerprint=uuid4().hex)
