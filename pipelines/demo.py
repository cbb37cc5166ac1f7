"""Runs the pipeline `train_and_deploy` on this machine and shows its results, for `make demo`."""

import argparse
import fcntl
import json
import os
import shutil
import signal
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any, TextIO, cast
from urllib.request import Request, urlopen

from rich.console import Console

from kfp_distributed.components.train.describe.distributions import parse_distribution
from kfp_distributed.components.train.tell.step_log import SHOW_SAMPLES_VARIABLE
from kfp_distributed.pipelines.local_run import local_run
from kfp_distributed.pipelines.run_view import RunView
from kfp_distributed.pipelines.train_and_deploy import train_and_deploy
from kfp_distributed.pipelines.train_and_export import DIGITS_DISTRIBUTION
from kfp_distributed.storage.dataset import DATASET_MANIFEST, DatasetManifest, read_batches
from kfp_distributed.trainers.programs.program import TRAINERS

_UPDATES = {"batch_size": 96, "learning_rate": 0.003}
"""A third of the updates of a batch of 32, the default. Each costs several workers on one machine some 50 ms, whatever
its size. The mean validation accuracy over four seeds is equal within a third of a row."""

_NEXT = """make demo DISTRIBUTION='{"distribution_type":"TF","number_of_workers":2,"number_of_parameter_servers":2}'"""


def main() -> int:
    """Run the command line.

    Returns:
        Exit code: 0, 1 if the run failed, 2 if an argument is wrong, 130 or 143 after a signal.
    """
    options = _arguments()
    # Standard output is redirected later.
    console = Console(file=sys.stdout)
    try:
        if not options.distribution:
            raise ValueError("--distribution is empty: write JSON, or leave it out")
        specification = parse_distribution(options.distribution)
    except ValueError as error:
        console.print(f"demo: {error}", style="red", markup=False)
        return 2
    signal.signal(signal.SIGTERM, _end)
    folder = Path(options.folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "demo.log").open("a", encoding="utf-8", buffering=1) as log:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            log.truncate(0)
            title = f"Training on handwritten digits ({specification.distribution_type})"
            log.write(f"{title}\n")
            text = f"{title}. Files are in {folder.resolve()}, the log is in {log.name}\n"
            console.print(text, highlight=False, markup=False, soft_wrap=True)
            return _run(options, specification.distribution_type, folder, console, log)
    except BlockingIOError:
        text = f"demo: another demo runs in {folder}: wait for it, or run make demo FOLDER=ANOTHER"
        return _report(console, text, [], 1)
    except OSError as error:
        return _report(console, f"demo: {folder} cannot be used, pass another --folder: {error}", [], 1)


def _run(options: argparse.Namespace, distribution_type: str, folder: Path, console: Console, log: TextIO) -> int:
    with RunView(console, log) as view:
        try:
            with local_run(folder, progress=False) as run, redirect_stdout(cast(Any, view)):
                if console.is_terminal:
                    os.environ[SHOW_SAMPLES_VARIABLE] = "true"
                before = set(run.artifacts.iterdir())
                # The first trainer of this type. MPI and Job have two.
                trainer = next(name for name, types in TRAINERS.items() if distribution_type in types)
                train_and_deploy(
                    distribution_specification=json.loads(options.distribution),
                    train_specification={"trainer": trainer},
                    train_parameters={"epochs": options.epochs, **_UPDATES},
                    runner="local",
                    checkpoint_uri="s3://checkpoints",
                )
                run_folder = next(path for path in run.artifacts.iterdir() if path not in before)
                prediction = predict_row(run_folder)  # The server ends with the local run.
        except KeyboardInterrupt:
            return _report(console, "Stopped; nothing is left running.", [], 130)
        except SystemExit as end:
            return _report(console, "Stopped; nothing is left running.", [], int(end.code or 0))
        except RuntimeError as error:
            if not view.failed:
                return _report(console, f"The run failed: {error}", [], 1)
            message = f"The step {view.failed} failed. Its log is in {log.name}. It ends with:"
            return _report(console, message, view.last_lines, 1)
    console.print()
    for name, value in [*summary(run_folder, view.seconds), ("prediction", prediction)]:
        # Paths are not wrapped, so that people can copy them.
        console.print(f"{name:<15}{value}", highlight=False, soft_wrap=True, markup=False)
    console.print(f"To train with two parameter servers:\n  {_NEXT}", highlight=False, soft_wrap=True, markup=False)
    return 0


def summary(run_folder: Path, seconds: dict[str, float]) -> list[tuple[str, str]]:
    """Return the results of a run, as (name, value).

    Args:
        run_folder: Folder of the run among the artifacts.
        seconds: Seconds of each step, by its name.
    """
    rows = [
        ("test accuracy", f"{_outputs(run_folder / 'evaluate')['score']:.4f}"),
        ("seconds", "  ".join(f"{step} {value:.1f}" for step, value in seconds.items() if value)),
    ]
    exported = run_folder / "export-model"
    if exported.exists():
        rows.append(("model", str(_outputs(exported)["uri"])))
    else:
        rows.append(("model", f"not exported, because its accuracy is too low: {run_folder}/train/model"))
    return rows + [(name, str(page)) for name, page in copy_pages(run_folder).items()]


def predict_row(run_folder: Path) -> str:
    """Return what the deployed model answers for the first row of the test data, and the true label of the row.

    Args:
        run_folder: Folder of the run among the artifacts.

    Raises:
        RuntimeError: The server does not answer.
    """
    deployed = run_folder / "deploy-model"
    if not deployed.exists():
        return "none, because no model is deployed"
    dataset = run_folder / "prepare-data" / "test_dataset"
    manifest = DatasetManifest.from_json((dataset / DATASET_MANIFEST).read_text(encoding="utf-8"))
    rows, labels = next(read_batches(dataset, manifest))
    (column,) = manifest.columns
    row = rows[0].reshape(column.shape).astype(column.dtype)
    address = f"{_outputs(deployed)['url']}/v1/models/digits:predict"
    request = Request(address, json.dumps({"instances": [row.tolist()]}).encode())
    try:
        with urlopen(request, timeout=60) as response:
            (probabilities,) = json.load(response)["predictions"]
    except OSError as error:
        raise RuntimeError(f"{address} answers no prediction: {error}") from error
    best = max(range(len(probabilities)), key=probabilities.__getitem__)
    classes = manifest.label.classes
    answer = f"{classes[best]} (probability {probabilities[best]:.2f})"
    return f"{answer}, true label {classes[int(labels[0])]}, of {address}"


def copy_pages(run_folder: Path) -> dict[str, Path]:
    """Copy the HTML artifacts of a run to files named .html, which a browser opens; return the files by name."""
    pages = {"report": "evaluate/report", "training": "train/report", "data": "prepare-data/overview"}
    copies = {name: run_folder / f"{name}.html" for name in pages}
    for name, page in pages.items():
        shutil.copyfile(run_folder / page, copies[name])
    return copies


def _outputs(step_folder: Path) -> dict[str, Any]:
    outputs = json.loads((step_folder / "executor_output.json").read_text(encoding="utf-8"))
    return cast(dict[str, Any], outputs.get("parameterValues", {}))


def _report(console: Console, message: str, lines: list[str], code: int) -> int:
    console.print(message, highlight=False, markup=False, style="red", soft_wrap=True)
    for line in lines:
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
    return code


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kfp_distributed.pipelines.demo", description=__doc__)
    default = json.dumps(DIGITS_DISTRIBUTION)
    parser.add_argument("--distribution", default=default, help=f"distribution_specification as JSON [{default}]")
    parser.add_argument("--epochs", type=int, default=15, help="[15]")
    parser.add_argument("--folder", default="kfp-distributed-run", help="folder of all files [kfp-distributed-run]")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
