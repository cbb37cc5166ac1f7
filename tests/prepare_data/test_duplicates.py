"""The count of rows that occur in several splits."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_distributed.components.prepare_data.report.duplicates import DuplicateCounter, Duplicates, row_hashes

SPLITS = ("train", "validation", "test")


def counted(rows, splits, maximum=2**17, parts=3):
    counter = DuplicateCounter(SPLITS, maximum)
    for part in np.array_split(np.arange(len(rows)), parts):
        counter.add(row_hashes([np.asarray(rows, np.float32)[part]]), np.asarray(splits)[part])
    return counter.duplicates()


def test_rows_in_several_splits_are_counted():
    rows = [[1, 2], [1, 2], [1, 2], [2, 1], [np.nan, 0], [np.nan, -0.0], [3, 3], [3, 3], [3, 3], [4, 4]]
    splits = [0, 0, 1, 0, 0, 2, 1, 2, 2, 2]
    assert counted(rows, splits) == [
        Duplicates("validation", "train", 1, 0.5),
        Duplicates("test", "train", 1, 0.25),
        Duplicates("test", "validation", 2, 0.5),
    ]


def test_splits_without_rows_are_left_out():
    assert counted([[1.0], [1.0], [2.0]], [0, 2, 2]) == [Duplicates("test", "train", 1, 0.5)]
    assert counted([[1.0]], [0]) == []


def test_with_many_rows_the_counts_are_estimated_from_a_bounded_number():
    generator = np.random.default_rng(0)
    train = generator.normal(size=(20_000, 2))
    test = np.concatenate([train[:2000], generator.normal(size=(8000, 2))])
    rows, splits = np.concatenate([train, test]), np.repeat([0, 2], [20_000, 10_000])
    counter = DuplicateCounter(SPLITS, maximum=4000)
    for part in np.array_split(generator.permutation(30_000), 10):
        counter.add(row_hashes([rows[part].astype(np.float32)]), splits[part])
        assert counter.kept <= 4000
    (result,) = counter.duplicates()
    assert not result.is_exact
    # About 3,500 kept rows, of which 7 % are duplicates: a standard deviation of 7 %.
    assert result.rows == pytest.approx(2000, rel=0.2)
    assert result.share == pytest.approx(0.2, rel=0.2)


def test_a_repeated_row_is_kept_once():
    assert counted(np.ones((1000, 3)), np.arange(1000) % 2, maximum=1) == [Duplicates("validation", "train", 500, 1.0)]


def test_all_nan_have_one_hash_and_so_have_both_zeros():
    negative_nan = np.array([0xFFC00000], np.uint32).view(np.float32)[0]
    hashes = row_hashes([np.array([[np.nan, 0.0], [negative_nan, -0.0], [0.0, np.nan]], np.float32)])
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize("width", [1, 2, 5])
def test_different_rows_have_different_hashes_of_random_bits(width):
    # Small whole numbers differ in few bits of a float32.
    rows = np.stack(np.meshgrid(*[np.arange(int(4000 ** (1 / width)))] * width), axis=-1).reshape(-1, width)
    hashes = row_hashes([rows.astype(np.float32)])
    np.testing.assert_array_equal(row_hashes([np.asfortranarray(rows, np.float32)]), hashes)
    assert len(np.unique(hashes)) == len(rows)
    # Binomial: five standard deviations of the share of rows whose bit is set.
    for bit in range(64):
        share = ((hashes >> np.uint64(bit)) & np.uint64(1)).mean()
        assert abs(share - 0.5) < 5 * 0.5 / np.sqrt(len(rows))


def test_large_numbers_cause_no_warnings(recwarn):
    row_hashes([np.full((3, 4), 3e38, np.float32)])
    assert list(recwarn) == []


@given(
    numbers=st.lists(st.integers(0, 30), min_size=1, max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    has_limit=st.booleans(),
    seed=st.integers(0, 5),
)
def test_parts_merged_in_any_order_give_the_counts_of_all_rows(numbers, cuts, has_limit, seed):
    generator = np.random.default_rng(seed)
    hashes, splits = row_hashes([np.array(numbers, np.float32)[:, None]]), generator.integers(0, 3, len(numbers))
    whole, merged = DuplicateCounter(SPLITS, maximum=7), DuplicateCounter(SPLITS, maximum=7)
    whole.add(hashes, splits)
    parts = np.split(np.arange(len(numbers)), sorted(cuts))
    for index in generator.permutation(len(parts)):
        part = DuplicateCounter(SPLITS, maximum=7)
        part.limit = merged.limit if has_limit else part.limit
        part.add(hashes[parts[index]], splits[parts[index]])
        merged.merge(pickle.loads(pickle.dumps(part)))
    assert (merged.duplicates(), merged.rows, merged.sum) == (whole.duplicates(), whole.rows, whole.sum)
    assert (merged.limit, merged.kept) == (whole.limit, whole.kept)
