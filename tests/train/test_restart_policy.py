"""Decisions of the restart policy for the states of a job's replicas, as a table."""

import signal

import pytest

from kfp_distributed.components.train.describe.distributions import parse_distribution
from kfp_distributed.components.train.describe.topology import plan_topology
from kfp_distributed.components.train.run.conclusions.failures import FOR_GOOD
from kfp_distributed.components.train.run.conclusions.restarts import Restarts
from kfp_distributed.components.train.run.facts import ReplicaChanged
from kfp_distributed.components.train.run.runners.local.restart_policy import END_GRACE_SECONDS, Decision, decide
from kfp_distributed.trainers.runtime.job_description import PEER_LOST, STORE_AWAY, STORE_UNREACHED

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
LIMIT_REACHED = "Restart limit reached (restart_limit=3)."
AWAY = "worker-1: the object store did not answer"


def succeeded(seconds_ago=0.0):
    return "succeeded", 0, None, seconds_ago


def exited(code, seconds_ago=5.0):
    return "failed", code, None, seconds_ago


def killed(number=signal.SIGKILL, seconds_ago=5.0):
    return "failed", None, int(number), seconds_ago


@pytest.mark.parametrize(
    ("topology", "changes", "decision"),
    [
        # Wait.
        (WORKERS, {}, None),
        (WORKERS, {"worker-1": succeeded()}, None),
        # The job succeeds after its leader has succeeded.
        (WORKERS, {"worker-0": succeeded(), "worker-1": succeeded(), "evaluator-0": succeeded()}, Decision("succeed")),
        (WORKERS, {"worker-0": succeeded()}, None),
        (
            WORKERS,
            {"worker-0": succeeded(END_GRACE_SECONDS), "worker-1": succeeded()},
            Decision("stop", ("evaluator-0",), "still running 30 s after worker-0 succeeded"),
        ),
        (SERVERS, {"chief-0": succeeded()}, Decision("stop", ("ps-0", "worker-0", "worker-1"), "chief-0 succeeded")),
        (
            SERVERS,
            {"chief-0": succeeded(), "ps-0": killed(), "worker-0": succeeded(), "worker-1": succeeded()},
            Decision("succeed"),
        ),
        # Failures after the leader has succeeded are ignored. A permanent failure before that ends the job.
        (WORKERS, {"worker-0": succeeded(6), "worker-1": exited(3), "evaluator-0": succeeded()}, Decision("succeed")),
        (WORKERS, {"worker-0": succeeded(4), "worker-1": killed(), "evaluator-0": succeeded()}, Decision("succeed")),
        (WORKERS, {"worker-0": succeeded(4), "worker-1": exited(3)}, Decision("fail", ALL_WORKERS, FOR_GOOD)),
        # Exit codes up to 127 are permanent failures. The decision waits for failures of the peers.
        (WORKERS, {"worker-1": exited(3, 1.9)}, None),
        (WORKERS, {"worker-1": exited(3, 2.0)}, Decision("fail", ALL_WORKERS, FOR_GOOD)),
        (WORKERS, {name: exited(1, 0) for name in ALL_WORKERS}, Decision("fail", ALL_WORKERS, FOR_GOOD)),
        (WORKERS, {"worker-1": exited(127)}, Decision("fail", ALL_WORKERS, FOR_GOOD)),
        # A killed replica restarts with all others, even if its peers failed with exit codes just before.
        (WORKERS, {"worker-1": killed()}, Decision("restart", ALL_WORKERS, "worker-1 failed")),
        (WORKERS, {"worker-1": exited(137)}, Decision("restart", ALL_WORKERS, "worker-1 failed")),
        (
            WORKERS,
            {"worker-0": exited(1, 5.0), "worker-1": killed(seconds_ago=4.9)},
            Decision("restart", ALL_WORKERS, "worker-1 failed"),
        ),
        # TensorFlow aborts the peers of a failed replica, so another failure is the cause.
        (
            WORKERS,
            {"worker-0": killed(signal.SIGABRT, 5.0), "worker-1": exited(3, 4.9)},
            Decision("fail", ALL_WORKERS, FOR_GOOD),
        ),
        # An outage of the object store does not count, whatever its peers end with.
        (WORKERS, {"worker-1": exited(STORE_AWAY)}, Decision("restart", ALL_WORKERS, AWAY, counts=False)),
        (
            WORKERS,
            {"worker-0": exited(PEER_LOST, 5.0), "worker-1": exited(STORE_AWAY, 4.9)},
            Decision("restart", ALL_WORKERS, AWAY, counts=False),
        ),
        (
            WORKERS,
            {"worker-0": exited(1, 4.0), "worker-1": exited(STORE_AWAY, 5.0)},
            Decision("restart", ALL_WORKERS, AWAY, counts=False),
        ),
        (SERVERS, {"worker-1": exited(STORE_AWAY)}, Decision("restart", ("worker-1",), AWAY, counts=False)),
        # A store that no replica has had an answer of may be one that they never reach.
        (WORKERS, {"worker-1": exited(STORE_UNREACHED)}, Decision("restart", ALL_WORKERS, "worker-1 failed")),
        (
            WORKERS,
            {"worker-0": exited(PEER_LOST, 5.0), "worker-1": exited(STORE_UNREACHED, 4.9)},
            Decision("restart", ALL_WORKERS, "worker-1 failed"),
        ),
        # Evaluators, and workers of parameter servers, restart alone.
        (WORKERS, {"evaluator-0": killed()}, Decision("restart", ("evaluator-0",), "evaluator-0 failed")),
        (SERVERS, {"worker-1": killed()}, Decision("restart", ("worker-1",), "worker-1 failed")),
        (
            SERVERS,
            {"worker-0": killed(), "worker-1": killed()},
            Decision("restart", ("worker-0", "worker-1"), "worker-0 failed"),
        ),
        (SERVERS, {"ps-0": killed()}, Decision("restart", ALL_SERVERS, "ps-0 failed")),
        (
            SERVERS,
            {"worker-1": killed(), "chief-0": exited(1, 4.0)},
            Decision("restart", ALL_SERVERS, "worker-1 failed"),
        ),
    ],
)
def test_decide(topology, changes, decision):
    assert decide(topology, _last(topology, changes), NOW, restarts_of({})) == decision


@pytest.mark.parametrize(
    ("topology", "changes", "restarts", "taken", "decision"),
    [
        (WORKERS, {"worker-1": killed()}, {"worker-1": 3}, set(), Decision("fail", ALL_WORKERS, LIMIT_REACHED)),
        (
            WORKERS,
            {"worker-1": exited(1)},
            {"worker-1": 2},
            {"worker-1"},
            Decision("restart", ALL_WORKERS, "the port of worker-1 is taken"),
        ),
        (WORKERS, {"worker-1": exited(1)}, {"worker-1": 3}, {"worker-1"}, Decision("fail", ALL_WORKERS, LIMIT_REACHED)),
        (
            WORKERS,
            {"evaluator-0": killed()},
            {},
            {"evaluator-0"},
            Decision("restart", ALL_WORKERS, "the port of evaluator-0 is taken"),
        ),
        # Restarts are counted for each replica. If all restart, each needs a restart that is left.
        (
            SERVERS,
            {"worker-1": killed()},
            {"worker-0": 3, "worker-1": 2},
            set(),
            Decision("restart", ("worker-1",), "worker-1 failed"),
        ),
        (SERVERS, {"worker-1": killed()}, {"worker-1": 3}, set(), Decision("fail", ALL_SERVERS, LIMIT_REACHED)),
        (SERVERS, {"ps-0": killed()}, {"worker-0": 3}, set(), Decision("fail", ALL_SERVERS, LIMIT_REACHED)),
        (
            WORKERS,
            {"worker-1": exited(STORE_AWAY)},
            {"worker-1": 3},
            set(),
            Decision("restart", ALL_WORKERS, AWAY, counts=False),
        ),
    ],
)
def test_decide_at_the_restart_limit_and_with_a_taken_port(topology, changes, restarts, taken, decision):
    assert decide(topology, _last(topology, changes), NOW, restarts_of(restarts), taken) == decision


def restarts_of(counts):
    return Restarts(parse_distribution({"restart_limit": 3}), counts)


def _last(topology, changes):
    last = {replica.name: ("running", None, None, 100.0) for replica in topology.replicas} | changes
    return {
        name: ReplicaChanged(NOW - ago, name, state, code, number) for name, (state, code, number, ago) in last.items()
    }


@pytest.mark.parametrize("peer", [PEER_LOST, 1])
def test_a_store_that_has_answered_before_and_does_not_answer_is_an_outage(peer):
    last = _last(WORKERS, {"worker-0": exited(peer, 5.0), "worker-1": exited(STORE_UNREACHED, 4.9)})
    restarts = restarts_of({"worker-1": 3}).after_answer()
    assert decide(WORKERS, last, NOW, restarts) == Decision("restart", ALL_WORKERS, AWAY, counts=False)
