"""Options, the order of classes, and the plan of the split."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_distributed.components.prepare_data.plan import (
    Options,
    order_classes,
    parse_options,
    plan_split,
)

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
        ("seed", "0.0", 0),
        ("validation_fraction", "0.25", 0.25),
        ("test_fraction", "0", 0.0),
        ("image_size", "", None),
    ],
)
def test_numbers_in_the_forms_of_kfp_are_accepted(name, value, same):
    assert getattr(parse_options(**PARAMETERS | {name: value}), name) == same


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("validation_fraction", 1, "validation_fraction is 1: it must be a number from 0 to less than 1"),
        ("test_fraction", -0.1, "test_fraction is -0.1"),
        ("test_fraction", "a tenth", "test_fraction is 'a tenth'"),
        ("test_fraction", math.nan, "test_fraction is nan"),
        ("test_fraction", 0.8, "0.2 and test_fraction 0.8: their sum must be below 1"),
        ("shards", 2.5, "shards is 2.5: it must be a whole number from 1 to 512"),
        ("shards", 0, "shards is 0"),
        ("shards", True, "shards is True"),
        ("shards", "1e999", "shards is '1e999'"),
        ("shards", 513, "shards is 513"),
        ("seed", -1, "seed is -1"),
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
        (
            {"1": 1, "1.5": 5},
            r"'kind' has the value 1.5: it looks like a regression target, .* write texts or whole numbers",
        ),
        ({"1": 5, "inf": 5}, "has the value inf"),
        ({"a": 5}, r"label_column 'kind' has the classes \['a'\]: two or more are needed"),
        ({}, r"has the classes \[\]"),
        ({"a": 5, "b": 1, "c": 1}, r"label_column 'kind': 'b' has one row only \(classes of one row: 2\): add rows"),
        (
            {"1": 5, "2": 4, "4": 1, "17": 1},
            r"'kind' has 4 different numbers, 2 of them in one row only \(such as 4\): it looks like a regression "
            "target, .* group its values .*add rows",
        ),
    ],
)
def test_unusable_labels_are_refused(counts, message):
    with pytest.raises(ValueError, match=message):
        order_classes(counts, "kind")


def test_a_plan():
    options = Options(validation_fraction=0.2, test_fraction=0.1, shards=3)
    assert plan_split([10, 25, 5], options) == ((3, 2, 2, 2, 1), (5, 6, 6, 5, 3), (2, 1, 1, 1, 0))
    assert plan_split([2, 2, 36], Options(validation_fraction=0.5, shards=1, test_fraction=0.4))[:2] == ((1, 1, 0),) * 2


@given(
    counts=st.lists(st.integers(2, 60), min_size=2, max_size=12),
    validation=st.floats(0, 0.6),
    test=st.floats(0, 0.39),
    shards=st.integers(1, 5),
)
def test_a_plan_has_every_row_once_and_equal_shares(counts, validation, test, shards):
    options = Options(validation_fraction=validation, test_fraction=test, shards=shards)
    try:
        plan = plan_split(counts, options)
    except ValueError as error:
        if "is less than one row" in str(error) or "lower shards" in str(error):
            return
        raise
    assert [sum(rows) for rows in plan] == counts
    assert all(sum(rows[:shards]) > 0 for rows in plan)
    totals = [sum(column) for column in zip(*plan, strict=True)]
    assert max(totals[:shards]) - min(totals[:shards]) <= 1
    for target, fraction in ((-2, validation), (-1, test)):
        assert all(abs(rows[target] - fraction * sum(rows)) <= 1 or sum(rows[:shards]) == 1 for rows in plan)
        assert bool(totals[target]) == bool(fraction)


@pytest.mark.parametrize(
    ("counts", "options", "message"),
    [
        ([2, 2], Options(), r"validation_fraction 0.1 of 4 rows"),
        ([20, 20], Options(test_fraction=0.01), r"test_fraction 0.01 of 40 rows is less than one row"),
        ([4, 4], Options(), "shards is 8, but only 6 rows are for training"),
    ],
)
def test_an_impossible_plan_is_refused(counts, options, message):
    with pytest.raises(ValueError, match=message):
        plan_split(counts, options)
