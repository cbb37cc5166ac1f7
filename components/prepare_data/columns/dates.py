"""Dates and times of a column as numbers, and the forms in which texts of them are written (pure)."""

import contextlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.columns.missing_texts import without_blanks_alone

ISO = "%Y-%m-%d"
"""The form of ISO dates. A form is a format of strptime. Where it has no time of day, one may follow the date."""

_FAMILIES: tuple[tuple[str, ...], ...] = (
    (ISO,),
    ("%Y/%m/%d",),
    ("%Y.%m.%d",),
    ("%Y-%m",),
    ("%Y/%m",),
    ("%m/%Y",),
    ("%m-%Y",),
    *((f"%b{sign}%Y", f"%B{sign}%Y") for sign in "- /"),
    *((f"%Y{sign}%b", f"%Y{sign}%B") for sign in "- /"),
    ("%d%b%Y", "%d%B%Y"),
    *((f"%d{sign}%m{sign}%Y", f"%m{sign}%d{sign}%Y") for sign in "/.-"),
    *((f"%d{sign}%b{sign}%Y", f"%d{sign}%B{sign}%Y") for sign in "- /"),
    *((f"%b %d{sign} %Y", f"%B %d{sign} %Y") for sign in (",", "")),
)
"""Forms that are recognized. Texts can be of both forms of a family, until a number above 12 tells what is the day, or
another month than May whether the names are short."""

_SHORT_FORMS = [
    f"{first}{sign}{second}{sign}{third}"
    for sign in "/.- "
    for first, second, third in (("%d", "%m", "%y"), ("%m", "%d", "%y"), ("%y", "%m", "%d"), ("%d", "%b", "%y"))
] + [f"{first}{sign}{second}" for sign in "- /" for first, second in (("%b", "%y"), ("%y", "%b"))]
"""Forms whose years have two digits. They are not read without a word of the user: what is the century?"""
YEAR_POINT_MONTH = "%Y.%m"
"""A form that numbers and versions have, too. It is not read without a word of the user."""

_NAMES = [datetime(2000, month, 1, tzinfo=UTC).strftime("%B") for month in range(1, 13)]
_PARTS = {
    "%Y": r"\d{4}",
    "%y": r"\d{2}",
    "%m": r"(0?[1-9]|1[0-2])",
    "%d": r"(0?[1-9]|[12]\d|3[01])",
    "%b": f"(?i:Sept|{'|'.join(name[:3] for name in _NAMES)})",
    "%B": f"(?i:{'|'.join(_NAMES)})",
    ".": r"\.",
}
# Numbers of orders and their items, and of versions, look like other years and months.
_YEARS = {"%Y": r"(1[5-9]|2[01])\d{2}"}
_MONTHS = _YEARS | {"%m": r"(0[1-9]|1[0-2])"}
_TIME = r"(\d{1,2})(:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?)\s*([AaPp][Mm])?\s*(Z|UTC|GMT|[+-]\d{2}:?\d{2})?"
_TIME_AT_END = re.compile(rf"[T\s]\s*{_TIME}$")
_MONTH = rf"{_PARTS['%b']}[a-zA-Z]{{0,6}}"
_MAY_BE_DATE = rf"^\s*(\d{{1,4}}[-/.]\d|(\d{{1,2}}[- /]?)?{_MONTH}[- /]?\d|\d{{4}}[- /]{_MONTH})"
_UTC = re.compile("UTC|GMT|Z")
_ISO_START = re.compile(r"\d{4}-\d")
_SEPT = re.compile("(?i)sept(?!e)")
_PLAIN = {"%Y": r"(1[89]|20)\d{2}", "%y": r"\d{2}", "%m": "(0[1-9]|1[0-2])", "%d": r"(0[1-9]|[12]\d|3[01])"}
_PLAIN_FORMS = ("%Y%m%d", "%d%m%Y", "%m%d%Y", "%y%m%d", "%d%m%y", "%m%d%y", "%m%Y", "%m.%Y", "%Y%m")
# A number such as 101 is a count rather than the first day of the year 2000.
_PLAIN_PATTERNS = {
    form: re.sub("%.", lambda part: _PLAIN[part[0]], re.sub("^%y", r"(0[1-9]|[1-9]\\d)", form).replace(".", r"\."))
    for form in _PLAIN_FORMS
}
DAY_POINT_MONTH = "%d.%m"
"""The form of numbers such as 29.06, which have no year."""
YEAR_POINT_SHORT_MONTH = "%Y.%-m"
"""The form of numbers such as 2018.2, whose months have no zero: 2018.1 is January or October."""
# Numbers lose the zero of October alone: 2018.1 is 2018.10 where January is 2018.01.
_MONTHS_AFTER_POINT = {
    YEAR_POINT_MONTH: rf"{_PLAIN['%Y']}\.(0[1-9]|1[12]?)",
    YEAR_POINT_SHORT_MONTH: rf"{_PLAIN['%Y']}\.([1-9]|1[12])",
    DAY_POINT_MONTH: r"([1-9]|[12]\d|3[01])\.(0[1-9]|1[12]?)",
}
_NUMBER = re.compile(r"(\d+)(?:\.(\d+))?", re.ASCII)
_TIME_DIRECTIVES = re.compile("%[HIMSpfzXcT]")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECONDS_OF_A_DAY = 86_400 * 10**6
# The first moment that Python has: that of year 1.
_FIRST = int((datetime.min.replace(tzinfo=UTC) - _EPOCH).total_seconds()) * 10**6


def _pattern(form: str) -> str:
    parts = _PARTS | (_MONTHS if form[:2] == "%Y" and "%d" not in form else _YEARS if form != ISO else {})
    day = re.sub(r"%\w|\.", lambda part: parts[part[0]], form).replace(" ", " +")
    if form == ISO:
        # A number that is no month or day in this usual form is a mistake.
        day = rf"({day}|\d{{4}}-\d{{2}}-\d{{2}})"
    return rf"^\s*{day}([T ]\s*{_TIME})?\s*$"


_PATTERNS = {form: _pattern(form) for family in (*_FAMILIES, _SHORT_FORMS, [YEAR_POINT_MONTH]) for form in family}
_FORMS = [form for family in _FAMILIES for form in family]
# Dates whose day and month may be in either order, unless one of the numbers is above 12.
_NUMERIC_FORMS = [f"{first}{sign}{second}{sign}%Y" for sign in "/-." for first, second in (("%d", "%m"), ("%m", "%d"))]
_AMBIGUOUS = r"^\s*(0?[1-9]|1[0-2])[/-](0?[1-9]|1[0-2])[/-]"
# Texts that may be something else, so that no date is their name.
_NAMELESS = {form: _PATTERNS[form] for form in _SHORT_FORMS} | {
    form: rf"^\s*{_PLAIN_PATTERNS[form]}\s*$" for form in ("%Y%m%d", "%d%m%Y", "%m%d%Y")
}
# Prefixes of the names of dates.
_KNOWN_DATE, _AMBIGUOUS_DATE = "\0date", "\0day or month"


def are_dates(texts: pa.StringArray) -> bool:
    """Return whether all texts are dates, or dates and times, of the form 2024-01-31 or 2024-01-31T12:00:00Z."""
    return len(texts) > 0 and bool(pc.all(pc.match_substring_regex(texts, _PATTERNS[ISO])).as_py())


def family_of(texts: pa.StringArray) -> tuple[tuple[str, ...], pa.BooleanArray]:
    """Return the forms that most texts have, and which texts have one of them.

    Returns:
        One form, or two that differ in the order of day and month. () if no text is a date.
    """
    best: tuple[tuple[str, ...], pa.BooleanArray] = (), pc.match_substring_regex(texts, _MAY_BE_DATE)
    if not best[1].true_count:
        return best
    found = [
        (family, pc.match_substring_regex(texts, "|".join(_PATTERNS[form] for form in family))) for family in _FAMILIES
    ]
    best = max(found, key=lambda entry: entry[1].true_count)
    return best if best[1].true_count else ((), best[1])


def orders_of(texts: pa.StringArray, family: Sequence[str]) -> dict[str, str]:
    """Return which forms of a family some texts have that have no other form of it, with such a text for each."""
    matches = {form: pc.match_substring_regex(texts, _PATTERNS[form]) for form in family}
    found = {}
    for form, own in matches.items():
        for other in [matches[other] for other in family if other != form]:
            only = texts.filter(pc.and_(own, pc.invert(other)))
            if len(only):
                found[form] = only[0].as_py().strip()
    return found


def short_forms(texts: pa.StringArray) -> list[str]:
    """Return the forms that most texts have and that are not read without a word of the user, such as 15.10.18."""
    forms = (*_SHORT_FORMS, YEAR_POINT_MONTH)
    matches = {form: pc.match_substring_regex(texts, _PATTERNS[form]).true_count for form in forms}
    return [form for form, count in matches.items() if 2 * count > len(texts) and count == max(matches.values())]


def plain_forms(texts: Sequence[str], forms: Sequence[str] | None = None) -> list[str]:
    """Return the forms of days and months that some numbers have, such as %Y%m%d and %m.%Y.

    Args:
        texts: The numbers in their shortest form.
        forms: The forms that they may have. Default: all.
    """
    forms = (*_PLAIN_FORMS, *_MONTHS_AFTER_POINT) if forms is None else forms
    return [form for form in forms if all(_is_plain(text, form) for text in texts)]


def _is_plain(text: str, form: str) -> bool:
    if form in _MONTHS_AFTER_POINT:
        return re.fullmatch(_MONTHS_AFTER_POINT[form], text) is not None
    try:
        return re.fullmatch(_PLAIN_PATTERNS[form], digits(text, form)) is not None
    except ValueError:
        return False


def is_form(form: str) -> bool:
    """Return whether a text is a format of strptime whose texts have the year, and are of one day, month or year."""
    example = datetime(2024, 11, 20, 13, 5, tzinfo=UTC)
    text = example.strftime(form)
    try:
        parsed = datetime.strptime(text, form).replace(tzinfo=UTC)
    except (ValueError, re.error):  # A directive that occurs twice is an error of the regular expression.
        return False
    # Without a weekday, strptime ignores the week, and without a month, the day is one of January.
    days = ("2024-11-20", "2024-11-01", "2024-01-01")
    return parsed.strftime(form) == text and parsed.date().isoformat() in days


def date_kind(form: str) -> str:
    """Return the kind of a column of dates of a form, as `columns` and a manifest have it."""
    return "date" if form == ISO else f"date {form}"


def form_of(kind: str) -> str:
    """Return the form of a kind that `date_kind` returns; that of ISO dates for other kinds."""
    return kind[5:].strip() if kind.startswith("date ") else ISO


def iso_text(text: str, form: str) -> str:
    """Return the day of a date as an ISO date; "" if the text is no date of the form."""
    try:
        return _time(text.strip(), form).date().isoformat()
    except ValueError:
        return ""


def microseconds(values: pa.Array, form: str = ISO) -> tuple[pa.Int64Array, NDArray[np.intp]]:
    """Return the microseconds from 1970-01-01 to each date or time. One without a time zone is in UTC.

    Args:
        values: Dates, times or their texts. Null and blanks alone are missing.
        form: Form of texts. Default: ISO 8601.

    Returns:
        The microseconds, null where a value is missing or no date; and the rows whose values are no dates.
    """
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        # A cast from a time of day to a time fails, and one from nanoseconds may lose digits.
        return values.cast(pa.timestamp("us", getattr(values.type, "tz", None)), safe=False).cast(pa.int64()), _NONE
    texts = without_blanks_alone(pc.utf8_trim_whitespace(values.cast(pa.string())))
    result = _usual(texts, form)
    if result is None:
        distinct = texts.dictionary_encode()
        numbers = pa.array([_microseconds(text, form) for text in distinct.dictionary.to_pylist()], pa.int64())
        result = numbers.take(distinct.indices)
    return result, np.flatnonzero((result.is_null().to_numpy(False)) & ~texts.is_null().to_numpy(False))


def has_digits_alone(form: str) -> bool:
    """Return whether the dates of a form are numbers, such as 20181016 and 10.2018."""
    return _widths(form) is not None


def digits(text: str, form: str) -> str:
    """Return a number in all digits of its date: "01012018" for "1012018" and "1012018.0" of the form %d%m%Y.

    Numbers lose the zeros at their beginning, and those at the end of a fraction. A year has no zero at its beginning.
    Other texts, and those of forms that have more than digits, stay as they are.

    Raises:
        ValueError: It may be several dates, such as 2018.1 of the form %Y.%m, which is January or October.
    """
    widths, number = _widths(form), _NUMBER.fullmatch(text)
    if not widths or not number:
        return text
    whole, fraction = number.groups("")
    whole_form, point, fraction_form = form.partition(".")
    if len(whole) < widths[0] and "%f" not in whole_form:
        if not whole_form.startswith("%Y"):
            whole = whole.zfill(widths[0])
        elif whole_form.count("%") > 2:  # A zero may be missing in each part but the year.
            raise ValueError(text)
    if not point:
        fraction = fraction.rstrip("0")
    elif fraction_form == "%f":
        fraction = fraction or "0"
    elif len(fraction) < widths[1]:
        if fraction_form != "%Y" or len(fraction) < widths[1] - 1:
            raise ValueError(text)
        fraction += "0"
    return f"{whole}.{fraction}" if fraction else whole


@lru_cache
def _widths(form: str) -> tuple[int, int] | None:
    """Return the numbers of digits before and after the point of dates that are numbers; None for other dates."""
    found = _NUMBER.fullmatch(_EPOCH.strftime(form))
    return (len(found[1]), len(found[2] or "")) if found else None


def _usual(texts: pa.StringArray, form: str) -> pa.Int64Array | None:
    """Return the microseconds of texts that Arrow reads, some hundred times faster than Python; None for others.

    Args:
        texts: The texts without blanks around them.
        form: Their form.
    """
    if form != ISO:
        parts = re.fullmatch(r"%([Ymd])[/.-]%([Ymd])[/.-]%([Ymd])", form)
        if not parts:
            return None
        day = re.sub("%.", r"(\\d+)", form.replace(".", r"\."))
        usual = pc.match_substring_regex(texts, rf"^{day}([T ] *\d{{1,2}}:\d{{2}}(:\d{{2}})?)?$")
        if pc.all(usual).as_py() is False:
            return None
        iso = "-".join(rf"\{parts.groups().index(part) + 1}" for part in "Ymd")
        texts = pc.replace_substring_regex(texts, r"\b(\d)\b", r"0\1")
        texts = pc.replace_substring_regex(pc.replace_substring_regex(texts, f"^{day}", iso), "[T ] *", "T")
    for zone in (None, "UTC"):
        with contextlib.suppress(pa.ArrowInvalid):  # Another zone, a number without its leading zero, or no date.
            found = texts.cast(pa.timestamp("us", zone)).cast(pa.int64())
            return pc.if_else(pc.less(found, _FIRST), None, found)
    return None


def names_of_dates(texts: pa.StringArray) -> pa.StringArray:
    """Return dates and times by their moment, so that one has one name in all spellings. Other texts stay.

    A month is its first day.

    A date whose day and month may be in either order has a name of its own: 2/1/2024 is that of 02-01-2024 alone. Where
    points separate them, the day is first.
    """
    may_be = pc.fill_null(pc.match_substring_regex(texts, _MAY_BE_DATE), False)
    if not may_be.true_count:
        return texts
    # Digits after the microseconds would get lost, so such texts stay, unless these are zeros.
    exact = pc.replace_substring_regex(texts.filter(may_be), r"([.,]\d{6})0+(\D|$)", r"\1\2")
    names, is_unmatched = texts.filter(may_be), pc.invert(pc.match_substring_regex(exact, r"[.,]\d{7}"))
    for form in _FORMS:
        found = pc.and_(is_unmatched, pc.match_substring_regex(exact, _PATTERNS[form]))
        if not found.true_count:
            continue
        moments, _ = microseconds(pc.if_else(found, exact, None), form)
        is_ambiguous = pc.match_substring_regex(exact, _AMBIGUOUS if form in _NUMERIC_FORMS else "^$")
        prefix = pc.if_else(is_ambiguous, _AMBIGUOUS_DATE, _KNOWN_DATE)
        found_names = pc.binary_join_element_wise(prefix, moments.cast(pa.string()), " ")
        names = pc.if_else(moments.is_valid(), found_names, names)
        is_unmatched = pc.and_not(is_unmatched, found)
    return pc.replace_with_mask(texts, may_be, names)


def dates_of_two_names(texts: Sequence[str]) -> tuple[str, str] | None:
    """Return two dates of different forms or orders if one day may have two names; None if each day has one.

    A day has two names of `names_of_dates` if nothing tells which number of one spelling is the day, and another
    spelling tells it; and if a spelling such as 13.03.19 or 20190313 has no moment as its name.
    """
    found: dict[tuple[str, str], str] = {}
    nameless: dict[str, str] = {}
    for name, text in zip(names_of_dates(pa.array(texts, pa.string())).to_pylist(), texts, strict=True):
        if name.startswith((_KNOWN_DATE, _AMBIGUOUS_DATE)):
            forms = [form for form in _NUMERIC_FORMS if re.match(_PATTERNS[form], text)]
            sign = forms[0][2] if forms else ""
            found.setdefault(("/" if sign == "-" else sign, "".join(form[1] for form in forms)), text)
        elif form := next((form for form, pattern in _NAMELESS.items() if re.match(pattern, text)), None):
            # Forms of three numbers with one sign are in any order.
            nameless.setdefault(f"%b{form[2]}" if "%b" in form else form[2], text)
    if nameless and len(different := [*found.values(), *nameless.values()]) > 1:
        return different[0], different[-1]
    for sign in "/.":
        either, day_first, month_first = (found.get((sign, order)) for order in ("dm", "d", "m"))
        if either and day_first and month_first:
            return day_first, month_first
        other = next((text for (own, _), text in found.items() if own != sign), None)
        # Where points separate the numbers, the day is first, unless a date tells the contrary.
        if either and other and (month_first or sign == "/"):
            return either, other
    return None


def days(microseconds: pa.Int64Array) -> pa.DoubleArray:
    """Return days for microseconds."""
    return pc.divide(microseconds.cast(pa.float64(), safe=False), float(_MICROSECONDS_OF_A_DAY))


_NONE = np.empty(0, np.intp)


def _microseconds(text: str, form: str) -> int | None:
    try:
        time = _time(text, form)
    except ValueError:
        return None
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    difference = time - _EPOCH
    return (difference.days * 86_400 + difference.seconds) * 10**6 + difference.microseconds


def _time(text: str, form: str) -> datetime:
    """Return the time of a text.

    Raises:
        ValueError: It is no date of the form.
    """
    if "%b" in form:  # Python knows no other short name of September.
        text = _SEPT.sub("Sep", text)
    if form == ISO:
        if not _ISO_START.match(text):  # Python reads 20181015, too, which may be another number.
            raise ValueError(text)
        try:
            return datetime.fromisoformat(_UTC.sub("+00:00", text))
        except ValueError:
            pass
    elif _TIME_DIRECTIVES.search(form):
        return _parsed(digits(text, form), form)
    found = _TIME_AT_END.search(text)
    if not found:
        return _day(text, form)
    hour, rest, half, zone = found.groups()
    hours = int(hour)
    if half:
        if not 1 <= hours <= 12:
            raise ValueError(text)
        hours = hours % 12 + 12 * (half.upper() == "PM")
    day = _day(text[: found.start()].rstrip(), form).date()
    return datetime.fromisoformat(f"{day}T{hours:02}{rest}{_UTC.sub('+00:00', zone or '')}")


@lru_cache(2**16)
def _day(text: str, form: str) -> datetime:
    """Return the first moment of a day. There are fewer days than times, and strptime is slow."""
    return _parsed(digits(text, form), form)


def _parsed(text: str, form: str) -> datetime:
    parsed = datetime.strptime(text, form)
    # Day 366 of a year of 365 days becomes the first day of the next year, and weeks that a year lacks another week.
    if re.search("%[jUVW]", form) and (found := re.fullmatch(_pattern_of_numbers(form), text.strip())):
        names = re.findall("%[YGyjUVW]", form)
        if any(int(number) != int(parsed.strftime(name)) for name, number in zip(names, found.groups(), strict=True)):
            raise ValueError(text)
    return parsed


@lru_cache
def _pattern_of_numbers(form: str) -> str:
    widths = {"Y": "4", "G": "4", "y": "2", "j": "1,3", "U": "1,2", "V": "1,2", "W": "1,2"}
    escaped = re.escape(form).replace(r"\ ", r"\s*")
    return re.sub("%(.)", lambda part: rf"(\d{{{widths[part[1]]}}})" if part[1] in widths else ".+?", escaped)
