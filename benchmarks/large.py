"""Measure `prepare_data` with sources of 10 GB in an object store: time, and peak memory of each process."""

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from comparators import python_of, version_of
from measure import header, installed, log, measure, parser, table, write_page

from kfp_distributed.storage.object_stores.embedded import embedded_object_store
from kfp_distributed.storage.opener import open_store

_INPUTS = 20
_FILE_BYTES, _GROUP_BYTES = 800_000, 8_000_000
"""Text in each of many CSV files, and in a row group of Parquet."""
_BLOCK_BYTES = 2 * 10**9
_WORKERS = 2
_SAMPLING_SECONDS = 0.05
_BUCKET = "bench"
_DASK = "dask.dataframe"
_TEXT = """\
# Large sources in prepare_data

{header}

The same machine ran the object store (`rclone serve s3`). So workers add no processors here. Read the table for memory,
disk and bytes; on more machines, the times are shorter.

Each source has rows of 20 numbers with seven digits and a label of three classes, as text of the size that the table
names. A block of at most {block:g} GB of random rows is repeated. All rows are read, parsed, drawn and written as if
they were different. Only the counts of equal rows are not those of usual data.

- *one CSV file*, and *one Parquet file* of the same rows with 32-bit numbers, in row groups of about 40,000 rows.
- *CSV files* of 0.8 MB each.

The source, the scratch and the shards are in the object store. Each program is a new process with new workers, and runs
once.

- *{workers} workers*: `prepare_data` with `number_of_workers` {workers}. The step and its workers read the ranges that
  they need.
- *step alone*: `prepare_data` without workers. The step downloads the source, and uploads the shards.
- *dask.dataframe*: `read_csv` or `read_parquet` of the same files on the local disk, `random_split` and `to_parquet`,
  on {workers} workers of one thread. It checks no rows, keeps no fractions of the classes and does not shuffle between
  partitions.

The peak memory is that of the process with the most, as the system has recorded it (`VmHWM`). The goal is less than
500 MB for each process. *Disk* is the most that the disk held beside the source: scratch, shards, and what was
downloaded.

{table}
"""

_PREPARE = """
import json, sys, time
from types import SimpleNamespace
from kfp_distributed.components.worker_pool.dask_engine import DaskEngine
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.prepare import prepare
from kfp_distributed.storage.object_stores.s3 import S3Store

source, folder, bucket, workers = sys.argv[1:]
read, read_range, read_into = 0, S3Store.read_range, S3Store.read_into
def counted_range(store, key, offset, length, *arguments):
    global read
    read += length
    return read_range(store, key, offset, length, *arguments)
def counted_into(store, *arguments):
    global read
    entry = read_into(store, *arguments)
    read += entry.size
    return entry
S3Store.read_range, S3Store.read_into = counted_range, counted_into

datasets = {
    split: SimpleNamespace(path=f"{folder}/{split}", uri=f"s3://{bucket}/out/{split}", metadata={})
    for split in ("train", "validation", "test")
}
engine = DaskEngine(f"s3://{bucket}/scratch", int(workers)) if int(workers) else None
begin = time.perf_counter()
prepare(source, Options(label_column="label"), datasets, f"{folder}/overview", engine=engine)
print(json.dumps([time.perf_counter() - begin, read]), flush=True)
"""

_DASK_PROGRAM = """
import glob, json, os, sys, time
import dask, dask.dataframe, distributed

source, folder, workers = sys.argv[1:]
if __name__ == "__main__":
    dask.config.set({"temporary-directory": folder})
    with distributed.LocalCluster(n_workers=int(workers), threads_per_worker=1, dashboard_address=None) as cluster:
        with distributed.Client(cluster):
            begin = time.perf_counter()
            files = sorted(glob.glob(source + "/*")) if os.path.isdir(source) else source
            read = dask.dataframe.read_parquet if source.endswith(".parquet") else dask.dataframe.read_csv
            parts = read(files).random_split([0.8, 0.1, 0.1], random_state=0, shuffle=True)
            names = ("train", "validation", "test")
            dask.compute(*(part.to_parquet(f"{folder}/{name}", compute=False) for name, part in zip(names, parts)))
            print(json.dumps([time.perf_counter() - begin, 0]), flush=True)
"""


@dataclass
class _Peaks:
    """The most memory of each process that runs, and the most bytes that the disk holds more than before."""

    program: str
    memory: dict[int, tuple[str, int]] = field(default_factory=dict)
    disk: int = 0

    def highest(self, kind: str) -> int:
        """Return the highest peak in bytes of the processes of a kind, "driver" or "worker"; 0 without any."""
        return max((peak for found, peak in self.memory.values() if found == kind), default=0)

    def sample(self) -> None:
        """Record the peaks so far. The system keeps them, so no peak is missed."""
        with suppress(psutil.Error):
            for driver in psutil.Process().children(recursive=True):
                if driver.cmdline()[1:2] == [self.program]:
                    self._record("driver", driver)
                    for worker in driver.children(recursive=True):
                        self._record("worker", worker)

    def _record(self, kind: str, process: psutil.Process) -> None:
        with suppress(OSError, ValueError, IndexError):
            status = Path(f"/proc/{process.pid}/status").read_text()
            self.memory[process.pid] = (kind, int(status.partition("VmHWM:")[2].split()[0]) * 1024)


@contextmanager
def _sampled(program: str, folder: Path) -> Iterator[_Peaks]:
    """Sample the processes that this one starts meanwhile, of which `program` is the driver of the others."""
    peaks, free, ended = _Peaks(program), shutil.disk_usage(folder).free, threading.Event()

    def watch() -> None:
        while not ended.wait(_SAMPLING_SECONDS):
            peaks.sample()
            peaks.disk = max(peaks.disk, free - shutil.disk_usage(folder).free)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        thread.join()


def _run(python: str | Path, program: str, folder: Path, *arguments: str) -> list[str]:
    """Run a program in a new process, and return its cells of the table."""
    script = folder / "program.py"
    script.write_text(program)
    with _sampled(str(script), folder) as peaks:
        seconds, read = measure([python, script, *arguments], {**os.environ, "TMPDIR": str(folder)}).printed
    driver, worker = peaks.highest("driver"), peaks.highest("worker")
    return [
        f"{seconds:,.0f} s",
        f"{driver / 1e6:.0f} MB",
        f"{worker / 1e6:.0f} MB" if worker else "",
        f"{read / 1e6:,.0f} MB" if read else "",
        f"{peaks.disk / 1e9:.1f} GB",
    ]


def _write_block(path: Path, size: int) -> None:
    """Write a CSV file of at least `size` bytes of random rows."""
    generator, names = np.random.default_rng(0), [f"x{number}" for number in range(_INPUTS)]
    schema = pa.schema([*((name, pa.float64()) for name in names), ("label", pa.string())])
    with pa_csv.CSVWriter(path, schema) as writer:
        while path.stat().st_size < size:
            numbers = generator.random((_INPUTS, 10_000)).round(7)
            labels = generator.choice(["a", "b", "c"], numbers.shape[1])
            writer.write_table(pa.table([*map(pa.array, numbers), pa.array(labels)], schema=schema))


def _chunks(block: Path, size: int) -> Iterator[bytes]:
    """Yield the rows of a block in turn and again, in chunks of about `size` bytes, each with the header."""
    while True:
        with block.open("rb") as stream:
            header = stream.readline()
            while rows := stream.read(size - len(header)):
                yield header + rows + stream.readline()


def _write_csv(block: Path, path: Path, size: int) -> None:
    with path.open("wb") as stream:
        for chunk in _chunks(block, _GROUP_BYTES):
            stream.write(chunk if stream.tell() == 0 else chunk.partition(b"\n")[2])
            if stream.tell() >= size:
                return


def _write_files(block: Path, folder: Path, size: int) -> None:
    folder.mkdir()
    for number, chunk in zip(range(size // _FILE_BYTES), _chunks(block, _FILE_BYTES), strict=False):
        (folder / f"rows-{number:05}.csv").write_bytes(chunk)


def _write_parquet(block: Path, path: Path, size: int) -> None:
    """Write a Parquet file with the rows of a CSV file of `size` bytes."""
    schema = pa.schema([*((f"x{number}", pa.float32()) for number in range(_INPUTS)), ("label", pa.string())])
    converting = pa_csv.ConvertOptions(column_types=schema)
    with pq.ParquetWriter(path, schema, use_dictionary=["label"]) as writer:
        for chunk, _ in zip(_chunks(block, _GROUP_BYTES), range(0, size, _GROUP_BYTES), strict=False):
            writer.write_table(pa_csv.read_csv(BytesIO(chunk), convert_options=converting))


def _sources(size: int) -> dict[str, tuple[str, Callable[[Path, Path, int], None]]]:
    """Return the file or folder of each source of so many bytes, and what writes it from a block."""
    text = f"of {size / 1e9:g} GB"
    return {
        f"one CSV file {text}": ("rows.csv", _write_csv),
        f"{size // _FILE_BYTES:,} CSV files {text}": ("files", _write_files),
        f"one Parquet file {text} as text": ("rows.parquet", _write_parquet),
    }


def _programs(file: Path) -> Mapping[str, Callable[[Path], list[str]]]:
    """Return what prepares a source, by its name, with the folder of its temporary files as its argument."""

    def prepare(workers: int, folder: Path) -> list[str]:
        return _run(
            sys.executable, _PREPARE, folder, f"s3://{_BUCKET}/sources/{file.name}", str(folder), _BUCKET, str(workers)
        )

    def dask(folder: Path) -> list[str]:
        return _run(python_of("dask"), _DASK_PROGRAM, folder, str(file), str(folder), str(_WORKERS))

    return {f"{_WORKERS} workers": partial(prepare, _WORKERS), "step alone": partial(prepare, 0), _DASK: dask}


def _check_space(folder: Path, size: int) -> None:
    """Check that a disk has place for a run.

    Raises:
        SystemExit: It has not.
    """
    # Without workers, the disk has the source twice and its rows at once. Later there are shards twice.
    needed, free = 2.7 * size + min(size, _BLOCK_BYTES), shutil.disk_usage(folder).free
    log(f"{folder}: {free / 1e9:.1f} GB are free, {needed / 1e9:.1f} GB are needed")
    if free < needed:
        raise SystemExit("the disk has too little space: set SIZE to fewer GB, or FOLDER to a folder on another disk")


def _rows(folder: Path, block: Path, size: int, kind: str) -> list[list[str]]:
    """Return the rows of the table about a source."""
    name, write = _sources(size)[kind]
    objects, rows = folder / "objects", []
    file = objects / _BUCKET / "sources" / name
    file.parent.mkdir(parents=True)
    write(block, file, size)
    # The server keeps the hashes of the objects, and nothing else writes into its folder.
    with embedded_object_store(objects, cache_seconds=10**6) as server:
        os.environ.update(server.environment())
        store = open_store(f"s3://{_BUCKET}")
        store.list("sources/")  # It hashes them now.
        for program, start in _programs(file).items():
            with tempfile.TemporaryDirectory(dir=folder) as work:
                rows.append([kind, program, *start(Path(work))])
            log(" | ".join(rows[-1]))
            store.delete([entry.key for prefix in ("out/", "shards/") for entry in store.list(prefix)])
    shutil.rmtree(objects)
    return rows


def main() -> None:
    """Measure, print the table and write the page."""
    arguments = parser(__doc__, "large.md")
    arguments.add_argument("--size", type=float, default=10, help="size of each source as text, in GB (default: 10)")
    arguments.add_argument("--folder", type=Path, help="folder for all files (default: that of temporary files)")
    options = arguments.parse_args()
    size = int(options.size * 1e9)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="large-") as name:
        _check_space(Path(name), size)
        block = Path(name, "block.csv")
        _write_block(block, min(size, _BLOCK_BYTES))
        rows = [row for kind in _sources(size) for row in _rows(Path(name), block, size, kind)]
    head = ["source", "program", "time", "peak of the step", "peak of a worker", "read by the step", "disk"]
    text = _TEXT.format(
        header=header("bench-large", {**installed("pyarrow"), "dask": version_of("dask")}),
        block=_BLOCK_BYTES / 1e9,
        workers=_WORKERS,
        table=table(head, rows),
    )
    write_page(options.page, text)


if __name__ == "__main__":
    main()
