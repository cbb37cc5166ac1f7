"""The form of the log of a `train` step: `TIME LEVEL REPLICA MESSAGE`."""

import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_distributed.components.train.run.facts import JobEnded, JobEvent, LogLine, ReplicaChanged, ReplicaSample, Tick
from kfp_distributed.components.train.run.shown_progress.log_entry import LogEntry
from kfp_distributed.components.train.run.shown_progress.printed_lines import read_line
from kfp_distributed.components.train.tell.log_format import log, parse_line
from kfp_distributed.components.train.tell.step_log import SHOW_SAMPLES_VARIABLE, log_entry

# 2026-11-23T14:05:12Z
TIME = 1795442712.0


def test_an_entry_is_one_line():
    entry = LogEntry(TIME + 0.9, "INFO", "worker-0", "epoch 1/5 loss=0.31")
    assert str(entry) == "2026-11-23T14:05:12Z INFO worker-0 epoch 1/5 loss=0.31"
    assert parse_line(str(entry)) == entry._replace(time=TIME)


def test_each_line_of_a_message_is_a_line_of_the_log():
    assert str(LogEntry(TIME, "ERROR", "job", "first\n\n  last")) == (
        "2026-11-23T14:05:12Z ERROR job first\n2026-11-23T14:05:12Z ERROR job\n2026-11-23T14:05:12Z ERROR job   last"
    )


@given(
    st.integers(0, 4_000_000_000),
    st.sampled_from(["INFO", "WARNING", "ERROR"]),
    st.sampled_from(["job", "ps-12"]),
    st.text().filter(lambda text: "\n" not in text),
)
def test_a_formatted_entry_can_be_parsed(time, level, replica, message):
    entry = LogEntry(float(time), level, replica, message)
    assert parse_line(str(entry)) == entry


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[worker-0] epoch 1/5",
        "2026-11-23T14:05:12Z DEBUG worker-0 x",
        "2026-11-23T14:05:12Z INFO Worker x",
        "2026-13-23T14:05:12Z INFO job x",
        " 2026-11-23T14:05:12Z INFO job x",
    ],
)
def test_lines_of_another_form(line):
    assert parse_line(line) is None


def test_the_step_prints_its_own_lines(capsys):
    log("WARNING", "it is late")
    entry = parse_line(capsys.readouterr().out.rstrip("\n"))
    assert entry[1:] == ("WARNING", "job", "it is late")


def test_a_line_and_its_end_are_one_write(monkeypatch):
    """Otherwise lines of two threads could be mixed."""
    writes = []
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=writes.append, flush=lambda: None))
    log("INFO", "text")
    assert [text[-5:] for text in writes if text] == ["text\n"]


@pytest.mark.parametrize(
    ("fact", "line"),
    [
        (JobEvent(TIME, "checkpoints are stored in s3://b"), "INFO job checkpoints are stored in s3://b"),
        (JobEvent(TIME, "restart 1 of 3", "WARNING"), "WARNING job restart 1 of 3"),
        (ReplicaChanged(TIME, "worker-0", "running"), "INFO job worker-0: running"),
        (ReplicaChanged(TIME, "ps-1", "failed", exit_code=3), "ERROR job ps-1: failed (exit code 3)"),
        (
            ReplicaChanged(TIME, "ps-1", "failed", exit_code=1, reason="preempted: NodeLost", preempted=True),
            "WARNING job ps-1: failed (exit code 1, preempted: NodeLost)",
        ),
        (
            ReplicaChanged(TIME, "ps-1", "waiting", reason="no node has room"),
            "WARNING job ps-1: waiting (no node has room)",
        ),
        (
            ReplicaChanged(TIME, "ps-1", "installing", reason="pip installs its packages"),
            "INFO job ps-1: installing (pip installs its packages)",
        ),
        (JobEnded(TIME, True), "INFO job the job succeeded"),
        (JobEnded(TIME, False, "It is late."), "ERROR job the job failed: It is late."),
        (ReplicaChanged(TIME, "worker-0", "starting"), None),
        (Tick(TIME), None),
        (ReplicaSample(TIME, "worker-0", 512), None),
    ],
)
def test_facts_and_their_levels(fact, line):
    assert log_entry(fact) == (parse_line(f"2026-11-23T14:05:12Z {line}") if line else None)


def test_samples_are_shown_on_request(monkeypatch):
    monkeypatch.setenv(SHOW_SAMPLES_VARIABLE, "true")
    assert str(log_entry(ReplicaSample(TIME, "worker-0", 512, 1200.0))) == (
        "2026-11-23T14:05:12Z INFO worker-0 sample memory=512MiB rows/s=1200"
    )


def test_a_sample_in_the_middle_of_a_line_of_the_program():
    line = LogLine(TIME, "worker-0", "10% donesample memory=5MiB gpu=85% gpu_memory=10240MiB")
    assert list(read_line(line)) == [
        LogLine(TIME, "worker-0", "10% done"),
        ReplicaSample(TIME, "worker-0", 5, None, 85, 10240),
    ]
