"""Numbers of several powers of ten, whose logarithms the built-in trainers scale."""

import json
from dataclasses import replace

import numpy as np
import pytest

from kfp_distributed.components.prepare_data.report.log_scale import with_log_scales
from kfp_distributed.components.summaries.moments import Moments
from kfp_distributed.storage.dataset import Column, log_values, read_batches

RANDOM = np.random.default_rng(0)
AMOUNTS = np.exp(RANDOM.normal(0, 2.5, 2000))
COLUMN = Column("amount", "number", "float32")


def scaled(numbers, column=COLUMN, others=(), missing=0.0):
    """Scale a column by a sample and other numbers, which the sample does not have."""
    moments, values = Moments(), np.array(numbers, np.float32)[:, np.newaxis]
    moments.add(np.concatenate([values, np.array(others, np.float32)[:, np.newaxis]]))
    (found,) = with_log_scales([column], {"amount": values}, {"amount": moments}, {"amount": missing})
    return found


@pytest.mark.parametrize(
    "numbers",
    [
        AMOUNTS,
        -AMOUNTS * 1e-30,
        AMOUNTS * RANDOM.choice([-1, 1], 2000),
        [*AMOUNTS, np.nan, 0],
    ],
    ids=["positive", "negative and small", "both signs", "gaps"],
)
def test_numbers_of_several_powers_of_ten_get_a_unit(numbers):
    column, known = scaled(numbers), np.array(numbers, np.float32)
    logarithms = log_values(known[~np.isnan(known)], column.log_unit)
    assert np.isfinite(logarithms).all()
    assert (column.log_mean, column.log_std) == (pytest.approx(logarithms.mean()), pytest.approx(logarithms.std()))
    quartiles = np.percentile(logarithms, [25, 75])
    assert quartiles[1] - quartiles[0] > column.log_std / 3


@pytest.mark.parametrize(
    ("numbers", "column"),
    [
        (RANDOM.normal(50, 10, 2000), COLUMN),
        (RANDOM.exponential(3, 2000), COLUMN),
        (RANDOM.random(2000) < 0.01, COLUMN),
        ([7] * 2000, COLUMN),
        ([np.nan] * 2000, COLUMN),
        (AMOUNTS[:29], COLUMN),
        (AMOUNTS, replace(COLUMN, source_type="date")),
        (AMOUNTS, Column("amount", "tensor", "float32", (1,))),
    ],
    ids=["normal", "exponential", "rare", "equal", "missing", "few", "dates", "tensor"],
)
def test_other_numbers_have_none(numbers, column):
    assert scaled(numbers, column) == column


@pytest.mark.parametrize(
    ("numbers", "far"),
    [
        (RANDOM.normal(290, 3, 1000), 1e30),
        (RANDOM.normal(52.5, 0.05, 1000), 99999),
        (1.6e6 + RANDOM.integers(0, 3, 1000), 1e12),
        (RANDOM.integers(1990, 2021, 1000), 1e6),
    ],
)
def test_numbers_that_are_close_to_each_other_have_none_whether_or_not_the_sample_has_one_that_is_far(numbers, far):
    assert scaled([*numbers, far]) == COLUMN
    assert scaled(numbers, others=[far]) == COLUMN


def test_numbers_that_stand_for_missing_ones_do_not_count():
    numbers, column = RANDOM.integers(0, 100, 200).astype(float), replace(COLUMN, fill=50.0)
    numbers[:96] = 50
    assert scaled(numbers, column, missing=0.48) == column
    assert scaled([*AMOUNTS, *[1.0] * 1000], replace(COLUMN, fill=1.0), missing=1 / 3).log_unit


def test_the_manifest_has_the_unit_and_like_keeps_it(file, run, tmp_path, capsys):
    rows = "".join(f"{amount!r},{index % 90},{'ab'[index % 2]}\n" for index, amount in enumerate(AMOUNTS.tolist()))
    source = file("data.csv", "amount,age,label\n" + rows)
    train = run(source)["train"]
    assert [column.log_unit is None for column in train.columns] == [False, True]
    (inputs, _), *_ = read_batches(tmp_path / "out" / "train", train)
    assert inputs[:, 0].min() > 0, "the shards have the numbers themselves"
    line = "column 'amount' has numbers of several powers of ten: the built-in trainers scale their logarithms"
    assert capsys.readouterr().out.count(line) == 1
    few = file("few.csv", "amount,age,label\n1,2,a\n2,3,b\n")
    options = {"like": train, "validation_fraction": 0, "test_fraction": 1}
    assert run(few, "like", **options)["test"].columns == train.columns
    assert json.loads((tmp_path / "like" / "test" / "dataset.json").read_text())["columns"][0]["log_unit"] > 0
    kept = run(source, "kept", task="none", label_column="")["train"]
    assert {column.log_unit for column in kept.columns} == {None}
