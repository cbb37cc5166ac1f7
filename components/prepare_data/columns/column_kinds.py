"""Kinds of columns: which are numbers, categories or tensors, and the casts of their values (pure)."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from kfp_distributed.components.prepare_data.columns.json_texts import OBJECTS
from kfp_distributed.components.prepare_data.columns.missing_texts import without_blanks_alone
from kfp_distributed.components.prepare_data.columns.spelled_values import (
    NUMBER,
    are_merged,
    as_written,
    number_names,
    numbers_of,
)
from kfp_distributed.components.prepare_data.preparation_options import DeclaredKind
from kfp_distributed.components.prepare_data.sources.read_rows import bounded
from kfp_distributed.storage.dataset import JSON_KINDS, Column

# Regular expression of the names that Arrow gives to the types that a column may have.
_SCALARS = (
    r"null|bool|u?int\d+|halffloat|float|double|decimal\d+\(.*|(large_)?(string|binary)(_view)?|"
    r"fixed_size_binary.*|(date|time)\d+\[.*|timestamp\[.*"
)
_DIGITS = r"^\s*\d+\s*$"
_THOUSANDS = r"^\s*[-+]?[1-9]\d{0,2}\.\d{3}\s*$"
_LEAST_THOUSANDS = 3
_LEAST_NUMBERS = 3

DIGITS = pa.dictionary(pa.int32(), pa.float64())
"""Stands for the type of numbers that have been digits only so far: with a leading zero, they are codes."""
KEPT_DIGITS = pa.dictionary(pa.int32(), pa.int64())
"""The same for numbers that keep all their digits, as 64-bit integers."""
KEPT_NUMBERS = pa.dictionary(pa.int64(), pa.float64())
"""Stands for the type of kept numbers with fractions, whose floats do not have all whole numbers."""

TextKind = Literal["number", "digits", "date", "category"]
"""What texts are. Numbers are "digits" while none of them has a sign or point: with leading zeros, they are codes."""

CSV_TYPES: Mapping[TextKind, pa.DataType] = {"number": pa.float64(), "digits": DIGITS}
"""Types in which columns of CSV files are read. Others are read as texts."""
KEPT_CSV_TYPES: Mapping[TextKind, pa.DataType] = {"number": KEPT_NUMBERS, "digits": KEPT_DIGITS}
"""The same for kept columns."""

REQUIRED_TEXT, OPTIONAL_TEXT = "required text", "optional text"
"""Kinds of texts of rows for language models, of which the first may not be empty. The step itself declares them."""
TEXTS = ("text", REQUIRED_TEXT, OPTIONAL_TEXT)

KEPT_TYPES: Mapping[DeclaredKind, pa.DataType] = {
    **dict.fromkeys((*TEXTS, *JSON_KINDS), pa.string()),
    "binary": pa.binary(),
    "list<float>": pa.list_(pa.float32()),
    "list<int>": pa.list_(pa.int64()),
    "list<text>": pa.list_(pa.string()),
}
"""Types of declared columns that are kept as they are."""


_LISTS: Mapping[DeclaredKind, tuple[Callable[[pa.DataType], bool], ...]] = {
    "list<float>": (pa.types.is_floating, pa.types.is_decimal),
    "list<int>": (pa.types.is_integer,),
    "list<text>": (pa.types.is_string, pa.types.is_large_string),
    OBJECTS: (pa.types.is_struct, pa.types.is_map),
}


def column_of(name: str, kind: TextKind | pa.DataType, shape: tuple[int, ...] = (), *, is_kept: bool = False) -> Column:
    """Return an input column without vocabulary and statistics.

    Args:
        name: Name of the column.
        kind: Type of its values, or what its texts are. A column of nulls counts as a column of numbers.
        shape: Shape of one value; empty for a number or text.
        is_kept: Whether it keeps its type. Default: only tensors do.

    Raises:
        ValueError: The values are lists or of another type that has no form as a number or category.
    """
    if shape:
        return Column(name, "tensor", "uint8" if "uint8" in str(kind) else "float32", shape)
    if is_kept:
        return Column(name, "kept", str(kind if isinstance(kind, pa.DataType) else kept_type_of_texts(kind)))
    if isinstance(kind, pa.DataType):
        check_type(name, kind)
    text = str(kind)
    if re.match("u?int|half|float|double|decimal|null|number|digits", text):
        return Column(name, "number", "float32")
    if re.match("date|timestamp", text):
        return Column(name, "number", "float32", source_type="date")
    return Column(name, "category", "int32")


def declared_column(name: str, kind: DeclaredKind) -> Column:
    """Return an input column whose kind the user has declared, without vocabulary and statistics."""
    if kind in KEPT_TYPES:
        has_source_type = kind in (REQUIRED_TEXT, OPTIONAL_TEXT, *JSON_KINDS)
        return Column(name, "kept", str(KEPT_TYPES[kind]), source_type=kind if has_source_type else "")
    if kind == "category":
        return Column(name, "category", "int32")
    return Column(name, "number", "float32", source_type="date" if kind.startswith("date") else "")


def kept_type_of_texts(kind: TextKind) -> pa.DataType:
    """Return the type in which texts are kept."""
    return {"number": pa.float64(), "digits": pa.int64(), "date": pa.timestamp("us")}.get(kind, pa.string())


def check_type(name: str, kind: pa.DataType, *, can_drop: bool = True) -> None:
    """Check that the values of a column are numbers or have a usual text form.

    Args:
        name: Name of the column.
        kind: Type of its values.
        can_drop: Whether parameters can change what becomes of the column. Default: true.

    Raises:
        ValueError: They are lists or of another type that is no single value.
    """
    if not re.fullmatch(_SCALARS, str(plain_type(kind))):
        raise ValueError(
            f"column {name!r} is of type {kind}: allowed are numbers, texts, booleans, dates and times. "
            + (_advice_for_type(name, plain_type(kind)) if can_drop else "Write it as the training rows have it")
        )


def _advice_for_type(name: str, kind: pa.DataType) -> str:
    """Return what to do about a column of a type that is no single value."""
    kept = 'keep all columns for a function of your own (task="none")'
    if pa.types.is_duration(kind):
        return f"Write it as a number, such as of seconds, leave the column out (drop_columns), or {kept}"
    parts = "Write its parts into columns of their own"
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return f"{parts}, leave the column out (drop_columns), or {kept}"
    values = plain_type(kind.value_type)
    for declared, is_kind in _LISTS.items():
        if any(check(values) for check in is_kind):
            kept = f'keep the column for a function of your own: columns={{{name!r}: "{declared}"}}'
    return f"{parts} (tensors: into an .npz file), leave the column out (drop_columns), or {kept}"


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values of a dictionary or view, on which all functions of Arrow work; else the type."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(kind) else kind


def plain(values: pa.Array) -> pa.Array:
    """Return values in their plain type."""
    kind = plain_type(values.type)
    return values if kind == values.type else values.cast(kind)


def cast(name: str, values: pa.Array, kind: str, *, can_drop: bool = True) -> pa.Array:
    """Return the values of a column as float64 or as texts. Texts of blanks alone are missing.

    Args:
        name: Name of the column, for errors.
        values: The values in the type of the file.
        kind: "number" or "category".
        can_drop: Whether the column may be named in drop_columns. Default: true.

    Raises:
        ValueError: A value does not fit the kind.
    """
    check_type(name, values.type, can_drop=can_drop)
    is_number = kind == "number"
    try:
        if re.search("string|binary", str(values.type)):
            values = without_blanks_alone(values.cast(pa.string()))
        # An unsafe cast rounds large integers to float64. For texts it would accept bytes that are not UTF-8.
        return values.cast(pa.float64() if is_number else pa.string(), safe=not is_number)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        advice = ", or leave the column out (drop_columns)" if can_drop else ""
        if not is_number:
            raise ValueError(f"column {name!r} has bytes that are not UTF-8: write texts{advice}") from None
        value = re.search(r"'.{0,40}'", str(error), re.DOTALL)
        example = value[0] if value else f"values of type {values.type}"
        raise ValueError(
            f"column {name!r} has {example}, but numbers in the {'first file' if can_drop else 'training rows'}: write "
            f"{'one type in all files' if can_drop else 'numbers'}{advice}"
        ) from None


def cast_kept(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the values of a kept column in another type, in which they are the same. Floats are rounded to it.

    Arrow itself makes True of 7, and numbers of times, and leaves out fields of structs that the other type lacks.

    Raises:
        pa.ArrowInvalid: A value does not fit the type, or would be another one.
        pa.ArrowNotImplementedError: The types have no values in common.
    """
    # A list in a CSV or JSON Lines file is rounded as well, where nothing tells of which type its numbers are.
    is_rounded = pa.types.is_list(kind) and kind.value_type in (pa.float16(), pa.float32())
    # Arrow refuses whole numbers from 2**53 on, also those that a float is.
    result = values.cast(options=pc.CastOptions(kind, allow_float_truncate=True))
    result.validate()  # Of nested nulls, Arrow makes lists of a wrong length.
    if not _are_equal(values, result, may_round=is_rounded):
        raise pa.ArrowInvalid(f"a value is no {kind}")
    return result


def _are_equal(values: pa.Array, others: pa.Array, *, may_round: bool) -> bool:
    """Return whether values are the same in the type to which Arrow has cast them.

    Args:
        values: The values.
        others: The same, cast.
        may_round: Whether whole numbers may be rounded to floats, as floats always may.
    """
    found, kind, types = plain_type(values.type), others.type, pa.types
    if types.is_null(found) or types.is_string(kind) or types.is_large_string(kind):
        return True
    if types.is_null(kind):
        return bool(values.null_count == len(values))
    if types.is_nested(found):
        parts = _parts_of(values, others)
        return parts is not None and all(_are_equal(*pair, may_round=may_round) for pair in parts)
    is_time, has_zone = ({test(kind) for kind in (found, kind)} for test in (types.is_temporal, _has_zone))
    if types.is_string(found) or types.is_large_string(found) or types.is_binary(found) or types.is_large_binary(found):
        # Arrow keeps all bytes, and refuses texts that are no times or booleans.
        is_kept = "binary" in str(kind) or True in is_time or types.is_boolean(kind)
        return is_kept or _are_numbers_of(values.cast(pa.string()), others)
    if len(is_time) == 2 or len(has_zone) == 2:
        return False
    if types.is_floating(kind):
        if _infinities(others) > (_infinities(values) if types.is_floating(found) else 0):
            return False
        if may_round or not types.is_integer(found):
            return True
    # A decimal of few digits has no room for all that another number may have, and Arrow makes no 16-bit floats.
    back = pa.decimal256(76, found.scale) if types.is_decimal(found) else found
    back = pc.CastOptions(pa.float64() if types.is_floating(found) else back, allow_float_truncate=True)
    try:
        return pc.all(pc.equal(others.cast(options=back), values.cast(options=back))).as_py() is not False
    except pa.ArrowException:
        return False


def _has_zone(kind: pa.DataType) -> bool:
    return getattr(kind, "tz", None) is not None


def _are_numbers_of(texts: pa.StringArray, others: pa.Array) -> bool:
    """Return whether texts are the numbers that Arrow has read: no codes, and those without a point with all digits."""
    results = number_names(others.cast(pa.string()), of_any_form=True)
    are_right = pc.equal(number_names(texts, of_any_form=True), results)
    if pa.types.is_floating(others.type):
        numbers = numbers_of(texts).cast(others.type)
        lose_digits = pc.and_(pc.match_substring_regex(texts, r"^\s*[-+]?\d+\s*$"), are_merged(numbers))
        are_rounded = pc.and_(pc.is_finite(numbers.cast(pa.float64())), pc.invert(lose_digits))
        are_words = pc.match_substring_regex(texts, r"^\s*[-+]?(?i:nan|inf(inity)?)\s*$")
        are_right = pc.or_(pc.or_(are_right, pc.fill_null(are_rounded, False)), are_words)
    return pc.all(are_right).as_py() is not False


def _parts_of(values: pa.Array, others: pa.Array) -> list[tuple[pa.Array, pa.Array]] | None:
    """Return the entries of lists, keys and values of maps, or fields of structs in pairs; None if fields are lost."""
    values, others = (_pairs(part) if pa.types.is_map(part.type) else part for part in (values, others))
    if not pa.types.is_struct(values.type):
        return [(values.flatten(), others.flatten())]
    names, known = ([field.name for field in part.type] for part in (values, others))
    if not {*names} <= {*known} or len({*names}) < len(names) or len({*known}) < len(known):
        return None
    return [(values.field(name), others.field(name)) for name in names]


def _pairs(maps: pa.Array) -> pa.Array:
    """Return maps as lists of pairs, as Arrow casts them. `keys` of a slice has those of other rows, too."""
    fields = [("key", maps.type.key_type), ("value", maps.type.item_type)]
    return maps.cast(pa.list_(pa.struct(fields)))


def _infinities(values: pa.Array) -> int:
    # Arrow does not know the function for 16-bit floats.
    return int(pc.is_inf(values.cast(pa.float64())).true_count)


def texts_of(name: str, values: pa.Array, *, can_drop: bool = True) -> pa.Array:
    """Return the values of a category, label or group as texts, see `cast`. NaN and blanks alone are missing."""
    check_type(name, values.type, can_drop=can_drop)
    if pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), None, values)
    return cast(name, values, "category", can_drop=can_drop)


def kind_of_texts(texts: pa.StringArray | None) -> TextKind:
    """Return what some first values of a column are: numbers if at least half of them are, or if there are none.

    `find_forms` tells which of the others are dates.
    """
    if texts is None:
        return "number"
    numbers = pc.match_substring_regex(texts, rf"^\s*{NUMBER}\s*$").true_count
    if 2 * numbers < len(texts):
        return "category"
    return "digits" if pc.match_substring_regex(texts, _DIGITS).true_count == numbers else "number"


def first_texts(
    names: Sequence[str], read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]
) -> dict[str, pa.StringArray]:
    """Return the first values of columns of texts.

    The other batches are read for the columns that have no value so far.

    Args:
        names: Names of the columns.
        read: Function that yields the batches of some columns, from the first one.

    Returns:
        The values of each column that has any, without those that are missing.
    """
    found: dict[str, pa.StringArray] = {}
    left = [*names]
    while left:
        before = len(left)
        for rows in read(left):
            found |= {name: texts for name in left if len(texts := without_blanks_alone(rows[name]).drop_null())}
            left = [name for name in left if name not in found]
            # Only the columns that are left are read further.
            if not left or len(left) < before:
                break
        else:
            break
    return found


def lines_about_thousands(first: Mapping[str, pa.StringArray], *, may_be_all: bool = False) -> list[str]:
    """Return one line for each column of numbers whose points may separate thousands.

    All their fractions have three digits, below 1,000 before the point, and others have no fraction. Programs that
    write fractions leave out the zeros at their end, or none.

    Args:
        first: The first values of each column of numbers.
        may_be_all: Whether a column without whole numbers may have thousands, as in files with semicolons, which are
            usual where points separate thousands. Default: false.
    """
    lines = []
    for name, texts in first.items():
        have_points = pc.match_substring(texts, ".")
        fractions = texts.filter(have_points).unique()
        are_thousands = pc.all(pc.match_substring_regex(fractions, _THOUSANDS)).as_py()
        if len(fractions) >= _LEAST_THOUSANDS and are_thousands and (may_be_all or have_points.false_count):
            beside = " beside whole numbers" if have_points.false_count else ""
            lines.append(
                f"column {name!r} has numbers such as {fractions[0].as_py().strip()}{beside}, and all fractions have "
                "three digits: if their points or commas separate thousands, remove them in the source"
            )
    return bounded(lines)


def lines_about_words(first: Mapping[str, pa.StringArray]) -> list[str]:
    """Return one line for each column of texts that are numbers and one word, which may mean a missing value.

    Args:
        first: The first values of each column of texts.
    """
    lines = []
    for name, texts in first.items():
        counts = texts.value_counts()
        are_numbers = pc.match_substring_regex(counts.field("values"), rf"^\s*{NUMBER}\s*$")
        words = counts.field("values").filter(pc.invert(are_numbers))
        if len(words) == 1 and are_numbers.true_count >= _LEAST_NUMBERS:
            word = as_written(words[0].as_py())
            lines.append(
                f"column {name!r} has numbers and the text {word!r}, which most of its first rows have, and becomes a "
                f"category. If the text means a missing value, add it to missing of csv_format: {json.dumps([word])}"
            )
    return bounded(lines)


def lines_about_codes(codes: Mapping[str, str]) -> list[str]:
    """Return one line for each column of codes.

    Args:
        codes: A value with leading zeros of each column.
    """
    return bounded(
        [
            f"column {name!r} has numbers with leading zeros, such as {code!r}: they are read as codes, and the column "
            "becomes a category. If they are quantities, write them without leading zeros in the source"
            for name, code in codes.items()
        ]
    )
