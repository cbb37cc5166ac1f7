"""Measure what the `train` step adds on one machine to the same training started by hand."""

import statistics
import tempfile
from pathlib import Path

from by_hand import PROGRAMS, TRAININGS, Training, run_by_hand, run_by_step
from measure import header, installed, parser, spread, table, take_turns, write_page
from prepared_data import prepare

_TEXT = """\
# Benchmarks on one machine

{header}

[All measurements](../docs/explanation/benchmarks.md) has the other pages.

## The train step

The same replicas with the same TF_CONFIG, started by the step's `launch` and by hand, in alternating order. The cells
are medians of {runs} runs, with the shortest and the longest. *Added* is the difference of the medians. *Added,
shortest runs* is the difference of the shortest runs, because other programs on the machine only make runs longer. The
goal is at most 3 % and 1 s.

{trainings}

## Programs that do not use this library

The scripts of benchmarks/programs, started by the step and by their usual launcher, measured in the same way with
{program_runs} runs each. The goal is the same. The scripts do not use the autotuning of tf.data, which takes seconds to
stop in some runs.

{programs}
"""

_ADDED = ("added", "added, shortest runs", "goal")


def _training_row(training: Training, data: Path, folder: Path, runs: int) -> list[str]:
    """Return the cells of a training: the seconds by the step and by hand, what is added, and the goal."""
    ways = {
        "train step": lambda run: run_by_step(training, data, folder / f"{run}-step"),
        "by hand": lambda run: run_by_hand(training, data, folder / f"{run}-hand"),
    }
    step, hand = take_turns(ways, runs).values()
    added = (statistics.median(step) - statistics.median(hand), min(step) - min(hand))
    goal = f"{0.03 * statistics.median(hand) + 1:.1f} s"
    cells = [spread(step, form=".1f"), spread(hand, form=".1f"), *training.launcher]
    return [training.name, *cells, *(f"{difference:+.1f} s" for difference in added), goal]


def main() -> None:
    """Run the benchmarks of one machine."""
    arguments = parser(__doc__, "README.md", runs=3)
    arguments.add_argument("--program-runs", type=int, default=9, help="runs of each script (default: 9)")
    arguments.add_argument("--trainings", type=int, help="only so many of the trainings and of the scripts")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = prepare(folder / "digits")
        trainings, programs = (
            [_training_row(training, data, folder / training.name, runs) for training in chosen[: options.trainings]]
            for chosen, runs in ((TRAININGS, options.runs), (PROGRAMS, options.program_runs))
        )
    text = _TEXT.format(
        header=header("bench", installed("kfp", "tensorflow"), "columns"),
        runs=options.runs,
        program_runs=options.program_runs,
        trainings=table(["training of 10 epochs on digits", "train step", "by hand", *_ADDED], trainings),
        programs=table(
            ["program of 600 steps on 2 ranks", "train step", "by hand", "usual launcher", *_ADDED], programs
        ),
    )
    write_page(options.page, text)


if __name__ == "__main__":
    main()
