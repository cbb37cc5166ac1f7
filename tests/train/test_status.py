"""Status, time budgets and causes that are computed from facts, as tables of whole values."""

import signal

import pytest
from step_lines import brief_lines
from train.programs.jobs import make_job, workers

from kfp_distributed.components.train.describe.distributions import parse_distribution
from kfp_distributed.components.train.run.conclusions.failures import FOR_GOOD, how_it_ended, root_failure
from kfp_distributed.components.train.run.conclusions.replica_status import LAST_LINES, ReplicaStatus
from kfp_distributed.components.train.run.conclusions.status import (
    TIMELINE_LENGTH,
    JobStatus,
    advance,
    begin,
    describe,
    failure_cause,
    final_failure,
    program_has_failed,
)
from kfp_distributed.components.train.run.conclusions.time_budgets import expired_budget
from kfp_distributed.components.train.run.facts import (
    JobEnded,
    JobEvent,
    LogLine,
    ReplicaChanged,
    ReplicaSample,
    Span,
    Tick,
)
from kfp_distributed.trainers.runtime.job_description import PEER_LOST, STORE_AWAY

BEGIN = 1000.0


def changed(seconds, replica, state, **details):
    return ReplicaChanged(BEGIN + seconds, replica, state, **details)


def line(seconds, replica, text="a line"):
    return LogLine(BEGIN + seconds, replica, text)


def ended(seconds, reason=""):
    return JobEnded(BEGIN + seconds, not reason, reason)


def follow(*facts, replicas=2):
    status = begin(make_job(["unused"], workers(replicas)), BEGIN)
    for fact in facts:
        status = advance(status, fact)
    return status


STARTED = [changed(1, f"worker-{index}", state) for index in range(2) for state in ("starting", "running")]


def test_a_job_with_a_restart_from_start_to_end():
    status = follow(
        *STARTED,
        line(2, "worker-0", "epoch 1"),
        line(3, "worker-1", "boom"),
        changed(4, "worker-1", "failed", signal=9, peak_memory=7000),
        JobEvent(BEGIN + 5, "restart 1 of 3: all replicas (worker-1 failed)"),
        changed(5, "worker-0", "stopped", reason="worker-1 failed"),
        changed(6, "worker-0", "starting", restart=1),
        changed(6, "worker-0", "running", restart=1),
        changed(6, "worker-1", "starting", restart=1),
        changed(6, "worker-1", "running", restart=1),
        Tick(BEGIN + 6),
        line(7, "worker-1", "epoch 2"),
        ReplicaSample(BEGIN + 7, "worker-1", memory_mib=512),
        changed(8, "worker-0", "succeeded", exit_code=0, restart=1),
        changed(8, "worker-1", "succeeded", exit_code=0, restart=1, peak_memory=5000),
        ended(9),
    )
    assert status == JobStatus(
        job="a-job",
        leader="worker-0",
        slots_per_worker=1,
        started=BEGIN,
        created=BEGIN,
        attempt=BEGIN + 6,
        replicas={
            "worker-0": ReplicaStatus(BEGIN + 8, "worker-0", "succeeded", 0, None, "", 1, "", since=BEGIN + 8),
            "worker-1": ReplicaStatus(
                BEGIN + 8,
                "worker-1",
                "succeeded",
                0,
                None,
                "",
                1,
                "",
                7000,
                0,
                since=BEGIN + 8,
                heard=BEGIN + 7,
                tail=("epoch 2",),
                sampled=BEGIN + 7,
                progressed=BEGIN + 7,
                progress='printed "epoch 2"',
            ),
        },
        running=BEGIN + 1,
        timeline=(
            (BEGIN + 1, "worker-0: running"),
            (BEGIN + 1, "worker-1: running"),
            (BEGIN + 4, "worker-1: failed (signal 9 (SIGKILL), often a lack of memory)"),
            (BEGIN + 5, "restart 1 of 3: all replicas (worker-1 failed)"),
            (BEGIN + 5, "worker-0: stopped (worker-1 failed)"),
            (BEGIN + 6, "worker-0: running"),
            (BEGIN + 6, "worker-1: running"),
            (BEGIN + 8, "worker-0: succeeded"),
            (BEGIN + 8, "worker-1: succeeded"),
            (BEGIN + 9, "the job succeeded"),
        ),
        ended=ended(9),
        failures={
            "worker-1": ReplicaStatus(
                BEGIN + 4,
                "worker-1",
                "failed",
                None,
                9,
                "",
                0,
                "",
                7000,
                0,
                since=BEGIN + 4,
                heard=BEGIN + 3,
                tail=("boom",),
                progressed=BEGIN + 3,
                progress='printed "boom"',
            )
        },
        spans={
            "worker-0": (
                Span("waiting", BEGIN, BEGIN + 1),
                Span("running", BEGIN + 1, BEGIN + 5),
                Span("stopped", BEGIN + 5, BEGIN + 6, "worker-1 failed"),
                Span("running", BEGIN + 6, BEGIN + 8, "restart 1"),
                Span("succeeded", BEGIN + 8),
            ),
            "worker-1": (
                Span("waiting", BEGIN, BEGIN + 1),
                Span("running", BEGIN + 1, BEGIN + 4),
                Span("failed", BEGIN + 4, BEGIN + 6, "signal 9 (SIGKILL), often a lack of memory"),
                Span("running", BEGIN + 6, BEGIN + 8, "restart 1"),
                Span("succeeded", BEGIN + 8),
            ),
        },
        samples={"worker-1": (ReplicaSample(BEGIN + 7, "worker-1", memory_mib=512),)},
    )


def test_lines_of_a_worker_outside_the_topology_count_as_activity():
    status = follow(*STARTED, line(60, "worker-2", "epoch 1"))
    assert status.replicas.keys() == {"worker-0", "worker-1"}
    assert [replica.tail for replica in status.replicas.values()] == [(), ()]
    budget = parse_distribution({"silence_timeout": 60})
    assert expired_budget(status, budget, BEGIN + 119) == ""
    assert expired_budget(status, budget, BEGIN + 120).startswith("silence_timeout ran out after 1 min: ")


def test_tail_and_timeline_keep_the_newest():
    status = follow(
        *(line(number, "worker-0", str(number)) for number in range(LAST_LINES + 5)),
        *(JobEvent(BEGIN + number, str(number)) for number in range(TIMELINE_LENGTH + 5)),
    )
    assert status.replicas["worker-0"].tail == tuple(str(number) for number in range(5, LAST_LINES + 5))
    assert [text for _, text in status.timeline] == [str(number) for number in range(5, TIMELINE_LENGTH + 5)]


@pytest.mark.parametrize(
    ("fact", "text"),
    [
        (line(1, "worker-0"), ""),
        (Tick(BEGIN), ""),
        (changed(1, "worker-0", "starting"), ""),
        (changed(1, "worker-0", "waiting"), ""),
        (changed(1, "worker-0", "pulling"), "worker-0: pulling"),
        (
            changed(1, "worker-0", "installing", reason="pip installs its packages"),
            "worker-0: installing (pip installs its packages)",
        ),
        (changed(1, "worker-0", "running"), "worker-0: running"),
        (changed(1, "worker-0", "failed", exit_code=3), "worker-0: failed (exit code 3)"),
        (changed(1, "worker-0", "stopped", reason="why"), "worker-0: stopped (why)"),
        (JobEvent(BEGIN, "admitted"), "admitted"),
        (ended(1), "the job succeeded"),
        (ended(1, "It is so."), "the job failed: It is so."),
    ],
)
def test_describe(fact, text):
    assert describe(fact) == text


@pytest.mark.parametrize(
    ("details", "text"),
    [
        ({"exit_code": 0}, "exit code 0"),
        ({"exit_code": 3}, "exit code 3"),
        ({"exit_code": 137}, "exit code 137 (SIGKILL), often a lack of memory"),
        ({"exit_code": 137, "reason": "OOMKilled"}, "exit code 137 (SIGKILL), often a lack of memory, OOMKilled"),
        # The kubelet kills what has not ended within the grace period of its pod.
        ({"exit_code": 137, "reason": "pod deleted"}, "exit code 137 (SIGKILL), pod deleted"),
        ({"exit_code": 137, "reason": "preempted: a", "preempted": True}, "exit code 137 (SIGKILL), preempted: a"),
        ({"exit_code": 143}, "exit code 143 (SIGTERM)"),
        ({"exit_code": 255}, "exit code 255"),
        ({"signal": 11}, "signal 11 (SIGSEGV)"),
        ({"signal": 40}, "signal 40"),
        ({"reason": "Evicted"}, "Evicted"),
    ],
)
def test_how_it_ended(details, text):
    assert how_it_ended(changed(1, "worker-0", "failed", **details)) == text


@pytest.mark.parametrize(
    ("ends", "root"),
    [
        ([(1.0, {"exit_code": 1})], 0),
        ([(1.5, {"exit_code": 1}), (1.0, {"exit_code": 2})], 1),
        # A killed replica is the cause of an exit that was detected shortly before, but not of one long before.
        ([(1.0, {"exit_code": 1}), (2.9, {"signal": 9})], 1),
        ([(1.0, {"exit_code": 1}), (3.1, {"signal": 9})], 0),
        ([(1.0, {"exit_code": 1}), (2.0, {"exit_code": 137})], 1),
        # A deleted pod is treated alike. It has no exit code.
        ([(1.0, {"exit_code": 205}), (2.0, {"reason": "pod deleted"})], 1),
        ([(1.0, {"exit_code": 205}), (3.1, {"reason": "pod deleted"})], 0),
        # TensorFlow aborts the peers.
        ([(1.0, {"signal": int(signal.SIGABRT)}), (1.1, {"exit_code": 3})], 1),
        ([(1.0, {"exit_code": PEER_LOST}), (1.1, {"exit_code": 134})], 1),
        ([(1.0, {"exit_code": 134}), (1.1, {"exit_code": 3})], 1),
        ([(1.0, {"signal": int(signal.SIGABRT)}), (1.1, {"signal": 9})], 1),
        ([(1.0, {"signal": int(signal.SIGABRT)})], 0),
        # No replica ends so because it has lost another one.
        ([(1.0, {"signal": 9}), (1.1, {"exit_code": STORE_AWAY})], 1),
        ([(1.0, {"exit_code": 1}), (1.1, {"exit_code": STORE_AWAY})], 1),
        ([(1.0, {"exit_code": 1}), (3.1, {"exit_code": STORE_AWAY})], 0),
    ],
)
def test_root_failure(ends, root):
    failed = [changed(time, f"worker-{index}", "failed", **end) for index, (time, end) in enumerate(ends)]
    assert root_failure(failed) == failed[root]


@pytest.mark.parametrize(
    ("facts", "is_cause"),
    [
        ([changed(2, "worker-0", "failed", exit_code=1), ended(4, "It is so.")], True),
        ([changed(2, "worker-0", "failed", exit_code=137, reason="OOMKilled"), ended(4, "It is so.")], True),
        ([changed(2, "worker-0", "failed", signal=9, preempted=True), ended(4, "It is so.")], False),
        ([changed(2, "worker-0", "failed", exit_code=STORE_AWAY), ended(4, "It is so.")], False),
        ([changed(2, "worker-0", "failed", reason="pod deleted"), ended(4, "It is so.")], False),
        ([changed(2, "worker-0", "failed", exit_code=PEER_LOST), ended(4, "It is so.")], False),
        ([ended(4, "The job was deleted.")], False),
        ([JobEnded(BEGIN, False, "running_timeout ran out", budget="running_timeout")], True),
        ([JobEnded(BEGIN, False, "queue_timeout ran out", budget="queue_timeout")], False),
        ([ended(4)], True),
    ],
)
def test_whether_the_program_is_the_cause(facts, is_cause):
    """A job that has succeeded without a model would do so again."""
    assert program_has_failed(follow(*STARTED, *facts)) == is_cause


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        ([ended(5, "It is so.")], "It is so."),
        (
            [
                line(2, "worker-1", "Traceback"),
                line(2, "worker-0", "waiting"),
                changed(75, "worker-1", "failed", exit_code=3),
                ended(77, "It is so."),
            ],
            "[worker-1] Traceback\nworker-1 failed with exit code 3, 1 min 15 s after the start of the job. It is so.",
        ),
        (
            [
                changed(2, "worker-0", "failed", exit_code=1),
                changed(2.5, "worker-1", "failed", signal=11),
                ended(4, "It is so."),
            ],
            "worker-1 failed with signal 11 (SIGSEGV), 2.5 s after the start of the job. "
            "Then failed worker-0 with exit code 1. It is so.",
        ),
    ],
)
def test_failure_cause(facts, cause):
    assert "\n".join(brief_lines(failure_cause(follow(*facts)))) == cause


def test_the_cause_among_restarted_replicas_is_the_root_of_the_newest_failures():
    facts = [
        changed(1, "worker-1", "failed", signal=9),
        changed(20, "worker-1", "failed", reason="pod deleted"),
        changed(20.3, "worker-0", "failed", exit_code=205),
        changed(21, "worker-0", "waiting", restart=1),
        changed(21, "worker-1", "waiting", restart=1),
        ended(64, "It is so."),
    ]
    assert failure_cause(follow(*facts)) == (
        "worker-1 failed: pod deleted, 20 s after the start of the job. Then failed worker-0 with exit code 205. "
        "It is so."
    )


@pytest.mark.parametrize("state", ["running", "succeeded"])
def test_a_replica_that_recovered_is_not_the_cause(state):
    facts = [
        *STARTED,
        changed(180, "worker-1", "failed", exit_code=137, reason="OOMKilled"),
        changed(190, "worker-1", state, restart=1),
        line(191, "worker-0"),
    ]
    end = ended(36000, "It is so.")
    assert failure_cause(follow(*facts, line(35990, "worker-0"), end)) == "It is so."
    # A replica that was silent since then may have waited for the failed one.
    silent = failure_cause(follow(*facts, end))
    assert silent.startswith("worker-1 failed with exit code 137")
    assert silent.endswith(" It is so.")


def test_a_replica_that_lost_its_node_and_finds_no_other_is_the_cause():
    lost = changed(180, "worker-1", "failed", reason="pod deleted")
    waits = changed(181, "worker-1", "waiting", reason="Unschedulable", restart=1)
    assert failure_cause(follow(*STARTED, lost, waits, line(990, "worker-0"), ended(1000, "It is so."))) == (
        "worker-1 failed: pod deleted, 3 min after the start of the job. It is so."
    )


def test_a_lost_worker_of_an_elastic_mpi_job_is_not_waited_for():
    elastic = {"distribution_type": "MPI", "min_workers": 1}
    status = begin(make_job(["unused"], elastic), BEGIN)
    for name in status.replicas:
        status = advance(status, changed(1, name, "running"))
    for fact in (line(2, "worker-0"), changed(3, "worker-1", "failed"), changed(4, "worker-1", "waiting", restart=1)):
        status = advance(status, fact)
    patient, strict = (parse_distribution({**elastic, "silence_timeout": limit}) for limit in ("unlimited", 100))
    assert expired_budget(status, patient, BEGIN + 9000) == ""
    assert expired_budget(status, strict, BEGIN + 9000).startswith("silence_timeout ran out after 1 min 40 s")


def test_lost_workers_of_an_elastic_mpi_job_are_not_the_cause():
    job = make_job(["unused"], {"distribution_type": "MPI", "number_of_workers": 3, "min_workers": 2})
    status = begin(job, BEGIN)
    for fact in (
        changed(10, "worker-2", "failed", reason="pod deleted"),
        changed(12, "worker-2", "waiting", restart=1),
        changed(60, "worker-1", "failed", exit_code=137, reason="OOMKilled"),
        line(61, "worker-1", "epoch 5/9"),
        line(62, "launcher-0", "1 of the workers are left, and min_workers is 2"),
        line(62, "launcher-0", "Process name: 1"),
        changed(63, "launcher-0", "failed", exit_code=137),
        ended(64, "It is so."),
    ):
        status = advance(status, fact)
    assert "\n".join(brief_lines(failure_cause(status))) == (
        "[worker-1] epoch 5/9\n[launcher-0] 1 of the workers are left, and min_workers is 2\n"
        "[launcher-0] Process name: 1\nlauncher-0 failed with exit code 137 (SIGKILL), often a lack of memory, "
        "1 min 3 s after the start of the job, as a process of worker-1 did. "
        "Lost workers: worker-2 with pod deleted, worker-1 with exit code 137 (SIGKILL), often a lack of memory, "
        "OOMKilled. It is so."
    )


NAMED = [line(9, "launcher-0", "Process name: [[51234,1],1]"), line(9, "launcher-0", "Exit code: 3")]
AGAIN = [changed(11, "launcher-0", state, restart=1) for state in ("starting", "running")]


@pytest.mark.parametrize(
    ("facts", "keys", "final"),
    [
        ([], {}, ""),
        ([*NAMED, changed(10, "launcher-0", "failed", exit_code=3)], {}, FOR_GOOD),
        ([*NAMED, changed(10, "launcher-0", "failed", exit_code=127)], {}, FOR_GOOD),
        # Log lines may arrive late, and the next start may follow at once.
        ([changed(10, "launcher-0", "failed", exit_code=3), *NAMED], {}, FOR_GOOD),
        ([*NAMED, changed(10, "launcher-0", "failed", exit_code=3), *AGAIN], {}, FOR_GOOD),
        # A rank that was killed, a lost worker, a launcher whose pod is deleted, and one that reached no worker.
        ([*NAMED, changed(10, "launcher-0", "failed", exit_code=137)], {}, ""),
        ([*NAMED, changed(10, "launcher-0", "failed", exit_code=205)], {}, ""),
        ([*NAMED, changed(10, "launcher-0", "failed", exit_code=1, reason="pod deleted")], {}, ""),
        ([line(9, "launcher-0", "ssh: refused"), changed(10, "launcher-0", "failed", exit_code=1)], {}, ""),
        (
            [
                *NAMED,
                changed(10, "launcher-0", "failed", exit_code=137),
                *AGAIN,
                changed(20, "launcher-0", "failed", exit_code=1, restart=1),
            ],
            {},
            "",
        ),
        # The operator restarts no launcher, or the launcher of an elastic job failed because it lost a worker.
        ([*NAMED, changed(10, "launcher-0", "failed", exit_code=3)], {"restart_limit": 0}, ""),
        ([*NAMED, changed(10, "launcher-0", "failed", exit_code=3)], {"min_workers": 1}, ""),
    ],
)
def test_final_failure(facts, keys, final):
    job = make_job(["unused"], {"distribution_type": "MPI", **keys})
    status = begin(job, BEGIN)
    for fact in facts:
        status = advance(status, fact)
    assert final_failure(status, job.specification) == final


def test_only_a_launcher_reports_failed_ranks():
    status = follow(line(9, "worker-0", "Process name: 1"), changed(10, "worker-0", "failed", exit_code=3))
    assert final_failure(status, parse_distribution(workers(2))) == ""


def test_the_failure_cause_names_ten_replicas_at_most():
    facts = [changed(2, f"worker-{index}", "failed", exit_code=1) for index in range(50)]
    assert failure_cause(follow(*facts, replicas=50)).endswith(
        "worker-9 with exit code 1, worker-10 with exit code 1 and 39 more."
    )


INSTALLED = [
    *(changed(1, f"worker-{index}", "installing", reason="pip installs its packages") for index in range(2)),
    line(2, "worker-0", "Installing packages: numpy"),
    changed(490, "worker-1", "running", install_seconds=488.0),
    changed(495, "worker-0", "pulling", install_seconds=493.0),
    changed(500, "worker-0", "running"),
]


def test_the_duration_of_pip_is_kept():
    replicas = follow(*INSTALLED, changed(900, "worker-0", "succeeded", exit_code=0)).replicas
    assert {name: replica.install_seconds for name, replica in replicas.items()} == {"worker-0": 493, "worker-1": 488}


def test_a_survived_preemption_is_not_the_cause_of_a_later_failure():
    preempted = changed(
        4, "worker-1", "failed", exit_code=143, reason="preempted: EvictionByEvictionAPI", preempted=True
    )
    again = [changed(6, "worker-1", state, restart=1) for state in ("starting", "running")]
    status = follow(*STARTED, preempted, *again, line(7, "worker-1"), ended(9, "start_timeout ran out."))
    assert failure_cause(status) == "start_timeout ran out."
    assert status.timeline[2] == (
        BEGIN + 4,
        "worker-1: failed (exit code 143 (SIGTERM), preempted: EvictionByEvictionAPI)",
    )
    waits = changed(6, "worker-1", "waiting", reason="Unschedulable", restart=1)
    status = follow(*STARTED, preempted, waits, ended(9, "scheduling_timeout ran out."))
    assert "preempted: EvictionByEvictionAPI" in failure_cause(status)


def test_the_exit_code_of_a_rank_is_not_final_after_a_preemption():
    preempted = changed(5, "worker-1", "failed", exit_code=143, preempted=True)
    specification = parse_distribution({"distribution_type": "MPI"})
    status = begin(make_job(["unused"], {"distribution_type": "MPI"}), BEGIN)
    facts = [line(4, "launcher-0", "  Process name: [[1,1],1]"), changed(4, "launcher-0", "failed", exit_code=3)]
    for fact in facts:
        status = advance(status, fact)
    assert final_failure(status, specification) == FOR_GOOD
    assert final_failure(advance(status, preempted), specification) == ""


def test_a_preemption_is_the_root_of_failures_at_the_same_time():
    peer, preempted = (
        changed(4, "worker-0", "failed", exit_code=3),
        changed(5, "worker-1", "failed", exit_code=1, preempted=True),
    )
    assert root_failure([peer, preempted]) == preempted
