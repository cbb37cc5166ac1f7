"""The random sample of training rows."""

import numpy as np
import pyarrow as pa

from kfp_distributed.components.prepare_data.report.sample import Sampler
from kfp_distributed.storage.dataset import Column

COLUMNS = (Column("x", "number", "float32"), Column("image", "tensor", "uint8", (2, 2)))


def batch_of(numbers):
    images = np.repeat(np.asarray(numbers, np.uint8), 4)
    return pa.record_batch(
        {
            "kind": pa.array(np.asarray(numbers) % 3, pa.int32()),
            "x": pa.array(numbers, pa.float32()),
            "image": pa.FixedSizeListArray.from_arrays(pa.array(images), 4),
        }
    )


def drawn(rows, maximum, seed=0, cut=40):
    """A sample of the rows with even numbers, which are the training rows."""
    sampler = Sampler(COLUMNS, "kind", (rows + 1) // 2, np.random.default_rng(seed), maximum)
    for begin in range(0, rows, cut):
        numbers = np.arange(begin, min(begin + cut, rows), 2)
        drawn_numbers = sampler.numbers(begin // 2, begin // 2 + len(numbers))
        sampler.add([batch_of(numbers).take(pa.array(drawn_numbers))])
    return sampler.sample()


def test_a_small_dataset_is_drawn_completely():
    sample = drawn(100, 1000)
    assert (len(sample.labels), sample.total) == (50, 50)
    values = sample.columns(COLUMNS)
    numbers = values["x"][:, 0]
    assert sorted(numbers.tolist()) == list(range(0, 100, 2))
    assert numbers.tolist() != sorted(numbers.tolist())
    np.testing.assert_array_equal(sample.labels, numbers % 3)
    np.testing.assert_array_equal(values["image"], np.repeat(numbers[:, None], 4, axis=1))


def test_each_training_row_has_the_same_chance():
    seen = np.zeros(200)
    for seed in range(1000):
        sample = drawn(200, 25, seed)
        assert (len(sample.labels), sample.total) == (25, 100)
        seen[sample.features[:, 0].astype(int)] += 1
    assert not seen[1::2].any()
    # Binomial with n = 1000 and p = 1/4: five standard deviations.
    assert np.abs(seen[::2] - 250).max() < 5 * np.sqrt(1000 * 0.25 * 0.75)


def test_fewer_large_rows_are_drawn():
    column = Column("image", "tensor", "uint8", (1024, 1024))
    sampler = Sampler((column,), "kind", 10, np.random.default_rng(0))
    images = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(10 << 20, np.uint8)), 1 << 20)
    rows = pa.record_batch({"kind": pa.array([0] * 10, pa.int32()), "image": images})
    sampler.add([rows.take(pa.array(sampler.numbers(0, 10)))])
    # A drawn row has 4 MiB, and a sample up to 16 MiB.
    assert len(sampler.sample().labels) == 4
