"""Measures everything, prints the tables and writes them to benchmarks/README.md: `make bench`."""

import os
import platform
import tempfile
from datetime import date
from importlib.metadata import version
from pathlib import Path

from feeding import feeding_table
from launchers import launchers_table
from prepare import digits_file, prepare_table
from startup import startup_table
from training import prepare, training_table

_README = Path(__file__).parent / "README.md"

_TEXT = """\
# What it costs

`make bench` measures this anew and writes it here. Latest: {day}, Python {python}, kfp {kfp}, tensorflow {tensorflow},
{cores} cores of a shared machine: compare columns, not days.

What runs on a cluster has pages of its own: what the step adds to `kubectl apply` and `kubectl wait`, beside the
waiting loops of the public SDK, and how a step starts ([cluster.md](cluster.md)); the logs of 3 and of 300 replicas
([logs.md](logs.md)).
What each way to spread a training costs is in [ways.md](ways.md).

## The train step

The same replicas with the same TF_CONFIG, started by the step's `launch` and by hand, either one first in turn: the
median of three runs, and the shortest to the longest. What is added is the difference of the medians and, since what
others compute here only ever adds, that of the shortest runs. The goal is at most 3 % and 1 s.

{training}

## Programs that know nothing of us

The scripts of benchmarks/programs, by the step and by what people start them with, measured in the same way, nine runs
each. The goal is the same. None of them leaves its input to be tuned by tf.data: to end the tuning takes seconds, and
not in each run.

{launchers}

## Feeding

One epoch with nothing done to the rows; medians of three. Memory is the upper limit: there the rows must fit into it.

{feeding}

## Import and compilation

Whole processes; medians of five runs. The column with a commit is the last version whose compiled steps carried the
library as a packed archive. It packed the code at the first import after a change, and kept the archive for later ones.

{startup}

## prepare_data

Seconds and peak memory of the whole process. Memory rises until the buffers are full (some 200 MiB) and then no more:
compare the two CSV files. The alternative has all rows in memory.

{prepare}
"""


def main() -> None:
    """The command line."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # First: what this process holds later counts as the memory of those that it starts.
        started, prepared = startup_table(folder), prepare_table(folder)
        digits, many = prepare(folder / "digits"), prepare(folder / "many", digits_file(folder / "many.npz", 100))
        text = _TEXT.format(
            day=date.today().isoformat(),
            python=platform.python_version(),
            kfp=version("kfp"),
            tensorflow=next(version(name) for name in ("tensorflow-cpu", "tensorflow") if _installed(name)),
            cores=os.cpu_count(),
            startup=started,
            prepare=prepared,
            training=training_table(digits, folder / "training"),
            launchers=launchers_table(digits, folder / "launchers"),
            feeding=feeding_table(many, folder / "feeding"),
        )
    _README.write_text(text, encoding="utf-8")
    print(text)


def _installed(name: str) -> bool:
    try:
        return bool(version(name))
    except ModuleNotFoundError:
        return False


if __name__ == "__main__":
    main()
