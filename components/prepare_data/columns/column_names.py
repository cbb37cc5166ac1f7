"""Checks of the names of a source's columns (pure)."""

from collections import Counter
from collections.abc import Collection, Sequence
from difflib import get_close_matches

from kfp_distributed.components.prepare_data.preparation_options import Options

DEFAULT_LABEL = "label"
"""Name of the label, if no other one is named."""
_NO_LABEL = (
    'Set label_column to the column of the labels, or to "" to keep rows without a label. Rows for a language model '
    "have messages, conversations, prompt and completion, instruction and output, chosen and rejected, or text"
)


class ColumnsMissing(ValueError):
    """A source lacks columns that are needed.

    Args:
        message: What is wrong.
        missing: Names of the columns.
        where: File that lacks them.
        names: Columns of the file.
    """

    def __init__(self, message: str, missing: Sequence[str], where: str, names: Sequence[str]) -> None:
        super().__init__(message)
        self.missing, self.where, self.names = missing, where, names


def input_names(
    names: Sequence[str], options: Options, where: str, elsewhere: Collection[str] = (), advice: str = ""
) -> list[str]:
    """Return the columns that are inputs.

    Args:
        names: Names of the columns.
        options: Label and columns to drop.
        where: File that has the columns, for errors.
        elsewhere: Columns of other files, which may be in drop_columns too.
        advice: What may help if a column is missing. Default: nothing.

    Raises:
        ColumnsMissing: The label, an input or a dropped column is missing.
        ValueError: A used name occurs twice or has a NUL character, or no input is left.
    """
    needed = [name for name in (options.label_column, options.group_column, options.time_column) if name]
    # What decides about the split is an input only where the user has declared it as one.
    others = {*needed, *options.drop_columns} - {*options.columns}
    inputs = [*options.inputs] or [name for name in names if name not in others]
    if options.label_column in options.drop_columns:
        raise ValueError(f"drop_columns has {options.label_column!r}, which is the label_column: take it out")
    counts = Counter(names)
    duplicates = [name for name in (*needed, *inputs) if counts[name] > 1]
    missing = {
        *needed,
        *options.columns,
        *options.inputs,
        *(() if options.inputs else {*options.drop_columns} - {*elsewhere}),
    } - {*names}
    if nul := [name for name in inputs if "\0" in name]:
        problem = f"the column {nul[0]!r} has a NUL character in its name"
    elif missing:
        similar = {name: _similar(name, names) for name in sorted(missing)}
        shown = [f"{name!r} (do you mean {other!r}?)" if other else repr(name) for name, other in similar.items()]
        problem = f"there is no column {' or '.join(shown)}"
        # A name that was written in another way is one of a header.
        advice = "" if any(similar.values()) or missing <= {*options.drop_columns} else advice
        if missing & {options.label_column} == {DEFAULT_LABEL} and not options.inputs:
            advice = f"{advice}. {_NO_LABEL}" if advice else _NO_LABEL
    elif duplicates:
        problem = f"the column {duplicates[0]!r} occurs {counts[duplicates[0]]} times"
        advice = "Rename or remove all but one, or name it in drop_columns"
        if not duplicates[0]:
            advice = "Remove all lines above the names of the columns, give each one a name, or name '' in drop_columns"
    elif not inputs:
        problem = "there is no other column"
    else:
        return inputs
    parameters = f"label_column {options.label_column!r}, drop_columns {list(options.drop_columns)}"
    for parameter in ("group_column", "time_column"):
        if name := getattr(options, parameter):
            parameters += f", {parameter} {name!r}"
    if options.columns:
        parameters += f", columns {list(options.columns)}"
    message = f"{parameters}: {problem} in {where}; it has {list(names[:50])}"
    message += f". {advice}" if (missing or duplicates) and not nul and advice else ""
    raise ColumnsMissing(message, sorted(missing), where, names) if missing and not nul else ValueError(message)


def _similar(name: str, names: Sequence[str]) -> str:
    """Return the name of a file's column that is most similar to a missing one; "" if none is similar."""
    folded = {other.strip().casefold(): other for other in names}
    similar = get_close_matches(name.strip().casefold(), folded, 1, cutoff=0.75)
    # The names of a file without names are no words.
    return folded[similar[0]] if similar and "column_" not in similar[0] else ""


def check_names(names: Sequence[str], used: Sequence[str], first: str) -> None:
    """Check that a file has each used column once.

    Args:
        names: Columns of the file.
        used: Columns that are read.
        first: File that has all of them, for errors.

    Raises:
        ValueError: A column is missing or occurs more than once.
    """
    counts = Counter(names)
    for name in used:
        if not counts[name]:
            raise ValueError(f"it has no column {name!r}, which {first} has; it has {list(names[:50])}")
        if counts[name] > 1:
            raise ValueError(
                f"the column {name!r} occurs {counts[name]} times: rename or remove all but one, or name it in "
                "drop_columns"
            )
