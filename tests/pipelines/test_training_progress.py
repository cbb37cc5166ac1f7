"""The progress of a training's replicas: what is read of a log or of facts, and how it is drawn."""

import pytest
from rich.console import Console

from kfp_distributed.components.train.run.facts import JobEvent, LogLine, ReplicaChanged, ReplicaSample
from kfp_distributed.components.train.run.shown_progress.log_entry import LogEntry
from kfp_distributed.components.train.run.shown_progress.training_progress import ReplicaProgress, TrainingProgress
from kfp_distributed.components.train.tell.step_log import log_entry
from kfp_distributed.pipelines.progress_table import StepProgress, progress_table, shown_replicas
from kfp_distributed.trainers.runtime.monitoring.progress import Progress
from kfp_distributed.trainers.runtime.monitoring.samples import Sample

FACTS = [
    JobEvent(0, "restart 1 of 3: all replicas (worker-0 failed)"),
    ReplicaChanged(1, "ps-0", "running"),
    LogLine(1, "ps-0", "ps-0 serves"),
    ReplicaChanged(1, "worker-0", "running"),
    ReplicaSample(3, "worker-0", 700, 1000.0),
    LogLine(10, "worker-0", "epoch 1/5 loss=0.9000 val_loss=1.0000"),
    ReplicaSample(13, "worker-0", 600),
    LogLine(20, "worker-0", "epoch 3/5 loss=0.5000 val_loss=0.6000"),
    LogLine(21, "worker-0", "continues"),
    ReplicaChanged(1, "worker-1", "waiting", reason="no node has room"),
    ReplicaChanged(22, "worker-2", "failed", exit_code=3),
]
PS = ReplicaProgress("ps-0", "running", "serving")
WORKER = ReplicaProgress(
    "worker-0",
    "running",
    progress=Progress(3, 5, {"loss": 0.5, "val_loss": 0.6}),
    metrics={"loss": 0.5, "val_loss": 0.6},
    sample=Sample(600, 1000.0),
    peak_memory_mib=700,
    first_done=(10, 1),
    last_time=20,
    burst_begin=10,
)
WAITING = ReplicaProgress("worker-1", reason="no node has room")


def test_facts():
    progress = TrainingProgress()
    for fact in FACTS:
        progress.add_fact(fact)
    assert list(progress.replicas.values()) == [PS, WORKER, WAITING, ReplicaProgress("worker-2", "failed")]
    assert progress.states() == "2 running, 1 waiting, 1 failed"


def test_replicas_of_a_stopped_step_are_stopped():
    progress = TrainingProgress()
    for fact in FACTS:
        progress.add_fact(fact)
    progress.stop()
    assert progress.states() == "3 stopped, 1 failed"


def test_log_entries_give_the_same_progress_as_facts(monkeypatch):
    monkeypatch.setenv("KFP_DISTRIBUTED_SHOW_SAMPLES", "1")
    progress = TrainingProgress()
    for fact in FACTS:
        is_line = isinstance(fact, LogLine)
        entry = LogEntry(fact.time, "INFO", fact.replica, fact.line) if is_line else log_entry(fact)
        if entry:
            progress.add_entry(entry, fact.time)
    failed = ReplicaProgress("worker-2", "failed", "exit code 3")
    assert list(progress.replicas.values()) == [PS, WORKER, WAITING, failed]


@pytest.mark.parametrize(
    ("epochs", "left"),
    [
        ([], None),
        ([(10, 1)], None),
        ([(10, 1), (14, 2)], 4 * 8 - 2),
        ([(10, 1), (10.1, 2), (10.2, 3), (14.2, 4)], 4 * 6 - 2),
        ([(10, 1), (10.1, 2)], None),
        ([(10, 4), (14, 5), (20, 1), (23, 2)], 3 * 8 - 2),
        ([(10, 1), (100, 10)], None),
    ],
)
def test_time_left(epochs, left):
    """Two seconds after the last epoch. The log so far comes at once; a restart begins with an earlier epoch."""
    progress = TrainingProgress()
    progress.add_fact(ReplicaChanged(0, "worker-0", "running"))
    for time, epoch in epochs:
        progress.add_fact(LogLine(time, "worker-0", f"epoch {epoch}/10 loss=0.5"))
    now = epochs[-1][0] + 2 if epochs else 2
    result = progress.replicas["worker-0"].seconds_left(now)
    assert result == (left if left is None else pytest.approx(left))


@pytest.mark.parametrize("pause", [["failed"], ["failed", "waiting", "pulling"], ["queued"], ["stopped", "starting"]])
def test_the_time_left_after_a_pause_follows_from_the_epochs_after_it(pause):
    progress = TrainingProgress()
    epochs = [
        LogLine(time, "worker-0", f"epoch {number}/10") for time, number in ((10, 1), (20, 2), (110, 3), (114, 4))
    ]
    changes = [ReplicaChanged(21, "worker-0", state) for state in pause]
    for fact in [*epochs[:2], *changes, ReplicaChanged(100, "worker-0", "running"), epochs[2]]:
        progress.add_fact(fact)
    assert progress.replicas["worker-0"].seconds_left(111) is None
    progress.add_fact(epochs[3])
    assert progress.replicas["worker-0"].seconds_left(116) == 6 * 4 - 2


def drawn(groups, width=110, **options):
    console = Console(width=width, force_terminal=False, color_system=None, _environ={})
    with console.capture() as capture:
        console.print(progress_table(groups, 22, **options))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_a_table_of_steps_and_replicas():
    steps = [
        (StepProgress("prepare-data", "succeeded", 2.5), []),
        (StepProgress("train", "failed", 75), [PS, WORKER, WAITING]),
    ]
    header, prepare, train, ps, worker, waiting = drawn(steps)
    assert header.split() == ["replica", "state", "done", "metrics", "rows/s", "memory", "time"]
    assert prepare.split() == ["prepare-data", "done", "2.5", "s"]
    assert train.split() == ["train", "failed", "1", "min", "15", "s"]
    assert ps.split() == ["ps-0", "running", "serving"]
    assert worker.split()[2:] == ["3/5", "loss", "0.5000", "1,000", "600", "MiB", "8", "s", "left"]
    assert waiting.split() == ["worker-1", "waiting", "no", "node", "has", "room"]


def test_a_narrow_terminal_truncates_the_metrics():
    worker = drawn([(None, [WORKER])], width=72)[1]
    assert "…" in worker
    assert worker.split()[-5:] == ["600", "MiB", "8", "s", "left"]


def test_gpus_have_a_column_if_there_are_any():
    with_gpu = ReplicaProgress("worker-0", "running", sample=Sample(600, 10.0, 85, 10240))
    header, row = drawn([(None, [with_gpu])])
    assert "GPU" in header
    assert "85%" in row


@pytest.mark.parametrize(
    ("counts", "lines", "shown"),
    [
        ([4], 10, [4]),
        ([300], 10, [9]),
        ([300], 1, [0]),
        ([0, 4, 4], 8, [0, 4, 4]),
        ([0, 4, 4], 7, [0, 2, 4]),
        ([300, 300], 10, [0, 9]),
        ([3], -1, [0]),
    ],
)
def test_the_last_group_has_precedence(counts, lines, shown):
    assert shown_replicas(counts, lines) == shown


def test_replicas_without_room_are_counted():
    replicas = [ReplicaProgress(f"worker-{number}", "running") for number in range(300)]
    lines = drawn([(None, replicas)], lines=20)
    assert len(lines) <= 20
    assert lines[1].split() == ["worker-0", "running"]
    assert lines[-1] == f"and {300 - (len(lines) - 2)} more"
