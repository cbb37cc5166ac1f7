"""The checked options of the step (pure)."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, get_args

from kfp_distributed.components.prepare_data.columns.dates import form_of, is_form
from kfp_distributed.components.prepare_data.csv_format import CsvFormat, parse_csv_format
from kfp_distributed.components.prepare_data.split_parameter import check_split
from kfp_distributed.storage.dataset import TASKS, DatasetManifest, Task

# Rows wait in memory until they are a row group. With more shards, row groups would be small.
MAXIMUM_SHARDS = 512

Missing = Literal["impute", "drop", "refuse", "keep"]
"""What becomes of values that are missing."""

DECLARED_KINDS = (
    "number",
    "category",
    "date",
    "text",
    "binary",
    "list<float>",
    "list<int>",
    "list<text>",
    "conversation",
)
DeclaredKind = str
"""Kind of a column that a user has declared: one of DECLARED_KINDS, or "date FORM" with a form of dates."""


@dataclass(frozen=True)
class Options:
    """The step's checked parameters.

    Attributes:
        label_column: Column to predict; "" for none.
        validation_fraction: Fraction of the rows for validation, 0 <= fraction < 1.
        test_fraction: Fraction of the rows for the test, 0 <= fraction < 1. The sum of both is less than 1; with `like`
            it may be 1.
        shards: Number of files of the training dataset, 1 to MAXIMUM_SHARDS.
        seed: Seed of the random split, at least 0.
        image_size: Width and height of the images in pixels; None for those of the first image.
        drop_columns: Columns that are left out.
        source_fingerprint: Fingerprint of the source for the manifests; "" if it is unknown.
        csv_format: How CSV files are written.
        on_bad_row: "refuse": a row that cannot be used is an error. "skip": it is left out.
        task: What is predicted. None: the labels decide.
        columns: Kinds of columns that are not to be guessed.
        missing: What becomes of missing values. None: "impute", and "keep" for the task "none".
        rare_classes: "refuse": a class of one row is an error. "drop": its row is left out.
        group_column: Column whose equal values are in one split; "" for none.
        time_column: Column of times, whose newest rows are the test split; "" for none.
        like: Manifest of a dataset whose columns, vocabularies, classes and statistics are applied; None for own ones.
        inputs: Names of the inputs; () for all columns that are nothing else. The step itself sets them, from the first
            source or the dataset in like.
        image_shapes: Height, width and channels of columns of images that are not to be chosen by the images. The step
            itself sets them, from the first source or the dataset in like.
        needed_texts: Kept texts that no row may lack. The step itself sets them, for rows of language models.
        decimal: Decimal sign of CSV files that do not show it; "" for a point. The step itself sets it, from the first
            source.
        time_form: Form of the dates of the time column; "" if its texts decide. The step itself sets it, from the first
            source.
    """

    label_column: str = "label"
    validation_fraction: float = 0.1
    test_fraction: float = 0.1
    shards: int = 8
    seed: int = 0
    image_size: tuple[int, int] | None = None
    drop_columns: tuple[str, ...] = ()
    source_fingerprint: str = ""
    csv_format: CsvFormat = field(default_factory=CsvFormat)
    on_bad_row: Literal["refuse", "skip"] = "refuse"
    task: Task | None = None
    columns: Mapping[str, DeclaredKind] = field(default_factory=dict)
    missing: Missing | None = None
    group_column: str = ""
    time_column: str = ""
    like: DatasetManifest | None = None
    inputs: tuple[str, ...] = ()
    image_shapes: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    needed_texts: tuple[str, ...] = ()
    decimal: str = ""
    time_form: str = ""
    rare_classes: Literal["refuse", "drop"] = "refuse"


def parse_options(
    *,
    label_column: str,
    validation_fraction: float,
    test_fraction: float,
    shards: object,
    seed: int,
    image_size: str,
    drop_columns: Sequence[str],
    source_fingerprint: str = "",
    csv_format: Mapping[str, Any] = MappingProxyType({}),
    on_bad_row: str = "refuse",
    task: str = "auto",
    columns: Mapping[str, str] = MappingProxyType({}),
    missing: str = "auto",
    rare_classes: str = "refuse",
    group_column: str = "",
    time_column: str = "",
    like: DatasetManifest | None = None,
) -> Options:
    """Check the step's parameters as KFP delivers them: numbers also as 8.0, "8" or "8.0".

    Those of `split` are values of `parse_split`.

    Raises:
        ValueError: A parameter is invalid. The message names it, its value and what is allowed.
    """
    size = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,3})|", image_size)
    if not size:
        raise ValueError(f'image_size is {image_size!r}: it must be WIDTHxHEIGHT, such as "28x28", or empty')
    chosen_task = _one_of("task", task, ("auto", *TASKS))
    chosen_missing = _one_of("missing", missing, ("auto", *get_args(Missing)))
    for name, kind in columns.items():
        _check_kind(name, str(kind))
    if like:
        _check_like(like, chosen_task, columns, missing, drop_columns)
        label_column, chosen_task = like.label.name, like.label.task
    elif chosen_task == "none":
        label_column = ""
    options = Options(
        label_column=label_column,
        validation_fraction=validation_fraction,
        test_fraction=test_fraction,
        shards=_whole_number("shards", shards, 1, MAXIMUM_SHARDS),
        seed=seed,
        image_size=(int(size[1]), int(size[2])) if image_size else None,
        drop_columns=tuple(drop_columns),
        source_fingerprint=source_fingerprint,
        csv_format=parse_csv_format(csv_format),
        on_bad_row=_one_of("on_bad_row", on_bad_row, ("refuse", "skip")),  # type: ignore[arg-type]
        task=None if chosen_task == "auto" else chosen_task,  # type: ignore[arg-type]
        columns=dict(columns),
        missing=None if chosen_missing == "auto" else chosen_missing,  # type: ignore[arg-type]
        group_column=group_column,
        time_column=time_column,
        like=like,
        rare_classes=_one_of("rare_classes", rare_classes, ("refuse", "drop")),  # type: ignore[arg-type]
    )
    _check_together(options)
    return options


def _check_together(options: Options) -> None:
    """Check parameters that exclude each other."""
    check_split(vars(options), may_be_1=options.like is not None)
    if options.label_column in options.drop_columns:
        raise ValueError(f"drop_columns has {options.label_column!r}, which is the label_column: take it out")
    if not options.label_column and options.task not in (None, "none"):
        raise ValueError(f"label_column is empty, and the task {options.task!r} needs one: name the column to predict")
    for parameter in ("group_column", "time_column"):
        name = getattr(options, parameter)
        if name and name in (options.label_column, *options.drop_columns):
            raise ValueError(
                f"split: {parameter} is {name!r}, which is the label_column or in drop_columns: name another column "
                "(this one is no input unless it is in columns)"
            )
    for name in options.columns:
        if name in (options.label_column, *options.drop_columns):
            raise ValueError(f"columns has {name!r}, which is the label_column or in drop_columns: take it out")


def _check_like(
    like: DatasetManifest, task: str, columns: Mapping[str, str], missing: str, drop_columns: Sequence[str]
) -> None:
    """Check that nothing contradicts the dataset whose columns are applied."""
    for name, value, default in (("task", task, "auto"), ("columns", dict(columns), {}), ("missing", missing, "auto")):
        if value != default:
            raise ValueError(f"{name} is {value!r}, but the dataset in like decides it: leave it out")
    # Other columns are no inputs in any case, so that an earlier call can be repeated with like.
    if kept := [column.name for column in like.columns if column.name in drop_columns]:
        raise ValueError(
            f"drop_columns has {kept[0]!r}, which is an input of the dataset in like, and that decides the inputs: "
            "take it out"
        )


def _check_kind(column: str, kind: str) -> None:
    """Check the kind that a user has declared for a column."""
    if not kind.startswith("date "):
        _one_of(f"columns: the kind of {column!r}", kind, (*DECLARED_KINDS, "date FORM"))
    elif not is_form(form_of(kind)):
        raise ValueError(
            f"columns: the kind of {column!r} is {kind!r}: after date must be a format of Python's strptime that has "
            'the year, such as "date %d/%m/%Y". A day needs a month, and a week a weekday, such as "date %Y-%W-%w"'
        )


def _one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}: allowed are {', '.join(map(repr, allowed))}")
    return value


def _whole_number(name: str, value: object, minimum: int, maximum: int) -> int:
    """Return a whole number, which may be a text, with minimum <= number <= maximum."""
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if not minimum <= number <= maximum or not number.is_integer():
        raise ValueError(f"{name} is {value!r}: it must be a whole number from {minimum} to {maximum}")
    return int(number)
