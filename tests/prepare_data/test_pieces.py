"""Rows in random order on the disk."""

import numpy as np
import pyarrow as pa
import pytest

from kfp_distributed.components.prepare_data.pieces import piece_files as module
from kfp_distributed.components.prepare_data.pieces.piece_files import Pieces, order_by_key

ROWS = 5000


def sorted_batches(pieces, names=None):
    """The rows of each piece in the order of their keys."""
    files = pieces.files()
    read = (files.read(piece, names) for piece in files.numbers)
    return [rows.take(pa.array(order_by_key(keys))) for rows, keys in read]


def order_of(folder, expected_bytes, batch_rows, seed=0, names=None):
    pieces = Pieces(folder, expected_bytes, seed, piece_bytes=2**10)
    for begin in range(0, ROWS, batch_rows):
        numbers = pa.array(range(begin, min(begin + batch_rows, ROWS)), pa.int32())
        pieces.add(pa.record_batch({"key": numbers, "text": numbers.cast(pa.string())}))
    batches = sorted_batches(pieces, names)
    return len(batches), pa.Table.from_batches(batches).to_pydict()


@pytest.mark.parametrize(("expected_bytes", "batch_rows"), [(0, 5000), (2**12, 1000), (2**20, 77)])
def test_the_order_depends_neither_on_the_number_of_pieces_nor_on_the_batches(
    tmp_path, monkeypatch, expected_bytes, batch_rows
):
    monkeypatch.setattr(module, "WAITING_BYTES", 2**14)
    _, expected = order_of(tmp_path / "one", 0, ROWS)
    count, rows = order_of(tmp_path / "many", expected_bytes, batch_rows)
    # Of 1,024 pieces for 5,000 rows, some get no row.
    assert 0.95 * max(1, expected_bytes // 2**10) < count <= max(1, expected_bytes // 2**10)
    assert rows == expected
    assert sorted(rows["key"]) == list(range(ROWS))
    assert rows["text"] == [str(number) for number in rows["key"]]


def test_another_seed_gives_another_order(tmp_path):
    assert order_of(tmp_path / "a", 0, ROWS, seed=0) != order_of(tmp_path / "b", 0, ROWS, seed=1)


def test_some_columns_are_read_in_the_same_order(tmp_path):
    _, rows = order_of(tmp_path / "all", 2**12, ROWS)
    _, texts = order_of(tmp_path / "one", 2**12, ROWS, names=["text"])
    assert texts == {"text": rows["text"]}


def test_every_position_is_equally_likely(tmp_path):
    _, rows = order_of(tmp_path / "rows", 2**14, ROWS)
    # The mean distance of a row from its place in the source is a third of the rows for a random order.
    distance = np.abs(np.array(rows["key"]) - np.arange(ROWS)).mean()
    assert distance == pytest.approx(ROWS / 3, rel=0.05)
