"""Points in CSV files whose decimals are commas: they separate thousands or are text, and make no fraction."""

import re

import pytest

from kfp_distributed.components.prepare_data.columns.spelled_values import POINT_OF_TEXT, value_names
from kfp_distributed.components.prepare_data.csv_format import parse_csv_format
from kfp_distributed.storage.dataset import read_batches

COMMAS = parse_csv_format({"decimal": ","})
CLASSES = {"task": "classification", "csv_format": COMMAS, "shards": 1}
ALL_FOR_TRAINING = {"validation_fraction": 0, "test_fraction": 0}


@pytest.fixture
def german(file):
    """Write a table of decimal commas, with each value as a category and as a label."""

    def write(values, rows=20):
        lines = "".join(f"{i},5;{value};{value}\n" for i, value in enumerate(values * rows))
        return file("data.csv", "x;c;label\n" + lines)

    return write


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["1.000", "1", "2,50"], ["1", "1.000", "2.50"]),
        (["1.000", "2.000", "3.500"], ["1.000", "2.000", "3.500"]),
        (["3.10", "3.1"], ["3.1", "3.10"]),
        (["1.5e3", "x"], ["1.5e3", "x"]),
        (["1,0", "2,50", "1"], ["1", "2.5"]),
    ],
)
def test_a_point_makes_no_fraction_of_a_category_or_label(german, run, values, names):
    """A number of such a file is refused if it has a point, so 1.000 must not be the value 1."""
    options = {"columns": {"c": "category"}, **CLASSES, **ALL_FOR_TRAINING}
    train = run(german(values), **options)["train"]
    assert sorted(train.columns[1].vocabulary) == sorted(train.label.classes) == names
    again = run(german(values), "again", like=train, **CLASSES, validation_fraction=0, test_fraction=1)["test"]
    assert again.class_counts == train.class_counts
    assert sum(train.class_counts) == 20 * len(values)


def test_a_file_of_a_split_that_does_not_show_its_decimals_has_those_of_the_source(file, run):
    """1.333 would be a thousandth of what it is. A file with points in other places shows them."""
    main = file("main.csv", "x;label\n" + "37,1;a\n2,5;b\n" * 20)
    test = file("test.csv", "x;label\n1.333;a\n2.444;b\n")
    options = {"sources": {"test": str(test)}, "validation_fraction": 0}
    with pytest.raises(ValueError, match=r"row 2 of test\.csv: 'x' is '1\.333', which is no number"):
        run(main, **options)
    file("test.csv", "x;label\n1.5;a\n2.444;b\n")
    assert run(main, "points", **options)["test"].rows == 2


@pytest.mark.parametrize("name", ["test.txt", "test.data"])
def test_columns_that_blanks_separate_have_points_whatever_the_source_has(file, run, name):
    main = file("main.csv", "x;label\n" + "37,1;a\n2,5;b\n" * 20)
    test = file(name, "x label\n" + "0.5  a\n0.25 b\n" * 5)
    assert run(main, sources={"test": str(test)}, validation_fraction=0)["test"].rows == 10


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ("7;a\n2;b\n", "as in the source that comes first, because its first rows do not tell"),
        ("1,234;a\n2,345;b\n", "as in the source that comes first, because its first rows do not tell"),
        ("1,5;a\n2,5;b\n", "as its first rows show"),
    ],
    ids=["no_decimals", "maybe_thousands", "commas"],
)
def test_the_log_says_why_numbers_have_decimal_commas(file, run, capsys, rows, reason):
    main = file("main.csv", "x;label\n" + "37,1;a\n2,5;b\n" * 20)
    run(main, sources={"test": str(file("test.csv", f"x;label\n{rows}"))}, validation_fraction=0)
    assert f"test.csv: numbers have decimal commas, {reason}\n" in capsys.readouterr().out


def test_points_in_all_numbers_of_a_file_with_semicolons_are_named(file, run, capsys):
    run(file("data.csv", "x;label\n" + "".join(f"1.{100 + i};{'ab'[i % 2]}\n" for i in range(40))))
    assert "column 'x' has numbers such as 1.100, and all fractions have three digits" in capsys.readouterr().out
    run(file("data.csv", "x,label\n" + "".join(f"1.{100 + i},{'ab'[i % 2]}\n" for i in range(40))), "commas")
    assert "three digits" not in capsys.readouterr().out


def test_a_point_makes_no_fraction_of_a_group(german, run, tmp_path):
    """1.000 and 1,000 are two groups, and 1,000 and 1 are one."""
    source = german(["1.000", "1,000", "1"], 1)
    splits = set()
    for seed in range(8):
        manifests = run(
            source, f"out-{seed}", group_column="c", task="none", label_column="", csv_format=COMMAS, seed=seed,
            shards=1, drop_columns=("label",), validation_fraction=0, test_fraction=0.4,
        )  # fmt: skip
        splits.add((manifests["train"].rows, manifests["test"].rows))
    assert splits <= {(2, 1), (1, 2)}


@pytest.mark.parametrize("use", ["c", "label"])
def test_a_value_with_a_comma_and_with_a_point_is_refused(german, run, use):
    """Their names would be equal, and nothing tells whether the point separates thousands."""
    options = {"columns": {"c": "category" if use == "c" else "text"}, **CLASSES}
    with pytest.raises(ValueError, match=f"column '{use}' has 1,5 and 1.5, but the decimals are commas, .* in one way"):
        run(german(["1,5", "1.5", "x"]), **options)


@pytest.mark.parametrize(
    ("known", "name"), [(["1.000", "2"], "1.000"), (["1", "2"], "1.000"), (["1000", "2"], "1.000")]
)
def test_the_name_of_a_text_with_a_point_is_the_text(known, name):
    text = f"1{POINT_OF_TEXT}000"
    assert value_names([text], known) == {text: name}


def test_a_file_with_points_has_no_fewer_digits(file, run, tmp_path):
    """The same texts with decimal points: 1.000 is 1, as before."""
    rows = "".join(f"{i};{('1.000', '1', '2.50')[i % 3]};{'ab'[i % 2]}\n" for i in range(60))
    options = {"columns": {"c": "category"}, "csv_format": parse_csv_format({"separator": ";"}), "shards": 1}
    train = run(file("data.csv", "x;c;label\n" + rows), **options, **ALL_FOR_TRAINING)["train"]
    assert train.columns[1].vocabulary == ("1", "2.5")
    batches = [*read_batches(tmp_path / "out" / "train", train)]
    assert sum(len(labels) for _, labels in batches) == 60


@pytest.mark.parametrize(
    ("value", "advice"),
    [("1.5", "write it with a decimal comma, or without points if they separate thousands"), ("x1.5", "correct it")],
)
def test_a_wrong_number_with_a_point_has_advice(file, run, value, advice):
    rows = "".join(f"{i},5;{'ab'[i % 2]}\n" for i in range(20))
    with pytest.raises(ValueError, match=re.escape(f"'{value}', which is no number, but most of ")) as error:
        run(file("data.csv", f"x;label\n{rows}{value};a\n"))
    assert advice in str(error.value)
    assert ("decimal comma" in str(error.value)) == ("decimal comma" in advice)


def test_commas_beside_points_have_no_advice_that_breaks_the_points(file, run, capsys):
    """With decimal commas, the numbers of the other column would be none."""
    rows = "".join(f'{i}.5,"1,{25 + i % 2}",{"ab"[i % 2]}\n' for i in range(60))
    run(file("data.csv", "x,y,label\n" + rows))
    advice = 'csv_format to {"decimal": ","} if their commas are decimal ones and no number of the source has a decimal'
    assert advice in capsys.readouterr().out
