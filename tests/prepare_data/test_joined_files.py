"""CSV files that were joined: a header between the rows is a wrong row, whatever the columns are."""

import re

import pytest

from kfp_distributed.components.prepare_data.csv_format import parse_csv_format

AGAIN = "has the names of the columns again: remove the row"
OPTIONS = {"validation_fraction": 0, "test_fraction": 0, "shards": 1}
COLUMNS = {"c": "category", "t": "text"}
SOME, MANY = 40, 4000


def table(header, again=None, before=MANY, cells="{a},{b}"):
    """A table of `before` rows, a header again, and more rows."""
    rows = [cells.format(a="xyz"[i % 3], b="ab"[i % 2], i=i, d=f"2024-01-{i % 28 + 1:02}") for i in range(MANY + SOME)]
    return "\n".join([header, *rows[:before], *([again] if again else []), *rows[before:]]) + "\n"


@pytest.mark.parametrize(
    ("header", "again", "cells"),
    [
        ("c,label", "c,label", "{a},{b}"),
        ("c,label", '"c","label"', "{a},{b}"),
        ("c,label", "\ufeffc,label", "{a},{b}"),
        ("c,label", " c, label ", "{a},{b}"),
        ("c,label", "C,LABEL", "{a},{b}"),
        ("c,label", "\ufeff C,Label", "{a},{b}"),
        ("c,a.b (c),label", "C,A.B (C),Label", "{a},{a},{b}"),
        ("c,x,label", "c,x,label", "{a},{i},{b}"),
        ("c,2018,label", "c,2018,label", "{a},{i}.5,{b}"),
        ("c,NA,label", "c,NA,label", "{a},,{b}"),
        ("c,day,label", "c,day,label", "{a},{d},{b}"),
        ("t,label", "t,label", "{a} {i},{b}"),
    ],
    ids=["texts", "quotes", "mark", "blanks", "case", "all", "signs", "number", "a year", "missing", "date", "kept"],
)
@pytest.mark.usefixtures("small")
def test_a_header_behind_the_first_rows_is_a_wrong_row(file, run, header, again, cells):
    """Where all columns are texts, it was a row of data."""
    names = header.split(",")
    options = {"columns": {name: kind for name, kind in COLUMNS.items() if name in names}, **OPTIONS}
    source = file("data.csv", table(header, again, cells=cells))
    with pytest.raises(ValueError, match=re.escape(f"row {MANY + 2} of data.csv {AGAIN}")):
        run(source, **options)
    train = run(source, on_bad_row="skip", **options)["train"]
    assert (train.rows, train.label.classes) == (MANY + SOME, ("a", "b"))


@pytest.mark.parametrize("before", [SOME, MANY])
def test_a_header_in_the_first_rows_is_a_wrong_row_where_the_file_has_one(file, run, before):
    options = {"csv_format": parse_csv_format({"header": True}), **OPTIONS}
    with pytest.raises(ValueError, match=re.escape(f"row {before + 2} of data.csv {AGAIN}")):
        run(file("data.csv", table("c,label", "c,label", before)), **options)


@pytest.mark.usefixtures("small")
def test_the_files_of_splits_and_like_have_the_same_rule(file, run):
    main, joined = file("main.csv", table("c,label")), file("new.csv", table("c,label", "c,label"))
    train = run(main, **OPTIONS)["train"]
    for options in ({"source": main, "sources": {"test": str(joined)}}, {"source": joined, "like": train}):
        with pytest.raises(ValueError, match=re.escape(f"row {MANY + 2} of new.csv {AGAIN}")):
            run(**{"name": "new", **OPTIONS, "validation_fraction": 0, **options})


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("c,label", "c,a"),
        ("a.b,label", "axb,label"),
        ("c,label", "x,label"),
        ("c,label", "c,"),
        ("word", "word"),
        ("u,v", "U,V"),
        ("x1_a,no", "X1_A,No"),
    ],
)
@pytest.mark.usefixtures("small")
def test_other_rows_with_a_name_are_data(file, run, header, row):
    options = {"task": "none", "label_column": "", **OPTIONS}
    text = table(header, row, cells="{a}{i},{b}" if "," in header else "{a}{i}")
    assert run(file("data.csv", text), **options)["train"].rows == MANY + SOME + 1


@pytest.mark.usefixtures("small")
def test_a_table_without_a_header_has_no_names_to_repeat(file, run):
    options = {"csv_format": parse_csv_format({"header": False}), "task": "none", "label_column": "", **OPTIONS}
    text = table("x0,a", "column_1,column_2", cells="{a}{i},{b}")
    assert run(file("data.csv", text), **options)["train"].rows == MANY + SOME + 2
