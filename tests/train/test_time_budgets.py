"""Time budgets of a job, as a table of facts and the budget that runs out."""

import pytest
from train.programs.jobs import make_job
from train.test_status import BEGIN, INSTALLED, STARTED, changed, ended, follow, line

from kfp_distributed.components.train.durations import format_seconds
from kfp_distributed.components.train.specification import parse_distribution
from kfp_distributed.components.train.status import (
    advance,
    begin,
    expired_budget,
    failure_cause,
)

SILENT = "worker-0 silent for 1 min 30 s, worker-1 silent for 1 min 30 s"


@pytest.mark.parametrize(
    ("budgets", "facts", "seconds", "expired"),
    [
        ({}, STARTED, 599, ""),
        ({"start_timeout": 90}, STARTED, 90, ""),
        ({"start_timeout": 90}, STARTED, 91, f"start_timeout ran out after 1 min 30 s: {SILENT}."),
        (
            {"start_timeout": 90},
            [*STARTED[:2], changed(1, "worker-1", "starting", reason="no node has room"), line(5, "worker-0")],
            91,
            "start_timeout ran out after 1 min 30 s: worker-1 not started (no node has room), "
            "worker-0 silent for 1 min 26 s.",
        ),
        ({"start_timeout": 90}, [*STARTED, line(5, "worker-0")], 500, ""),
        # A restart of all replicas is a start, too.
        (
            {"start_timeout": 90},
            [*STARTED, line(5, "worker-0"), changed(80, "worker-0", "starting", restart=1)],
            169,
            "",
        ),
        (
            {"start_timeout": 90},
            [*STARTED, line(5, "worker-0"), changed(80, "worker-0", "starting", restart=1)],
            170,
            "start_timeout ran out after 1 min 30 s: worker-0 not started, worker-1 silent for 2 min 49 s.",
        ),
        # A replica whose end was not observed is back, and its packages are being installed.
        (
            {"start_timeout": 90, "silence_timeout": "2h"},
            [*STARTED, line(5, "worker-0"), changed(3600, "worker-1", "starting", restart=1)],
            3689,
            "",
        ),
        # Silence counts if all replicas are silent.
        ({"silence_timeout": 60}, [*STARTED, line(5, "worker-0"), line(31, "worker-1")], 90, ""),
        (
            {"silence_timeout": 60},
            [*STARTED, line(5, "worker-0"), line(30, "worker-1")],
            90,
            "silence_timeout ran out after 1 min: worker-0 silent for 1 min 25 s, worker-1 silent for 1 min.",
        ),
        # The leader has ended. The other replicas may be silent until the timeout.
        ({"silence_timeout": 60}, [*STARTED, line(5, "worker-1"), changed(6, "worker-0", "succeeded")], 65, ""),
        (
            {"silence_timeout": 60},
            [*STARTED, line(5, "worker-1"), changed(6, "worker-0", "succeeded")],
            66,
            "silence_timeout ran out after 1 min: worker-1 silent for 1 min 1 s.",
        ),
        (
            {"silence_timeout": 100, "total_timeout": 90},
            [*STARTED, line(5, "worker-1"), changed(6, "worker-0", "succeeded")],
            90,
            "total_timeout ran out after 1 min 30 s: worker-1 silent for 1 min 25 s.",
        ),
        ({"running_timeout": 90}, [*STARTED, line(50, "worker-0")], 90, ""),
        (
            {"running_timeout": 90},
            [*STARTED, line(50, "worker-0")],
            91,
            "running_timeout ran out after 1 min 30 s: worker-0 silent for 41 s, worker-1 silent for 1 min 30 s.",
        ),
        ({"total_timeout": 90}, [*STARTED, line(50, "worker-0")], 89, ""),
        (
            {"total_timeout": "1h", "scheduling_timeout": "3h"},
            [],
            3600,
            "total_timeout ran out after 1 h: worker-0 not started, worker-1 not started.",
        ),
        (
            {"total_timeout": 90},
            [changed(60, f"worker-{index}", "failed", exit_code=1) for index in range(2)],
            90,
            "total_timeout ran out after 1 min 30 s: no replica is running.",
        ),
        # Each state before the start has its own budget. A repeated reason does not restart it.
        ({"queue_timeout": 60}, [changed(10, "worker-0", "queued"), changed(50, "worker-0", "queued")], 69, ""),
        (
            {"queue_timeout": 60},
            [changed(10, f"worker-{index}", "queued", reason="suspended") for index in range(2)],
            70,
            "queue_timeout ran out after 1 min: worker-0 not started (suspended), worker-1 not started (suspended).",
        ),
        (
            {"scheduling_timeout": 60},
            [changed(1, "worker-0", "running"), changed(20, "worker-1", "waiting", reason="no node has 64 CPUs")],
            60,
            "scheduling_timeout ran out after 1 min: worker-1 not started (no node has 64 CPUs), "
            "worker-0 silent for 59 s.",
        ),
        (
            {"image_pull_timeout": 60},
            [changed(1, "worker-0", "running"), changed(20, "worker-1", "pulling", reason="ErrImagePull")],
            80,
            "image_pull_timeout ran out after 1 min: worker-1 not started (ErrImagePull), "
            "worker-0 silent for 1 min 19 s.",
        ),
        # Neither a start nor silence counts while packages are being installed, whatever pip prints.
        ({"start_timeout": 90, "silence_timeout": 90}, INSTALLED[:4], 494, ""),
        ({"start_timeout": 90, "silence_timeout": 90}, INSTALLED, 589, ""),
        (
            {"start_timeout": 90, "silence_timeout": 90},
            INSTALLED,
            590,
            "start_timeout ran out after 1 min 30 s: worker-0 silent for 1 min 30 s, worker-1 silent for 1 min 40 s.",
        ),
        ({}, INSTALLED[:4], 1800, ""),
        (
            {},
            INSTALLED[:4],
            1801,
            "install_timeout ran out after 30 min: worker-0 not started (pip installs its packages), "
            "worker-1 silent for 21 min 51 s.",
        ),
        # A start begins when the last replica has its node and image. Until then no replica counts as silent.
        (
            {"start_timeout": 60, "silence_timeout": 60},
            [changed(1, "worker-0", "running"), line(2, "worker-0"), changed(20, "worker-1", "pulling")],
            300,
            "",
        ),
        (
            {"start_timeout": 60},
            [changed(1, "worker-0", "running"), changed(20, "worker-1", "pulling"), changed(50, "worker-1", "running")],
            109,
            "",
        ),
        (
            {"start_timeout": 60},
            [changed(1, "worker-0", "running"), changed(20, "worker-1", "pulling"), changed(50, "worker-1", "running")],
            110,
            "start_timeout ran out after 1 min: worker-0 silent for 1 min 49 s, worker-1 silent for 1 min.",
        ),
    ],
)
def test_expired_budget(budgets, facts, seconds, expired):
    assert expired_budget(follow(*facts), parse_distribution(budgets), BEGIN + seconds) == expired


def test_an_mpi_launcher_does_not_wait_for_a_node_before_its_workers_are_ready():
    status = begin(make_job(["unused"], {"distribution_type": "MPI"}), BEGIN)
    patient = parse_distribution({"distribution_type": "MPI"})

    def follow_on(*facts):
        nonlocal status
        for fact in facts:
            status = advance(status, fact)

    def expired(seconds):
        return expired_budget(status, patient, BEGIN + seconds)

    assert expired(600).startswith("scheduling_timeout ran out")
    follow_on(changed(2, "worker-0", "pulling"), changed(2, "worker-1", "pulling"))
    assert expired(1201) == ""
    assert expired(1202).startswith("image_pull_timeout ran out")
    follow_on(changed(900, "worker-0", "running"), changed(950, "worker-1", "running"))
    assert expired(1549) == ""
    assert expired(1550).startswith("scheduling_timeout ran out after 10 min: launcher-0 not started")


def test_the_time_budget_of_an_elastic_mpi_job_with_a_lost_worker():
    status = begin(make_job(["unused"], {"distribution_type": "MPI", "min_workers": 1}), BEGIN)
    for fact in (changed(10, "worker-1", "failed", reason="pod deleted"), ended(64, "It is so.")):
        status = advance(status, fact)
    assert failure_cause(status) == "Lost workers: worker-1 with pod deleted. It is so."


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (1.54, "1.5 s"),
        (9.96, "10 s"),
        (12.4, "12 s"),
        (60, "1 min"),
        (200, "3 min 20 s"),
        (7200, "2 h"),
        (7512, "2 h 5 min"),
    ],
)
def test_format_seconds(seconds, text):
    assert format_seconds(seconds) == text
