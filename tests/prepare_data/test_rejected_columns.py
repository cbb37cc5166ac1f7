"""Which columns have lost the rows that were left out."""

import pytest

from kfp_distributed.components.prepare_data.sources.read_rows import rows_by_column


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
