"""CSV files as a table: the values decide how each column is read."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import compress

import pyarrow as pa
import pyarrow.compute as pc

from kfp_distributed.components.prepare_data.columns.column_kinds import (
    CSV_TYPES,
    KEPT_CSV_TYPES,
    KEPT_TYPES,
    OPTIONAL_TEXT,
    REQUIRED_TEXT,
    TextKind,
    column_of,
    declared_column,
    first_texts,
    kept_type_of_texts,
    kind_of_texts,
    lines_about_codes,
    lines_about_thousands,
    lines_about_words,
)
from kfp_distributed.components.prepare_data.columns.date_columns import (
    DateForms,
    find_forms,
    open_dates,
)
from kfp_distributed.components.prepare_data.columns.dates import are_dates
from kfp_distributed.components.prepare_data.columns.spelled_values import (
    FINITE,
    MERGED_FROM,
    POINT_OF_TEXT,
    numbers_of,
)
from kfp_distributed.components.prepare_data.columns.split_times import time_type
from kfp_distributed.components.prepare_data.csv_format import NO_HEADER, CsvFormat, line_above_rows, utf8_line
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.sources.chunks import CountRows, FilePart, ignore_count, whole_file
from kfp_distributed.components.prepare_data.sources.read_rows import (
    Reject,
    Rows,
    bounded,
    ignore,
    read_errors,
    read_rows,
)
from kfp_distributed.components.prepare_data.sources.source_files import ending
from kfp_distributed.components.prepare_data.sources.stored_files import SourcePath
from kfp_distributed.components.prepare_data.tables.csv_detection import (
    check_header,
    check_no_header,
    detect_format,
)
from kfp_distributed.components.prepare_data.tables.csv_files import (
    csv_names,
    csv_parts,
    first_rows,
    numbers_are_integers,
    read_csv,
    with_decimal_points,
)
from kfp_distributed.components.prepare_data.tables.csv_quotes import rows_in_quotes
from kfp_distributed.components.prepare_data.tables.table_format import Chosen
from kfp_distributed.components.worker_pool.piece_tasks import RunTasks
from kfp_distributed.storage.dataset import Task

_VALUES = pa.large_string()
"""Stands for the type of texts of which some may be numbers: these get a decimal point."""
_DECIMAL_POINT = r"^(\s*[-+]?\d*)\.(\d*(?:[eE][-+]?\d+)?\s*)$"
_DECIMAL_COMMA = r"^(\s*[-+]?\d*),(\d*(?:[eE][-+]?\d+)?\s*)$"


class CsvTable:
    """CSV files, see `TableFormat`.

    The first file with rows shows how all are written, where the options do not say it.

    Args:
        options: How the files are written, and the kinds of columns.
        files: The files.

    Raises:
        ValueError: A file cannot be read, or its first row looks like data.
    """

    may_lack_columns = False
    index_type = pa.string()

    def __init__(self, options: Options, files: Sequence[SourcePath]) -> None:
        self._options = options
        self._format, self._notes = _detected(files, options)
        if "usual_missing" not in self._format.given:  # "None" and "NA" may be answers.
            answers = {name for name, kind in options.columns.items() if kind in (REQUIRED_TEXT, OPTIONAL_TEXT)}
            self._format = replace(self._format, answers=frozenset(answers))
        self._missing_texts: set[str] = set()
        self._missing_numbers, self._missing_codes = _numbers_and_codes(self._format)
        self._left_out: dict[str, int] = {}
        self._wrong_encodings: dict[str, str] = {}
        self._swallowing = ""
        is_open = self._format.header and "header" not in self._format.given
        self.names_advice = 'If the file has no header, set csv_format to {"header": false}' if is_open else ""

    def names(self, file: SourcePath) -> list[str]:
        """Return the names of the columns, without those at the end that have neither a name nor first values.

        The files of a store are opened side by side here, so that their encoding is checked, too.
        """
        names, label = csv_names(file, self._format), self._options.label_column
        if empty := self._empty_at_end(file, names):
            self._left_out[file.name] = empty
            names = names[:-empty]
        if not self._format.is_utf and (line := utf8_line(first_rows(file, self._format), self._format.encoding)):
            self._wrong_encodings[file.name] = f"{file.name}: {line}"
        if len(names) == 1 and label and names != [label]:
            if title := line_above_rows(first_rows(file, self._format), self._format):
                raise ValueError(f"its first line {title!r} {NO_HEADER}")
            raise ValueError(
                f"its header is one column {names[0]!r}: separate the columns by {self._format.separator!r}, or name "
                'their separator in csv_format, such as {"separator": " "} for any number of blanks'
            )
        return names

    def _empty_at_end(self, file: SourcePath, names: Sequence[str]) -> int:
        """Return how many columns at the end have neither a name nor a value in the first rows. The first one has."""
        unnamed = next((count for count in range(len(names) - 1) if names[-1 - count]), len(names) - 1)
        if unnamed:
            as_data = replace(self._format, header=False)
            for rows, _ in read_csv(whole_file(file), {}, ignore, as_data):
                columns = rows.columns[::-1][:unnamed]
                has_values = [column.null_count < len(column) for column in columns]
                return has_values.index(True) if any(has_values) else unnamed
        return unnamed

    def parts(self, file: SourcePath, most: int, run: RunTasks | None = None) -> list[FilePart]:
        """Return ranges of bytes of a file, which end with a row."""
        return csv_parts(file, most, self._format, run)

    def read(
        self, part: FilePart, types: Mapping[str, pa.DataType], reject: Reject, count_rows: CountRows = ignore_count
    ) -> Iterator[Rows]:
        """Yield the rows, see `read_csv`. Numbers in labels, groups and categories have a decimal point."""
        texts = [name for name, kind in types.items() if kind == _VALUES]
        types = {**types, **dict.fromkeys(texts, pa.string())}
        values = [name for name in texts if name != self._options.time_column]  # A time is no name of a value.
        for rows, numbers in read_csv(part, types, reject, self._format, self._advice(), count_rows, self._see):
            yield Rows(_with_points(self._without_missing(rows), values, self._format), numbers)

    def _without_missing(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows in which numbers that stand for missing ones are null, however they are written.

        Kept texts stay as they are written.
        """
        for position, values in enumerate(rows.columns if self._missing_numbers else ()):
            name = rows.schema.names[position]
            if pa.types.is_string(values.type) and self._options.columns.get(name) not in KEPT_TYPES:
                rows = rows.set_column(position, name, self._without_missing_numbers(values))
            are_integers = pa.types.is_integer(values.type)
            if not (are_integers or pa.types.is_floating(values.type)):
                continue
            for text, number in self._missing_numbers.items():
                if are_integers and not (number.is_integer() and abs(number) < MERGED_FROM[pa.float64()]):
                    continue
                are_missing = pc.fill_null(pc.equal(values, pa.scalar(number, pa.float64()).cast(values.type)), False)
                if are_missing.true_count:
                    self._missing_texts.add(text)
                    values = pc.if_else(are_missing, None, values)
                    rows = rows.set_column(position, name, values)
        return rows

    def _without_missing_numbers(self, texts: pa.StringArray) -> pa.StringArray:
        """Return texts with null in the place of numbers that stand for missing ones, however they are written."""
        coded = texts.dictionary_encode()
        numbers = numbers_of(with_decimal_points(coded.dictionary, self._format))
        for text, number in self._missing_numbers.items():
            are_missing = pc.fill_null(pc.equal(numbers, number), False)
            # Where the text is a code, such as "007", other spellings of its number are not.
            if are_missing.true_count and text not in self._missing_codes:
                self._missing_texts.add(text)
                texts = pc.if_else(pc.fill_null(are_missing.take(coded.indices), False), None, texts)
        return texts

    def _see(self, block: bytes, values: Sequence[tuple[int, int]], found: Collection[str]) -> None:
        """Note which texts for missing values occur, and a quoted value that may have taken rows.

        Args:
            block: Rows.
            values: Positions of the quotes around values of several lines.
            found: Texts for missing values that have blanks around them.
        """
        if not self._swallowing:
            self._swallowing = rows_in_quotes(block, self._format.separator, values)
        for text in {*self._format.missing} - self._missing_texts:
            separator = self._format.separator.encode()
            spelled = (value.encode() for value in (text, text.strip()))
            if text.strip() in found or any(
                value in block and _has_value(block, value, separator) for value in spelled
            ):
                self._missing_texts.add(text)

    def _advice(self) -> dict[str, str]:
        """Return what to do about texts in the columns of numbers that have not been guessed to be such."""
        options = self._options
        declared = "but columns declares numbers: correct it, leave it empty, or declare another kind"
        if options.inputs:
            declared = "but the column has numbers in the training data: correct it, or leave it empty"
        numbers = [name for name, kind in options.columns.items() if kind == "number"]
        # No parameter changes what the dataset in like keeps. Those of key columns are not known here.
        advice = dict.fromkeys([*(options.inputs if options.like else ()), *numbers], declared)
        if options.time_column:
            advice[options.time_column] = "but the column is the time_column and has numbers: correct it"
        if options.label_column:
            choice = ', or set task to "classification"' if not options.like else ""
            advice[options.label_column] = f"but numbers are predicted: correct it, leave the row out{choice}"
        return advice

    def choose(
        self,
        files: Sequence[SourcePath],
        inputs: Sequence[str],
        others: Sequence[str],
        codes: Mapping[str, str],
        task: Task,
    ) -> Chosen:
        """Choose by the first values how the columns are read."""

        def read_texts(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
            for file in files:
                texts = dict.fromkeys(names, pa.string())
                for rows, _ in read_rows(file.name, self.read(whole_file(file), texts, ignore)):
                    yield _with_points(rows, rows.schema.names, self._format)

        options = self._options
        guessed = [name for name in inputs if name not in options.columns and name not in codes]
        guessed += [options.time_column] * (options.time_column != "" and options.time_column not in inputs)
        found, forms, first = self._survey(guessed, read_texts, task)
        found |= dict.fromkeys(codes, "category")
        columns, types, read_types = [], {}, dict.fromkeys(others, _VALUES)
        for name in inputs:
            declared = options.columns.get(name)
            if declared:
                column = declared_column(name, declared)
                read_types[name] = pa.float64() if declared == "number" else pa.string()
            else:
                column = column_of(name, found[name], is_kept=task == "none")
                types_of_kinds = KEPT_CSV_TYPES if column.kind == "kept" else CSV_TYPES
                read_types[name] = types_of_kinds.get(found[name], pa.string())
            if column.kind == "category":
                read_types[name] = _VALUES
            if column.kind == "kept":
                types[name] = KEPT_TYPES[declared] if declared else kept_type_of_texts(found[name])
            columns.append(forms.dated(column))
        time = options.time_column
        if time and (found.get(time) in CSV_TYPES or options.columns.get(time) == "number"):
            are_integers = all(numbers_are_integers(rows[time]) for rows in read_texts([time]))
            read_types[time] = pa.int64() if are_integers else pa.float64()
        if task == "regression":
            read_types[options.label_column] = pa.float64()
        dates = [name for name in guessed if name in inputs and found[name] == "date" and task != "none"]
        wrong = [self._wrong_encodings[file.name] for file in files if file.name in self._wrong_encodings]
        notes = [*self._notes, *bounded(wrong), *lines_about_codes(codes), *forms.lines(dates, self._format.missing)]
        numbers = [name for name in guessed if found.get(name) == "number"]
        if task == "regression":
            first |= first_texts([options.label_column], read_texts)
            numbers.append(options.label_column)
        shown = {name: first[name] for name in numbers if name in first}
        notes += lines_about_thousands(shown, may_be_all=self._format.separator == ";")
        words = {name: first[name] for name in guessed if found[name] == "category" and name in inputs}
        notes += lines_about_words(words if task != "none" else {})
        times = time_type([read_types[time]] if time else [])
        return Chosen(tuple(columns), types, read_types, notes, times, forms.form(time), self._format.decimal)

    def _survey(
        self, guessed: Sequence[str], read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]], task: Task
    ) -> tuple[dict[str, TextKind], DateForms, dict[str, pa.StringArray]]:
        """Return what columns of texts are by their first values, the forms of dates, and these values."""
        needed = open_dates(self._options)
        first = first_texts([*dict.fromkeys([*guessed, *needed])], read)
        found: dict[str, TextKind] = {name: kind_of_texts(first.get(name)) for name in guessed}
        can_be_dates = {name: first[name] for name, kind in found.items() if kind == "category"}
        if task == "none":  # Kept texts of another form stay as they are written.
            can_be_dates = {name: texts for name, texts in can_be_dates.items() if are_dates(texts)}
        texts = can_be_dates | {name: first[name] for name in needed if name in first}
        texts = {name: pc.replace_substring(values, POINT_OF_TEXT, ".") for name, values in texts.items()}
        forms = find_forms(self._options, texts, read)
        return found | {name: "date" for name in can_be_dates if name in forms.forms}, forms, first

    def late_notes(self, names: Mapping[str, Sequence[str]], first: str) -> list[str]:
        """Return lines about columns without a name, and about a value that may have taken rows."""
        lines = [
            f"{name}: left out {count} column{'s' * (count > 1)} at the end of the rows without a name"
            for name, count in sorted(self._left_out.items())[:1]
        ]
        if self._swallowing:
            lines.append(
                f"a quoted value has lines that look like rows, and begins with {self._swallowing!r}: if its quote is "
                "not closed there, these rows are lost. Close it, or write quotes that are text twice, within quotes"
            )
        return lines

    @property
    def unused_texts(self) -> list[str]:
        """The texts for missing values that no value is."""
        return [text for text in self._format.missing if text not in self._missing_texts]

    def take_late(self) -> tuple[set[str], str]:
        """Return the texts for missing values that occur and a value that may have taken rows, and forget them."""
        found = self._missing_texts, self._swallowing
        self._missing_texts, self._swallowing = set(), ""
        return found

    def add_late(self, found: tuple[set[str], str]) -> None:
        """Add what `take_late` has returned."""
        self._missing_texts |= found[0]
        self._swallowing = self._swallowing or found[1]

    def expected_bytes(self, file: SourcePath) -> int:
        """Return the approximate size of a file's rows in the shards."""
        return file.stat().st_size  # Most numbers take 4 characters or more, and 4 bytes in the shards.


def _has_value(block: bytes, value: bytes, separator: bytes) -> bool:
    """Return whether rows have a value, also within quotes."""
    rows = b"\n%b\n" % block
    begins = [before + quote + value + quote for before in (separator, b"\n") for quote in (b"", b'"')]
    # Most texts that are no value are not found in this way, so that the others need not be searched for.
    found = [begin for begin in begins if begin in rows]
    return any(begin + after in rows for begin in found for after in (separator, b"\n", b"\r\n"))


def _detected(files: Sequence[SourcePath], options: Options) -> tuple[CsvFormat, list[str]]:
    """Return how the files are written, by the first one with rows, and lines for the log.

    If no file has rows below a header, the last one that is not empty tells it.
    """
    given = options.csv_format
    result: tuple[CsvFormat, list[str]] = given, []
    for file in files:
        with read_errors(file.name):
            start = first_rows(file, given)
            if not start:
                continue
            may_be_blanks = ending(file) in (".data", ".txt")
            found, lines = detect_format(start, given, may_be_blanks=may_be_blanks, decimal=options.decimal)
            # The columns of the first source or of a model are known by their names.
            for rows, _ in read_csv(whole_file(file), {}, ignore, replace(found, header=False)):
                rows = _with_points(rows, rows.schema.names, found, point=".")
                if not given.header:
                    check_no_header(rows)
                elif "header" not in given.given and not options.inputs:
                    lines += check_header(rows)
                break
            result = found, [f"{file.name}: {line}" for line in lines]
            if not given.header or b"\n" in start.strip():
                break
    return result


def _numbers_and_codes(csv_format: CsvFormat) -> tuple[dict[str, float], set[str]]:
    """Return the texts for missing values that are numbers, with the numbers, and which of them are codes."""
    texts = with_decimal_points(pa.array([text.strip() for text in csv_format.missing], pa.string()), csv_format)
    are_numbers = pc.match_substring_regex(texts, rf"^{FINITE}$").to_pylist()
    numbers = {
        text: float(plain)
        for text, plain, is_number in zip(csv_format.missing, texts.to_pylist(), are_numbers, strict=True)
        if is_number
    }
    return numbers, {*compress(csv_format.missing, numbers_of(texts).is_null().to_pylist())} & numbers.keys()


def _with_points(
    rows: pa.RecordBatch, names: Sequence[str], csv_format: CsvFormat, point: str = POINT_OF_TEXT
) -> pa.RecordBatch:
    """Return rows in which the numbers of some columns of texts have a decimal point.

    Args:
        rows: The rows.
        names: The columns.
        csv_format: How the file is written.
        point: What becomes of the points that are there where decimals have commas. Their numbers are 1.234 for 1234,
            or an error. Default: they are no numbers.
    """
    for name in names if csv_format.decimal != "." else ():
        position = rows.schema.names.index(name)
        texts = pc.replace_substring_regex(rows[name], _DECIMAL_POINT, rf"\1{point}\2")
        texts = pc.replace_substring_regex(texts, _DECIMAL_COMMA, r"\1.\2")
        rows = rows.set_column(position, name, texts)
    return rows
