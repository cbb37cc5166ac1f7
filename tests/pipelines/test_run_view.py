"""What the demo reads out of kfp's output, and what it shows where there is no terminal."""

import io

import pytest
from rich.console import Console

from kfp_distributed.pipelines.run_view import ReplicaLine, RunView, StepEnded, StepStarted, parse_line

LINES = [
    ("04:13:28.938 - INFO - Executing task \x1b[96m'prepare-data'\x1b[0m", StepStarted("prepare-data")),
    (
        "04:13:31.475 - INFO - Task \x1b[96m'train'\x1b[0m finished with status \x1b[92mSUCCESS\x1b[0m",
        StepEnded("train", True),
    ),
    (
        "04:13:31.475 - ERROR - Task \x1b[96m'train'\x1b[0m finished with status \x1b[91mFAILURE\x1b[0m",
        StepEnded("train", False),
    ),
    (
        "    [worker-0] epoch 3/6 loss=0.1234 accuracy=0.9812",
        ReplicaLine("worker-0", "epoch 3/6 loss=0.1234 accuracy=0.9812"),
    ),
    ("    [ps-11] ", ReplicaLine("ps-11", "")),
    ("    [KFP Executor 2026-11-21 04:13:31,463 INFO]: Looking for component `train`", None),
    ("04:13:31.476 - INFO - Task \x1b[96m'train'\x1b[0m outputs:", None),
    ("", None),
]


@pytest.mark.parametrize(("line", "expected"), LINES)
def test_lines(line, expected):
    assert parse_line(line) == expected


def test_without_a_terminal_a_line_is_shown_for_each_step_and_epoch():
    shown = io.StringIO()
    view = RunView(Console(file=shown, force_terminal=False, width=200))
    with view:
        for line, _ in LINES:
            half = len(line) // 2
            view.write(line[:half])
            view.write(line[half:] + "\n")
    assert [line for line in shown.getvalue().splitlines() if "prepare" in line] == ["prepare-data …"]
    assert "  worker-0: epoch 3/6 loss=0.1234 accuracy=0.9812" in shown.getvalue()
    assert view.failed == "train"
    assert list(view.seconds) == ["train"]


def test_of_a_step_that_failed_its_own_lines_are_kept():
    view = RunView(Console(file=io.StringIO()))
    view.write("1 - INFO - Executing task 'prepare-data'\n1 - INFO - Streamed logs:\n")
    view.write("    [KFP Executor 2026-11-21 04:13:31,463 INFO]: Got executor_input:\n")
    view.write('    {\n        "inputs": {\n            "parameterValues": {}\n        }\n    }\n')
    view.write("    pass 1 of 2 (check): 20 rows\n    \n    ValueError: no\n----\n")
    assert list(view.last_lines) == ["pass 1 of 2 (check): 20 rows", "ValueError: no"]


def test_in_a_terminal_each_replica_has_a_bar():
    shown = io.StringIO()
    with RunView(Console(file=shown, force_terminal=True, width=120)) as view:
        view.write("1 - INFO - Executing task 'train'\n")
        view.write(
            "    [worker-0] epoch 3/6 loss=0.1234 accuracy=0.9812 val_loss=0.2\n    [worker-1] epoch 2/6 loss=0.2\n"
        )
        view.write("    [ps-0] ps-0 serves\n")
        view.write("1 - INFO - Task 'train' finished with status SUCCESS\n")
    text = shown.getvalue()
    assert "worker-0" in text
    assert "epoch 3/6  loss 0.1234  accuracy 0.9812" in text
    assert "epoch 2/6  loss 0.2000" in text
    assert "serves the others" in text
