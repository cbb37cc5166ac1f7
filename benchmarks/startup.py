"""What importing and compiling costs, beside kfp alone."""

import sys
from pathlib import Path

from measure import measure, median, table

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

_PAIRS = {
    "import": ("from kfp_distributed.components import prepare_data, train", "from kfp import dsl, compiler"),
    "import and compile a pipeline of four steps": (_COMPILE_OURS, _COMPILE),
}


def startup_table(folder: Path, runs: int = 5) -> str:
    """Measures each pair in turn, `runs` times after one that is not counted; the medians."""
    rows = []
    for name, codes in _PAIRS.items():
        files = [folder / f"{len(rows)}-{number}.py" for number in range(len(codes))]
        for file, code in zip(files, codes, strict=True):
            file.write_text(code)
        measured = [[measure([sys.executable, file]) for file in files] for _ in range(runs + 1)][1:]
        ours, theirs = (median(column) for column in zip(*measured, strict=True))
        rows.append([name, f"{ours.seconds:.2f} s", f"{theirs.seconds:.2f} s"])
    return table(["", "kfp-distributed", "kfp alone"], rows)
