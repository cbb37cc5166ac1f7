"""Options, the order of classes, and the plan of the split."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kfp_distributed.components.prepare_data.preparation_options import Options, parse_options
from kfp_distributed.components.prepare_data.scan.label_counts import order_classes
from kfp_distributed.components.prepare_data.split.plan import plan_split

PARAMETERS = {
    "label_column": "kind",
    "validation_fraction": 0.2,
    "test_fraction": 0,
    "shards": 4,
    "seed": 7,
    "image_size": "28x30",
    "drop_columns": ["id"],
}


def test_parameters_become_options():
    assert parse_options(**PARAMETERS) == Options("kind", 0.2, 0.0, 4, 7, (28, 30), ("id",))


@pytest.mark.parametrize(
    ("name", "value", "same"),
    [
        ("shards", 8.0, 8),
        ("shards", "8", 8),
        ("shards", "8.0", 8),
        ("image_size", "", None),
    ],
)
def test_numbers_in_the_forms_of_kfp_are_accepted(name, value, same):
    assert getattr(parse_options(**PARAMETERS | {name: value}), name) == same


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("test_fraction", 0.8, "0.2 and test_fraction 0.8: their sum must be below 1"),
        ("shards", 2.5, "shards is 2.5: it must be a whole number from 1 to 512"),
        ("shards", 0, "shards is 0"),
        ("shards", True, "shards is True"),
        ("shards", "1e999", "shards is '1e999'"),
        ("shards", 513, "shards is 513"),
        ("drop_columns", ["id", "kind"], "drop_columns has 'kind', which is the label_column"),
        ("image_size", "28", "image_size is '28'"),
        ("image_size", "0x4", "image_size is '0x4'"),
    ],
)
def test_an_invalid_parameter_is_named(name, value, message):
    with pytest.raises(ValueError, match=message):
        parse_options(**PARAMETERS | {name: value})


@pytest.mark.parametrize(
    ("counts", "classes"),
    [
        ({"b": 2, "a": 3}, ("a", "b")),
        ({"10": 2, "9": 2, "-1": 2}, ("-1", "9", "10")),
        ({"007": 2, "7": 2}, ("007", "7")),
        ({"true": 2, "false": 2}, ("false", "true")),
        ({"1.5": 2, "x": 2}, ("1.5", "x")),
    ],
)
def test_classes_are_in_order(counts, classes):
    assert order_classes(counts, "kind") == classes


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"a": 5}, r"label_column 'kind' has the classes \['a'\]: two or more are needed"),
        ({}, r"has the classes \[\]"),
        (
            {"a": 5, "b": 1, "c": 1},
            r"label_column 'kind': 'b' has one row only \(classes of one row: 2\): add rows, or set rare_classes to",
        ),
        (
            {"1": 5, "2": 4, "4": 1, "17": 1},
            r"'kind' has 4 different numbers, 2 of them in one row only \(such as 4\): .* set task to .*add rows",
        ),
    ],
)
def test_unusable_labels_are_refused(counts, message):
    with pytest.raises(ValueError, match=message):
        order_classes(counts, "kind")


def table_of(plan):
    """The rows of each stratum in each file."""
    return [plan[stratum].tolist() for stratum in range(len(plan))]


def test_a_plan():
    options = Options(validation_fraction=0.2, test_fraction=0.1, shards=3)
    assert table_of(plan_split([10, 25, 5], options)) == [[3, 2, 2, 2, 1], [6, 6, 6, 5, 2], [1, 1, 1, 1, 1]]
    # Each class keeps a row for training.
    plan = plan_split([2, 2, 36], Options(validation_fraction=0.5, shards=1, test_fraction=0.4))
    assert table_of(plan) == [[1, 1, 0], [1, 1, 0], [3, 18, 15]]


def held_out(counts, options):
    """Return the rows of each class for validation and for the test, [classes, 2]."""
    return plan_split(counts, options).held_out


@pytest.mark.parametrize(("classes", "rows"), [(200, 2), (500, 2), (500, 3), (1000, 5)])
def test_small_classes_are_shared_by_all_splits(classes, rows):
    parts = held_out([rows] * classes, Options())
    assert parts.sum(axis=0).tolist() == [classes * rows // 10] * 2
    assert parts.max() == 1
    assert parts.sum(axis=1).max() == 1, "no class loses a row to both while others lose none"


@given(
    counts=st.lists(st.integers(2, 60), min_size=2, max_size=40),
    validation=st.floats(0.01, 0.6) | st.just(0),
    test=st.floats(0.01, 0.39) | st.just(0),
    shards=st.integers(1, 5),
)
def test_a_plan_has_every_row_once_and_equal_shares(counts, validation, test, shards):
    fractions, rows = (validation, test), sum(counts)
    assume(all(not fraction or fraction * rows >= 2 for fraction in fractions))
    assume(rows * (1 - validation - test) >= shards + 2)
    # Where classes cannot give what a split should get because each keeps one row, the totals are smaller.
    assume(all(count * (1 - validation - test) >= 1 for count in counts))
    planned = plan_split(counts, Options(validation_fraction=validation, test_fraction=test, shards=shards))
    plan = np.array(table_of(planned))
    assert planned.rows_of_files().tolist() == plan.sum(axis=0).tolist()
    assert plan.sum(axis=1).tolist() == counts
    train = plan[:, :shards]
    assert train.sum(axis=1).min() > 0
    assert np.ptp(train.sum(axis=0)) <= 1
    splits = np.column_stack([train.sum(axis=1), plan[:, shards:]])
    exact = np.outer(counts, [1 - validation - test, validation, test])
    assert np.abs(splits - exact).max() < 1 + 1e-9, "each split has its fraction of each class within one row"
    assert np.abs(splits.sum(axis=0) - exact.sum(axis=0)).max() < 2, "rounding errors do not add up"


@pytest.mark.parametrize(
    ("counts", "options", "message"),
    [
        ([2, 2], Options(), r"validation_fraction 0.1 of 4 rows"),
        ([20, 20], Options(test_fraction=0.01), r"test_fraction 0.01 of 40 rows is less than one row"),
        ([4, 4], Options(validation_fraction=0.25, test_fraction=0), "shards is 8, but only 6 rows are for training"),
    ],
)
def test_an_impossible_plan_is_refused(counts, options, message):
    with pytest.raises(ValueError, match=message):
        plan_split(counts, options)
