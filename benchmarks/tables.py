"""Measure `prepare_data` with tables of 2 million rows beside what other programs need for the same rows."""

import shutil
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from measure import Measured, header, installed, measure, parser, spread, table, take_turns, write_page

_TEXT = """\
# Tables in prepare_data

{header}

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

_TIMED = """
import json, sys, time
from pathlib import Path
begin = time.perf_counter()
work(*map(Path, sys.argv[1:]))
print(json.dumps([time.perf_counter() - begin]))
"""

_PROGRAMS = {"prepare_data": _PREPARE, "pyarrow": _PYARROW, "scikit-learn": _SKLEARN}


def _write(folder: Path, rows: int) -> dict[str, Path]:
    """Write the table as CSV and as Parquet."""
    generator = np.random.default_rng(0)
    columns = {f"x{index}": generator.normal(size=rows).round(5) for index in range(17)}
    columns["count"] = generator.integers(0, 100, rows)
    columns["colour"] = np.array(["red", "green", "blue"])[generator.integers(0, 3, rows)]
    columns["label"] = np.array(list("abc"))[generator.integers(0, 3, rows)]
    pa_csv.write_csv(pa.table(columns), folder / "rows.csv")
    pq.write_table(pa.table(columns), folder / "rows.parquet")
    return {"CSV": folder / "rows.csv", "Parquet": folder / "rows.parquet"}


def _run(program: str, source: Path, folder: Path, run: int) -> Measured:
    measured = measure([sys.executable, "-c", program + _TIMED, source, folder])
    shutil.rmtree(folder)
    return measured


def _row(name: str, runs: dict[str, list[Measured]]) -> list[str]:
    seconds = {program: [run.printed[0] for run in of_program] for program, of_program in runs.items()}
    share = statistics.median(seconds["pyarrow"]) / statistics.median(seconds["prepare_data"])
    cells = [f"{spread(seconds[program])}, {max(run.peak_mib for run in runs[program]):.0f} MiB" for program in runs]
    return [name, *cells, f"{share:.0%}"]


def main() -> None:
    """Measure, print the table and write the page."""
    arguments = parser(__doc__, "tables.md", runs=5)
    arguments.add_argument("--rows", type=int, default=2_000_000, help="rows of the table (default: 2 million)")
    options, rows = arguments.parse_args(), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, file in _write(folder, options.rows).items():
            ways = {way: partial(_run, code, file, folder / "out") for way, code in _PROGRAMS.items()}
            rows.append(_row(kind, take_turns(ways, options.runs)))
    text = _TEXT.format(
        header=header("bench-tables", installed("pyarrow", "scikit-learn"), "columns"),
        rows=options.rows,
        runs=options.runs,
        table=table(["source", *_PROGRAMS, "rows/s of prepare_data / pyarrow"], rows),
    )
    write_page(options.page, text)


if __name__ == "__main__":
    main()
