"""Measure how fast trainers read rows: `make bench-feeding` prints the results and writes benchmarks/feeding.md."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import feeding_environments
from measure import table
from prepare import digits_file
from training import prepare

from kfp_distributed.library.archive import ARCHIVE_KEY, make_archive
from kfp_distributed.library.content import REPLICA_PACKAGES, read_library
from kfp_distributed.storage import embedded_object_store, open_store
from kfp_distributed.storage.dataset import DatasetManifest, width
from kfp_distributed.storage.shards import fetch_shards

_RUNS = 3
_TF, _TORCH = "tf.data", "PyTorch"
_WAYS = {
    "tf.stream": (_TF, "stream"),
    "tf.in_order": (_TF, "from_tensor_slices, in order"),
    "tf.shuffled": (_TF, "from_tensor_slices, shuffled"),
    "tf.gathered": (_TF, "tf.gather, shuffled"),
    "torch.stream": (_TORCH, "stream"),
    "torch.mapped": (_TORCH, "memory-mapped array, shuffled"),
    "torch.datasets": (_TORCH, "datasets"),
    "torch.litdata": (_TORCH, "LitData"),
    "torch.mosaicml": (_TORCH, "MosaicML Streaming"),
}
"""Framework and name of each way of feeding_ways.py."""

_GOALS = {"tf.stream": ("tf.in_order", "tf.shuffled", "tf.gathered"), "torch.stream": ("torch.mapped",)}
"""The ways with which later epochs of a stream are compared."""

_READER_MIB = 200
"""Limit of the memory of a stream."""

_FOLDER = Path(__file__).parent
_PAGE = Path(__file__).with_suffix(".md")
_TEXT = """\
# Reading rows

`make bench-feeding` runs these measurements and writes this page. Latest run: {day}, Python {python}, TensorFlow
{tensorflow}, {torch}, {cores} cores of a shared machine with a load of {load} at the beginning and {load_after} at the
end. Compare the rows of one run, not different runs.

{size} and a label, in batches of 256: float32 inputs [256, {width}] and labels. Each batch is added up, and not
processed otherwise. Each way runs in a new process with an empty folder, and the ways take turns. The cells are medians
of {runs} runs with the smallest and the largest. All ways read from the same local S3 server, which uses the same
processors.

{table}

- *First epoch*: from the start, without imports, to the end of the first epoch. It includes the download.
- *Later epochs*: up to three epochs after the first one. No further epoch begins after 10 s.
- *First batch*: from the start, without imports, until the first batch was added up.
- *Memory of the reader*: the peak memory less that of the process after the imports of the framework and the library.
- *Peak memory*: of the process.
- *Disk*: local files after the last epoch.

## The ways

- *stream*: how the built-in trainers read their rows. With tf.data, a graph takes the batches, as the steps of Keras
  do. Each window of 100,000 rows is shuffled as a whole.
- *from_tensor_slices*: downloads the shards and keeps all rows in memory. *Shuffled* mixes all rows.
- *tf.gather, shuffled*: keeps all rows in memory, too. A graph draws a random order of all rows, and selects the rows
  of each batch at once. So tf.data does nothing for each single row.
- *memory-mapped array, shuffled*: downloads the shards and writes a file of records. NumPy selects the rows of each
  batch from the whole file, in random order.
- *datasets*: Hugging Face `datasets` {datasets} streams the Parquet shards by s3fs, with a shuffle buffer of 10,000
  rows.
- *LitData* {litdata} and *MosaicML Streaming* {mosaicml} shuffle with their defaults and read formats of their own. A
  program wrote these formats into the object store first, which is not in the table.

The batches are collected in the process that uses them. More processes would share the same two cores.

## The goals

Later epochs should have at least 90 % of the rows/s of the rows in memory with tf.data, and of a memory-mapped array
with PyTorch. The memory of a stream should be less than {memory_goal} MiB.

{goals}
"""

Measured = Mapping[str, float]
"""What feeding_ways.py prints."""


@contextmanager
def rows_in_store(folder: Path) -> Iterator[tuple[DatasetManifest, dict[str, str]]]:
    """Write the digits, 100 times over, into a local S3 server. Yield the manifest and the environment of processes."""
    prepared = prepare(folder / "many", digits_file(folder / "many.npz", 100))
    manifest = fetch_shards(str(prepared / "train"), folder / "data")
    (folder / ARCHIVE_KEY).write_bytes(make_archive(read_library(REPLICA_PACKAGES)))
    (folder / "objects" / "bucket").mkdir(parents=True)
    with embedded_object_store(folder / "objects") as server:
        open_store("s3://bucket/data", server.credentials()).upload_folder(folder / "data")
        yield (
            manifest,
            {
                **os.environ,
                **server.environment(),
                "PYTHONPATH": str(folder / ARCHIVE_KEY),
                "PYTHONSAFEPATH": "1",
                "TF_CPP_MIN_LOG_LEVEL": "2",
                "HF_HUB_OFFLINE": "1",
            },
        )


def convert(library: str, python: str, folder: Path, environment: Mapping[str, str]) -> None:
    """Write the rows in the format of a library into the object store."""
    script, target = _FOLDER / "feeding_formats.py", folder / library
    run([python, str(script), library, str(folder / "data"), str(target)], folder, environment)
    for file in [path for path in target.rglob("*") if path.is_file()]:
        stored = folder / "objects" / "bucket" / library / file.relative_to(target)
        stored.parent.mkdir(parents=True, exist_ok=True)
        file.rename(stored)


def run(argv: list[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Run a program in a new folder. Return its output.

    Raises:
        RuntimeError: It failed. The message has the end of its errors.
    """
    with tempfile.TemporaryDirectory(dir=folder) as work:
        own = {**environment, "HOME": work, "TMPDIR": work, "HF_HOME": f"{work}/huggingface"}
        done = subprocess.run(argv, cwd=work, env=own, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{argv} exited with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout


def measure_ways(
    pythons: Mapping[str, str], rows: int, runs: int, folder: Path, environment: Mapping[str, str]
) -> dict:
    """Return the measurements of each way."""
    measured: dict[str, list[Measured]] = {way: [] for way in pythons}
    for number in range(runs):
        for way in [*pythons] if number % 2 == 0 else [*reversed(pythons)]:
            argv = [pythons[way], str(_FOLDER / "feeding_ways.py"), way, str(rows), "s3://bucket"]
            measured[way].append(json.loads(run(argv, folder, environment).splitlines()[-1]))
            print(way, json.dumps(measured[way][-1]), file=sys.stderr, flush=True)
    return measured


def _middle(runs: list[Measured], name: str) -> float:
    return statistics.median(run[name] for run in runs)


def _cell(runs: list[Measured], name: str, form: str = ",.0f") -> str:
    values = [run[name] for run in runs]
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def table_of_ways(measured: Mapping[str, list[Measured]]) -> str:
    """Return the table of the measurements."""
    lines = [
        [
            *_WAYS[way],
            _cell(runs, "first_epoch"),
            _cell(runs, "later_epochs"),
            _cell(runs, "first_batch", ".2f") + " s",
            f"{_cell(runs, 'reader_mib')} MiB",
            f"{_middle(runs, 'peak_mib'):,.0f} MiB",
            f"{_middle(runs, 'disk_mib'):,.0f} MiB",
        ]
        for way, runs in measured.items()
    ]
    columns = [
        "first epoch, rows/s",
        "later epochs, rows/s",
        "first batch",
        "memory of the reader",
        "peak memory",
        "disk",
    ]
    return table(["framework", "way", *columns], lines)


def goals_of_ways(measured: Mapping[str, list[Measured]]) -> str:
    """Return the list of the comparisons of the streams."""
    lines = []
    for way, others in _GOALS.items():
        for other in others:
            ratio = _middle(measured[way], "later_epochs") / _middle(measured[other], "later_epochs")
            framework, name = _WAYS[other]
            result = "reached" if ratio >= 0.9 else "missed"
            lines.append(f"- {framework}: {100 * ratio:,.0f} % of *{name}*: {result}.")
        memory = _middle(measured[way], "reader_mib")
        result = "reached" if memory < _READER_MIB else "missed"
        lines.append(f"- {_WAYS[way][0]}: {memory:,.0f} MiB of memory: {result}.")
    return "\n".join(lines)


def find_pythons() -> dict[str, str]:
    """Return the Python of each way."""
    torch, mosaicml = (str(feeding_environments.make(name)) for name in ("feeding", "feeding-mosaicml"))
    special = {"torch.mosaicml": mosaicml}
    return {way: special.get(way, sys.executable if way.startswith("tf.") else torch) for way in _WAYS}


def page(
    measured: Mapping[str, list[Measured]],
    pythons: Mapping[str, str],
    manifest: DatasetManifest,
    loads: tuple[float, float],
) -> str:
    """Return the page, with the load at the beginning and at the end."""
    return _TEXT.format(
        day=date.today().isoformat(),
        python=platform.python_version(),
        tensorflow=_version(sys.executable, "tensorflow"),
        torch=f"Debian's PyTorch {_version(pythons['torch.stream'], 'torch')}",
        datasets=_version(pythons["torch.datasets"], "datasets"),
        litdata=_version(pythons["torch.litdata"], "litdata"),
        mosaicml=_version(pythons["torch.mosaicml"], "streaming"),
        cores=os.cpu_count(),
        load=f"{loads[0]:.1f}",
        load_after=f"{loads[1]:.1f}",
        size=f"{manifest.rows:,} rows of {width(manifest)} numbers",
        width=width(manifest),
        runs=len(measured["tf.stream"]),
        table=table_of_ways(measured),
        memory_goal=_READER_MIB,
        goals=goals_of_ways(measured),
    )


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=_RUNS, help=f"Runs of each way. Default: {_RUNS}.")
    parser.add_argument("--way", action="append", choices=_WAYS, help="Run only this way, and write no page.")
    arguments = parser.parse_args()
    pythons = find_pythons()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name, rows_in_store(Path(name)) as (manifest, environment):
        chosen = arguments.way or [*_WAYS]
        for library in ("litdata", "mosaicml"):
            if f"torch.{library}" in chosen:
                convert(library, pythons[f"torch.{library}"], Path(name), environment)
        ways = {way: pythons[way] for way in chosen}
        measured = measure_ways(ways, manifest.rows, arguments.runs, Path(name), environment)
    if arguments.way:
        print(table_of_ways(measured))
        return
    text = page(measured, pythons, manifest, (load, os.getloadavg()[0]))
    _PAGE.write_text(text, encoding="utf-8")
    print(text)


def _version(python: str, module: str) -> str:
    code = f"import {module}; print({module}.__version__)"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
