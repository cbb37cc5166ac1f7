"""Order statistics of numbers that do not fit into memory."""

import numpy as np
import pytest

from kfp_distributed.components.prepare_data.split import order_statistics as module
from kfp_distributed.components.prepare_data.split.order_statistics import (
    as_ordered,
    from_ordered,
    medians,
    order_statistics,
)


@pytest.mark.parametrize("most", [1, 50, 10**6])
def test_the_numbers_at_all_places_are_found(monkeypatch, most):
    monkeypatch.setattr(module, "KEPT_NUMBERS", most)
    generator = np.random.default_rng(0)
    numbers = {
        "far": np.array([-(2**63), 2**63 - 1, 0, 0, 5], np.int64),
        "near": generator.integers(0, 9, 1000),
        "wide": generator.integers(-(2**62), 2**62, 777),
        "equal": np.full(50, 7),
        "none": np.empty(0, np.int64),
    }

    def map_numbers(function):
        for begin in range(0, 1000, 100):
            yield function({name: values[begin : begin + 100] for name, values in numbers.items()})

    def ranks(count):
        return [*range(0, count, max(1, count // 5)), count - 1]

    assert order_statistics(map_numbers, ranks) == {
        name: np.sort(values)[ranks(len(values))].tolist() if len(values) else [] for name, values in numbers.items()
    }


@pytest.mark.parametrize("count", [1, 2, 999, 1000])
def test_medians_are_those_of_numpy(count):
    generator = np.random.default_rng(1)
    values = generator.normal(size=count).astype(np.float32)
    values[0] = -0.0
    found = medians(lambda function: [function({"x": as_ordered(values)})])
    assert found == {"x": pytest.approx(float(np.median(values.astype(float))))}


def test_the_order_of_integers_is_that_of_the_numbers():
    numbers = np.array([-3e38, -1.5, -1e-45, 0.0, 1e-45, 1.0, 3e38], np.float32)
    assert np.all(np.diff(as_ordered(numbers)) > 0)
    assert [from_ordered(int(number)) for number in as_ordered(numbers)] == numbers.tolist()
