"""Time budgets of a job, as a table of facts and the budget that runs out."""

import pytest
from train.programs.jobs import make_job
from train.test_status import BEGIN, INSTALLED, STARTED, changed, ended, follow, line

from kfp_distributed.components.train.describe.distributions import parse_distribution
from kfp_distributed.components.train.describe.durations import format_seconds
from kfp_distributed.components.train.run.conclusions.stalls import Stalls, check_stalls
from kfp_distributed.components.train.run.conclusions.status import advance, begin, failure_cause
from kfp_distributed.components.train.run.conclusions.time_budgets import expired_budget
from kfp_distributed.components.train.run.facts import ReplicaSample

SILENT = "worker-0: no output since it started 1 min 30 s ago; worker-1: no output since it started 1 min 30 s ago"


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
            "start_timeout ran out after 1 min 30 s: worker-1 not started (no node has room); "
            'worker-0: printed "a line" 1 min 26 s ago.',
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
            "start_timeout ran out after 1 min 30 s: worker-0 not started; "
            "worker-1: no output since it started 2 min 49 s ago.",
        ),
        # A replica whose end was not observed is back, and its packages are being installed.
        (
            {"start_timeout": 90, "silence_timeout": "2h"},
            [*STARTED, line(5, "worker-0"), changed(3600, "worker-1", "starting", restart=1)],
            3689,
            "",
        ),
        # Of programs that print no samples, silence counts if all replicas are silent.
        ({"silence_timeout": 60}, [*STARTED, line(5, "worker-0"), line(31, "worker-1")], 90, ""),
        (
            {"silence_timeout": 60},
            [*STARTED, line(5, "worker-0"), line(30, "worker-1")],
            90,
            'silence_timeout ran out after 1 min: worker-0: printed "a line" 1 min 25 s ago; '
            'worker-1: printed "a line" 1 min ago.',
        ),
        # The leader has ended. The other replicas may be silent until the timeout.
        ({"silence_timeout": 60}, [*STARTED, line(5, "worker-1"), changed(6, "worker-0", "succeeded")], 65, ""),
        (
            {"silence_timeout": 60},
            [*STARTED, line(5, "worker-1"), changed(6, "worker-0", "succeeded")],
            66,
            'silence_timeout ran out after 1 min: worker-1: printed "a line" 1 min 1 s ago.',
        ),
        (
            {"silence_timeout": 100, "total_timeout": 90},
            [*STARTED, line(5, "worker-1"), changed(6, "worker-0", "succeeded")],
            90,
            'total_timeout ran out after 1 min 30 s: worker-1: printed "a line" 1 min 25 s ago.',
        ),
        ({"running_timeout": 90}, [*STARTED, line(50, "worker-0")], 90, ""),
        (
            {"running_timeout": 90},
            [*STARTED, line(50, "worker-0")],
            91,
            "running_timeout ran out after 1 min 30 s: worker-1: no output since it started 1 min 30 s ago; "
            'worker-0: printed "a line" 41 s ago.',
        ),
        ({"total_timeout": 90}, [*STARTED, line(50, "worker-0")], 89, ""),
        (
            {"total_timeout": "1h", "scheduling_timeout": "3h"},
            [],
            3600,
            "total_timeout ran out after 1 h: worker-0 not started; worker-1 not started.",
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
            "queue_timeout ran out after 1 min: worker-0 not started (suspended); worker-1 not started (suspended).",
        ),
        (
            {"scheduling_timeout": 60},
            [changed(1, "worker-0", "running"), changed(20, "worker-1", "waiting", reason="no node has 64 CPUs")],
            60,
            "scheduling_timeout ran out after 1 min: worker-1 not started (no node has 64 CPUs); "
            "worker-0: no output since it started 59 s ago.",
        ),
        (
            {"image_pull_timeout": 60},
            [changed(1, "worker-0", "running"), changed(20, "worker-1", "pulling", reason="ErrImagePull")],
            80,
            "image_pull_timeout ran out after 1 min: worker-1 not started (ErrImagePull); "
            "worker-0: no output since it started 1 min 19 s ago.",
        ),
        # A training that goes on while a lost replica waits for a node, or for its image, is not ended.
        (
            {},
            [*STARTED, changed(100, "worker-1", "waiting", restart=1), line(1000, "worker-0")],
            1599,
            "",
        ),
        (
            {},
            [*STARTED, changed(100, "worker-1", "waiting", restart=1), line(1000, "worker-0")],
            1600,
            'scheduling_timeout ran out after 10 min: worker-1 not started; worker-0: printed "a line" 10 min ago.',
        ),
        (
            {"start_timeout": 90},
            [*STARTED, line(5, "worker-0"), changed(80, "worker-1", "starting", restart=1), line(160, "worker-0")],
            170,
            "",
        ),
        # Neither a start nor silence counts while packages are being installed, whatever pip prints.
        ({"start_timeout": 90, "silence_timeout": 90}, INSTALLED[:4], 494, ""),
        ({"start_timeout": 90, "silence_timeout": 90}, INSTALLED, 589, ""),
        (
            {"start_timeout": 90, "silence_timeout": 90},
            INSTALLED,
            590,
            "start_timeout ran out after 1 min 30 s: worker-0: no output since it started 1 min 30 s ago; "
            "worker-1: no output since it started 1 min 40 s ago.",
        ),
        ({}, INSTALLED[:4], 1800, ""),
        (
            {},
            INSTALLED[:4],
            1801,
            "install_timeout ran out after 30 min: worker-0 not started (pip installs its packages); "
            "worker-1: no output since it started 21 min 51 s ago.",
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
            "start_timeout ran out after 1 min: worker-0: no output since it started 1 min 49 s ago; "
            "worker-1: no output since it started 1 min ago.",
        ),
    ],
)
def test_expired_budget(budgets, facts, seconds, expired):
    assert expired_budget(follow(*facts), parse_distribution(budgets), BEGIN + seconds) == expired


def sample(seconds, replica="worker-0", rows=None, kib=None):
    return ReplicaSample(BEGIN + seconds, replica, 900, rows=rows, transferred_kib=kib)


def every_ten(begin, end, replica="worker-0", **totals):
    """Return samples from `begin` until `end`, in seconds; `totals` computes a total of each from its time."""
    return [
        sample(seconds, replica, **{name: total(seconds) for name, total in totals.items()})
        for seconds in range(begin, end + 1, 10)
    ]


RUNNING = [changed(1, "worker-0", "running")]
HUNG = [*RUNNING, line(2, "worker-0", "begun"), *every_ten(10, 100, rows=lambda time: 10 * time)]
HUNG += every_ten(110, 3600, rows=lambda _: 1000)
FROZEN = [*STARTED, *every_ten(10, 3600, "worker-0", rows=int), *every_ten(10, 100, "worker-1", rows=int)]


@pytest.mark.parametrize(
    ("budgets", "facts", "seconds", "expired"),
    [
        # By default nothing ends a training that is alive: a download of 41 minutes, an epoch of an hour.
        ({}, [*RUNNING, *every_ten(10, 2460, kib=int)], 2460, ""),
        ({}, [*RUNNING, line(2, "worker-0", "epoch 1/9"), *every_ten(10, 3600, rows=int)], 3600, ""),
        ({}, [*RUNNING, *every_ten(10, 3600)], 3600, ""),
        # Nor one that hangs, or a replica that is frozen.
        ({}, HUNG, 3600, ""),
        ({}, FROZEN, 36000, ""),
        # A download is no silence, and it is progress.
        ({"silence_timeout": 60, "progress_timeout": 60}, [*RUNNING, *every_ten(10, 2460, kib=int)], 2460, ""),
        # A hang is no silence either, but no progress.
        ({"silence_timeout": 60}, HUNG, 3600, ""),
        ({"progress_timeout": 3501}, HUNG, 3600, ""),
        (
            {"progress_timeout": "58m"},
            HUNG,
            3600,
            "progress_timeout ran out after 58 min: worker-0: read row 1,000 58 min 20 s ago, last output 0 s ago.",
        ),
        ({"progress_timeout": 60}, [*RUNNING, *every_ten(10, 50)], 60, ""),
        (
            {"progress_timeout": 60},
            [*RUNNING, *every_ten(10, 50)],
            61,
            "progress_timeout ran out after 1 min: worker-0: no progress, last output 11 s ago.",
        ),
        # Lines are no progress of a program that counts rows, except for the end of an epoch.
        (
            {"progress_timeout": 60},
            [*RUNNING, sample(10, rows=5), line(40, "worker-0", "epoch 3/6 loss=0.1"), line(50, "worker-0")],
            100,
            "progress_timeout ran out after 1 min: worker-0: ended epoch 3/6 1 min ago, last output 50 s ago.",
        ),
        # One frozen replica counts as silent, although the other one prints.
        ({"silence_timeout": 60}, FROZEN, 159, ""),
        (
            {"silence_timeout": 3500},
            FROZEN,
            3600,
            "silence_timeout ran out after 58 min 20 s: worker-1: read row 100 58 min 20 s ago; "
            "worker-0: read row 3,600 0 s ago.",
        ),
        # A restarted replica has given no sign of life, and its totals start again.
        (
            {"silence_timeout": 60},
            [
                *STARTED,
                *every_ten(10, 50, "worker-1", rows=int),
                changed(55, "worker-1", "starting", restart=1),
                changed(56, "worker-1", "running", restart=1),
                *every_ten(10, 200, "worker-0", rows=int),
            ],
            200,
            "",
        ),
    ],
)
def test_a_training_that_is_alive_is_ended_only_on_request(budgets, facts, seconds, expired):
    status = follow(*facts, replicas=len({fact.replica for fact in facts}))
    assert expired_budget(status, parse_distribution(budgets), BEGIN + seconds) == expired


def test_workers_of_an_mpi_job_may_outlive_their_ranks():
    """Worker 1 and the launcher are silent, while worker 0 saves the model."""
    specification = parse_distribution({"distribution_type": "MPI", "silence_timeout": 60})
    status = begin(make_job(["unused"], {"distribution_type": "MPI"}), BEGIN)
    facts = [changed(1, name, "running") for name in status.replicas] + [line(2, "launcher-0")]
    facts += [sample(10, name, rows=5) for name in ("worker-0", "worker-1")] + every_ten(20, 900, kib=int)
    for fact in facts:
        status = advance(status, fact)
    assert expired_budget(status, specification, BEGIN + 959) == ""
    assert check_stalls(status, Stalls(), BEGIN + 900)[1] == []
    assert expired_budget(status, specification, BEGIN + 960).startswith(
        "silence_timeout ran out after 1 min: launcher"
    )


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
