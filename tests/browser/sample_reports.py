"""Reports of trainings of any size, with the numbers that such trainings have."""

import math
from itertools import chain
from random import Random

from train.programs.jobs import make_job, workers

from kfp_distributed.components.train.run.conclusions.status import advance, begin
from kfp_distributed.components.train.run.facts import JobEnded, JobEvent, ReplicaChanged, ReplicaSample
from kfp_distributed.components.train.run.shown_progress.log_entry import LogEntry
from kfp_distributed.components.train.tell.report import job_page
from kfp_distributed.reports.page import render_page

WAITING = "0/40 nodes are available: 40 Insufficient nvidia.com/gpu"
BEGIN = 1_000_000.0


def training_report(replicas, epochs, *, failed=False):
    """The HTML report of a training whose last replica was killed and restarted; `failed` if its restart failed."""
    random = Random(7)
    names = [f"worker-{index}" for index in range(replicas)]
    facts = [*chain.from_iterable(start(name, random) for name in names), *restart(names[-1])]
    facts += [sample for name in names for sample in samples(name, random)]
    status = begin(make_job(["unused"], workers(replicas), "fit-digits"), BEGIN)
    for fact in sorted(facts, key=lambda fact: fact.time):
        status = advance(status, fact)
    cause = ""
    if failed:
        status = advance(status, ReplicaChanged(BEGIN + 3660, names[-1], "failed", exit_code=1, restart=1))
        cause = (
            f"{LogEntry(BEGIN, 'ERROR', names[-1], 'RuntimeError: CUDA out of memory')}\n"
            f"{names[-1]} failed with exit code 1, 1 h 1 min after the start of the job."
        )
    status = advance(status, JobEnded(BEGIN + 3661, not failed, "Restart limit reached." if failed else ""))
    metrics = {name: [epoch_metrics(epoch, epochs, random) for epoch in range(1, epochs + 1)] for name in names}
    return render_page("train.html", job_page(status, metrics, {"kind": "TFJob"}, cause))


def start(replica, random):
    times = [BEGIN + 5 + random.random() * 10]
    times += [times[-1] + 20 + random.random() * 60, times[-1] + 90 + random.random() * 30]
    times += [times[-1] + 40 + random.random() * 30]
    yield ReplicaChanged(times[0], replica, "waiting", reason=WAITING)
    yield ReplicaChanged(times[1], replica, "pulling", node="node-a")
    yield ReplicaChanged(times[2], replica, "installing", node="node-a")
    yield ReplicaChanged(times[3], replica, "running", node="node-a", install_seconds=42)


def restart(replica):
    yield ReplicaChanged(BEGIN + 1500, replica, "failed", signal=9, reason="OOMKilled", peak_memory=4_000_000)
    yield JobEvent(BEGIN + 1501, f"restart 1 of 3: {replica}")
    yield ReplicaChanged(BEGIN + 1530, replica, "starting", restart=1)
    yield ReplicaChanged(BEGIN + 1560, replica, "running", restart=1)


def samples(replica, random):
    for time in range(240, 3660, 30):
        memory = 900 + 300 * (1 - math.exp(-time / 900)) + 20 * random.random()
        rows = 1200 + 90 * random.random() + 10 * (hash(replica) % 9)
        yield ReplicaSample(BEGIN + time, replica, memory, rows, 80 + 15 * random.random(), 9000 + 50 * random.random())


def epoch_metrics(epoch, epochs, random):
    progress = epoch / epochs
    loss = 2.2 * math.exp(-4 * progress) + 0.04 * random.random()
    return {
        "epoch": epoch,
        "loss": loss,
        "val_loss": loss + 0.1 + 0.35 * progress**3 + 0.03 * random.random(),
        "accuracy": 0.99 - 0.85 * math.exp(-5 * progress) + 0.01 * random.random(),
        "val_accuracy": 0.97 - 0.85 * math.exp(-4.5 * progress) + 0.01 * random.random(),
    }
