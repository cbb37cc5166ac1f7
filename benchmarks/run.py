"""Run the benchmarks of one machine, print the tables and write benchmarks/README.md: `make bench`."""

import os
import platform
import tempfile
from datetime import date
from importlib.metadata import version
from pathlib import Path

from launchers import launchers_table
from prepare import prepare_table
from startup import startup_table
from training import prepare, training_table

_README = Path(__file__).parent / "README.md"

_TEXT = """\
# Benchmarks on one machine

`make bench` runs these measurements and writes this page. Latest run: {day}, Python {python}, kfp {kfp},
tensorflow {tensorflow}, {cores} cores of a shared machine. Compare the columns of one run, not different runs.

Other measurements:

- [cluster.md](cluster.md): the step on a cluster, compared with `kubectl apply` and `kubectl wait` and with the polling
  loop of the public SDK, and the start of a step;
- [logs.md](logs.md): the logs of up to 1,000 replicas;
- [ways.md](ways.md): the cost of each distribution strategy;
- [tables.md](tables.md): `prepare_data` with 2 million rows, beside pyarrow and scikit-learn;
- [feeding.md](feeding.md): how fast trainers read rows, beside other ways to read the same rows;
- [checkpoint_pause.md](checkpoint_pause.md): how long a checkpoint of 2 GB stops the training;
- [export.md](export.md): uploads and copies of models, beside s5cmd and rclone;
- [overview.md](overview.md): the time in which `prepare_data` draws its overview;
- [soak.md](soak.md): small trainings with random faults.

## The train step

The same replicas with the same TF_CONFIG, started by the step's `launch` and by hand, in alternating order. The cells
are medians of three runs, with the shortest and the longest. *Added* is the difference of the medians. *Added, shortest
runs* is the difference of the shortest runs, because other programs on the machine only make runs longer. The goal is
at most 3 % and 1 s.

{training}

## Programs that do not use this library

The scripts of benchmarks/programs, started by the step and by their usual launcher, measured in the same way with nine
runs each. The goal is the same. The scripts do not use the autotuning of tf.data, which takes seconds to stop in some
runs.

{launchers}

## Import and compilation

Times of whole processes; medians of five runs. The column with a commit is the last version whose compiled steps
contained the library as a packed archive. That version packed the code at the first import after a change, and cached
the archive.

{startup}

## prepare_data

Time and peak memory of the whole process. The memory grows until the buffers are full (about 200 MiB) and then stays
constant: compare the two CSV files. The alternative holds all rows in memory.

{prepare}
"""


def main() -> None:
    """Run the benchmarks from the command line."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # First, because the memory that this process uses later would count for the processes that it starts.
        started, prepared = startup_table(folder), prepare_table(folder)
        digits = prepare(folder / "digits")
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
