"""How many rows were left out, and which columns have lost them."""

import json
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from kfp_distributed.components.prepare_data.pieces.piece_files import Pieces
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.scan.scan_tasks import TaskScanner
from kfp_distributed.components.prepare_data.scan.scanner import Scanner
from kfp_distributed.components.prepare_data.sources.read_rows import RejectedRows, rows_by_column
from kfp_distributed.components.prepare_data.tables.open_source import open_source
from kfp_distributed.components.worker_pool.piece_tasks import run_here
from kfp_distributed.storage import open_store


def test_the_column_with_the_most_rows_is_first():
    assert rows_by_column({"volume": 3, "day": 1200, "": 7}) == "'day': 1,200, whole rows: 7, 'volume': 3"
    text = rows_by_column({f"c{number:03}": 1 for number in range(100)})
    assert text.startswith("'c000': 1, 'c001': 1, ")
    assert text.endswith("'c009': 1, …")


def days_file(file, wrong=1, rows=1000):
    """A file in which all days are wrong, and so is the volume of the first rows."""
    lines = (f"{'none yet' if row < wrong else row},2024 Jan 1,{'ab'[row % 2]}\n" for row in range(rows))
    return file("data.csv", "volume,day,label\n" + "".join(lines))


@pytest.mark.parametrize("wrong", [1, 30])
def test_the_error_without_rows_names_the_column_that_lost_them(file, run, wrong):
    with pytest.raises(ValueError, match="no row is left") as error:
        run(days_file(file, wrong), time_column="day", on_bad_row="skip")
    assert f"left out 1,000 rows that cannot be used ('day': {1000 - wrong:,}, 'volume': {wrong}), such as row " in str(
        error.value
    )
    assert f"row {wrong + 2} of data.csv: 'day' is '2024 Jan 1', which is no date" in str(error.value)


def test_the_columns_are_counted_over_all_chunks(file, run, small):
    with pytest.raises(ValueError, match=r"'day': 1,900, 'volume': 100.*row 102 of data.csv: 'day' is"):
        run(days_file(file, 100, 2000), time_column="day", on_bad_row="skip")


def test_the_note_about_some_rows_names_their_columns(file, run, capsys):
    rows = "".join(f"{'?' if row < 3 else row},{'?' if row == 9 else row},{'ab'[row % 2]}\n" for row in range(90))
    run(file("data.csv", "x,y,label\n" + rows), on_bad_row="skip")
    log = capsys.readouterr().out
    assert "warning: left out 4 rows that cannot be used ('x': 3, 'y': 1), such as row 2 of data.csv: 'x' is '?'" in log


def test_dropped_rows_have_the_columns_of_their_gaps(file, run, capsys):
    rows = "".join(f"{'' if row < 3 else row},{'' if row < 2 else row},{'ab'[row % 2]}\n" for row in range(90))
    run(file("data.csv", "x,y,label\n" + rows), missing="drop")
    assert "left out 3 rows in which a value is missing ('x': 3, 'y': 2)" in capsys.readouterr().out
    rows = "".join(f"{row},,{'ab'[row % 2]}\n" for row in range(9))
    with pytest.raises(ValueError, match=r"no row is left; left out 9 rows in which a value is missing \('y': 9\)"):
        run(file("empty.csv", "x,y,label\n" + rows), missing="drop")


@pytest.fixture(params=["here", "by tasks"])
def scanner(request, tmp_path):
    """Create the scanner of a step without an engine, or of one with tasks: scanner(source, options)."""

    def create(source, options):
        if request.param == "here":
            return Scanner(source, Pieces(tmp_path / "pieces", 1, 0), options)
        scratch = str(tmp_path / "scratch")
        return TaskScanner(source, options, Mock(run=run_here, scratch=scratch, store=open_store(scratch)), "pieces/")

    return create


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("wrong", [{"x": 10}, {"label": 13}, {"y": 7}, {"x": 10, "label": 13}, {"y": 4, "label": 3}])
def test_the_rows_that_were_read_are_all_rows_of_the_source(file, scanner, tmp_path, capsys, ending, wrong):
    """A row is left out where it is read (x), where it is checked (label), or because it has a gap (y)."""
    rows = [{"x": "2024-01-31", "y": i * 0.5, "label": "ab"[i % 2]} for i in range(100)]
    names = [name for name, count in wrong.items() for _ in range(count)]
    for row, name in zip(rows, names, strict=False):
        row[name] = "soon" if name == "x" else None
    table = pa.Table.from_pylist(rows)
    source = file(f"data.{ending}", "".join(json.dumps(row) + "\n" for row in rows))
    if ending == "csv":
        pa.csv.write_csv(table, source)
    elif ending == "parquet":
        pq.write_table(table, source)
    options = Options(columns={"x": "date"}, on_bad_row="skip", missing="drop")
    opened, rejected = open_source(source, options, tmp_path), RejectedRows("skip")
    scanning = scanner(opened, options)
    scanning.add(opened, rejected)
    dropped = scanning.result(rejected).dropped
    assert "read 100 rows, all\n" in capsys.readouterr().out
    assert (rejected.count, dropped) == (len(names) - wrong.get("y", 0), wrong.get("y", 0))
    assert scanning.files().rows.sum() == 100 - len(names)
