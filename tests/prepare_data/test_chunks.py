"""A source in chunks has the rows of the whole source, wherever it is divided."""

import gzip
import io
import json
import pickle
from collections import Counter
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from kfp_distributed.components.prepare_data.csv_format import CsvFormat
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.sources import chunks
from kfp_distributed.components.prepare_data.sources.chunks import chunks_of, whole_file
from kfp_distributed.components.prepare_data.sources.read_rows import RejectedRows
from kfp_distributed.components.prepare_data.sources.texts import opened_text
from kfp_distributed.components.prepare_data.tables import csv_files, json_files, text_parts
from kfp_distributed.components.prepare_data.tables.csv_files import csv_parts
from kfp_distributed.components.prepare_data.tables.open_source import open_source
from kfp_distributed.components.prepare_data.tables.text_parts import blocks

WHOLE = 2**40
FIRST, BLOCK = 24, 40


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Read blocks of some bytes, so that small files have many."""
    monkeypatch.setattr(csv_files, "FIRST_BLOCK_BYTES", FIRST)
    monkeypatch.setattr(csv_files, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(json_files, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(text_parts, "STEP_BYTES", 16)
    monkeypatch.setattr(text_parts, "TAIL_BYTES", 5)


def random_csv(generator, rows=60):
    """Rows of odd texts: line ends, separators and doubled quotes in quotes, and quotes in texts without them."""
    texts = [
        "a",
        '"b\nc"',
        '"d,\r\ne"',
        '"f""g"',
        '5" nail',
        '"""\n"""',
        '""',
        "h" * 50,
        '"' + "\ni" * 30 + '"',
        "",
        'x"y"',
    ]
    end = generator.choice(["\n", "\r\n"])
    lines = ["text,n,kind"]
    for number in range(rows):
        row = [str(generator.choice(texts)), str(number), str(generator.choice(["u", "v"]))]
        if generator.random() < 0.1:
            row = row[: generator.integers(1, 3)]
        lines.append(",".join(row))
        if generator.random() < 0.05:
            lines.append("")
    mark = generator.choice(["", "\ufeff"])
    return (mark + end.join(lines) + (end if generator.random() < 0.5 else "")).encode()


@pytest.mark.takes(4)
@pytest.mark.parametrize("seed", range(50))
def test_parts_of_csv_have_the_blocks_of_the_file(file, seed):
    generator = np.random.default_rng(seed)
    path = file("data.csv", random_csv(generator))
    csv_format = CsvFormat()

    def blocks_of(part):
        first = text_parts.first_read(part.begin, FIRST, BLOCK)
        with opened_text(part.file, "utf-8", part.begin, part.end) as stream:
            return [*blocks(stream, first, BLOCK)]

    (whole,) = csv_parts(path, WHOLE, csv_format)
    expected = blocks_of(whole)
    for size in (1, BLOCK, 3 * BLOCK, 7 * BLOCK):
        parts = pickle.loads(pickle.dumps(csv_parts(path, size, csv_format)))
        assert size > 1 or len(parts) > 5
        assert [block for part in parts for block in blocks_of(part)] == expected
        assert sum(part.size for part in parts) == path.stat().st_size


def rows_of(path, tmp_path, size, options):
    """Rows of a source with their files and numbers, and the rows that cannot be used."""
    source = open_source(path, options, tmp_path)
    rejected = RejectedRows("skip")
    rows = [
        (name, number, row)
        for name, (batch, numbers) in source.batches(rejected, size)
        for number, row in zip(numbers.tolist(), batch.to_pylist(), strict=True)
    ]
    return rows, rejected, len(source.chunks(size)), [*source.late_notes()]


def rows_of_sent_chunks(path, tmp_path, size, options):
    """The same, with each chunk read by a copy of the source as another process gets it."""
    source = open_source(path, options, tmp_path)
    sent, rejected, before = pickle.dumps(source), RejectedRows("skip"), Counter()
    source.late_findings.take_late()
    rows = []
    for chunk in source.chunks(size):
        copy, found = pickle.loads(sent), RejectedRows("skip")
        copy.late_findings.take_late()
        for part in chunk:
            counted = []
            for batch, numbers in copy.rows(part, partial(found.add, part.name), counted.append):
                numbered = zip((before[part.name] + numbers).tolist(), batch.to_pylist(), strict=True)
                rows += [(part.name, number, row) for number, row in numbered]
            rejected.merge(found, before)
            found = RejectedRows("skip")
            before[part.name] += sum(counted)
        source.late_findings.add_late(pickle.loads(pickle.dumps(copy.late_findings.take_late())))
    return rows, rejected, [*source.late_notes()]


def check(path, tmp_path, sizes=(1, BLOCK, 3 * BLOCK), options=Options(label_column="kind")):  # noqa: B008
    *expected, count, notes = rows_of(path, tmp_path, WHOLE, options)
    assert count == 1
    assert rows_of_sent_chunks(path, tmp_path, sizes[0], options) == (*expected, notes)
    for size in sizes:
        *found, count, found_notes = rows_of(path, tmp_path, size, options)
        assert found == expected
        assert found_notes == notes
        assert count > 1
    return expected


@pytest.mark.takes(8)
@pytest.mark.parametrize("seed", range(15))
def test_rows_of_csv(file, tmp_path, seed):
    rows, rejected = check(file("data.csv", random_csv(np.random.default_rng(seed))), tmp_path)
    assert len(rows) > 30
    assert rejected.count


def test_rows_of_csv_without_a_header_and_of_files_with_other_orders_of_columns(file, tmp_path):
    rows = "".join(f"{number},t{number}\n" for number in range(60))
    check(
        file("no/data.csv", rows),
        tmp_path,
        options=Options(label_column="column_2", csv_format=CsvFormat(header=False)),
    )
    folder = file("rows/a.csv", "n,kind\n" + rows).parent
    file("rows/b.csv", "kind,n\n" + "".join(f"u,{number}\n" for number in range(90)) + "u\n")
    file("rows/c.csv", "n,kind\n")
    file("rows/d.csv", "n,kind\n7,x\n8\n")
    found, rejected = check(folder, tmp_path)
    assert len(found) == 151
    assert [(row.file, row.row) for row in rejected.first] == [("b.csv", 92), ("d.csv", 3)]


def test_rows_of_json_lines(file, tmp_path):
    lines = [json.dumps({"n": number, "kind": "u"} | ({"later": 1} if number == 50 else {})) for number in range(60)]
    lines[40:40] = ["", '{"n": "text", "kind": "u"}', "[1]"]
    rows, rejected = check(file("data.jsonl", "\ufeff" + "\n".join(lines)), tmp_path)
    assert len(rows) == 60
    assert [row.row for row in rejected.first] == [42, 43]


@pytest.mark.parametrize("ending", ["parquet", "arrow", "stream.arrow"])
def test_rows_of_parquet_and_arrow(tmp_path, ending):
    path = tmp_path / f"data.{ending}"
    table = pa.table({"n": range(100), "kind": ["u"] * 50 + ["v"] * 50})
    if ending == "parquet":
        pq.write_table(table, path, row_group_size=7)
    else:
        new = pa.ipc.new_stream if ending.startswith("stream") else pa.ipc.new_file
        with new(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=7)
    rows, _ = check(path, tmp_path, (1, 500, 1000))
    assert [number for _, number, _ in rows] == list(range(1, 101))


def png(color):
    stream = io.BytesIO()
    Image.new("RGB", (2, 2), (color, 0, 0)).save(stream, "png")
    return stream.getvalue()


def test_rows_of_images(file, tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "IMAGES", 2**20)
    for number in range(12):
        folder = file(f"images/{'ab'[number % 2]}/{number}.png", png(number) if number != 8 else b"damaged")
    rows, rejected = check(folder.parents[1], tmp_path, (1, 200, 500), Options())
    assert len(rows) == 11
    assert [row.row for row in rejected.first] == [6]


def test_a_compressed_file_and_one_of_another_encoding_are_one_part(file):
    rows = b"n,kind\n" + b"1,u\n" * 100
    packed, latin = file("a.csv.gz", gzip.compress(rows)), file("b.csv", rows)
    assert csv_parts(packed, 1, CsvFormat()) == [whole_file(packed)]
    assert csv_parts(latin, 1, CsvFormat(encoding="latin-1")) == [whole_file(latin)]


def test_small_files_are_in_one_chunk(file):
    parts = [whole_file(file(f"{number}.csv", "x" * size)) for number, size in enumerate((3, 3, 9, 1, 1, 0, 3, 20, 2))]
    sizes = [[part.size for part in chunk] for chunk in chunks_of(parts, 6)]
    assert sizes == [[3, 3], [9], [1, 1, 0, 3], [20], [2]]
