"""Finds the forms of dates in columns of texts, and asks the user where the texts leave two (pure)."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.columns.dates import (
    DAY_POINT_MONTH,
    ISO,
    YEAR_POINT_MONTH,
    YEAR_POINT_SHORT_MONTH,
    date_kind,
    digits,
    family_of,
    form_of,
    iso_text,
    orders_of,
    plain_forms,
    short_forms,
)
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.sources.read_rows import bounded
from kfp_distributed.storage.dataset import Column

# So many characters of a value are in a line.
_SHOWN = 40
_OF_POINTS = (YEAR_POINT_MONTH, YEAR_POINT_SHORT_MONTH, DAY_POINT_MONTH)
_MONTHS = ("%Y%m", *_OF_POINTS)
# Fewer different numbers may be months, or days and months, by chance: those with a zero at once, and others later.
_LEAST_MONTHS, _LEAST_OTHERS = 3, 10
# It is the first day whose number is no month.
_FIRST_DAY = 13


@dataclass(frozen=True)
class DateForms:
    """The columns of dates, with the forms of their texts.

    Attributes:
        forms: Form of each column that has dates or is read as such.
        examples: A text of each column whose form was found and is not the ISO form.
        mixed: A text that is no date of each column that has dates in most rows.
        short: A text of each column that may have dates with years of two digits, and the forms that all texts have.
    """

    forms: Mapping[str, str] = field(default_factory=dict)
    examples: Mapping[str, str] = field(default_factory=dict)
    mixed: Mapping[str, str] = field(default_factory=dict)
    short: Mapping[str, tuple[str, Sequence[str]]] = field(default_factory=dict)

    def form(self, name: str) -> str:
        """Return the form of a column's texts. The values of other columns are dates of Arrow."""
        return self.forms.get(name, ISO)

    def dated(self, column: Column) -> Column:
        """Return a column with the form of its dates."""
        return replace(column, source_type=date_kind(self.form(column.name))) if column.is_date else column

    def lines(self, guessed: Sequence[str], missing: Sequence[str] | None = None) -> list[str]:
        """Return one line for each column that was guessed to have dates, whose form was found, or that is mixed.

        Args:
            guessed: Inputs that have dates and are not declared.
            missing: Texts of a CSV file that stand for a missing value. Default: the source is no CSV file.
        """
        lines = [
            f"column {name!r} has dates{self._reading(name)}: they become numbers, the days from 1970-01-01 in UTC. If "
            f'they are categories, set columns to {{{name!r}: "category"}}'
            for name in guessed
        ]
        lines += [
            f"column {name!r} has dates{self._reading(name)}. If they are to be read in another way, set columns to "
            f'{{{name!r}: "date FORM"}}, with a format of strptime'
            for name in self.examples
            if name not in guessed
        ]
        for name, text in self.mixed.items():
            advice = "write null for a missing value"
            if missing is not None:
                texts = json.dumps([*missing, text], ensure_ascii=False)
                advice = f'csv_format to {{"missing": {texts}}} if it means a missing value'
            lines.append(
                f"column {name!r} has dates in most of its first rows, but also {text[:_SHOWN]!r}, and becomes a "
                f'category. To read dates, set columns to {{{name!r}: "date"}}, and {advice}'
            )
        for name, (text, forms) in self.short.items():
            lines.append(
                f"column {name!r} may have {_what(forms)}, such as {text!r}, and becomes a category. If it has, "
                f"{_choices(text, forms)}"
            )
        return bounded(lines)

    def _reading(self, name: str) -> str:
        text, form = self.examples.get(name, ""), self.form(name)
        return text and f" of the form {form}, such as {text!r} = {iso_text(text, form)}"


def _what(forms: Sequence[str]) -> str:
    return "years and months" if YEAR_POINT_MONTH in forms else "dates whose years have two digits"


def _choices(text: str, forms: Sequence[str]) -> str:
    """Return how to say of which form a text is."""
    choices = " or ".join(f"{date_kind(form)!r} ({iso_text(text, form)})" for form in forms)
    century = ". %y reads 69 as 1969, and 68 as 2068" if any("%y" in form for form in forms) else ""
    return f"set its kind in columns to {choices}{century}"


@dataclass
class PlainDates:
    """The forms of dates that all numbers of a column have, such as 20181015 and 10.2018.

    Attributes:
        forms: The forms. None before the first number.
        example: The lowest of the first numbers, in the digits of its date.
        months: The different numbers, while all may be months or days without a year.
    """

    forms: Sequence[str] | None = None
    example: str = ""
    months: Set[str] = frozenset()

    def add(self, numbers: NDArray[Any]) -> None:
        """Add a batch of numbers and NaN."""
        for part in (numbers[:100], numbers[100:]):  # Few columns need more than the first numbers.
            if self.forms is None or len(self.forms):
                # Arrow may change the 16th digit of a decimal number.
                texts = [f"{number:.15g}" for number in np.unique(part[np.isfinite(part)]).tolist()]
                forms = plain_forms(texts, self.forms) if texts else self.forms
                example = digits(texts[0], forms[0]) if texts and forms and forms[0] not in _OF_POINTS else ""
                self.merge(PlainDates(forms, example, {*texts}))

    def merge(self, other: "PlainDates") -> None:
        """Add the numbers of the rows that follow."""
        if self.forms is None:
            self.forms, self.example = other.forms, other.example
        elif other.forms is not None:
            self.forms = [form for form in self.forms if form in other.forms]
        # There are few months in all years.
        self.months = self.months | other.months if {*_MONTHS}.intersection(self.forms or ()) else frozenset()

    def inputs(self) -> Iterator[tuple[str, str]]:
        """Yield the forms that the numbers of an input have without doubt, with an example of each."""
        forms = self.forms or ()
        yield from ((form, self.example) for form in forms if form in ("%Y%m%d", "%m.%Y"))
        if [*forms] == ["%Y%m"] and len(self.months) >= _LEAST_MONTHS:
            yield "%Y%m", min(self.months)
        # Without a zero, the digits after the point may be others than months: 2018.1 is January or October.
        of_zeros = sorted(text for text in self.months if ".0" in text)
        if YEAR_POINT_MONTH in forms and of_zeros and len(self.months) >= _LEAST_MONTHS:
            yield YEAR_POINT_MONTH, of_zeros[0]
        # Most quantities have other fractions.
        of_days = [text for text in of_zeros if float(text) >= _FIRST_DAY]
        if DAY_POINT_MONTH in forms and of_days and len(self.months) >= _LEAST_OTHERS:
            yield DAY_POINT_MONTH, of_days[0]
        # Tenths, and the numbers of quarters, have one digit.
        of_two = sorted(text for text in self.months if text[-3:] in (".11", ".12"))
        if YEAR_POINT_SHORT_MONTH in forms and 0 < len(of_two) < len(self.months) >= _LEAST_OTHERS:
            yield YEAR_POINT_SHORT_MONTH, of_two[0]


def lines_about_plain_dates(columns: Mapping[str, PlainDates], time_column: str, times: PlainDates) -> list[str]:
    """Return one line for each column whose numbers may be dates.

    Args:
        columns: Numbers of each input. Those of declared inputs have no forms.
        time_column: Name of the column whose numbers order the rows; "" for none.
        times: Its numbers.
    """
    lines = [
        f"column {name!r} has numbers such as {example}, which may be dates. If they are, "
        f"{_advice(name, form, example)}"
        for name, numbers in columns.items()
        for form, example in numbers.inputs()
    ]
    forms = [form for form in times.forms or () if form not in _OF_POINTS]
    lines += [
        f"time_column {time_column!r} has numbers such as {example}, and the rows have their order. If they are "
        f"{'days' if form == DAY_POINT_MONTH else 'years'} and months, {_advice(time_column, form, example)}"
        for form, example in times.inputs()
        if form in (DAY_POINT_MONTH, YEAR_POINT_SHORT_MONTH)
    ]
    # The numbers of these forms have the order of the days.
    if forms and "%Y%m%d" not in forms and forms != ["%Y%m"]:
        lines.append(
            f"time_column {time_column!r} has numbers such as {times.example}, and the rows have their order. If they "
            f"are dates, {_choices(times.example, forms)}"
        )
    return bounded(lines)


def _advice(name: str, form: str, example: str) -> str:
    """Return what to do where the numbers of a column are dates of a form."""
    if form == DAY_POINT_MONTH:
        return "write them with their year in the source"
    if form == YEAR_POINT_SHORT_MONTH:
        iso = example.replace(".", "-")
        return f"write them as {iso} in the source, because October is the same number as January"
    october = ", and write October as 2018.10" if form == YEAR_POINT_MONTH else ""
    return f'set columns to {{{name!r}: "date {form}"}}{october}'


def open_dates(options: Options) -> list[str]:
    """Return the columns that are read as dates whatever their texts are, but whose form is to be found."""
    names = [name for name, kind in options.columns.items() if kind == "date"]
    if options.time_column and options.columns.get(options.time_column) != "number":
        names.append(options.time_column)
    known = _known_forms(options)
    return [name for name in dict.fromkeys(names) if name not in known]


def find_forms(
    options: Options,
    first: Mapping[str, pa.StringArray],
    read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]],
) -> DateForms:
    """Find which columns of texts have dates, and in which form.

    Rows are read for columns whose first values leave open which number is the day, up to one that tells it.

    Args:
        options: Names and kinds of columns.
        first: The first values of each column that can have dates, without those that are missing.
        read: Function that yields all batches of some columns, as texts.

    Raises:
        ValueError: All rows of a column leave open which number is the day, or contradict each other.
    """
    needed, known = open_dates(options), _known_forms(options)
    forms = dict.fromkeys(needed, ISO) | known
    families: dict[str, tuple[str, ...]] = {}
    mixed: dict[str, str] = {}
    short: dict[str, tuple[str, Sequence[str]]] = {}
    for name in [name for name in first if name not in known]:
        texts = first[name]
        family, are_dates = family_of(texts)
        if name not in needed and _are_seasons(texts, family):
            continue
        if family and (name in needed or are_dates.true_count == len(texts)):
            families[name] = family
        elif 2 * are_dates.true_count > len(texts):
            mixed[name] = texts.filter(pc.invert(are_dates))[0].as_py()
        # Numbers may be times, too.
        elif (own := short_forms(texts) if len(texts) else []) and not (name in needed and YEAR_POINT_MONTH in own):
            text = next(text for text in texts.to_pylist() if iso_text(text, own[0])).strip()
            if name in needed:
                raise ValueError(f"column {name!r} has {_what(own)}, such as {text!r}: {_choices(text, own)}")
            short[name] = text, own
    orders = {name: orders_of(first[name], family) for name, family in families.items() if len(family) > 1}
    unclear = [name for name, found in orders.items() if not found]
    differ = dict.fromkeys(unclear, False)
    for rows in read(unclear) if unclear else ():
        for name in [name for name in unclear if not orders[name]]:
            orders[name] = orders_of(rows[name], families[name])
            differ[name] = differ[name] or _differ(rows[name], families[name])
        if all(orders[name] for name in unclear):
            break
    for name in [name for name, found in orders.items() if len(found) > 1 and "%b" in families[name][0]]:
        # Short and long names of months in one column.
        mixed[name] = orders[name][families.pop(name)[1]]
    # Where all days are the number of their month, and all months May, the order does not matter.
    families |= {
        name: families[name][:1] for name in unclear if name in families and not orders[name] and not differ[name]
    }
    for name, family in families.items():
        is_input = name != options.time_column or name in options.columns
        forms[name] = _form(name, first[name], family, orders.get(name, {}), is_input=is_input)
    examples = {
        name: next((text for text in first[name].to_pylist() if iso_text(text, forms[name])), "").strip()
        for name in families
        if forms[name] != ISO
    }
    return DateForms(forms, examples, mixed, short)


def _are_seasons(texts: pa.StringArray, family: Sequence[str]) -> bool:
    """Return whether all texts name two years, such as 2005-06, and not the months of some years."""
    if not family or "%d" in family[0]:
        return False
    years = [text.strip() for text in texts.unique().to_pylist()]
    return all(re.fullmatch(r"\d{4}.\d\d", text) and (int(text[:4]) + 1) % 100 == int(text[5:]) for text in years)


def _differ(texts: pa.StringArray, family: Sequence[str]) -> bool:
    """Return whether the forms of a family read any text differently."""
    return any(len({iso_text(text, form) for form in family}) > 1 for text in texts.drop_null().unique().to_pylist())


def _known_forms(options: Options) -> dict[str, str]:
    """Return the forms that the user, or another dataset or source, says."""
    known = {options.time_column: options.time_form} if options.time_form else {}
    return known | {name: form_of(kind) for name, kind in options.columns.items() if kind.startswith("date ")}


def _form(name: str, texts: pa.StringArray, family: Sequence[str], orders: Mapping[str, str], *, is_input: bool) -> str:
    """Return the form of a column.

    Args:
        name: Name of the column.
        texts: Its first values.
        family: Forms that it can have.
        orders: Forms that some texts alone have, with such a text.
        is_input: Whether the column is an input, or could be.

    Raises:
        ValueError: No text, or a text for each form, tells which form it is.
    """
    # Where a point separates the numbers, the day is first.
    if len(family) == 1 or len(orders) == 1 or (not orders and "." in family[0]):
        return next(iter(orders), family[0])
    day_first, month_first = family
    if orders:
        problem = f"{orders[day_first]!r}, whose day is first, and {orders[month_first]!r}, whose month is first"
    else:
        text = next((text for text in texts.to_pylist() if len({iso_text(text, form) for form in family}) > 1), None)
        text = text or texts[0].as_py()
        readings = [iso_text(text, form) for form in family]
        problem = f"{text.strip()!r}, which is {readings[0]} ({day_first}) or {readings[1]} ({month_first})"
        problem = f"dates such as {problem}: no row tells which"
    choices = " or ".join(f'{{{name!r}: "{date_kind(form)}"}}' for form in family)
    others = f'{{{name!r}: "category"}}, name it in drop_columns' if is_input else "which makes it an input"
    raise ValueError(f"column {name!r} has {problem}. Set columns to {choices}, {others}, or write ISO dates")
