"""The judge of the soak: it must report a violation of each invariant, and none of a training that kept them."""

from dataclasses import replace

import pytest
from cluster.soak.judge import Attempt, Observed, judge
from cluster.soak.plan import EVICTED, OUT_OF_MEMORY, STEP_KILLED, Fault, Plan
from cluster.soak.program import EPOCHS, ROWS, expected_model, fit

METRICS = {"worker-0": [{"epoch": epoch, "rows": float(ROWS)} for epoch in range(1, EPOCHS + 1)]}
SUCCEEDED = {"succeeded": True, "cause": "", "metrics": METRICS}
OOM = "worker-0 failed with exit code 137 (SIGKILL), often a lack of memory, OOMKilled: the limit is 500Mi"
FAILED = {"succeeded": False, "cause": f"traceback\n{OOM}", "metrics": {}}
TEXTS = ("starts after epoch 0", "epoch 1 row 1", "end")
LINES = tuple(f"[worker-0] line 0123abcd {number} {text}" for number, text in enumerate(TEXTS))
KEYS = (
    "checkpoints/train-1/checkpoints/00000004.json",
    "checkpoints/train-1/checkpoints/00000004/state.json",
    "checkpoints/train-1/logs/20261125T205331123Z/00000001.gz",
    "checkpoints/train-1/metrics/training.json",
    "checkpoints/train-1/metrics/training-data.json",
    "checkpoints/train-1/summary.json",
    "model/model.json",
    "model/weights",
)
MODEL = expected_model(2007)
GOOD = Observed(
    (Attempt(LINES, SUCCEEDED),), (OUT_OF_MEMORY,), MODEL, (), KEYS, "train-1", stored=LINES, state="succeeded"
)


def plan(kind: str = OUT_OF_MEMORY, restart_limit: int = 3) -> Plan:
    return Plan(2, 7, "Job", restart_limit, (Fault(kind, 5, "worker-0"),))


def verdict(**changes) -> Observed:
    return replace(GOOD, attempts=(Attempt(LINES, {**SUCCEEDED, **changes}),))


def lines(*shown: str) -> Observed:
    return replace(GOOD, attempts=(Attempt(shown, SUCCEEDED),))


def test_a_training_that_kept_the_invariants_has_no_violation():
    assert judge(plan(), GOOD) == []


def test_a_failure_beyond_restart_limit_that_names_its_fault_is_no_violation():
    assert (
        judge(plan(restart_limit=0), replace(GOOD, attempts=(Attempt(LINES, FAILED),), state="failed", model=None))
        == []
    )


def test_a_killed_attempt_needs_no_verdict_and_the_next_one_shows_the_lines_again():
    attempts = (Attempt(LINES[:2], None), Attempt(LINES, SUCCEEDED))
    assert judge(plan(STEP_KILLED), replace(GOOD, attempts=attempts, injected=(STEP_KILLED,))) == []


def test_the_last_lines_of_a_start_that_a_fault_has_ended_may_be_missing():
    other = [line.replace("0123abcd", "4567abcd") for line in LINES]
    assert judge(plan(), lines(*other[:1], *LINES)) == []


def test_a_heartbeat_that_a_step_could_not_delete_is_no_violation():
    warning = "cannot delete the heartbeat s3://bucket/7/checkpoints/train-1/heartbeat: the connection broke"
    assert judge(plan(), replace(lines(*LINES, warning), keys=(*KEYS, "checkpoints/train-1/heartbeat"))) == []


@pytest.mark.parametrize(
    ("observed", "violation"),
    [
        (replace(GOOD, error="still running after 420 s"), "end: still running after 420 s"),
        (replace(GOOD, attempts=()), "end: no attempt has a verdict"),
        (
            replace(GOOD, attempts=(Attempt(LINES, FAILED),), state="failed"),
            f"end: failed within restart_limit = 3: [{OOM!r}]",
        ),
        (replace(GOOD, model=None), f"model: None instead of {MODEL!r}"),
        (replace(GOOD, model=expected_model(2008)), f"model: {expected_model(2008)!r} instead of {MODEL!r}"),
        (
            verdict(metrics={"worker-0": METRICS["worker-0"][:1] * 2}),
            "epochs: the metrics of worker-0 have the epochs and rows [(1, 8.0), (1, 8.0)]",
        ),
        (verdict(metrics={}), "epochs: the metrics of worker-0 have the epochs and rows []"),
        (
            lines(LINES[0], LINES[2]),
            "lines: attempt 1 shows of worker-0, start 0123abcd: line 2 in place of line 1, of 2",
        ),
        (
            lines(LINES[0], LINES[0], *LINES[1:]),
            "lines: attempt 1 shows of worker-0, start 0123abcd: line 0 in place of line 1, of 4",
        ),
        (
            lines(*LINES[1:]),
            "lines: attempt 1 shows of worker-0, start 0123abcd: line 1 in place of line 0, of 2",
        ),
        (
            lines(LINES[0], LINES[2], LINES[1]),
            "lines: attempt 1 shows of worker-0, start 0123abcd: line 2 in place of line 1, of 3",
        ),
        (
            lines(*LINES, *(line.replace("0123abcd", start) for start in ("4567abcd", "89ababcd") for line in LINES)),
            "restarts: worker-0 was started 3 times, allowed are 2",
        ),
        (lines(*LINES[:2]), "lines: no attempt shows the last line of worker-0"),
        (
            replace(GOOD, stored=(*LINES, LINES[1])),
            "stored log: it has of worker-0, start 0123abcd: line 1 in place of line 3, of 4",
        ),
        (replace(GOOD, stored=LINES[:2]), "stored log: it has not the last line of worker-0"),
        (replace(GOOD, state="running"), "summary: the state is 'running' instead of 'succeeded'"),
        (replace(GOOD, left=("jobs train-1",)), "cluster: left jobs train-1"),
        (
            replace(GOOD, keys=(*KEYS, "model/train-1/heartbeat")),
            "bucket: left model/train-1/heartbeat",
        ),
        (
            replace(GOOD, keys=(*KEYS, *(f"checkpoints/train-1/checkpoints/0000000{n}.json" for n in (1, 2, 3)))),
            "bucket: has 4 checkpoints, not 3",
        ),
    ],
)
def test_each_violation_is_reported(observed, violation):
    assert judge(plan(), observed) == [violation]


def test_a_failure_that_does_not_name_its_fault_is_a_violation():
    failed = {**FAILED, "cause": "worker-0 failed with exit code 1"}
    observed = replace(GOOD, attempts=(Attempt(LINES, failed),), state="failed", model=None)
    expected = ["end: the cause has none of ['OOMKilled']: ['worker-0 failed with exit code 1']"]
    assert judge(plan(restart_limit=0), observed) == expected
    # A fault that never began is no excuse.
    fails = replace(observed, attempts=(Attempt(LINES, FAILED),), state="failed", injected=())
    assert judge(plan(restart_limit=0), fails) == [f"end: the cause has none of []: [{OOM!r}]"]


def test_mpirun_names_the_process_of_a_worker_that_was_out_of_memory():
    end = "launcher-0 failed with exit code 137 (SIGKILL), often a lack of memory, as a process of worker-0 did."
    observed = replace(GOOD, attempts=(Attempt(LINES, {**FAILED, "cause": end}),), state="failed", model=None)
    assert judge(replace(plan(restart_limit=0), job="MPIJob"), observed) == []
    assert judge(plan(restart_limit=0), observed) == [f"end: the cause has none of ['OOMKilled']: [{end!r}]"]


@pytest.mark.parametrize(
    ("injected", "restart_limit", "is_wrong"),
    [
        ((), 3, True),
        ((OUT_OF_MEMORY,), 0, True),
        ((OUT_OF_MEMORY,), 1, False),
        ((EVICTED,), 0, False),
        ((OUT_OF_MEMORY, STEP_KILLED), 0, False),
        ((STEP_KILLED,), 3, True),
    ],
)
def test_a_replica_restarts_only_after_a_fault_and_within_restart_limit(injected, restart_limit, is_wrong):
    """Nobody can prevent a restart while no step follows the job."""
    again = [line.replace("0123abcd", "4567abcd") for line in LINES]
    observed = replace(lines(*again, *LINES), injected=injected)
    expected = ["restarts: worker-0 was started 2 times, allowed are 1"] if is_wrong else []
    assert judge(plan(restart_limit=restart_limit), observed) == expected


def test_an_eviction_is_never_a_reason_to_fail():
    observed = replace(GOOD, attempts=(Attempt(LINES, FAILED),), state="failed", injected=(EVICTED,), model=None)
    assert judge(plan(EVICTED, 0), observed) == [f"end: failed within restart_limit = 0: [{OOM!r}]"]


def test_the_model_of_the_program_is_that_of_an_undisturbed_training(tmp_path, monkeypatch):
    """Also if it starts again after an epoch, and not if a row is missing."""
    monkeypatch.setenv("KFP_DISTRIBUTED_REPLICA", "worker-0")

    def train(model: str, **parameters) -> str:
        folders = {name: tmp_path / name for name in (model, "checkpoints", "metrics")}
        for folder in folders.values():
            folder.mkdir(exist_ok=True)
        fit(*map(str, folders.values()), seed=2007, rows=ROWS, seconds=0, **parameters)
        return (folders[model] / "weights").read_text()

    assert train("first", epochs=2) == expected_model(2007, epochs=2) != MODEL
    assert train("second", epochs=EPOCHS) == MODEL
    assert expected_model(2007, rows=ROWS - 1) != MODEL
