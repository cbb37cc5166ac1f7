"""Rows for language models: their forms, the options by which they are read, and a check of preferences (pure)."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa

from kfp_distributed.components.prepare_data.columns.column_kinds import OPTIONAL_TEXT, REQUIRED_TEXT
from kfp_distributed.components.prepare_data.columns.column_names import DEFAULT_LABEL
from kfp_distributed.components.prepare_data.columns.conversations import CONVERSATION, texts_in
from kfp_distributed.components.prepare_data.columns.json_texts import OBJECTS
from kfp_distributed.components.prepare_data.preparation_options import DeclaredKind, Options
from kfp_distributed.storage.dataset import Column

CHOSEN, REJECTED = "chosen", "rejected"
"""Columns of the better and of the other answer."""

EITHER = "either"
"""Kind of a column that has conversations or required texts, which its values show."""


class RowForm(NamedTuple):
    """A form of rows for language models.

    Attributes:
        name: Name of the form.
        columns: Kinds of the columns that each row has.
        optional: Kinds of the columns that rows may have.
        has_clear_names: Whether the names show the form also beside other columns.
    """

    name: str
    columns: Mapping[str, DeclaredKind]
    optional: Mapping[str, DeclaredKind] = MappingProxyType({})
    has_clear_names: bool = True


_TOOLS = {"tools": OBJECTS}
FORMS = (
    RowForm("messages", {"messages": CONVERSATION}, _TOOLS),
    RowForm("ShareGPT", {"conversations": CONVERSATION}, _TOOLS),
    RowForm("prompt and completion", {"prompt": EITHER, "completion": EITHER}, _TOOLS),
    RowForm("Alpaca", {"instruction": REQUIRED_TEXT, "output": REQUIRED_TEXT}, {"input": OPTIONAL_TEXT}),
    RowForm("preference", {"prompt": EITHER, CHOSEN: EITHER, REJECTED: EITHER}, _TOOLS),
    RowForm("preference", {CHOSEN: CONVERSATION, REJECTED: CONVERSATION}, _TOOLS),
    RowForm("text", {"text": REQUIRED_TEXT}, has_clear_names=False),
)
"""The forms, of which the first one whose columns are there counts."""


def row_form(names: Collection[str], options: Options) -> RowForm | None:
    """Return the form of rows with these columns, of which dropped ones do not count; None for other rows."""
    used = {*names} - {*options.drop_columns}
    return None if DEFAULT_LABEL in used else _form(used)


def lines_about_optional(names: Collection[str], options: Options) -> list[str]:
    """Return a line for each optional column of a form that a source has, and the training rows do not.

    Args:
        names: Columns of the source.
        options: Options with the kinds of the training rows, whose dropped columns need no line.
    """
    form = _form_of_kinds(options)
    if not form:
        return []
    return [
        f"column {name!r} of the form {form.name} is left out, because the training rows do not have it"
        for name in form.optional
        if name in names and name not in options.inputs and name not in options.drop_columns
    ]


def optional_columns(options: Options) -> set[str]:
    """Return the columns that the training rows have and rows may lack, by the kinds of the training rows."""
    form = _form_of_kinds(options)
    return {*form.optional} & {*options.columns} if form else set()


def _form_of_kinds(options: Options) -> RowForm | None:
    return _form({name for name, kind in options.columns.items() if kind in (CONVERSATION, REQUIRED_TEXT)})


def _form(names: Set[str]) -> RowForm | None:
    return next((form for form in FORMS if {*form.columns} <= names), None)


def options_of_form(
    form: RowForm, names: Sequence[str], conversations: Collection[str], options: Options
) -> tuple[Options, str]:
    """Return the options by which the rows of a form are read, and a line about them.

    The columns of the form, and those that the user has declared, are kept. A text beside other columns may be one
    that is to be classified, so it is no such row.

    Args:
        form: The form.
        names: Columns of the source.
        conversations: Those of the kind EITHER that are conversations.
        options: The options of the user.

    Returns:
        The same options and "" for rows of no form.

    Raises:
        ValueError: Some columns are conversations, and others texts.
    """
    names = [name for name in names if name not in options.drop_columns]
    kinds = {name: kind for name, kind in {**form.columns, **form.optional}.items() if name in names}
    either = [name for name, kind in kinds.items() if kind == EITHER]
    kinds |= {name: CONVERSATION if name in conversations else REQUIRED_TEXT for name in either}
    texts = dict.fromkeys(form.columns, REQUIRED_TEXT) | dict.fromkeys(form.optional, OPTIONAL_TEXT)
    kinds |= {name: texts.get(name, kind) if kind == "text" else kind for name, kind in options.columns.items()}
    _check_kinds({name: kinds[name] for name in either})
    left_out = [name for name in names if name not in {*kinds, options.group_column, options.time_column}]
    if left_out and not form.has_clear_names:
        return options, ""
    line = f"rows for language models of the form {form.name}: kept are {', '.join(kinds)}"
    if left_out:
        line += f"; left out are {', '.join(left_out)}. To keep one, name its kind in columns"
    dropped = (*options.drop_columns, *left_out)
    return replace(options, label_column="", columns=kinds, drop_columns=dropped), line


def _check_kinds(kinds: Mapping[str, DeclaredKind]) -> None:
    """Check that columns, such as prompt and completion, are all conversations or all texts."""
    names = {kind: name for name, kind in kinds.items()}
    if {CONVERSATION, REQUIRED_TEXT} <= {*names}:
        them = "all" if len(kinds) > 2 else "both"
        whole = ", or leave prompt out (drop_columns) if chosen and rejected are whole conversations"
        raise ValueError(
            f"column {names[CONVERSATION]!r} has lists of messages, and {names[REQUIRED_TEXT]!r} has texts: write "
            f"{them} as lists of messages, or {them} as texts{whole * (CHOSEN in kinds)}{texts_in(kinds)}"
        )


def check_preferences(
    columns: Sequence[Column], rows: Mapping[str, pa.Array], add: Callable[[int, str, str], object]
) -> None:
    """Check that the chosen answers are others than the rejected ones, and that neither has its prompt.

    Without a prompt, both are whole conversations, which differ from an answer on. Rows of other forms pass.

    Args:
        columns: The columns.
        rows: Their converted values. A row without all of them passes: its problem is known.
        add: Is called with the number, the column and the problem of each wrong row.
    """
    kinds = {column.name: column.source_type for column in columns}
    form = _form({name for name, kind in kinds.items() if kind in (CONVERSATION, REQUIRED_TEXT)})
    if not form or CHOSEN not in form.columns:
        return
    names = [name for name in ("prompt", CHOSEN, REJECTED) if name in form.columns]
    are_lists = kinds[CHOSEN] == CONVERSATION
    for row, values in enumerate(zip(*(rows[name].to_pylist() for name in names), strict=True)):
        if None in values:
            continue
        *prompt, chosen, rejected = map(json.loads, values) if are_lists else values
        if chosen == rejected:
            problem = "is equal to chosen"
        elif are_lists:
            problem = _problem_of_lists(prompt[0] if prompt else [], chosen, rejected)
        else:
            repeats = chosen.startswith(prompt[0]) and rejected.startswith(prompt[0])
            problem = "repeats the prompt, and so does chosen" if repeats else ""
        if problem:
            add(row, REJECTED, f"{problem}: correct it, or leave the row out")


def _problem_of_lists(prompt: Sequence[Any], chosen: Sequence[Any], rejected: Sequence[Any]) -> str:
    """Return what is wrong with two answers to a prompt, or two conversations if it is empty; "" for nothing."""
    shared = 0
    if not prompt:
        pairs = enumerate(zip(chosen, rejected, strict=False))
        shared = next((place for place, (one, other) in pairs if one != other), -1)
        if shared < 0:
            return "has the messages of chosen and others, or is the beginning of chosen"
    if {message["role"] for message in (*chosen[shared:], *rejected[shared:])} != {"assistant"}:  # They are preferred.
        if not prompt and chosen[shared]["role"] == rejected[shared]["role"] == "assistant":
            return "or chosen has a message that is no answer after the first answer in which they differ"
        both = "or chosen has a message that is no answer, such as the prompt, which belongs to prompt alone"
        return both if prompt else "differs from chosen in a message that is no answer"
    before = prompt or chosen[:shared]
    if not before:
        return "has no message before the answer, and there is no column prompt"
    return "or chosen follows an answer of the assistant" if before[-1]["role"] == "assistant" else ""
