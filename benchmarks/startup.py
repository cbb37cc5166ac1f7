"""What importing and compiling costs, beside kfp alone."""

import sys

from measure import measure, median, table

_COMPILE = """\
from kfp import compiler, dsl
@dsl.component(base_image="python:3.11")
def step(x: int = 1) -> int:
    return x
@dsl.pipeline
def four_steps():
    step(x=step(x=step(x=step().output).output).output)
compiler.Compiler().compile(four_steps, "/dev/null")
"""

_COMPILE_OURS = """\
from kfp import compiler
from kfp_distributed.pipelines.train_and_export import train_and_export
compiler.Compiler().compile(train_and_export, "/dev/null")
"""

_PAIRS = {
    "import": ("from kfp_distributed.components import prepare_data, train", "from kfp import dsl, compiler"),
    "import and compile a pipeline of four steps": (_COMPILE_OURS, _COMPILE),
}


def startup_table(runs: int = 5) -> str:
    """Measures each pair in turn, `runs` times after one that is not counted; the medians."""
    rows = []
    for name, codes in _PAIRS.items():
        measured = [[measure([sys.executable, "-c", code]) for code in codes] for _ in range(runs + 1)][1:]
        ours, theirs = (median(column) for column in zip(*measured, strict=True))
        rows.append([name, f"{ours.seconds:.2f} s", f"{theirs.seconds:.2f} s"])
    return table(["", "kfp-distributed", "kfp alone"], rows)
