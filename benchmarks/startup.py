"""Measure the import of the library and the compilation of a pipeline, compared with kfp alone."""

import sys
from collections.abc import Mapping
from pathlib import Path

from measure import Measured, measure, median, table
from packed import COMMIT, has_packed, install_packed

_FIRST = "import after a change of the library"

_COMPILE = """\
from kfp import compiler, dsl
@dsl.component(base_image="python:3.11")
def step(x: int = 1) -> int:
    return x
@dsl.pipeline
def four_steps():
    step(x=step(x=step(x=step().output).output).output)
compiler.Compiler().compile(four_steps, __file__ + ".yaml")
"""

_COMPILE_OURS = """\
from kfp import compiler
from kfp_distributed.pipelines.train_and_export import train_and_export
compiler.Compiler().compile(train_and_export, __file__ + ".yaml")
"""

_IMPORT_OURS = "from kfp_distributed.components import prepare_data, train"

_ALONE = "kfp alone"
_PROGRAMS = {
    "import": (_IMPORT_OURS, "from kfp import dsl, compiler"),
    _FIRST: (_IMPORT_OURS, None),
    "import and compile a pipeline of four steps": (_COMPILE_OURS, _COMPILE),
}
"""The programs of each row: with the library, and with kfp alone."""


def startup_table(folder: Path, runs: int = 5) -> str:
    """Return a table of the medians of `runs` runs, after one that is not counted. The programs of a row alternate."""
    versions: dict[str, Mapping[str, str]] = {"kfp-distributed": {}}
    if has_packed():
        versions[f"archive in the YAML (commit {COMMIT[:7]})"] = install_packed(folder / "packed")
    rows = []
    for number, (name, (ours, alone)) in enumerate(_PROGRAMS.items()):
        files = [folder / f"{number}-ours.py", folder / f"{number}-alone.py"]
        for file, code in zip(files, (ours, alone), strict=True):
            file.write_text(code or "", encoding="utf-8")
        columns: dict[str, list[Measured]] = {}
        for run in range(runs + 1):
            # The folder in which the library of that commit caches its packed archives.
            cache = folder / (f"cache-{run}" if name == _FIRST else "cache")
            for version, variables in versions.items():
                environment = {"XDG_CACHE_HOME": str(cache), **variables}
                columns.setdefault(version, []).append(measure([sys.executable, files[0]], environment))
            if alone:
                columns.setdefault(_ALONE, []).append(measure([sys.executable, files[1]]))
        cells = [f"{median(columns[column][1:]).seconds:.2f} s" for column in columns]
        rows.append([name, *cells, *([] if alone else [""])])
    return table(["", *versions, _ALONE], rows)
