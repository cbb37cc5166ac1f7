"""Measure how fast trainers read rows, beside other ways to read the same rows."""

import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from comparators import program_version, python_of, version_of
from measure import header, measure, parser, spread, table, take_turns, write_page
from prepared_data import prepare, write_digits

from kfp_distributed.library.archive import ARCHIVE_KEY, make_archive
from kfp_distributed.library.content import REPLICA_PACKAGES, read_library
from kfp_distributed.storage import embedded_object_store, open_store
from kfp_distributed.storage.dataset import DatasetManifest, width
from kfp_distributed.storage.shards import fetch_shards


class _Way(NamedTuple):
    """A way of feeding_ways.py: its framework and its name in the table."""

    framework: str
    name: str


_WAYS = {
    "tf.stream": _Way("tf.data", "stream"),
    "tf.in_order": _Way("tf.data", "from_tensor_slices, in order"),
    "tf.shuffled": _Way("tf.data", "from_tensor_slices, shuffled"),
    "tf.gathered": _Way("tf.data", "tf.gather, shuffled"),
    "torch.stream": _Way("PyTorch", "stream"),
    "torch.mapped": _Way("PyTorch", "memory-mapped array, shuffled"),
    "torch.datasets": _Way("PyTorch", "datasets"),
    "torch.litdata": _Way("PyTorch", "LitData"),
}
_GOALS = {"tf.stream": ("tf.in_order", "tf.shuffled", "tf.gathered"), "torch.stream": ("torch.mapped",)}
"""The ways with which later epochs of a stream are compared."""
_READER_MIB = 200
"""Limit of the memory of a stream."""

_PROGRAM = Path(__file__).parent / "feeding_ways.py"
_TEXT = """\
# Reading rows

{header}

{rows:,} rows of {width} numbers and a label, in batches of 256: float32 inputs [256, {width}] and labels. Each batch is
added up, and not processed otherwise. Each way runs in a new process with an empty folder, and the ways take turns. The
cells are medians of {runs} runs with the smallest and the largest. All ways read from the same local S3 server, which
uses the same processors. PyTorch is that of Debian.

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
- *datasets*: Hugging Face `datasets` streams the Parquet shards by s3fs, with a shuffle buffer of 10,000 rows.
- *LitData* shuffles with its defaults and reads a format of its own. A program wrote this format into the object store
  first, which is not in the table.

The batches are collected in the process that uses them. More processes would share the same two cores.

## The goals

Later epochs should have at least 90 % of the rows/s of the rows in memory with tf.data, and of a memory-mapped array
with PyTorch. The memory of a stream should be less than {memory_goal} MiB.

{goals}
"""
_COLUMNS: Mapping[str, tuple[str, Callable[[Sequence[float]], str]]] = {
    "first_epoch": ("first epoch, rows/s", partial(spread, unit="", form=",.0f")),
    "later_epochs": ("later epochs, rows/s", partial(spread, unit="", form=",.0f")),
    "first_batch": ("first batch", spread),
    "reader_mib": ("memory of the reader", partial(spread, unit=" MiB", form=",.0f")),
    "peak_mib": ("peak memory", lambda values: f"{statistics.median(values):,.0f} MiB"),
    "disk_mib": ("disk", lambda values: f"{statistics.median(values):,.0f} MiB"),
}
"""Heading and form of each figure that feeding_ways.py prints."""

_Figures = Mapping[str, float]


@dataclass(frozen=True)
class _Store:
    """The rows in a local S3 server.

    Attributes:
        folder: The folder of the server and of the processes.
        manifest: The manifest of the rows.
        variables: The environment of the processes.
    """

    folder: Path
    manifest: DatasetManifest
    variables: Mapping[str, str]

    def run(self, *argv: str | Path) -> _Figures:
        """Run a program in a new folder, and return the figures that it printed."""
        with tempfile.TemporaryDirectory(dir=self.folder) as work:
            own = {"HOME": work, "TMPDIR": work, "HF_HOME": f"{work}/huggingface"}
            figures: _Figures = measure(argv, {**self.variables, **own}, Path(work)).printed
        return figures

    def convert(self, python: Path) -> None:
        """Write the rows in the format of LitData into the object store."""
        target = self.folder / "litdata"
        self.run(python, _PROGRAM, "convert", self.folder / "data", target)
        target.rename(self.folder / "objects" / "bucket" / "litdata")


@contextmanager
def _rows_in_store(folder: Path, times: int) -> Iterator[_Store]:
    """Write the digits, so many times over, into a local S3 server."""
    prepared = prepare(folder / "many", write_digits(folder / "many.npz", times))
    manifest = fetch_shards(str(prepared / "train"), folder / "data")
    (folder / ARCHIVE_KEY).write_bytes(make_archive(read_library(REPLICA_PACKAGES)))
    (folder / "objects" / "bucket").mkdir(parents=True)
    with embedded_object_store(folder / "objects") as server:
        open_store("s3://bucket/data", server.credentials()).upload_folder(folder / "data")
        own = {"PYTHONPATH": str(folder / ARCHIVE_KEY), "PYTHONSAFEPATH": "1"}
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "HF_HUB_OFFLINE": "1"}
        yield _Store(folder, manifest, {**os.environ, **server.environment(), **own, **quiet})


def _goals(medians: Mapping[str, _Figures]) -> str:
    """Return the list of the comparisons of the streams."""
    lines = []
    for way, others in _GOALS.items():
        for other in others:
            ratio = medians[way]["later_epochs"] / medians[other]["later_epochs"]
            result = "reached" if ratio >= 0.9 else "missed"
            lines.append(f"- {_WAYS[other].framework}: {100 * ratio:,.0f} % of *{_WAYS[other].name}*: {result}.")
        memory = medians[way]["reader_mib"]
        result = "reached" if memory < _READER_MIB else "missed"
        lines.append(f"- {_WAYS[way].framework}: {memory:,.0f} MiB of memory: {result}.")
    return "\n".join(lines)


def _module_version(python: Path, module: str) -> str:
    return program_version(python, "-c", f"import {module}; print({module}.__version__)")


def _page(runs: Mapping[str, list[_Figures]], manifest: DatasetManifest, pythons: Mapping[str, Path]) -> str:
    figures = {way: {name: [run[name] for run in of_way] for name in _COLUMNS} for way, of_way in runs.items()}
    rows = [
        [*_WAYS[way], *(form(of_way[name]) for name, (_, form) in _COLUMNS.items())] for way, of_way in figures.items()
    ]
    medians = {
        way: {name: statistics.median(values) for name, values in of_way.items()} for way, of_way in figures.items()
    }
    modules = {"tf.stream": ("TensorFlow", "tensorflow"), "torch.stream": ("PyTorch", "torch")}
    versions = {name: _module_version(pythons[way], module) for way, (name, module) in modules.items() if way in runs}
    libraries = {name: version_of("feeding", name.lower()) for name in ("datasets", "LitData")}
    return _TEXT.format(
        header=header("bench-feeding", {**versions, **libraries}),
        rows=manifest.rows,
        width=width(manifest),
        runs=len(next(iter(runs.values()))),
        table=table(["framework", "way", *(heading for heading, _ in _COLUMNS.values())], rows),
        memory_goal=_READER_MIB,
        goals=_goals(medians) if {*runs} == {*_WAYS} else "Not all ways were measured.",
    )


def main() -> None:
    """Measure, print the table and write the page."""
    arguments = parser(__doc__, "feeding.md", runs=3)
    arguments.add_argument("--way", action="append", choices=_WAYS, help="only this way; repeatable")
    arguments.add_argument("--times", type=int, default=100, help="how many times the digits are read (default: 100)")
    options = arguments.parse_args()
    chosen = options.way or [*_WAYS]
    pythons = {way: Path(sys.executable) if way.startswith("tf.") else python_of("feeding") for way in chosen}
    with tempfile.TemporaryDirectory() as name, _rows_in_store(Path(name), options.times) as store:
        if "torch.litdata" in chosen:
            store.convert(pythons["torch.litdata"])
        arguments_of = {way: (python, _PROGRAM, way, str(store.manifest.rows)) for way, python in pythons.items()}
        ways = {way: lambda run, argv=argv: store.run(*argv, "s3://bucket") for way, argv in arguments_of.items()}
        runs = take_turns(ways, options.runs)
    write_page(options.page, _page(runs, store.manifest, pythons))


if __name__ == "__main__":
    main()
