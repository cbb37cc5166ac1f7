"""The table of the soak."""

from cluster.soak.judge import Attempt, Observed
from cluster.soak.plan import EVICTED, OPERATORS, OUT_OF_MEMORY, STORE_AWAY, Fault, Plan
from cluster.soak.table import Circumstances, Result, fault_table, page

CAUSE = {"succeeded": False, "cause": "OOMKilled", "metrics": {}}
DONE = {"succeeded": True, "cause": "", "metrics": {}}


def result(number, job, kinds, injected, verdict, seconds, violations=(), operator="training-operator") -> Result:
    plan = Plan(7, number, job, 0, tuple(Fault(kind, 5) for kind in kinds), operator)
    return Result(plan, Observed((Attempt((), verdict),), injected, "", seconds=seconds), violations)


RESULTS = [
    result(0, "Job", (), (), DONE, 20),
    result(1, "Job", (EVICTED,), (EVICTED,), DONE, 31),
    result(2, "TFJob", (EVICTED, STORE_AWAY), (EVICTED,), DONE, 42),
    result(3, "MPIJob", (OUT_OF_MEMORY,), (OUT_OF_MEMORY,), CAUSE, 25),
    result(4, "MPIJob", (EVICTED,), (EVICTED,), DONE, 99, ("lines: lost",)),
    result(5, "PyTorchJob", (EVICTED,), (EVICTED,), DONE, 33, operator="trainer"),
]


def test_a_training_counts_in_the_row_of_each_fault_that_began():
    rows = [
        line
        for line in fault_table(RESULTS).splitlines()[2:]
        if any(part.strip().isdigit() for part in line.split("|"))
    ]
    assert rows == [
        "| none | 1 |  |  |  |  |  |  | 1 |  |  |  | 20 s |",
        "| replica evicted | 1 | 1 |  | 1 |  | 1 |  | 3 |  | 1 |  | 99 s |",
        "| replica out of memory |  |  |  | 1 |  |  |  |  | 1 |  |  | 25 s |",
        "| store away |  |  |  |  |  |  |  |  |  |  | 1 |  |",
    ]


def test_the_page_has_each_violation_with_its_plan():
    circumstances = Circumstances("2026-01-02", "make soak SEED=7", OPERATORS, "v1", "0.1", "one node", 4, 12.4)
    text = page(RESULTS, circumstances)
    assert (
        "Violations:\n\n- training 4 of seed 7: MPIJob, restart_limit 0, replica evicted at row 5: lines: lost" in text
    )
    assert "in this run: training-operator and trainer.\n" in text
    assert "6 trainings, 4 at the same time, took 12 minutes" in text
    assert "No invariant was violated." in page(RESULTS[:4], circumstances)
