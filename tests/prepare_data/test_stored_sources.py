"""With an engine, a source in an object store is read by ranges, and gives the bytes that its download gives."""

import io
import json
import os
import re
import signal
import sys
import time
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from rows_of_sources import csv_text, json_lines

from kfp_distributed.components.prepare_data import csv_format, prepare, read
from kfp_distributed.components.prepare_data.csv_format import COMMAS
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.sources import fetch, stored_files
from kfp_distributed.components.prepare_data.tables import (
    arrow_messages,
    arrow_table,
    csv_files,
    image_files,
    json_files,
    json_table,
    text_parts,
)
from kfp_distributed.components.worker_pool.dask_engine import DaskEngine
from kfp_distributed.components.worker_pool.stored_tasks import StoredTasks
from kfp_distributed.storage.errors import ChecksumMismatch, KeyNotFound, StorageError
from kfp_distributed.storage.object_stores.embedded import embedded_object_store
from kfp_distributed.storage.object_stores.s3 import S3Store
from kfp_distributed.storage.opener import open_store

pytestmark = pytest.mark.takes(80)

GROUP_ROWS = 5000


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with embedded_object_store(tmp_path_factory.mktemp("objects")) as started:
        yield started


@pytest.fixture(scope="module")
def store_variables(server):
    return server.environment()


@pytest.fixture
def bucket(server, monkeypatch, request):
    """Folder of a bucket; its address is s3://NAME."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    folder = server.folder / f"bucket-{abs(hash(request.node.name))}"
    folder.mkdir()
    return folder


def address(bucket, path=""):
    """Return the address of files that were written into a bucket's folder, once the server lists them all."""
    written = {file.relative_to(bucket).as_posix(): file.stat().st_size for file in bucket.rglob("*") if file.is_file()}
    listed = None
    while listed != written:
        # A bucket that the server does not know yet is an error.
        with suppress(StorageError):
            listed = {entry.key: entry.size for entry in open_store(f"s3://{bucket.name}").list()}
        time.sleep(0.05)
    return f"s3://{bucket.name}/{path}".rstrip("/")


@pytest.fixture
def driver_bytes(monkeypatch):
    """Bytes of the ranges that this process reads, by full key."""
    found: dict[str, int] = {}
    read_range = S3Store.read_range

    def count(store, key, offset, length, *arguments):
        full_key = f"{store.uri}/{key}"
        found[full_key] = found.get(full_key, 0) + length
        return read_range(store, key, offset, length, *arguments)

    monkeypatch.setattr(S3Store, "read_range", count)
    monkeypatch.setattr(S3Store, "read_into", refuse)
    return found


def refuse(*arguments):
    raise AssertionError("a stored source was downloaded")


def numbers(count):
    """A table whose columns are so random that no compression changes its size."""
    generator = np.random.default_rng(0)
    columns = {f"x{number}": generator.random(count) for number in range(8)}
    return pa.table({**columns, "label": [f"class {label}" for label in generator.integers(0, 3, count)]})


def large_csv(folder):
    table = numbers(40000)
    lines = [",".join([*table.column_names, "town"])]
    for number, row in enumerate(table.to_pylist()):
        # Texts within quotes have the line ends of rows.
        lines.append(",".join([*map(str, row.values()), f'"town\n{number % 5}\n"']))
    folder.joinpath("data.csv").write_text("\n".join(lines))


def large_json(folder):
    folder.joinpath("data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in numbers(40000).to_pylist()))


def large_parquet(folder):
    pq.write_table(numbers(100000), folder / "data.parquet", row_group_size=GROUP_ROWS)


def arrow(folder, create, count=100000):
    table = numbers(count)
    # Dictionaries are messages of their own.
    table = table.append_column("town", table["label"].dictionary_encode())
    with pa.OSFile(str(folder / "data.arrow"), "wb") as sink, create(sink, table.schema) as writer:
        writer.write_table(table, GROUP_ROWS)


def large_images(folder):
    generator = np.random.default_rng(1)
    for number in range(200):
        path = folder / "ab"[number % 2] / f"{number:03}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (60, 60, 3), np.uint8)).save(path)


def splits(folder):
    for name in ("train-0", "train-1", "test-0"):
        pq.write_table(numbers(40000), folder / f"{name}.parquet", row_group_size=GROUP_ROWS)
    folder.joinpath("README.md").write_text("Rows.")
    folder.joinpath(".hidden").write_text("x")


SOURCES = {
    "csv": large_csv,
    "json": large_json,
    "parquet": large_parquet,
    "arrow stream": lambda folder: arrow(folder, pa.ipc.new_stream),
    "arrow file": lambda folder: arrow(folder, pa.ipc.new_file),
    "images": large_images,
    "splits": splits,
}


@pytest.fixture
def chunked(monkeypatch):
    """Divide sources of some MB into several chunks. Workers get them from this process."""
    monkeypatch.setattr(read, "CHUNK_BYTES", 2**20)
    monkeypatch.setattr(csv_files, "HEADER_BYTES", 2**14)
    for module in (csv_files, json_files):
        monkeypatch.setattr(module, "BLOCK_BYTES", 2**18)
    monkeypatch.setattr(csv_files, "FIRST_BLOCK_BYTES", 2**16)
    monkeypatch.setattr(json_table, "FIRST_BYTES", 2**16)
    monkeypatch.setattr(image_files, "SAMPLE", 4)


def checked(outputs, bucket, path=""):
    """Compare the engine on the store and this process on the folder; return what this process wrote."""
    here = outputs(bucket / path, 0)
    there = outputs(address(bucket, path), "shared", name="there")
    for split, manifest in here[0].items():
        assert {**vars(there[0][split]), "source": ""} == {**vars(manifest), "source": ""}
        assert there[0][split].source.startswith("s3://")
    assert there[1].keys() == here[1].keys()
    different = {name for name, content in here[1].items() if there[1][name] != content}
    assert {name for name in different if not name.endswith("dataset.json")} == set()
    return here


@pytest.mark.usefixtures("chunked")
@pytest.mark.parametrize("write", SOURCES.values(), ids=SOURCES)
def test_bytes_are_equal_and_the_driver_reads_few(write, bucket, outputs, driver_bytes):
    folder = bucket / "many" / "data"
    folder.mkdir(parents=True)
    write(folder)
    checked(outputs, bucket, "many/data")
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert size > 4e6 or write is large_images
    print(size, driver_bytes)
    assert 0 < sum(driver_bytes.values()) < 0.2 * size


@pytest.mark.usefixtures("small")
def test_single_objects(bucket, outputs):
    """An object is a source, too, and so is a bucket."""
    for name, content in {"data.csv": csv_text(), "data.jsonl": json_lines()}.items():
        folder = bucket / name.partition(".")[2]
        folder.mkdir()
        (folder / name).write_text(content)
        checked(outputs, bucket, f"{folder.name}/{name}")
    np.savez(bucket / "data.npz", x=np.arange(400.0).reshape(100, 4), label=np.arange(100) % 2)
    checked(outputs, bucket, "data.npz")


def parts_of_a_text(file, separation, run=None):
    return text_parts.text_parts(file, 2**12, 2**12, 2**13, "utf-8", separation, run)


def stored(bucket, path=""):
    return fetch.stored_source(address(bucket, path))


@pytest.mark.parametrize("separation", [COMMAS, None])
def test_tasks_find_the_row_ends_that_one_process_finds(bucket, separation, monkeypatch):
    monkeypatch.setattr(text_parts, "STEP_BYTES", 2**10)
    texts = {
        "quotes": csv_text()[:50000],
        "none": csv_text(has_line_ends=False)[:50000],
        "one": 'a,b\n"' + "x\n" * 12000 + '",1\n1,2\n',
        "stray": "a,b\n" + '5" nail,"\n",\n' * 1500,
        "mark": "\ufeff" + csv_text()[:50000],
        "long": "a,b\n" + "x" * 25000 + ",1\n" + "1,2\n" * 4000,
    }
    for name, text in texts.items():
        (bucket / name).write_text(text)
    for name in texts:
        here, there = parts_of_a_text(bucket / name, separation), parts_of_a_text(stored(bucket, name), separation, map)
        assert [(part.begin, part.end, part.size) for part in there] == [
            (part.begin, part.end, part.size) for part in here
        ]


def test_a_stream_is_a_file(bucket):
    content = np.random.default_rng(0).bytes(300000)
    (bucket / "data.csv").write_bytes(content)
    (file,) = stored(bucket).objects()
    stream, local = file.open(first_bytes=100), io.BytesIO(content)
    for position, size in np.random.default_rng(1).integers(0, [310000, 5000], (200, 2)).tolist():
        assert stream.seek(position) == local.seek(position)
        for _ in range(3):
            assert stream.read(size) == local.read(size)
            assert stream.tell() == local.tell()
    assert stream.seek(-5, io.SEEK_END) == 299995
    assert stream.read() == content[-5:]
    assert file.read_bytes() == content


def test_a_short_header_is_read_without_the_rows(bucket, driver_bytes):
    large_csv(bucket)
    (file,) = stored(bucket).objects()
    assert csv_files.csv_names(file, csv_format.CsvFormat()) == [
        *(f"x{number}" for number in range(8)),
        "label",
        "town",
    ]
    assert sum(driver_bytes.values()) <= 2**16 + 4


def test_a_long_header_is_read_to_its_end(file):
    names = [f"column {number}\n" for number in range(20000)]
    path = file("data.csv", "\n\r\n" + ",".join(f'"{name}"' for name in names) + "\n1,2\n")
    assert csv_files.csv_names(path, csv_format.CsvFormat()) == names


def test_sequential_requests_become_large_and_others_stay_small(bucket, driver_bytes, monkeypatch):
    monkeypatch.setattr(stored_files, "MOST_BYTES", 2**20)
    (bucket / "data.csv").write_bytes(bytes(2**22))
    (file,) = stored(bucket).objects()
    requests = []
    count = S3Store.read_range
    monkeypatch.setattr(S3Store, "read_range", lambda *each: [requests.append(each[3]), count(*each)][1])
    stream = file.open()
    while stream.read(10000):
        pass
    assert requests[:5] == [2**16, 2**17, 2**18, 2**19, 2**20]
    assert len(requests) == 8
    stream.seek(100)
    stream.read(10)
    assert requests[8:] == [2**16]
    requests.clear()
    file.read_bytes()
    assert requests == [2**20] * 4


@pytest.mark.parametrize(
    ("create", "old"), [(pa.ipc.new_stream, False), (pa.ipc.new_file, False), (pa.ipc.new_file, True)]
)
def test_messages_of_arrow_files(bucket, create, old):
    options = pa.ipc.IpcWriteOptions(use_legacy_format=old, compression=None)
    table = pa.table({"a": range(1000), "b": pa.array(["x", "y"] * 500).dictionary_encode()})
    with pa.OSFile(str(bucket / "data.arrow"), "wb") as sink, create(sink, table.schema, options=options) as writer:
        writer.write_table(table, 64)
    (file,) = stored(bucket).objects()
    messages = arrow_messages.read_messages(file.open(), file.size)
    assert (messages.batches, messages.row_count) == (16, 1000)
    reader = arrow_table.ArrowTable(Options())
    local = [*reader.stored_rows(arrow_table.whole_file(bucket / "data.arrow"), [])]
    for begin, end in ((0, 3), (3, 16), (5, None), (15, 16)):
        part = arrow_table.FilePart("data.arrow", file, begin, end)
        assert [*reader.stored_rows(part, [])] == local[begin:end]


def test_damaged_arrow_files(bucket):
    arrow(bucket, pa.ipc.new_stream, 20000)
    content = (bucket / "data.arrow").read_bytes()
    for number, damaged in enumerate((content[:5000], content[:-8], content[:200] + bytes(8), b"", b"abc")):
        (bucket / f"{number}.arrow").write_bytes(damaged)
    for number in range(5):
        file = stored(bucket, f"{number}.arrow")
        with pytest.raises(ValueError, match="not a complete Arrow file"):
            arrow_table.ArrowTable(Options()).count_rows(file)


@pytest.mark.usefixtures("chunked")
@pytest.mark.parametrize(
    ("kind", "replacement"),
    [
        ("csv", "same size"),
        ("csv", "shorter"),
        ("csv", "deleted"),
        ("parquet", "same size"),
        ("arrow stream", "same size"),
        ("images", "same size"),
    ],
)
def test_a_replaced_object_is_an_error_that_names_it(kind, replacement, bucket, outputs, tmp_path, monkeypatch):
    SOURCES[kind](bucket)
    source = address(bucket)
    last = max(file for file in bucket.rglob("*") if file.is_file())
    content, key = last.read_bytes(), last.relative_to(bucket).as_posix()
    run, replaced = StoredTasks.run, []

    def replace_and_run(self, task, items, /):
        if not replaced:
            store = open_store(source)
            if replacement == "deleted":
                store.delete([key])
            else:
                store.write(key, content[::-1] if replacement == "same size" else content[:3])
            replaced.append(key)
        return run(self, task, items)

    monkeypatch.setattr(StoredTasks, "run", replace_and_run)
    error = KeyNotFound if replacement == "deleted" else ChecksumMismatch
    with pytest.raises(error, match=f"{last.name}.*{'no such object' if replacement == 'deleted' else 'replaced'}"):
        outputs(source, "shared")
    if replacement != "deleted":
        assert not any((tmp_path / "scratch").iterdir())


PROGRAM = """
import sys
from types import SimpleNamespace
from kfp_distributed.components.prepare_data import read
from kfp_distributed.components.prepare_data.tables import csv_files
from kfp_distributed.components.worker_pool.dask_engine import DaskEngine
from kfp_distributed.components.prepare_data.csv_format import COMMAS
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.prepare import prepare

csv_files.FIRST_BLOCK_BYTES, csv_files.BLOCK_BYTES, csv_files.HEADER_BYTES = 2**16, 2**18, 2**14
read.CHUNK_BYTES = 2**20
source, out, scratch = sys.argv[1:]
splits = ("train", "validation", "test")
datasets = {split: SimpleNamespace(path=f"{out}/{split}", uri=f"{out}/{split}", metadata={}) for split in splits}
prepare(source, Options(label_column="label", shards=3), datasets, f"{out}/overview", engine=DaskEngine(scratch, 2))
"""


def results(scratch):
    return [path for path in scratch.glob("*/results/*") if not path.name.startswith(".")]


@pytest.mark.usefixtures("chunked")
def test_a_killed_driver_goes_on(bucket, outputs, tmp_path, monkeypatch, capsys):
    large_csv(bucket)
    here = outputs(bucket / "data.csv", 0)
    source, scratch = address(bucket, "data.csv"), tmp_path / "scratch"
    step = psutil.Popen([sys.executable, "-c", PROGRAM, source, tmp_path / "killed", scratch], env=os.environ)
    while len(results(scratch)) < 5:
        assert step.poll() is None
        time.sleep(0.01)
    step.send_signal(signal.SIGKILL)
    step.wait()
    started, create = [], StoredTasks.__init__
    monkeypatch.setattr(StoredTasks, "__init__", lambda self, *each: [started.append(self), create(self, *each)][0])
    capsys.readouterr()
    there = outputs(source, "shared")
    # The workers of the killed step may have completed further tasks before they ended.
    complete = int(re.search(r"an earlier start has completed (\d+) tasks", capsys.readouterr().out)[1])
    (tasks,) = started
    assert complete >= 5
    assert tasks.started + complete == tasks.count
    assert {name for name, content in here[1].items() if there[1][name] != content} <= {
        f"{split}/dataset.json" for split in here[0]
    }


def test_the_limit_of_a_source_holds(bucket, outputs, monkeypatch):
    (bucket / "data.csv").write_text(csv_text())
    monkeypatch.setenv("KFP_DISTRIBUTED_SOURCE_LIMIT", "10k")
    with pytest.raises(OSError, match=r"cannot be read: it has [0-9,]+ bytes: more than the 10,000 bytes"):
        outputs(address(bucket), "shared")


@pytest.mark.parametrize("split", ["source", "test"])
def test_a_download_is_refused_where_workers_do_not_see_it(split, tmp_path):
    datasets = {name: SimpleNamespace(path=str(tmp_path / name), uri="", metadata={}) for name in ("train", "test")}
    addresses = {"source": "digits", split: "https://me:s3cret@example.org/data.csv"}
    engine = DaskEngine("s3://pipelines/scratch", scheduler="tcp://10.0.0.7:8786")
    with pytest.raises(ValueError, match=r"example\.org/data.csv would be downloaded .*copy it to an object") as error:
        prepare.prepare(addresses.pop("source"), Options(), datasets, "overview", addresses, engine)
    assert "s3cret" not in str(error.value)
    assert not any(tmp_path.iterdir())
