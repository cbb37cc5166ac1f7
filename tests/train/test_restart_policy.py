"""What is done with the replicas in which situation, as a table: state letters and times -> the next step."""

import signal
from types import MappingProxyType

import pytest

from kfp_distributed.components.train.job import ReplicaChanged
from kfp_distributed.components.train.runners.local.restart_policy import END_GRACE_SECONDS, Step, next_step
from kfp_distributed.components.train.specification import parse_distribution
from kfp_distributed.components.train.topology import plan_topology

WORKERS = plan_topology(
    parse_distribution(
        {"distribution_type": "TF", "number_of_workers": 2, "number_of_parameter_servers": 0, "evaluator": True}
    )
)
SERVERS = plan_topology(
    parse_distribution({"distribution_type": "TF", "number_of_workers": 2, "number_of_parameter_servers": 1})
)
NOW = 1000.0

ALL_WORKERS = ("worker-0", "worker-1", "evaluator-0")
ALL_SERVERS = ("chief-0", "ps-0", "worker-0", "worker-1")
FINAL = "Exit codes 1 to 127 are permanent failures and are not retried."
USED_UP = "The restarts that restart_limit allows (3) are used up."


def done(seconds_ago=0.0):
    return "succeeded", 0, None, seconds_ago


def exited(code, seconds_ago=5.0):
    return "failed", code, None, seconds_ago


def killed(number=signal.SIGKILL, seconds_ago=5.0):
    return "failed", None, int(number), seconds_ago


@pytest.mark.parametrize(
    ("topology", "changes", "step"),
    [
        # Nothing to do.
        (WORKERS, {}, None),
        (WORKERS, {"worker-1": done()}, None),
        # The leader's end is the job's end.
        (WORKERS, {"worker-0": done(), "worker-1": done(), "evaluator-0": done()}, Step("succeed")),
        (WORKERS, {"worker-0": done()}, None),
        (
            WORKERS,
            {"worker-0": done(END_GRACE_SECONDS), "worker-1": done()},
            Step("stop", ("evaluator-0",), "still running 30 s after worker-0 was done"),
        ),
        (SERVERS, {"chief-0": done()}, Step("stop", ("ps-0", "worker-0", "worker-1"), "chief-0 is done")),
        (SERVERS, {"chief-0": done(), "ps-0": killed(), "worker-0": done(), "worker-1": done()}, Step("succeed")),
        # What fails after it changes nothing; what failed for good before it counts.
        (WORKERS, {"worker-0": done(6), "worker-1": exited(3), "evaluator-0": done()}, Step("succeed")),
        (WORKERS, {"worker-0": done(4), "worker-1": killed(), "evaluator-0": done()}, Step("succeed")),
        (WORKERS, {"worker-0": done(4), "worker-1": exited(3)}, Step("fail", ALL_WORKERS, FINAL)),
        # Exit codes up to 127 are for good; the peers of a failed replica get a moment to fail too.
        (WORKERS, {"worker-1": exited(3, 1.9)}, None),
        (WORKERS, {"worker-1": exited(3, 2.0)}, Step("fail", ALL_WORKERS, FINAL)),
        (WORKERS, {name: exited(1, 0) for name in ALL_WORKERS}, Step("fail", ALL_WORKERS, FINAL)),
        (WORKERS, {"worker-1": exited(127)}, Step("fail", ALL_WORKERS, FINAL)),
        # A killed one starts again with all others, also where its peers ended by exit codes just before.
        (WORKERS, {"worker-1": killed()}, Step("restart", ALL_WORKERS, "worker-1 failed")),
        (WORKERS, {"worker-1": exited(137)}, Step("restart", ALL_WORKERS, "worker-1 failed")),
        (
            WORKERS,
            {"worker-0": exited(1, 5.0), "worker-1": killed(seconds_ago=4.9)},
            Step("restart", ALL_WORKERS, "worker-1 failed"),
        ),
        # TensorFlow aborts the peers of a failed one: an abort explains nothing where there is another end.
        (
            WORKERS,
            {"worker-0": killed(signal.SIGABRT, 5.0), "worker-1": exited(3, 4.9)},
            Step("fail", ALL_WORKERS, FINAL),
        ),
        # Some may start again alone.
        (WORKERS, {"evaluator-0": killed()}, Step("restart", ("evaluator-0",), "evaluator-0 failed")),
        (SERVERS, {"worker-1": killed()}, Step("restart", ("worker-1",), "worker-1 failed")),
        (
            SERVERS,
            {"worker-0": killed(), "worker-1": killed()},
            Step("restart", ("worker-0", "worker-1"), "worker-0 failed"),
        ),
        (SERVERS, {"ps-0": killed()}, Step("restart", ALL_SERVERS, "ps-0 failed")),
        (
            SERVERS,
            {"worker-1": killed(), "chief-0": exited(1, 4.0)},
            Step("restart", ALL_SERVERS, "worker-1 failed"),
        ),
    ],
)
def test_next_step(topology, changes, step):
    assert next_step(topology, _last(topology, changes), NOW, 3) == step


@pytest.mark.parametrize(
    ("topology", "changes", "restarts", "taken", "step"),
    [
        (WORKERS, {"worker-1": killed()}, {"worker-1": 3}, set(), Step("fail", ALL_WORKERS, USED_UP)),
        (
            WORKERS,
            {"worker-1": exited(1)},
            {"worker-1": 2},
            {"worker-1"},
            Step("restart", ALL_WORKERS, "the port of worker-1 is taken"),
        ),
        (WORKERS, {"worker-1": exited(1)}, {"worker-1": 3}, {"worker-1"}, Step("fail", ALL_WORKERS, USED_UP)),
        (
            WORKERS,
            {"evaluator-0": killed()},
            {},
            {"evaluator-0"},
            Step("restart", ALL_WORKERS, "the port of evaluator-0 is taken"),
        ),
        # Each replica has restarts of its own; where all start again, all need one.
        (
            SERVERS,
            {"worker-1": killed()},
            {"worker-0": 3, "worker-1": 2},
            set(),
            Step("restart", ("worker-1",), "worker-1 failed"),
        ),
        (SERVERS, {"worker-1": killed()}, {"worker-1": 3}, set(), Step("fail", ALL_SERVERS, USED_UP)),
        (SERVERS, {"ps-0": killed()}, {"worker-0": 3}, set(), Step("fail", ALL_SERVERS, USED_UP)),
    ],
)
def test_next_step_at_a_limit_and_with_a_taken_port(topology, changes, restarts, taken, step):
    assert next_step(topology, _last(topology, changes, restarts), NOW, 3, taken) == step


def _last(topology, changes, restarts=MappingProxyType({})):
    last = {each.name: ("running", None, None, 100.0) for each in topology.replicas} | changes
    return {
        name: ReplicaChanged(NOW - ago, name, state, code, number, restart=restarts.get(name, 0))
        for name, (state, code, number, ago) in last.items()
    }
