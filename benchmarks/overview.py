"""Measure how fast `prepare_data` draws its HTML overview, and write benchmarks/overview.md: `make bench-overview`."""

import json
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.csv
from measure import table

from kfp_distributed.components.prepare_data.pieces.piece_files import Pieces
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.report.leakage import rank_predictors
from kfp_distributed.components.prepare_data.report.profile import Profile
from kfp_distributed.components.prepare_data.scan.scanner import scan
from kfp_distributed.components.prepare_data.split.strata import plan_strata
from kfp_distributed.components.prepare_data.tables.open_source import open_source
from kfp_distributed.components.prepare_data.writing.write import write_splits
from kfp_distributed.storage.dataset import DatasetManifest

_T = TypeVar("_T")

_RUNS = 9
# Columns and rows of the tables. 80 % of the rows are for training. The sample is complete with 20,000 training rows or
# 16 MiB, so that more rows change nothing.
_TABLES = ((20, 30_000), (200, 30_000), (3_000, 3_000))
_PAGE = Path(__file__).parent / "overview.md"
_TEXT = """\
# The overview of prepare_data

`make bench-overview` runs these measurements and writes this page. Latest run: {day}, Python {python}, 2 cores of a
shared machine. Compare the rows of one run, not different runs.

The step draws a page with statistics, samples and charts of the data. The tables have columns of random numbers and a
label of three classes. A sample of at most 20,000 training rows and 16 MiB represents the rows, so that the times do
not grow with the number of rows. Each run is a new process and draws its first page: medians of {runs} runs, with the
shortest and the longest.

- *Import*: Bokeh and Jinja, and the modules that use them. The step imports the other libraries anyway.
- *Ranking*: each column is tested as the only predictor of the label.
- *Drawing*: the content of the page and its HTML with all charts. The goal is 0.5 s for 20 columns, and 2 s for
  ranking and drawing with 3,000 columns.

{rows}
"""


def main() -> None:
    """Run the benchmark from the command line."""
    if sys.argv[1:]:
        print(json.dumps(_measure(Path(sys.argv[1]))))
        return
    text = _TEXT.format(
        day=date.today().isoformat(), python=sys.version.split()[0], runs=_RUNS, rows=overview_table(_TABLES)
    )
    _PAGE.write_text(text, encoding="utf-8")
    print(text)


def overview_table(tables: Sequence[tuple[int, int]]) -> str:
    """Return a table of the times for tables of so many columns and rows."""
    rows = []
    for columns, source_rows in tables:
        with tempfile.TemporaryDirectory() as name:
            profile = Path(name, "profile.pickle")
            profile.write_bytes(pickle.dumps(_prepared(Path(name), columns, source_rows)))
            runs = [_run(profile) for _ in range(_RUNS)]
        seconds = [_seconds([run[part] for run in runs]) for part in ("import", "ranking", "drawing")]
        sample, size = int(runs[0]["sample"]), runs[0]["bytes"]
        rows.append([f"{columns:,}", f"{sample:,}", *seconds, f"{size / 1000:,.0f} kB"])
    return table(["columns", "sampled rows", "import", "ranking", "drawing", "page"], rows)


def _seconds(times: Sequence[float]) -> str:
    return f"{statistics.median(times):.2f} s ({min(times):.2f} to {max(times):.2f})"


def _prepared(folder: Path, columns: int, rows: int) -> tuple[dict[str, DatasetManifest], Profile, Mapping[str, int]]:
    """Prepare a table of random numbers. Return what the step draws the overview from."""
    generator = np.random.default_rng(0)
    values = {f"x{column}": generator.normal(size=rows).round(5) for column in range(columns)}
    values["label"] = np.array(["a", "b", "c"])[generator.integers(3, size=rows)]
    file = folder / "table.csv"
    pyarrow.csv.write_csv(pa.table(values), file)
    options = Options("label")
    source = open_source(file, options, folder)
    pieces = Pieces(folder / "pieces", source.expected_bytes, options.seed)
    scanned = scan(source, pieces)
    folders = {split: folder / split for split in ("train", "validation", "test")}
    for split in folders.values():
        split.mkdir()
    strata = plan_strata(pieces, scanned, source.split_by, options, frozenset())
    manifests, profile = write_splits(pieces, scanned, strata, options, file.name, folders, folder)
    return manifests, profile, scanned.missing


def _run(profile: Path) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, str(profile)], check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def _measure(file: Path) -> dict[str, float]:
    """Draw a page for the first time in this process. Return the seconds of each part and the bytes of the page."""
    manifests, profile, missing = pickle.loads(file.read_bytes())
    columns = manifests["train"].columns
    import_seconds, (overview_page, render_page) = _timed(_imported)
    ranking_seconds, _ = _timed(
        lambda: rank_predictors(columns, profile.sample.columns(columns), profile.sample.labels)
    )
    drawing_seconds, page = _timed(lambda: render_page("prepare_data.html", overview_page(manifests, profile, missing)))
    return {
        "import": import_seconds,
        "ranking": ranking_seconds,
        "drawing": drawing_seconds,
        "bytes": len(page.encode()),
        "sample": len(profile.sample.labels),
    }


def _imported() -> tuple[Callable[..., object], Callable[..., str]]:
    from kfp_distributed.components.prepare_data.report.overview import overview_page
    from kfp_distributed.reports.page import render_page

    return overview_page, render_page


def _timed(function: Callable[[], _T]) -> tuple[float, _T]:
    begin = time.perf_counter()
    result = function()
    return time.perf_counter() - begin, result


if __name__ == "__main__":
    main()
