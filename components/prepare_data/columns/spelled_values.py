"""The values that texts spell. A number and a boolean have one name, whatever their spelling and format are (pure)."""

import re
from collections.abc import Collection, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

FINITE = r"[-+]?([0-9]+\.?|\.[0-9])[0-9]*([eE][-+]?[0-9]+)?"
"""A number with digits, such as "-1", ".5" or "1e3"."""
NUMBER = rf"({FINITE}|[-+]?(?i:inf(inity)?))"
"""A number or infinity."""

MERGED_FROM = {pa.float16(): 2**11, pa.float32(): 2**24, pa.float64(): 2**53}
"""From here on, floats of a type do not have all whole numbers, so that different ones become equal."""

LOSES_DIGITS = "a whole number of 2⁵³ or more in a column of 64-bit floats, which do not hold its digits"
"""What is wrong with a number of a kept column."""

POINT_OF_TEXT = "\0."
"""Stands for a point that makes no fraction: where decimals have commas, 1.000 is 1000 or a version, but not 1."""

_Kind = Literal["booleans", "numbers", "texts"]

_BOOLEANS = {"false", "true"}

# Numbers with leading zeros are codes. An exponent of four digits is beyond the range of 64-bit floats.
_DIGITS = r"((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)"
# As programs write numbers. Other forms may be codes or versions, such as "+49", "2E3" and "1.10", if other values of
# the column are no numbers.
_WRITTEN = r"^\s*-?(0|[1-9]\d*)(\.0*|\.\d*[1-9])?(e[-+]\d{2,3})?\s*$"
_ANY_FORM = rf"^\s*[-+]?{_DIGITS}([eE][-+]?[0-9]{{1,3}})?\s*$"
_IS_LONGER = r"^\s|\s$|^\+|^-?\.|\.\d*0$|\.$|[eE]|^-0$"


def are_merged(numbers: pa.Array) -> pa.BooleanArray:
    """Return which floats are so large that different whole numbers become equal. Infinity and null are not."""
    sizes = pc.abs(numbers.cast(pa.float64()))  # Arrow has no absolute values of 16-bit floats.
    are_large = pc.and_(pc.is_finite(sizes), pc.greater_equal(sizes, float(MERGED_FROM[numbers.type])))
    return pc.fill_null(are_large, False)


def are_booleans(texts: Collection[str]) -> bool:
    """Return whether there are texts, and all of them spell a boolean, such as "True" or "FALSE"."""
    return len(texts) > 0 and all(text.strip().lower() in _BOOLEANS for text in texts)


def boolean_names(texts: pa.StringArray) -> pa.StringArray:
    """Return texts in which each boolean is "false" or "true". Other texts stay."""
    is_boolean = pc.match_substring_regex(texts, r"^\s*(?i:false|true)\s*$")
    return pc.if_else(is_boolean, pc.utf8_lower(pc.utf8_trim_whitespace(texts)), texts)


def number_names(texts: pa.StringArray, *, of_any_form: bool = False) -> pa.StringArray:
    """Return texts in which each number has its shortest form: "5" for "5.0", " 5" and "5e+00", "0" for "-0.0".

    Numbers with leading zeros are codes, which stay as they are.

    Args:
        texts: The texts, which may be null.
        of_any_form: Whether "+5", "5E0" and "1.10" are numbers, too. Default: only what programs write is, because
            other texts of the column may be codes.
    """
    is_number = pc.match_substring_regex(texts, _ANY_FORM if of_any_form else _WRITTEN)
    is_longer = pc.fill_null(pc.and_(is_number, pc.match_substring_regex(texts, _IS_LONGER)), False)
    if not is_longer.true_count:
        return texts
    coded = texts.filter(is_longer).dictionary_encode()
    names = pa.array([_shortest(text) for text in coded.dictionary.to_pylist()], pa.string())
    return pc.replace_with_mask(texts, is_longer, names.take(coded.indices))


def as_written(text: str) -> str:
    """Return a text as the source has it, without what stands for a point."""
    return text.replace(POINT_OF_TEXT, ".")


def numbers_of(texts: pa.StringArray) -> pa.DoubleArray:
    """Return the numbers of texts, null for other texts and codes."""
    plain = pc.utf8_trim_whitespace(texts)
    return pc.if_else(pc.match_substring_regex(plain, _ANY_FORM), plain, None).cast(pa.float64())


def _shortest(text: str) -> str:
    # An exponent becomes digits: without rounding, as the value of each format is to be the same.
    digits = f"{Decimal(text.strip()):f}"
    name = digits.rstrip("0").rstrip(".") if "." in digits else digits
    return "0" if name in ("-0", "") else name


def value_names(texts: Collection[str], known: Collection[str] | None = None) -> dict[str, str]:
    """Return the name of the value that each text of a column spells: the text itself for all but numbers and booleans.

    Blanks around it are no part of it. Texts spell booleans, or numbers of any form, if all texts of the column do.

    Args:
        texts: The different texts of the column.
        known: Names of the values in the dataset that the column is read like. A value gets the spelling of that
            dataset. Default: there is none, and booleans become "false" and "true", as Parquet and JSON spell them.
    """
    if known is None:
        return dict(zip(texts, _names(texts, _kind_of(texts)), strict=True))
    kind, spelled = _spelling(tuple(known))
    names = zip(texts, _names(texts, kind), strict=True)
    return {text: spelled.get(text) or spelled.get(name, as_written(text)) for text, name in names}


def check_points(column: str, names: Mapping[str, str]) -> None:
    """Check that no value of a column is written with a decimal comma, and with a point that makes no fraction.

    Args:
        column: Name of the column.
        names: The name of each text, see `value_names`.

    Raises:
        ValueError: A value is written in both ways.
    """
    of_points = {name for text, name in names.items() if POINT_OF_TEXT in text}
    if both := [name for text, name in names.items() if POINT_OF_TEXT not in text and name in of_points]:
        raise ValueError(
            f"column {column!r} has {both[0].replace('.', ',')} and {both[0]}, but the decimals are commas, and a "
            "point may separate thousands: write its numbers in one way in the source"
        )


@lru_cache(1024)
def _spelling(known: tuple[str, ...]) -> tuple[_Kind, Mapping[str, str]]:
    """Return what the values of a dataset are, and the spelling of each name.

    A reader asks for each category in each of its batches. Few tables have more than 1,024 categories.
    """
    kind = _kind_of(known)
    return kind, {**dict(zip(_names(known, kind), known, strict=True)), **{name: name for name in known}}


def _kind_of(texts: Collection[str]) -> _Kind:
    if are_booleans(texts):
        return "booleans"
    return "numbers" if all(re.match(_ANY_FORM, text) for text in texts) else "texts"


def _names(texts: Collection[str], kind: _Kind) -> list[str]:
    """Return the names of texts of a column."""
    if kind == "booleans":
        return [text.strip().lower() for text in texts]
    names = number_names(pa.array(texts, pa.string()), of_any_form=kind == "numbers").to_pylist()
    return [as_written(name.strip()) for name in names]
