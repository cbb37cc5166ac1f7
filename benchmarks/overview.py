"""Measure how fast `prepare_data` draws its HTML overview."""

import pickle
import sys
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.csv
from measure import Command, header, installed, measure, parser, spread, table, take_turns, write_page

from kfp_distributed.components.prepare_data import prepare as preparation
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.report.overview import overview_page

# Columns and rows of the tables. 80 % of the rows are for training. The sample is complete with 20,000 training rows or
# 16 MiB, so that more rows change nothing.
_TABLES = ((20, 30_000), (200, 30_000), (3_000, 3_000))
_TEXT = """\
# The overview of prepare_data

{header}

The step draws a page with statistics, samples and charts of the data. The tables have columns of random numbers and a
label of three classes. A sample of at most 20,000 training rows and 16 MiB represents the rows, so that the times do
not grow with the number of rows. Each run is a new process and draws its first page: medians of {runs} runs, with the
shortest and the longest.

- *Import*: Bokeh and Jinja, and the modules that use them. The step imports the other libraries anyway.
- *Ranking*: each column is tested as the only predictor of the label.
- *Drawing*: the content of the page and its HTML with all charts. The goal is 0.5 s for 20 columns, and 2 s for
  ranking and drawing with 3,000 columns.

{table}
"""

_PROGRAM = """
import json, pickle, sys, time
from pathlib import Path
# What the step has imported anyway.
import kfp_distributed.components.prepare_data.read, kfp_distributed.components.prepare_data.writing.write
from kfp_distributed.components.prepare_data.report.leakage import rank_predictors
content = pickle.loads(Path(sys.argv[1]).read_bytes())
manifests, profile = content[:2]
columns = manifests["train"].columns
moments = [time.perf_counter()]
from kfp_distributed.components.prepare_data.report.overview import overview_page
from kfp_distributed.reports.page import render_page
moments.append(time.perf_counter())
rank_predictors(columns, profile.sample.columns(columns), profile.sample.labels)
moments.append(time.perf_counter())
page = render_page("prepare_data.html", overview_page(*content))
moments.append(time.perf_counter())
seconds = [end - begin for begin, end in zip(moments, moments[1:])]
print(json.dumps([*seconds, len(profile.sample.labels), len(page.encode())]))
"""


def _content(folder: Path, columns: int, rows: int) -> tuple[object, ...]:
    """Prepare a table of random numbers. Return what the step draws the overview from."""
    generator = np.random.default_rng(0)
    values = {f"x{column}": generator.normal(size=rows).round(5) for column in range(columns)}
    values["label"] = np.array(["a", "b", "c"])[generator.integers(3, size=rows)]
    pyarrow.csv.write_csv(pa.table(values), folder / "table.csv")
    paths = {split: str(folder / split) for split in ("train", "validation", "test")}
    datasets = {split: SimpleNamespace(path=path, uri=path, metadata={}) for split, path in paths.items()}
    with (
        mock.patch.object(preparation, "overview_page", wraps=overview_page) as drawn,
        redirect_stdout(StringIO()),
    ):
        preparation.prepare(str(folder / "table.csv"), Options("label"), datasets, str(folder / "overview"))
    content: tuple[object, ...] = drawn.call_args.args
    return content


def _row(columns: int, rows: int, runs: int) -> list[str]:
    with tempfile.TemporaryDirectory() as name:
        profile = Path(name, "profile.pickle")
        profile.write_bytes(pickle.dumps(_content(Path(name), columns, rows)))
        program: Command = [sys.executable, "-c", _PROGRAM, profile]
        (measured,) = take_turns({f"{columns} columns": lambda run: measure(program)}, runs).values()
    *parts, samples, sizes = zip(*(run.printed for run in measured), strict=True)
    return [f"{columns:,}", f"{samples[0]:,}", *map(spread, parts), f"{sizes[0] / 1000:,.0f} kB"]


def main() -> None:
    """Measure, print the table and write the page."""
    arguments = parser(__doc__, "overview.md", runs=9)
    arguments.add_argument("--tables", type=int, default=len(_TABLES), help="only so many of the tables (default: all)")
    options = arguments.parse_args()
    rows = [_row(*size, options.runs) for size in _TABLES[: options.tables]]
    columns = ["columns", "sampled rows", "import", "ranking", "drawing", "page"]
    text = _TEXT.format(
        header=header("bench-overview", installed("bokeh")), runs=options.runs, table=table(columns, rows)
    )
    write_page(options.page, text)


if __name__ == "__main__":
    main()
