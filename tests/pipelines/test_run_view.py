"""A local run as it is shown: what is read of kfp's output, in a terminal, in a notebook and in a file."""

import io
import re
import sys
import threading
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.table import Table

from kfp_distributed.components.train.tell.log_format import parse_line as entry
from kfp_distributed.pipelines.run_view import PipelineStarted, RunView, StepEnded, StepStarted, parse_line

EPOCH = "2026-11-23T14:05:12Z INFO worker-0 epoch 3/6 loss=0.1234 accuracy=0.9812"
SAMPLE = "2026-11-23T14:05:12Z INFO worker-0 sample memory=512MiB rows/s=1200"
WARNING = "2026-11-23T14:05:12Z WARNING job restart 1 of 3: all replicas (worker-0 failed)"
LINES = [
    ("04:13:28.937 - INFO - Running pipeline: \x1b[95m'train-and-export'\x1b[0m", PipelineStarted()),
    ("04:13:28.938 - INFO - Executing task \x1b[96m'prepare-data'\x1b[0m", StepStarted("prepare-data")),
    (
        "04:13:31.475 - INFO - Task \x1b[96m'prepare-data'\x1b[0m finished with status \x1b[92mSUCCESS\x1b[0m",
        StepEnded("prepare-data", True),
    ),
    ("04:13:31.476 - INFO - Executing task \x1b[96m'train'\x1b[0m", StepStarted("train")),
    (f"    {EPOCH}", entry(EPOCH)),
    (f"    {SAMPLE}", entry(SAMPLE)),
    (f"    {WARNING}", entry(WARNING)),
    ("    2026-11-23T14:05:12Z INFO ps-11", entry("2026-11-23T14:05:12Z INFO ps-11")),
    ("    [KFP Executor 2026-11-21 04:13:31,463 INFO]: Looking for component `train`", None),
    ("    loaded", None),
    ("04:13:31.476 - INFO - Task \x1b[96m'train'\x1b[0m outputs:", None),
    ("", None),
    (
        "04:13:31.475 - ERROR - Task \x1b[96m'train'\x1b[0m finished with status \x1b[91mFAILURE\x1b[0m",
        StepEnded("train", False),
    ),
    ("    accuracy: 0.9", None),
    ("printed by the program", None),
]


@pytest.mark.parametrize(("line", "expected"), LINES)
def test_lines(line, expected):
    assert parse_line(line) == expected


@pytest.mark.parametrize(
    "line", [line for line, fact in LINES if isinstance(fact, PipelineStarted | StepStarted | StepEnded)]
)
def test_a_line_of_a_step_says_nothing_about_the_run(line):
    """A step may run a pipeline of its own, and log in the form of kfp."""
    output = io.StringIO()
    view = RunView(Console(file=output, force_terminal=False, width=200), echo=True)
    for name, end in (("first", "ERROR - Task 'first' finished with status FAILURE"), ("second", "INFO - Logs")):
        view.write(f"1 - INFO - Executing task '{name}'\n    {line}\n1 - {end}\n")
    assert (view.failed, list(view.seconds), len(view.last_lines)) == ("first", ["first"], 1)
    assert output.getvalue().count(line) == 2


def shown(console, log=None, **options):
    """A view that was given all lines, in pieces."""
    with RunView(console, log, **options) as view:
        for line, _ in LINES:
            half = len(line) // 2
            view.write(line[:half])
            view.write(line[half:] + "\n")
    return view


def test_without_a_terminal_a_line_is_shown_for_each_step_epoch_and_warning():
    output, log = io.StringIO(), io.StringIO()
    view = shown(Console(file=output, force_terminal=False, width=200), log)
    lines = re.sub(r"\d+\.\d s", "N s", output.getvalue()).splitlines()
    assert lines == [
        "prepare-data …",
        "prepare-data: done after N s",
        "train …",
        "  worker-0: epoch 3/6 loss=0.1234 accuracy=0.9812",
        "  job: restart 1 of 3: all replicas (worker-0 failed)",
        "train: failed after N s",
        "printed by the program",
    ]
    assert (view.failed, list(view.seconds)) == ("train", ["prepare-data", "train"])
    # Without colors, and without samples.
    expected = [re.sub(r"\x1b\[\d+m", "", line) for line, _ in LINES if SAMPLE not in line]
    assert log.getvalue().splitlines() == expected


def test_lines_of_the_program_itself_are_shown_on_request():
    output = io.StringIO()
    shown(Console(file=output, force_terminal=False), echo=True)
    assert "loaded" in output.getvalue().splitlines()
    assert "accuracy: 0.9" not in output.getvalue()


def test_the_last_lines_of_a_failed_step_are_kept():
    view = RunView(Console(file=io.StringIO()))
    view.write("1 - INFO - Executing task 'prepare-data'\n1 - INFO - Streamed logs:\n")
    view.write("    [KFP Executor 2026-11-21 04:13:31,463 INFO]: Got executor_input:\n")
    view.write('    {\n        "inputs": {\n            "parameterValues": {}\n        }\n    }\n')
    view.write("    read 20 rows, all\n    \n    ValueError: no\n----\n")
    assert list(view.last_lines) == ["read 20 rows, all", "ValueError: no"]


def test_a_pipeline_begins_without_the_failure_of_the_one_before():
    view = RunView(Console(file=io.StringIO()))
    for name in ("first", "second"):
        view.write(f"1 - INFO - Running pipeline: '{name}'\n")
        assert view.failed == ""
        view.write(f"1 - INFO - Executing task '{name}-step'\n    line of {name}\n")
        view.write(f"1 - ERROR - Task '{name}-step' finished with status FAILURE\n")
        assert (view.failed, view.last_lines) == (f"{name}-step", [f"line of {name}"])


def test_steps_that_run_in_threads_keep_their_lines():
    """As those of a ParallelFor. All begin before one ends, and `print` writes an indentation, and then the line."""
    output = io.StringIO()
    names = ["train-1", "train-2", "train-3"]
    begun = threading.Barrier(len(names), timeout=60)

    def run(name: str) -> None:
        view.write(f"1 - INFO - Executing task '{name}'\n    ")
        begun.wait()
        view.write(f"{EPOCH.replace('worker-0', name)}\n")
        view.write(f"    {name} ends")
        begun.wait()
        view.write("\n")
        begun.wait()
        view.write(f"1 - ERROR - Task '{name}' finished with status {'FAILURE' if name == names[1] else 'SUCCESS'}\n")

    with RunView(Console(file=output, force_terminal=False, width=200)) as view:
        threads = [threading.Thread(target=run, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (view.failed, view.last_lines) == ("train-2", [EPOCH.replace("worker-0", "train-2"), "train-2 ends"])
    lines = sorted(line.partition(" after")[0] for line in output.getvalue().splitlines())
    assert lines == sorted(
        [f"{name} …" for name in names]
        + [f"  {name}: epoch 3/6 loss=0.1234 accuracy=0.9812" for name in names]
        + ["train-1: done", "train-2: failed", "train-3: done"]
    )


def test_in_a_terminal_each_replica_has_a_row():
    output = io.StringIO()
    shown(Console(file=output, force_terminal=True, width=120, height=40))
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output.getvalue())
    header, prepare, train, worker, ps = text.splitlines()[-6:-1] if text.endswith("\n\n") else text.splitlines()[-5:]
    assert header.split() == ["replica", "state", "done", "metrics", "rows/s", "memory", "time"]
    assert prepare.split()[:2] == ["prepare-data", "done"]
    assert train.split()[:2] == ["train", "failed"]
    assert worker.split()[2:] == ["3/6", "loss", "0.1234", "accuracy", "0.9812", "1,200", "512", "MiB"]
    assert ps.split() == ["ps-11", "running"]
    assert "  job: restart 1 of 3" in text, "warnings are above the table"
    assert "printed by the program" in text


def test_in_a_notebook_the_table_of_the_cell_is_replaced(monkeypatch):
    updates = []
    handle = SimpleNamespace(update=updates.append)

    def display(*objects, **options):
        updates.extend(objects)
        return handle

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=SimpleNamespace(display=display)))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    console = Console(file=io.StringIO(), force_jupyter=True, width=120)
    monkeypatch.setattr(console, "print", lambda *text, **options: updates.append(text))
    shown(console)
    tables = [update for update in updates if isinstance(update, Table)]
    assert tables[0].row_count == 0
    assert tables[-1].row_count == 4
    assert len(tables) <= 4, "it is replaced twice a second"
    # What IPython shows of it.
    assert "loss" in tables[-1]._repr_mimebundle_([], [])["text/html"]
