"""The order of the rows of a stream, as whole values."""

import json
import os
import subprocess
import sys
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from environments import environment, trainer_python
from forked_replicas import forked

from kfp_distributed.storage.dataset import Shard, ShardPart, whole_shard
from kfp_distributed.trainers.runtime.data_loading.epoch_steps import plan_epoch
from kfp_distributed.trainers.runtime.data_loading.row_order import (
    Block,
    Chapter,
    Fillers,
    OrderSeed,
    Window,
    blocks_of_part,
    chapters_of_epoch,
    rows_of_window,
    windows_of_epoch,
)


class InOrder(OrderSeed):
    """An order that keeps shards and row groups where they are."""

    def of_parts(self, count):
        return list(range(count))

    def of_groups(self, part, count):
        return list(range(count))


ORDERS = """
import json
from kfp_distributed.trainers.runtime.data_loading.row_order import OrderSeed
order = OrderSeed(7, 3)
print(json.dumps([order.of_parts(5), order.of_groups(2, 9), order.of_rows(4, 20_000).tolist()]))
"""


@pytest.mark.of_libraries
@pytest.mark.takes(10)
def test_the_order_is_the_same_with_each_numpy(library_archive):
    """NumPy may change the algorithm of its permutations, but not the numbers of a bit generator."""

    def order(purpose, number, count):
        numbers = np.random.PCG64((7, 3, purpose, number)).random_raw(count).tolist()
        return sorted(range(count), key=lambda row: (numbers[row] >> 32, row))

    expected = [order(0, 0, 5), order(1, 2, 9), order(2, 4, 20_000)]
    for python in (sys.executable, trainer_python("pytorch"), environment("torch2")):
        variables = {**os.environ, "PYTHONPATH": str(library_archive)}
        done = subprocess.run(
            forked(python, "-c", ORDERS), env=variables, capture_output=True, text=True, timeout=300, check=True
        )
        assert json.loads(done.stdout) == expected


def part(rows, counts=None, index=0):
    return ShardPart(Shard("a.parquet", rows, 1, ""), tuple(counts or (rows,)), index)


@pytest.mark.parametrize(("width", "rows"), [(64, 100_000), (784, 21_345), (10**8, 1)])
def test_a_window_has_at_most_64_mib_and_100000_rows(width, rows):
    assert rows_of_window(width) == rows
    assert rows * (width + 2) * 4 <= 2**26 or rows == 1


@pytest.mark.parametrize(
    ("rows", "chapters"),
    [
        # Windows grow to 80 rows.
        ([300], [Chapter((0,), 0, 0, (10, 20, 40, 76, 77, 77))]),
        ([10, 10, 10], [Chapter((0,), 0, 0, (10,)), Chapter((1, 2), 10, 1, (20,))]),
        ([3, 4], [Chapter((0, 1), 0, 0, (7,))]),
        ([], []),
    ],
    ids=["one shard", "small shards", "few rows", "no row"],
)
def test_chapters(rows, chapters):
    assert list(chapters_of_epoch(rows, 80, InOrder(0, 0))) == chapters


def test_a_late_chapter_has_windows_of_equal_sizes():
    found = list(chapters_of_epoch([70, 100, 200, 5], 80, InOrder(0, 0)))
    assert found == [
        Chapter((0,), 0, 0, (10, 20, 40)),
        Chapter((1,), 70, 3, (50, 50)),
        Chapter((2,), 170, 5, (66, 67, 67)),
        Chapter((3,), 370, 8, (5,)),
    ]


def test_blocks_of_a_whole_shard():
    assert blocks_of_part(3, whole_shard(part(10).shard), (4, 4, 2)) == [
        Block(3, 0, 0, 0, 4),
        Block(3, 1, 4, 4, 8),
        Block(3, 2, 8, 8, 10),
    ]


@pytest.mark.parametrize("counts", [(5, 5), (1, 9), (3, 3, 4), (9, 0, 1), (1, 1, 8)])
@pytest.mark.parametrize("groups", [(10,), (4, 4, 2), (1,) * 10, (1, 8, 1)])
def test_blocks_of_ranks_have_each_row_of_a_shared_shard_once(counts, groups):
    counts = [count for count in counts if count]
    edges = [0, *np.cumsum(groups).tolist()]
    seen = []
    for index in range(len(counts)):
        own = part(10, counts, index)
        blocks = blocks_of_part(0, own, groups)
        assert [block.start for block in blocks] == [0, *(block.stop for block in blocks)][:-1]
        for block in blocks:
            rows = own.row_numbers(block.start, block.stop)
            assert block.begin == edges[block.group] <= rows[0] <= rows[-1] < edges[block.group + 1]
            seen += rows.tolist()
    assert sorted(seen) == list(range(10))


def test_windows_end_at_row_groups():
    parts, groups = [part(70), part(100), part(9)], [(35, 35), (30, 30, 40), (9,)]
    asked = []

    def group_rows(indices):
        asked.append(tuple(indices))
        return [groups[index] for index in indices]

    windows = windows_of_epoch(parts, group_rows, 80, InOrder(0, 0))
    assert next(windows) == Window(0, (Block(0, 0, 0, 0, 35),), (0,), 0)
    assert asked == [(0,)], "the footers of later shards are read later"
    assert list(windows) == [
        # The second window would end in the first row group.
        Window(2, (Block(0, 1, 35, 35, 70),), (0,), 0),
        Window(3, (Block(1, 0, 0, 0, 30), Block(1, 1, 30, 30, 60)), (1,), 0),
        Window(4, (Block(1, 2, 60, 60, 100),), (1,), 0),
        Window(5, (Block(2, 0, 0, 0, 9),), (2,), 0),
    ]
    assert asked == [(0,), (1,), (2,)]


def random_parts(seed):
    random = np.random.default_rng(seed)
    parts, groups = [], []
    for _ in range(random.integers(1, 12)):
        sizes = random.integers(1, 30, random.integers(1, 9)).tolist()
        rows = sum(sizes)
        own = int(random.integers(1, rows + 1))
        parts.append(part(rows, [own, rows - own] if own < rows else [rows]))
        groups.append(tuple(sizes))
    return parts, groups


def rows_of_groups(groups, indices):
    return [groups[index] for index in indices]


@pytest.mark.takes(6)
@pytest.mark.parametrize("seed", range(8))
def test_an_epoch_has_each_row_once_and_resumes_everywhere(seed):
    parts, groups = random_parts(seed)
    asked = []

    def group_rows(indices):
        asked.extend(indices)
        return [groups[index] for index in indices]

    def rows(skipped=0):
        order = OrderSeed(seed, 3)
        found = []
        for window in windows_of_epoch(parts, group_rows, 40, order, skipped):
            own = [(block.part, row) for block in window.blocks for row in range(block.start, block.stop)]
            assert window.skipped < len(own)
            found += [own[number] for number in order.of_rows(window.number, len(own))[window.skipped :]]
        return found

    whole = rows()
    assert sorted(asked) == list(range(len(parts)))
    assert sorted(whole) == [(index, row) for index, one in enumerate(parts) for row in range(one.rows)]
    for skipped in range(len(whole) + 2):
        assert rows(skipped) == whole[skipped:]
    asked.clear()
    rows(len(whole) - 1)
    assert len(asked) < len(parts) or len(parts) < 3, "the footers of shards that are skipped are not read"


def test_no_window_is_larger_than_the_limit_and_a_row_group():
    for seed in range(20):
        parts, groups = random_parts(seed)
        windows = list(windows_of_epoch(parts, partial(rows_of_groups, groups), 40, OrderSeed(seed, 0)))
        assert max(window.rows for window in windows) < 40 + 30
        assert all(one.number < other.number for one, other in pairwise(windows))


def test_seeds_epochs_and_windows_have_their_own_orders():
    orders = [
        OrderSeed(seed, epoch).of_rows(window, 1000).tolist()
        for seed in (0, 1)
        for epoch in (0, 1)
        for window in (0, 1)
    ]
    assert len({str(order) for order in orders}) == 8
    assert OrderSeed(0, 0).of_parts(9) == OrderSeed(0, 0).of_parts(9) != OrderSeed(0, 1).of_parts(9)
    assert OrderSeed(0, 0).of_groups(0, 9) != OrderSeed(0, 0).of_groups(1, 9)


@pytest.mark.parametrize(
    ("rows", "batch_size", "ranks"), [(1000, 7, 3), (1300, 32, 3), (10, 3, 3), (97, 96, 1), (1, 1, 1)]
)
def test_a_batch_has_one_filler_at_most(rows, batch_size, ranks):
    plan = plan_epoch(rows, batch_size, ranks)
    for own in {rows // ranks, -(-rows // ranks)}:
        fillers = Fillers(own, plan.records)
        before = [fillers.before(record) for record in range(plan.records + 1)]
        assert before[0] == 0
        assert before[-1] == plan.records - own
        of_batches = np.diff(before[:: plan.batch])
        assert max(of_batches) <= 1
        # Rows in windows of any size, from any record on.
        for skipped in range(plan.records):
            row = skipped - before[skipped]
            counts = [len(fillers.between(begin, min(begin + 4, own), skipped)) for begin in range(row, own, 4)]
            if counts:
                assert sum(counts) == plan.records - own - before[skipped]
