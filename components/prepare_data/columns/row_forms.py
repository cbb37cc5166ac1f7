"""Rows for language models: the forms in which they are written, and the options by which they are read (pure)."""

from collections.abc import Collection, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

from kfp_distributed.components.prepare_data.columns.column_names import DEFAULT_LABEL
from kfp_distributed.components.prepare_data.columns.conversations import CONVERSATION
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.storage.dataset import Column


class RowForm(NamedTuple):
    """A form of rows for language models.

    Attributes:
        name: Name of the form.
        columns: Columns that each row has.
        optional: Columns that rows may have.
        conversations: Those of `columns` that may be conversations. They always are if they are not in `needed`.
        needed: Those of `columns` that may be texts, which may not be empty.
        has_clear_names: Whether the names show the form also beside other columns.
    """

    name: str
    columns: tuple[str, ...]
    optional: tuple[str, ...] = ()
    conversations: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    has_clear_names: bool = True


FORMS = (
    RowForm("messages", ("messages",), conversations=("messages",)),
    RowForm("ShareGPT", ("conversations",), conversations=("conversations",)),
    RowForm(
        "prompt and completion",
        ("prompt", "completion"),
        conversations=("prompt", "completion"),
        needed=("prompt", "completion"),
    ),
    RowForm("Alpaca", ("instruction", "output"), ("input",), needed=("instruction", "output")),
    RowForm("text", ("text",), needed=("text",), has_clear_names=False),
)
"""The forms, of which the first one whose columns are there counts."""


def row_form(names: Collection[str], options: Options) -> RowForm | None:
    """Return the form of rows with these columns, of which dropped ones do not count; None for other rows."""
    if DEFAULT_LABEL in names:
        return None
    return _form({*names} - {*options.drop_columns})


def needed_texts(columns: Sequence[Column]) -> tuple[str, ...]:
    """Return the texts that no row may lack, of a dataset without a label that has these columns."""
    form = _form({column.name for column in columns})
    if not form or (len(columns) > len(form.columns) and not form.has_clear_names):
        return ()
    texts = [column.name for column in columns if column.dtype == "string" and column.source_type != CONVERSATION]
    return tuple(name for name in form.needed if name in texts)


def lines_about_optional(names: Collection[str], inputs: Set[str], options: Options) -> list[str]:
    """Return a line for each optional column of a form that a source has, and the training rows do not.

    Args:
        names: Columns of the source.
        inputs: Columns of the training rows.
        options: Options, whose dropped columns need no line.
    """
    form = _form(inputs)
    if not form:
        return []
    return [
        f"column {name!r} of the form {form.name} is left out, because the training rows do not have it"
        for name in form.optional
        if name in names and name not in inputs and name not in options.drop_columns
    ]


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
        conversations: Columns of the form that are conversations.
        options: The options of the user.

    Returns:
        The same options and "" for rows of no form.

    Raises:
        ValueError: Some columns are conversations, and others texts.
    """
    texts = [name for name in form.conversations if name not in conversations]
    if texts and conversations and not {*form.conversations} & {*options.columns}:
        name = min(conversations)
        raise ValueError(
            f"column {name!r} has lists of messages, and {texts[0]!r} has texts: write both in one form, or set "
            f'columns={{{name!r}: "text"}} if its values are texts'
        )
    names = [name for name in names if name not in options.drop_columns]
    used = [name for name in (*form.columns, *form.optional) if name in names]
    kinds = {name: CONVERSATION if name in conversations else "text" for name in used}
    others = [name for name in names if name not in {*used, *options.columns}]
    left_out = [name for name in others if name not in (options.group_column, options.time_column)]
    if left_out and not form.has_clear_names:
        return options, ""
    line = f"rows for language models of the form {form.name}: kept are {', '.join((*used, *options.columns))}"
    if left_out:
        line += f"; left out are {', '.join(left_out)}. To keep one, name its kind in columns"
    csv_format = options.csv_format
    if "usual_missing" not in csv_format.given:
        csv_format = replace(csv_format, usual_missing=False)  # "None" and "NA" may be answers.
    changed = replace(
        options,
        label_column="",
        csv_format=csv_format,
        columns={**kinds, **options.columns},
        drop_columns=(*options.drop_columns, *left_out),
        needed_texts=tuple(name for name in form.needed if name not in conversations),
    )
    return changed, line
