"""Signals to a step with local replicas, and a step whose output is not read."""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from process_hygiene import started
from train.programs.jobs import MARKER, marked, wait_until
from train.test_local_runner import shell

from kfp_distributed.components.train.run.signals import ended_by_signals

pytestmark = pytest.mark.takes(19)

PROCESS_TREE = "trap 'exit 0' INT; sleep 1000 & setsid sleep 1000 & echo ready; while :; do sleep 0.1; done"


def start_step(marker, program, folder):
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(Path(__file__).parents[1]), MARKER: marker}
    step = Path(__file__).parent / "programs" / "step.py"
    return started(
        [sys.executable, str(step), marker, *shell(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )


def wait_until_ready(step):
    for line in step.stdout:
        if line.endswith("ready\n"):
            return
    pytest.fail(step.stderr.read())


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        (signal.SIGHUP, 129),
        (signal.SIGINT, -signal.SIGINT),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_no_process_survives_a_signal_to_the_step(tmp_path, number, code):
    marker = uuid.uuid4().hex
    with start_step(marker, PROCESS_TREE, tmp_path) as step:
        for _ in range(2):
            wait_until_ready(step)
        assert len(marked(marker)) >= 7
        step.send_signal(number)
        assert step.wait(timeout=120) == code
        assert wait_until(lambda: not marked(marker)), marked(marker)
    # After SIGKILL, the guard deletes the folder of the job.
    assert wait_until(lambda: not list(tmp_path.iterdir())), list(tmp_path.iterdir())


def test_a_step_started_with_nohup_ignores_sighup(cancel):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    cleaned = []

    def hang_up_and_cancel():
        signal.raise_signal(signal.SIGHUP)
        cleaned.append("before")
        cancel()

    try:
        with pytest.raises(SystemExit, match="143"), ended_by_signals(lambda: cleaned.append("up")):
            hang_up_and_cancel()
        assert cleaned == ["before", "up"]
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("program", ["echo ready; exec sleep 1000", "while echo ready; do sleep 0.1; done"])
def test_a_step_whose_output_is_not_read_ends(tmp_path, program):
    marker = uuid.uuid4().hex
    with start_step(marker, program, tmp_path) as step:
        wait_until_ready(step)
        step.stdout.close()
        # Python exits with 120 if it cannot flush its output.
        assert step.wait(timeout=120) in (0, 1, 120)
        assert wait_until(lambda: not marked(marker)), marked(marker)
