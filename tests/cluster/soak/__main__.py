"""Run trainings with random faults on the cluster of KUBECONFIG: `make soak`."""

import argparse
import os
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from importlib.metadata import version
from pathlib import Path

from cluster.soak.judge import Observed, judge
from cluster.soak.place import Place, open_place, served_operators
from cluster.soak.plan import OPERATORS, Plan, draw, undisturbed
from cluster.soak.table import Circumstances, Result, page
from cluster.soak.training import run_training
from kubernetes import client

_printing = threading.Lock()


def main() -> int:
    """Run the soak from the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--first", type=int, default=1, help="number of the first training")
    parser.add_argument("--trainings", type=int, default=100)
    parser.add_argument("--parallel", type=int, default=4, help="trainings at the same time")
    parser.add_argument("--image", required=True, help="image for all types but MPIJob")
    parser.add_argument("--mpi-image", required=True)
    parser.add_argument("--operators", nargs="+", choices=OPERATORS, help="default: those that the cluster serves")
    parser.add_argument("--page", type=Path, help="file to write; default: none")
    parser.add_argument("--logs", type=Path, default=Path("build/soak"), help="folder of the logs of trainings")
    options = parser.parse_args()
    options.logs.mkdir(parents=True, exist_ok=True)
    images = dict.fromkeys(("Job", "TFJob", "PyTorchJob"), options.image) | {"MPIJob": options.mpi_image}
    operators = options.operators or served_operators()
    plans = [draw(options.seed, options.first + index, operators) for index in range(options.trainings)]
    if options.page:  # It compares with trainings without faults.
        plans = [*undisturbed(options.seed, operators), *plans]
    started = time.monotonic()
    with open_place() as place, ThreadPoolExecutor(options.parallel) as pool:
        results = list(pool.map(lambda plan: _run(plan, place, images, options.logs), plans))
        if options.page:
            circumstances = _circumstances(options, operators, (time.monotonic() - started) / 60)
            options.page.write_text(page(results, circumstances), encoding="utf-8")
    return 1 if any(result.violations for result in results) else 0


def _circumstances(options: argparse.Namespace, operators: Sequence[str], minutes: float) -> Circumstances:
    first = f" FIRST={options.first}" if options.first != 1 else ""
    first += f" OPERATORS='{' '.join(options.operators)}'" if options.operators else ""
    return Circumstances(
        date.today().isoformat(),
        f"make soak SEED={options.seed} TRAININGS={options.trainings}{first}",
        operators,
        client.VersionApi().get_code().git_version,
        version("kfp-distributed"),
        f"the steps on a shared machine with {os.cpu_count()} cores",
        options.parallel,
        minutes,
    )


def _run(plan: Plan, place: Place, images: dict[str, str], logs: Path) -> Result:
    try:
        observed, log = run_training(plan, place, images)
    except Exception as error:  # noqa: BLE001 - the other trainings go on
        observed, log = Observed((), (), None, error=repr(error)), ""
    result = Result(plan, observed, tuple(judge(plan, observed)))
    file = logs / f"{plan.seed}-{plan.number}.log"
    lines = [
        f"{plan}: {result.outcome} in {observed.seconds:.0f} s, injected: {', '.join(observed.injected) or 'none'}"
    ]
    lines += [f"  VIOLATION {text}" for text in result.violations]
    file.write_text("\n".join([*lines, f"keys: {' '.join(observed.keys)}", log]), encoding="utf-8")
    with _printing:
        print(*lines, *([f"  its log: {file}"] if result.violations else []), sep="\n", flush=True)
    return result


if __name__ == "__main__":
    sys.exit(main())
