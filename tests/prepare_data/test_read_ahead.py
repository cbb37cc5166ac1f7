"""Iterators that run in a thread."""

import threading

import pytest

from kfp_distributed.components.prepare_data.pieces.read_ahead import read_ahead


def test_items_come_in_order_and_errors_come_after_them():
    def items():
        yield from range(5)
        raise ValueError("the end")

    reader = read_ahead(items())
    assert [next(reader) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="the end"):
        next(reader)


def test_a_reader_that_is_closed_early_ends_its_thread_and_closes_the_iterator():
    closed, before = threading.Event(), threading.active_count()

    def items():
        try:
            yield from range(10**9)
        finally:
            closed.set()

    reader = read_ahead(items(), 3)
    assert next(reader) == 0
    reader.close()
    assert closed.is_set()
    assert threading.active_count() == before
