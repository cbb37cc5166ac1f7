"""Rows for language models as the trainers of trl take them. This import path is public."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from kfp_distributed.storage.dataset import DATASET_MANIFEST, JSON_KINDS, DatasetManifest

__all__ = ["language_rows"]

_Kinds = Mapping[str, tuple[str, ...]]

_MESSAGES, _TEXT, _EITHER = ("conversation",), ("required text",), ("conversation", "required text")
_TOOLS: _Kinds = {"tools": ("list<object>",)}
_FORMS: tuple[tuple[_Kinds, _Kinds], ...] = (
    ({"messages": _MESSAGES}, _TOOLS),
    ({"conversations": _MESSAGES}, _TOOLS),
    ({"prompt": _EITHER, "completion": _EITHER}, _TOOLS),
    ({"instruction": _TEXT, "output": _TEXT}, {**_TOOLS, "input": ("optional text", "required text")}),
    ({"prompt": _EITHER, "chosen": _EITHER, "rejected": _EITHER}, _TOOLS),
    ({"chosen": _MESSAGES, "rejected": _MESSAGES}, _TOOLS),
    ({"text": _TEXT}, {}),
)
"""Columns of the forms of rows, needed and optional ones, with the source_type that `prepare_data` gives them."""


def language_rows(folder: str) -> list[dict[str, Any]]:
    """Return the rows of a dataset for language models, in a form that the trainers of trl take.

    | columns that `prepare_data` has kept | row |
    |---|---|
    | messages, or conversations of ShareGPT | {"messages": [{"role": "user", "content": ...}, ...]} |
    | prompt and completion | {"prompt": ..., "completion": ...}, texts or lists of messages |
    | instruction, input and output of Alpaca | the same as lists of messages, the prompt with the input below |
    | prompt, chosen and rejected | {"prompt": ..., "chosen": ..., "rejected": ...}, texts or lists of messages |
    | chosen and rejected | the same as lists of messages, whose answers begin where they differ |
    | text | {"text": ...} |

    Rows also have the tools as a list of objects, None for no tools, and the columns that were kept because `columns`
    has them.

    All rows are in memory. `IterableDataset.from_generator(lambda: iter(rows))` of the library datasets hands them to
    trl as they are, which then needs max_steps. `Dataset.from_list` adds keys of other rows, such as the arguments of
    other calls, and refuses values of several types.

    Args:
        folder: Folder of the dataset, such as train_dir. With `rows="all"` of train_specification, it has all rows.

    Raises:
        ValueError: The dataset has other columns.
    """
    manifest = DatasetManifest.from_json(Path(folder, DATASET_MANIFEST).read_text(encoding="utf-8"))
    kinds = {column.name: column.source_type for column in manifest.columns}
    rows: list[dict[str, Any]] = []
    for shard in manifest.shards:
        for row in pq.read_table(Path(folder, shard.path)).to_pylist():
            read = {
                # Some templates say that there are tools if the list is empty.
                name: (json.loads(row[name] or "null") or None) if kind in JSON_KINDS else row[name]
                for name, kind in kinds.items()
            }
            rows.append(_row(read, manifest))
    return rows


def check_language_rows(manifest: DatasetManifest) -> None:
    """Check that a dataset has the columns of conversations, prompts or texts, prepared as such.

    Raises:
        ValueError: It has other columns, or ones that were prepared as something else, such as categories.
    """
    columns = {column.name: column for column in manifest.columns}
    _row(dict.fromkeys(columns), manifest)
    needed, optional = _form(manifest)
    for name, kinds in {**needed, **optional}.items():
        if name in columns and columns[name].source_type not in kinds:
            kind = columns[name].source_type or f"{columns[name].kind} ({columns[name].dtype})"
            raise ValueError(
                f"column {name!r} of the dataset of {manifest.source} was prepared as {kind}, and not as "
                f"{' or '.join(kinds)}: run prepare_data without label_column and without a kind of this column in "
                "columns, so that it checks and keeps the rows as rows for language models"
            )


def are_preferences(manifest: DatasetManifest) -> bool:
    """Return whether the rows of a dataset that `check_language_rows` accepts have a chosen and a rejected answer."""
    return "chosen" in _form(manifest)[0]


def _form(manifest: DatasetManifest) -> tuple[_Kinds, _Kinds]:
    names = {column.name for column in manifest.columns}
    return next(form for form in _FORMS if {*form[0]} <= names)


def _row(row: dict[str, Any], manifest: DatasetManifest) -> dict[str, Any]:
    match row:  # In the order in which prepare_data looks for a form: of others, it has not checked the values.
        case {"messages": _}:
            return row
        case {"conversations": messages, **others}:
            return {"messages": messages, **others}
        case {"prompt": _, "completion": _}:
            return row
        case {"instruction": instruction, "output": output, **others}:
            question = "\n\n".join(filter(None, (instruction, others.pop("input", None))))
            return {**others, "prompt": [_message("user", question)], "completion": [_message("assistant", output)]}
        case {"prompt": _, "chosen": _, "rejected": _}:
            return row
        case {"chosen": chosen, "rejected": rejected, **others}:
            if chosen:  # `check_language_rows` has names without values.
                shared = next(i for i, pair in enumerate(zip(chosen, rejected, strict=False)) if pair[0] != pair[1])
                row = {**others, "prompt": chosen[:shared], "chosen": chosen[shared:], "rejected": rejected[shared:]}
            return row
        case {"text": _}:
            return row
    raise ValueError(
        f"the dataset of {manifest.source} has the columns {list(row)}; allowed are messages, conversations, prompt "
        "and completion, instruction and output, chosen and rejected, or text: prepare_data keeps them from a source "
        "without a column label"
    )


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
