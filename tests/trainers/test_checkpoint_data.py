"""The data of a checkpoint beside those of a training, as plain values."""

from dataclasses import replace

import pytest

from kfp_distributed.storage.dataset import Column, DatasetManifest, Label
from kfp_distributed.trainers.architecture import end_if_other_data, record_data

AGE = Column("age", "number", "float32", mean=2.5, std=1.5)
SERIES = Column("series", "tensor", "float32", (2,), mean=(1.0, 2.0), std=(3.0, 3.0))


def data(*columns):
    return record_data(DatasetManifest("train", columns, Label("kind", ("a", "b")), (), (0, 0), 0, "x"))


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ((AGE, replace(SERIES, mean=(1.0 + 1e-9, 2.0))), ""),
        ((replace(AGE, mean=7.0), SERIES), "age (mean 2.5, now 7; std 1.5, now 1.5)"),
        ((AGE, replace(SERIES, mean=(1.0, 5.0))), "series (mean 1 to 2, now 1 to 5; std 3, now 3)"),
        # A checkpoint of version 0.1 has one mean for all elements.
        ((AGE, replace(SERIES, mean=1.5, std=3.0)), "series (mean 1 to 2, now 1.5; std 3, now 3)"),
    ],
)
def test_other_statistics_are_named(columns, named):
    line = end_if_other_data(data(AGE, SERIES), data(*columns))
    assert line.partition("new values: ")[2] == named
