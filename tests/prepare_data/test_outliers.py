"""Numbers that alone decide the standard deviation."""

import numpy as np
import pytest

from kfp_distributed.components.prepare_data.report.outliers import find_outlier
from kfp_distributed.components.summaries.moments import Moments


def outlier_of(numbers):
    moments = Moments()
    moments.add(np.array(numbers, np.float64))
    return find_outlier(np.array(numbers, np.float64), moments)


NORMAL = np.random.default_rng(0).normal(50, 10, 1000)


@pytest.mark.parametrize("number", [1e30, -1e30, 1e7])
def test_a_number_far_from_the_others_is_found(number):
    found = outlier_of([*NORMAL, number, np.nan])
    assert found.number == number
    assert 40 < found.low < found.high < 60


@pytest.mark.parametrize(
    "numbers",
    [
        NORMAL,
        [*NORMAL, 1e5],
        NORMAL * 1e30,
        np.exp(NORMAL / 5),
        [0] * 999 + [1e9],
        [0] * 600 + [*range(400)],
        [1, 2, 3, 1000],
        [np.nan],
        [],
    ],
    ids=["normal", "far", "large", "logarithmic", "one is not 0", "many zeros", "a few", "missing", "none"],
)
def test_usual_numbers_have_no_outlier(numbers):
    assert outlier_of(numbers) is None


def test_an_outlier_among_many_equal_numbers():
    assert outlier_of([0] * 600 + [*range(400)] + [1e9]).number == 1e9


def table(number, row=5):
    return "x,label\n" + "".join(f"{i % 90},{number if i == row else i + 0.5}\n" for i in range(300))


def test_a_label_far_from_the_others_is_named(file, run, capsys):
    run(file("data.csv", table(1e30)), validation_fraction=0, test_fraction=0)
    log = capsys.readouterr().out
    assert "label_column 'label' of the train split has the number 1e+30, far from the others: most of them are" in log
    assert "a model learns little but this number. Correct it, leave the row out" in log


def test_a_label_of_another_split_that_decides_its_scores_is_named(file, run, capsys):
    run(file("data.csv", table(6.5)), sources={"test": str(file("test.csv", table(-1e30)))})
    log = capsys.readouterr().out
    assert "label_column 'label' of the test split has the number -1e+30" in log
    assert "The scores of this split (rmse, r2) are those of this number alone" in log
    assert "train split has the number" not in log


def test_an_input_far_from_the_others_is_named(file, run, capsys):
    rows = "".join(f"{1e12 if i == 7 else i % 90},{'ab'[i % 2]}\n" for i in range(300))
    run(file("data.csv", "x,label\n" + rows), validation_fraction=0, test_fraction=0)
    assert "column 'x' has the number 1e+12, far from the others: most of them are" in capsys.readouterr().out
