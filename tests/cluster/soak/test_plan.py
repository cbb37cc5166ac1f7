"""The plans of the soak."""

from collections import Counter
from dataclasses import replace

import pytest
from cluster.soak.plan import (
    ALONE,
    API_AWAY,
    EVICTED,
    FAULTS,
    GROUPS,
    JOBS,
    KINDS,
    LONGEST_OUTAGE,
    LONGEST_OUTAGE_OF_A_START,
    OPERATORS,
    OUT_OF_MEMORY,
    POD_DELETED,
    REPLICAS,
    TRAIN_JOBS,
    Fault,
    Plan,
    draw,
    undisturbed,
)
from cluster.soak.program import EPOCHS, ROWS

MANY = [draw(seed, number) for seed in range(5) for number in range(1, 101)]


def test_the_plan_of_a_number_depends_on_the_seed_and_the_number_alone():
    plan = draw(1, 4)
    draw(2, 9)
    assert draw(1, 4) == plan
    assert len({draw(seed, 4) for seed in range(20)}) > 10
    assert str(plan) == (
        "training 4 of seed 1: MPIJob, restart_limit 3, API server away for 37 s at row 9 "
        "and replica killed (worker-1) at row 27"
    )


def test_the_operators_of_the_cluster_decide_about_the_operator_alone():
    """So a number of a seed is the same training on a cluster without Kubeflow Trainer."""
    both = [draw(plan.seed, plan.number, OPERATORS) for plan in MANY]
    assert [replace(plan, operator="training-operator") for plan in both] == MANY
    assert {plan.kind for plan in MANY} == set(JOBS)
    assert {plan.kind for plan in both} == set(KINDS)
    drawn = {(plan.kind, kind) for plan in both for kind in plan.kinds}
    assert drawn == {(kind, fault) for kind in KINDS for fault in FAULTS}
    assert {draw(1, number, ["trainer"]).kind for number in range(1, 50)} == {"Job", *TRAIN_JOBS.values()}


def test_the_specification_names_the_operator_of_a_training_that_is_no_job():
    assert Plan(1, 1, "TFJob", 3, (), "trainer").distribution["operator"] == "trainer"
    assert Plan(1, 1, "TFJob", 3, ()).distribution["operator"] == "training-operator"
    assert "operator" not in Plan(1, 1, "Job", 3, (), "trainer").distribution


def test_one_training_of_each_kind_is_undisturbed():
    assert [plan.kind for plan in undisturbed(7, OPERATORS)] == list(KINDS)
    assert [plan.kind for plan in undisturbed(7, OPERATORS[:1])] == list(JOBS)
    assert [plan.number for plan in undisturbed(7, OPERATORS)] == [0, -1, -2, -3, -4, -5, -6]


@pytest.mark.parametrize("seed", range(3))
def test_each_kind_of_fault_comes_once_in_as_many_trainings_as_there_are_kinds(seed):
    size = len(FAULTS)
    for block in range(3):
        kinds = [draw(seed, number).kinds[0] for number in range(block * size + 1, (block + 1) * size + 1)]
        assert Counter(kinds) == Counter(FAULTS)


def test_all_types_of_jobs_and_replicas_are_drawn():
    assert {plan.job for plan in MANY} == set(JOBS)
    drawn = {(plan.job, fault.replica) for plan in MANY for fault in plan.faults if fault.replica}
    assert drawn == {(job, replica) for job, replicas in REPLICAS.items() for replica in replicas}


def test_the_faults_of_one_training_are_of_different_groups():
    pairs = [plan.kinds for plan in MANY if len(plan.faults) == 2]
    assert len(pairs) > 100
    assert not [pair for pair in pairs if set(pair) & set(ALONE)]
    assert not [pair for pair in pairs for kinds in GROUPS.values() if set(pair) <= set(kinds)]


def test_faults_begin_while_the_training_runs_and_outages_have_a_limit():
    faults = [fault for plan in MANY for fault in plan.faults]
    assert {fault.row for fault in faults} == set(range(1, EPOCHS * ROWS - 1)) | {EPOCHS * ROWS}
    assert max(fault.seconds for fault in faults) == LONGEST_OUTAGE
    starts = [plan.faults for plan in MANY if set(plan.kinds) & set(GROUPS["step"])]
    kinds = (*GROUPS["cluster"], *GROUPS["store"])
    outages = [fault.seconds for pair in starts for fault in pair if fault.kind in kinds]
    assert 20 < max(outages) <= LONGEST_OUTAGE_OF_A_START
    # A launcher runs no program that could be asked to fail.
    assert {fault.kind for fault in faults if fault.replica == "launcher-0"} == {POD_DELETED, EVICTED}


@pytest.mark.parametrize(
    ("restart_limit", "kinds", "may_fail"),
    [
        (0, (OUT_OF_MEMORY,), True),
        (0, (EVICTED,), False),
        (0, (API_AWAY,), False),
        (3, (POD_DELETED, API_AWAY), False),
    ],
)
def test_a_training_may_fail_only_if_its_faults_exceed_restart_limit(restart_limit, kinds, may_fail):
    assert Plan(1, 1, "Job", restart_limit, tuple(Fault(kind, 2) for kind in kinds)).may_fail == may_fail


def test_a_replica_runs_out_of_memory_because_it_has_a_limit():
    plan = Plan(1, 1, "Job", 3, (Fault(OUT_OF_MEMORY, 2, "worker-0"),))
    assert plan.distribution == {"restart_limit": 3, "termination_grace_seconds": 10, "worker_memory": "500Mi"}
