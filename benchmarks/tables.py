"""Measure `prepare_data` with tables of 2 million rows beside what other programs need for the same rows.

`make bench-tables` prints the results and writes benchmarks/tables.md.
"""

import json
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from os import cpu_count
from pathlib import Path

from measure import table

_ROWS = 2_000_000
_RUNS = 5
_PAGE = Path(__file__).with_suffix(".md")
_TEXT = """\
# Tables in prepare_data

`make bench-tables` runs these measurements and writes this page. Latest run: {day}, Python {python}, pyarrow {pyarrow},
scikit-learn {sklearn}, {cores} cores of a shared machine. Compare the columns of one run, not different runs.

A table of {rows:,} rows and 20 columns: 18 of numbers, one of texts, and a label of three classes. Each program is a
new process, and the programs take turns. The cells are medians of {runs} runs with the shortest and the longest, and
the peak memory of the process. The time does not include the start of Python and the imports.

- *prepare_data*: checks all rows, splits them into eight training shards, validation and test, shuffles them and draws
  the overview.
- *pyarrow*: reads the table and writes it as one Parquet file. The goal of `prepare_data` is 70 % of its rows/s, with
  less than 500 MB.
- *scikit-learn*: reads the table with pyarrow, splits it with `train_test_split` and writes three Parquet files.

{table}
"""

_PREPARE = """
from pathlib import Path
from types import SimpleNamespace
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.prepare import prepare
import kfp_distributed.reports.page
def work(source, folder):
    paths = {name: str(folder / name) for name in ("train", "validation", "test")}
    outputs = {name: SimpleNamespace(path=path, uri=path, metadata={}) for name, path in paths.items()}
    prepare(str(source), Options(), outputs, str(folder / "overview"))
"""

_PYARROW = """
import pyarrow.csv, pyarrow.parquet
def work(source, folder):
    read = pyarrow.csv.read_csv if source.suffix == ".csv" else pyarrow.parquet.read_table
    folder.mkdir()
    pyarrow.parquet.write_table(read(source), folder / "table.parquet")
"""

_SKLEARN = """
import numpy as np, pyarrow.csv, pyarrow.parquet
from sklearn.model_selection import train_test_split
def work(source, folder):
    rows = (pyarrow.csv.read_csv if source.suffix == ".csv" else pyarrow.parquet.read_table)(source)
    labels = rows.column("label").to_numpy(zero_copy_only=False)
    rest, test = train_test_split(np.arange(len(labels)), test_size=0.1, stratify=labels, random_state=0)
    train, validation = train_test_split(rest, test_size=1 / 9, stratify=labels[rest], random_state=0)
    folder.mkdir()
    for name, index in (("train", train), ("validation", validation), ("test", test)):
        pyarrow.parquet.write_table(rows.take(index), folder / f"{name}.parquet")
"""

_MEASURE = """
import contextlib, json, resource, sys, time
from pathlib import Path
source, folder = map(Path, sys.argv[1:])
begin = time.perf_counter()
with contextlib.redirect_stdout(sys.stderr):
    work(source, folder)
seconds = time.perf_counter() - begin
print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""

_PROGRAMS = {"prepare_data": _PREPARE, "pyarrow": _PYARROW, "scikit-learn": _SKLEARN}


_WRITE = """
import sys
from pathlib import Path
import numpy as np, pyarrow as pa, pyarrow.csv, pyarrow.parquet
rows, folder = int(sys.argv[1]), Path(sys.argv[2])
generator = np.random.default_rng(0)
columns = {f"x{index}": generator.normal(size=rows).round(5) for index in range(17)}
columns["count"] = generator.integers(0, 100, rows)
columns["colour"] = np.array(["red", "green", "blue"])[generator.integers(0, 3, rows)]
columns["label"] = np.array(list("abc"))[generator.integers(0, 3, rows)]
table = pa.table(columns)
pa.csv.write_csv(table, folder / "rows.csv")
pa.parquet.write_table(table, folder / "rows.parquet")
"""


def write_tables(folder: Path) -> dict[str, Path]:
    """Write the table as CSV and as Parquet, in another process: a new process begins with the peak of its parent."""
    subprocess.run([sys.executable, "-c", _WRITE, str(_ROWS), folder], check=True)
    return {"CSV": folder / "rows.csv", "Parquet": folder / "rows.parquet"}


def run(program: str, source: Path, folder: Path) -> tuple[float, float]:
    """Run a program on a source; return its seconds and its peak memory in MiB."""
    done = subprocess.run(
        [sys.executable, "-c", program + _MEASURE, source, folder], check=True, capture_output=True, text=True
    )
    shutil.rmtree(folder)
    seconds, mebibytes = json.loads(done.stdout)
    return seconds, mebibytes


def tables(folder: Path, log: Callable[[str], None] = print) -> str:
    """Return the table of the measurements."""
    lines = []
    for name, source in write_tables(folder).items():
        measured: dict[str, list[tuple[float, float]]] = {program: [] for program in _PROGRAMS}
        for _ in range(_RUNS):
            for program, code in _PROGRAMS.items():
                measured[program].append(run(code, source, folder / "out"))
                log(f"{name}, {program}: {measured[program][-1][0]:.2f} s")
        medians = {program: statistics.median(seconds for seconds, _ in runs) for program, runs in measured.items()}
        share = medians["pyarrow"] / medians["prepare_data"]
        lines.append([name, *(map(_text, measured.values())), f"{share:.0%}"])
    return table(["source", *_PROGRAMS, "rows/s of prepare_data / pyarrow"], lines)


def _text(runs: list[tuple[float, float]]) -> str:
    seconds = [seconds for seconds, _ in runs]
    peak = max(mebibytes for _, mebibytes in runs)
    return f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f}), {peak:.0f} MiB"


def main() -> None:
    """Measure, print the table and write the page."""
    with tempfile.TemporaryDirectory() as folder:
        text = _TEXT.format(
            day=date.today(),
            python=platform.python_version(),
            pyarrow=version("pyarrow"),
            sklearn=version("scikit-learn"),
            cores=cpu_count(),
            rows=_ROWS,
            runs=_RUNS,
            table=tables(Path(folder)),
        )
    print(text)
    _PAGE.write_text(text)


if __name__ == "__main__":
    main()
