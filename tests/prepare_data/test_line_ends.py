"""Each CSV file has its own line ends, which its first MiB tells."""

import gzip
from itertools import permutations

import pytest

from kfp_distributed.components.prepare_data.csv_format import CsvFormat
from kfp_distributed.components.prepare_data.sources.stored_files import StoredPath
from kfp_distributed.components.prepare_data.sources.texts import opened_csv
from kfp_distributed.components.prepare_data.tables.csv_files import csv_parts

ALL_FOR_TRAINING = {"validation_fraction": 0, "test_fraction": 0, "shards": 1}
MIB = 2**20


def test_the_files_of_a_source_may_have_other_line_ends(file, run):
    rows = "x,label\n" + "1,a\n2,b\n" * 9
    for first, second in permutations(("\n", "\r", "\r\n"), 2):
        folder = f"{first}{second}".encode().hex()
        file(f"{folder}/1.csv", rows.replace("\n", first))
        source = file(f"{folder}/2.csv", rows.replace("\n", second)).parent
        assert run(source, f"{folder}-out", **ALL_FOR_TRAINING)["train"].rows == 36


def read_in_steps(file, encoding, size):
    with opened_csv(file, CsvFormat(encoding=encoding)) as stream:
        return b"".join(iter(lambda: stream.read(size), b""))


TEXTS = {
    "a long header": ("\r".join(["x" * 20_000 + ",b", "1,2", "3,4"]), True),
    "a longer header": ("\r".join(["x" * 100_000 + ",b", "1,2", "3,4"]), True),
    "a line feed after a long header": ('"x\ry' + "x" * 100_000 + '"\n' + "1\n" * 9, False),
    "a line feed at the end of the first MiB": ("1,2\r" * (MIB // 4 - 1) + "1,2\n" + "1,2\r" * 9, False),
    "a line feed after the first MiB": ("1,2\r" * (MIB // 4) + "1,2\n" + "1,2\r" * 9, True),
    "both at the end of the first MiB": ("x" * (MIB - 1) + "\r\n1\r\n", False),
    "no line end in the first MiB": ("x" * MIB + "\r1\r", False),
    "one row": ("1,2", False),
    "nothing": ("", False),
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16"])
@pytest.mark.parametrize("is_packed", [True, False])
def test_each_reader_of_a_file_finds_the_same_line_ends(file, monkeypatch, name, encoding, is_packed):
    """Readers of the header, the format, the rows and the parts read it in steps of their own."""
    text, are_carriage_returns = TEXTS[name]
    content = text.encode(encoding)
    source = file("data.csv", gzip.compress(content, 1) if is_packed else content)
    expected = text.replace("\r", "\n") if are_carriage_returns else text
    of_file = "utf-8" if encoding == "utf-8-sig" else encoding
    for size in (2**14, 2**16, MIB, 2**23):
        is_equal = read_in_steps(source, of_file, size) == expected.encode()
        assert is_equal, size


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.usefixtures("small")
def test_rows_that_carriage_returns_end_are_not_divided(file, encoding):
    """The mark of a byte order counts for no byte of the first MiB."""
    for text, has_parts in (
        ("1,2\r" * (MIB // 2), False),
        ("1,2\r" * (MIB // 4 - 1) + "1,2\n" * 9_000, True),
        ("1,2\r" * (MIB // 4) + "1,2\n" * 9_000, False),
    ):
        parts = csv_parts(file("data.csv", text.encode(encoding)), 2**14, CsvFormat())
        assert (len(parts) > 1) == has_parts


def test_a_carriage_return_file_of_many_columns_is_read(file, run):
    names = [*(f"a_column_with_a_long_name_{i}" for i in range(1000)), "label"]
    rows = [names, *([*map(str, range(i, i + 1000)), "ab"[i % 2]] for i in range(20))]
    train = run(file("data.csv", "\r".join(map(",".join, rows))), **ALL_FOR_TRAINING)["train"]
    assert (train.rows, len(train.columns)) == (20, 1000)


def test_a_file_that_is_not_divided_is_not_asked_for_its_parts():
    """No store is there to be asked."""
    file = StoredPath("s3://bucket", "data.csv", 800_000, "etag")
    (part,) = csv_parts(file, 2**26, CsvFormat())
    assert (part.begin, part.end, part.size) == (0, None, 800_000)
