"""Measure `prepare_data` with sources of 10 GB in an object store: time, and peak memory of each process.

`make bench-large` prints the results and writes benchmarks/large.md.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from os import cpu_count
from pathlib import Path

import psutil
from measure import table
from repeated_rows import HEADER_BYTES, SLAB_BYTES, are_shared, write_block, write_csv, write_files, write_parquet

from kfp_distributed.storage.embedded import embedded_object_store
from kfp_distributed.storage.opener import open_store

_FILE_BYTES = HEADER_BYTES + 2 * SLAB_BYTES
_BLOCK_BYTES = 2 * 10**9
_SAMPLING_SECONDS = 0.05
_PAGE = Path(__file__).with_suffix(".md")
_TEXT = """\
# Large sources in prepare_data

`make bench-large` runs these measurements and writes this page. Latest run: {day}, Python {python}, pyarrow {pyarrow},
dask {dask}, {cores} cores of a shared machine, which also ran the object store (`rclone serve s3`). So workers add no
processors here. Read the table for memory, disk and bytes; on more machines, the times are shorter.

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

_PROGRAM = """
import json, sys, time
from types import SimpleNamespace
from kfp_distributed.components.worker_pool.dask_engine import DaskEngine
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.prepare import prepare
from kfp_distributed.storage.s3 import S3Store

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

_DASK = """
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
class Measured:
    """One preparation.

    Attributes:
        seconds: Wall-clock time without the imports.
        read: Bytes that the step's process read from the object store.
        peaks: Peak resident memory in bytes of each process, "driver" or "worker", by its ID.
        disk: Most bytes that the disk held more than before.
    """

    seconds: float = 0.0
    read: int = 0
    peaks: dict[int, tuple[str, int]] = field(default_factory=dict)
    disk: int = 0

    def peak(self, kind: str) -> int:
        """Return the highest peak of the processes of a kind; 0 without any."""
        return max((peak for found, peak in self.peaks.values() if found == kind), default=0)


def run(program: str, folder: Path, *arguments: str) -> Measured:
    """Run a program with its arguments in a new process.

    Args:
        program: The code, which prints its seconds and the bytes that it has read.
        folder: Folder for its temporary files.
        arguments: Its arguments.

    Raises:
        RuntimeError: The program failed.
    """
    measured, free = Measured(), shutil.disk_usage(folder).free
    script = folder / "program.py"
    script.write_text(program)
    with tempfile.TemporaryFile("w+") as output:
        process = psutil.Popen(
            [sys.executable, script, *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(folder)},
        )
        while process.poll() is None:
            _sample(process, measured)
            measured.disk = max(measured.disk, free - shutil.disk_usage(folder).free)
            time.sleep(_SAMPLING_SECONDS)
        output.seek(0)
        text = output.read()
    if process.returncode:
        raise RuntimeError(f"a program with {arguments} exited with {process.returncode}:\n{text[-4000:]}")
    # Dask may print lines after the program has ended.
    result = next(line for line in reversed(text.splitlines()) if line.startswith("["))
    measured.seconds, measured.read = json.loads(result)
    return measured


def _sample(driver: psutil.Popen, measured: Measured) -> None:
    """Record the peak memory of a process and of its children so far. The system keeps it, so no peak is missed."""
    with suppress(psutil.Error):
        for process in (driver, *driver.children(recursive=True)):
            with suppress(OSError, psutil.Error, ValueError, IndexError):
                status = Path(f"/proc/{process.pid}/status").read_text()
                peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
                measured.peaks[process.pid] = ("driver" if process == driver else "worker", peak)


@dataclass(frozen=True)
class Bench:
    """Where the sources are, and what is run with them.

    Attributes:
        folder: Folder of the object store and of temporary files.
        size: Size of each source as text, in bytes.
        workers: Number of workers.
    """

    folder: Path
    size: int
    workers: int

    @property
    def bucket(self) -> Path:
        """Folder of the bucket."""
        return self.folder / "objects" / "bench"

    def sources(self) -> dict[str, tuple[str, Callable[[Path, Path], None]]]:
        """Return the file or folder of each source, and what writes it from a block."""
        size, files = self.size, self.size // _FILE_BYTES
        text = f"of {size / 1e9:g} GB"
        return {
            f"one CSV file {text}": ("rows.csv", partial(write_csv, size=size)),
            f"{files:,} CSV files {text}": ("files", partial(write_files, count=files, size=_FILE_BYTES)),
            f"one Parquet file {text} as text": ("rows.parquet", partial(write_parquet, size=size)),
        }

    def programs(self) -> dict[str, Callable[[Path, str], Measured]]:
        """Return what prepares a source, by its name: run(folder, source)."""

        def prepare(workers: int, folder: Path, source: str) -> Measured:
            address, bucket = f"s3://{self.bucket.name}/sources/{source}", self.bucket.name
            return run(_PROGRAM, folder, address, str(folder), bucket, str(workers))

        def dask(folder: Path, source: str) -> Measured:
            return run(_DASK, folder, str(self.bucket / "sources" / source), str(folder), str(self.workers))

        programs = {f"{self.workers} workers": partial(prepare, self.workers), "step alone": partial(prepare, 0)}
        return {**programs, "dask.dataframe": dask} if find_spec("pandas") else programs

    def measure(self, block: Path, kind: str, log: Callable[[str], None] = print) -> list[list[str]]:
        """Return the lines of the table about a source."""
        name, write = self.sources()[kind]
        (self.bucket / "sources").mkdir(parents=True)
        write(block, self.bucket / "sources" / name)
        lines = []
        try:
            # The server keeps the hashes of the objects, and nothing else writes into its folder.
            with embedded_object_store(self.bucket.parent, cache_seconds=10**6) as store:
                os.environ.update(store.environment())
                open_store(f"s3://{self.bucket.name}").list("sources/")  # It hashes them now.
                for program, start in self.programs().items():
                    with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                        measured = start(Path(folder), name)
                    lines.append([kind, program, *_cells(measured, is_stored=program != "dask.dataframe")])
                    log(" | ".join(lines[-1]))
                    store_of_outputs = open_store(f"s3://{self.bucket.name}")
                    store_of_outputs.delete([entry.key for entry in store_of_outputs.list("out/")])
                    store_of_outputs.delete([entry.key for entry in store_of_outputs.list("shards/")])
        finally:
            shutil.rmtree(self.bucket.parent)
        return lines


def _cells(measured: Measured, *, is_stored: bool) -> list[str]:
    driver, worker = measured.peak("driver"), measured.peak("worker")
    return [
        f"{measured.seconds:,.0f} s",
        f"{driver / 1e6:.0f} MB",
        f"{worker / 1e6:.0f} MB" if worker else "",
        f"{measured.read / 1e6:,.0f} MB" if is_stored else "",
        f"{measured.disk / 1e9:.1f} GB",
    ]


def check_space(folder: Path, size: int) -> None:
    """Check the free space of a disk, and print what is needed.

    Raises:
        SystemExit: It is not enough.
    """
    shared = are_shared(folder)
    # Without workers, the source and its rows are on the disk at once. Later there are shards twice.
    needed = min(size, _BLOCK_BYTES) + int(1.7 * size) + (0 if shared else size)
    free = shutil.disk_usage(folder).free
    copies = "shares the bytes of copies" if shared else "does not share the bytes of copies, as XFS and Btrfs do"
    print(f"{folder}: {free / 1e9:.1f} GB are free, {needed / 1e9:.1f} GB are needed; the file system {copies}")
    if free < needed:
        raise SystemExit("the disk has too little space: set SIZE to fewer GB, or FOLDER to a folder on another disk")


def page(bench: Bench, lines: list[list[str]]) -> str:
    """Return the page with the lines of its table."""
    head = ["source", "program", "time", "peak of the step", "peak of a worker", "read by the step", "disk"]
    return _TEXT.format(
        day=date.today(),
        python=platform.python_version(),
        pyarrow=version("pyarrow"),
        dask=version("dask"),
        cores=cpu_count(),
        block=_BLOCK_BYTES / 1e9,
        workers=bench.workers,
        table=table(head, lines),
    )


def main() -> None:
    """Measure, print the table and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=float, default=10, help="size of each source as text, in GB (default: 10)")
    parser.add_argument("--folder", type=Path, help="folder for all files (default: that of temporary files)")
    parser.add_argument("--workers", type=int, default=2, help="number of workers (default: 2)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="large-") as name:
        bench = Bench(Path(name), int(options.size * 1e9), options.workers)
        check_space(bench.folder, bench.size)
        block = bench.folder / "block.csv"
        write_block(block, min(bench.size, _BLOCK_BYTES))
        lines = [line for kind in bench.sources() for line in bench.measure(block, kind)]
        text = page(bench, lines)
    print(text)
    _PAGE.write_text(text)


if __name__ == "__main__":
    main()
