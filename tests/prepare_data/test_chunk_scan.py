"""Chunks that are scanned by themselves and merged in order show what one pass over all rows shows."""

import pickle
from collections import Counter
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kfp_distributed.components.prepare_data.pieces.piece_files import Pieces, order_by_key
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.scan import chunk_scan
from kfp_distributed.components.prepare_data.scan.chunk_scan import scan_chunk
from kfp_distributed.components.prepare_data.scan.scanner import Merge, scan
from kfp_distributed.components.prepare_data.sources.read_rows import ReadAgain, RejectedRows
from kfp_distributed.components.prepare_data.tables import csv_files, json_files
from kfp_distributed.components.prepare_data.tables.open_source import open_source

pytestmark = pytest.mark.takes(40)

WHOLE = 2**40
FIRST, BLOCK = 40, 60
SIZES = (1, BLOCK, 4 * BLOCK)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Read blocks of some bytes, so that small files have many."""
    monkeypatch.setattr(csv_files, "FIRST_BLOCK_BYTES", FIRST)
    monkeypatch.setattr(csv_files, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(json_files, "BLOCK_BYTES", BLOCK)


class Kept:
    """Stands for the pieces, and keeps the rows in their order."""

    def __init__(self):
        self.rows, self.batches = 0, []

    def begin_chunk(self, number):
        pass

    def flush(self):
        pass

    def add(self, batch):
        self.rows += batch.num_rows
        self.batches.append(batch)


def plain(scanned):
    return {
        **scanned._asdict(),
        "codes": {name: codes.tolist() for name, codes in scanned.codes.items()},
    }


def outcome(path, tmp_path, options, size):
    """What a pass in chunks of a size ends with: what it found and its rows, or its error."""
    source = open_source(path, options, tmp_path)
    rejected, pieces = RejectedRows(options.on_bad_row), Kept()
    try:
        found = scan(source, pieces, rejected, options, size)
    except (ValueError, ReadAgain) as error:
        return repr(error), None, None
    return plain(found), [row for batch in pieces.batches for row in batch.to_pylist()], rejected


def apart(path, tmp_path, options, size):
    """What chunks show that are scanned by themselves, from the last one to the first, and sent to be merged."""
    source = open_source(path, options, tmp_path)
    chunks, batches = source.chunks(size), []
    scans = [
        pickle.loads(
            pickle.dumps(
                scan_chunk(source, chunk, options, options.on_bad_row, batches.append, is_start=chunk is chunks[0])
            )
        )
        for chunk in reversed(chunks)
    ]
    merge, rejected, before = Merge(source, options), RejectedRows(options.on_bad_row), Counter()
    try:
        for each in reversed(scans):
            merge.add(each, rejected, before)
        rejected.check()
        found = merge.result()
    except (ValueError, ReadAgain) as error:
        return repr(error), None, None
    return plain(found), None, rejected


def check(path, tmp_path, options):
    expected = outcome(path, tmp_path, options, WHOLE)
    for size in SIZES:
        assert len(open_source(path, options, tmp_path).chunks(size)) > 1
        assert outcome(path, tmp_path, options, size) == expected
        found, _, rejected = apart(path, tmp_path, options, size)
        assert (found, rejected) == (expected[0], expected[2])
    return expected[0]


def table(seed, rows=120):
    generator = np.random.default_rng(seed)
    columns = {
        "id": range(rows),
        "almost": [*range(rows - 1), 3],
        "ratio": [f"{value:.3f}" if value < 0.95 else "" for value in generator.random(rows)],
        "large": range(2**24, 2**24 + rows),
        "town": generator.choice(["Ulm", "Bern", '"a,\nb"', "", "x"], rows),
        "late": ["a" if number < rows - 5 else f"b{number}" for number in range(rows)],
        "same": [7] * rows,
        "kind": generator.choice(["u", "v", "2.0", "2"], rows),
    }
    lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    return ",".join(columns), lines


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("missing", ["impute", "drop"])
def test_what_csv_shows(file, tmp_path, seed, missing):
    header, lines = table(seed)
    generator = np.random.default_rng(seed)
    for row in generator.integers(0, len(lines), 4).tolist():
        lines[row] += ",more"
    for row in generator.integers(0, len(lines), 3).tolist():
        lines[row] = lines[row].replace("Ulm", "\udcff")
    text = "\n".join([header, *lines]).encode("utf-8", "surrogateescape")
    options = Options("kind", missing=missing, on_bad_row="skip", group_column="town" if seed % 2 else "")
    found = check(file("data.csv", text), tmp_path, options)
    assert any("'large' has different numbers" in line for line in found["warnings"])


def test_ids_increase_over_the_borders_of_chunks(file, tmp_path):
    rows = "".join(f"{number},{min(number, 99)},{-number},u{number % 3}\n" for number in range(101))
    found = check(file("data.csv", "a,b,c,kind\n" + rows), tmp_path, Options("kind"))
    assert [line.split()[1] for line in found["warnings"] if "looks like an ID" in line] == ["'a'", "'c'"]


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ("01234,1", "'n': '01234'"),
        ("1,1.5", "has the value 1.5"),
        ("x,1", r"row 101 of data.csv: 'n' is 'x'"),
        ("1,x", None),
    ],
)
def test_the_last_row_decides(file, tmp_path, last, message):
    rows = "".join(f"{number},{number % 3}\n" for number in range(99))
    found = check(file("data.csv", "n,kind\n" + rows + last), tmp_path, Options("kind"))
    assert message is None or message.replace("'", "").replace("\\", "") in found.replace("'", "").replace("\\", "")


def test_labels_of_many_chunks_are_numbers_to_predict(file, tmp_path):
    rows = "".join(f"{number % 2},{number}\n" for number in range(150))
    assert "more than 100 different whole numbers" in check(
        file("data.csv", "n,kind\n" + rows), tmp_path, Options("kind")
    )


def test_values_of_a_category_are_too_many_together(file, tmp_path, monkeypatch):
    monkeypatch.setattr(chunk_scan, "MAXIMUM_DISTINCT", 30)
    rows = "".join(f"{'ab'[number % 2]}-{number},u\n" for number in range(40))
    found = check(file("data.csv", "code,kind\nfirst1,u\n" + rows), tmp_path, Options("kind"))
    assert "of the form 'aaaaa9'" in found.replace("\\", "")


@pytest.mark.parametrize("count", [1, 19, 20, 40])
def test_wrong_rows_are_named_in_the_order_of_the_source(file, tmp_path, count):
    rows = [f"{number},{'uv'[number % 2]}" for number in range(100)]
    for index, row in enumerate(np.linspace(20, 99, count).astype(int).tolist()):
        rows[row] = ("1,u,3", "text,u", "1,", "inf,u")[index % 4]
    folder = file("rows/a.csv", "n,kind\n" + "\n".join(rows)).parent
    file("rows/b.csv", "kind,n\nu,1\n,2\n")
    message = check(folder, tmp_path, Options("kind"))
    assert ("rows 22, " if count > 1 else "row 22 of a.csv") in message
    skipped = Options("kind", on_bad_row="skip")
    assert outcome(folder, tmp_path, skipped, 1)[2].count == count + 1
    check(folder, tmp_path, skipped)


@pytest.mark.parametrize("name", ["data.jsonl", "data.parquet", "data.arrow"])
def test_what_other_formats_show(tmp_path, name):
    generator = np.random.default_rng(0)
    rows = pa.table(
        {
            "n": pa.array(np.where(generator.random(90) < 0.1, np.nan, generator.random(90)), from_pandas=True),
            "id": range(90),
            "town": generator.choice(["Ulm", "Bern", None], 90).tolist(),
            "kind": generator.choice(["u", "v"], 90).tolist(),
        }
    )
    path = tmp_path / name
    if name.endswith("jsonl"):
        path.write_text("\n".join(pa_json(row) for row in rows.to_pylist()))
    elif name.endswith("parquet"):
        pq.write_table(rows, path, row_group_size=4)
    else:
        with pa.ipc.new_stream(path, rows.schema) as writer:
            writer.write_table(rows, max_chunksize=4)
    check(path, tmp_path, Options("kind"))


def pa_json(row):
    return "{" + ", ".join(f'"{name}": {_json(value)}' for name, value in row.items()) + "}"


def _json(value):
    return "null" if value is None else f'"{value}"' if isinstance(value, str) else str(value)


def test_the_order_of_rows_depends_on_their_chunks_alone(tmp_path):
    def order(folder, chunks, count):
        pieces = Pieces(tmp_path / folder, 1000 * count, 5, piece_bytes=1000)
        for number, rows in chunks:
            pieces.begin_chunk(number)
            for batch in rows:
                pieces.add(pa.record_batch({"n": batch}))
        files = pieces.files()
        read = (files.read(piece) for piece in files.numbers)
        return [number for rows, keys in read for number in rows["n"].take(pa.array(order_by_key(keys))).to_pylist()]

    numbers = partial(np.arange, dtype=np.int32)
    expected = order("a", [(0, [numbers(0, 50)]), (1, [numbers(50, 90)])], 3)
    assert order("b", [(1, [numbers(50, 60), numbers(60, 90)]), (0, [numbers(0, 1), numbers(1, 50)])], 1) == expected
    assert order("c", [(0, [numbers(0, 90)])], 1) != expected
