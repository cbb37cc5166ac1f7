"""Quotes of CSV files that are not closed, and take the rows up to a later quote."""

import pytest

from kfp_distributed.components.prepare_data.csv_format import Separation
from kfp_distributed.components.prepare_data.tables.csv_quotes import check_quotes, rows_in_quotes

ALL_FOR_TRAINING = {"validation_fraction": 0, "test_fraction": 0, "shards": 1}
LABELS = "ham,go now\nspam,free now\n" * 9
NAMES = "".join(f"word{i},meaning {i}\n" for i in range(9))
THREE = "".join(f"word{i},meaning {i},noun {i}\n" for i in range(9))
QUOTED = '"ham","go, now"\n"spam","free now"\n' * 9
NUMBERS = "".join(f"{i},one,two\n" for i in range(9))


def test_a_quoted_value_that_may_have_taken_rows_is_named(file, run, capsys):
    taken = 'ham\t"open\n' + "spam\ttext\n" * 12 + 'ham\tclosed"\n'
    options = {"columns": {"text": "text"}, "task": "classification", **ALL_FOR_TRAINING}
    run(file("data.tsv", "label\ttext\n" + taken + "ham\tx\nspam\ty\n" * 9), **options)
    assert "lines that look like rows, and begins with '\"open" in capsys.readouterr().out
    numbers = "".join(f"{i}\tone\ttwo\n" for i in range(9))
    three = 'x\ty\ttext\n1\ta\t"one\n%s\ttwo\tthree\nfour"\n'
    for first, is_named in (("7", True), ("seven", False)):
        run(
            file(f"{first}.tsv", three % first + numbers.replace("x", "y")),
            columns={"text": "text"},
            label_column="x",
            task="regression",
            **ALL_FOR_TRAINING,
        )
        assert ("look like rows" in capsys.readouterr().out) == is_named
    run(file("review.tsv", "label\ttext\n" + 'ham\t"one\ntwo,\nthree"\nspam\ty\n' * 9), **options)
    assert "look like rows" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("taken", "rows", "is_named"),
    [
        ('ham,"open\nspam,closed"\n', LABELS, True),
        ('ham,"open\nspam,x\nham,closed"\n', LABELS, True),
        ('ham,"open\nspam,x\nham,y\nham,closed"\n', LABELS, True),
        ('ham,"open\r\nspam,closed"\r\n', LABELS.replace("\n", "\r\n"), True),
        ('"ham","open\n"spam,closed"\n', QUOTED.replace('"spam"', "spam"), False),
        ('ham,"open\nspam,x\nspam,closed"\n', QUOTED, True),
        ('ham,"Dear Ann,\nthe rest"\n', LABELS, False),
        ('ham,"the rest\nDear Ann, bye"\n', LABELS, False),
        ('ham,"a\nb\nc\nd"\n', LABELS, False),
        ('wordx,"open\nwordy,closed"\n', NAMES, False),
        ('wordx,"open\nwordy,x\nwordz,closed"\n', NAMES, True),
        ('wordx,mean,"open\nwordy,x,closed"\n', THREE, True),
        ('wordx,"open,noun\nwordy,closed",noun\n', THREE, True),
        ('wordx,"an address\nin Ulm",noun\n', THREE, False),
        ('wordx,"an address\nin Ulm, Bern",noun\n', THREE, False),
        ('17,one,"open\n18,two,closed"\n', NUMBERS, True),
        ('17,one,"open\n18th,two,closed"\n', NUMBERS, False),
    ],
)
def test_a_value_of_few_rows_is_named_where_they_look_like_the_others(taken, rows, is_named):
    """One to three rows of texts were lost without a word."""
    data = (rows + taken).encode()
    try:
        values = check_quotes(data, Separation(), 1)
    except ValueError:
        assert not is_named
        return
    assert (rows_in_quotes(data, ",", values) != "") == is_named


@pytest.mark.parametrize("position", ["first", "later"])
@pytest.mark.usefixtures("small")
def test_the_line_about_taken_rows_is_in_the_log(file, run, capsys, position):
    rows = [LABELS * 400, 'ham,"open\nspam,closed"\n']
    source = file("data.csv", "label,text\n" + "".join(rows if position == "later" else rows[::-1]))
    run(source, columns={"text": "text"}, **ALL_FOR_TRAINING)
    assert capsys.readouterr().out.count("lines that look like rows, and begins with '\"open") == 1
