"""The parts of the launcher of elastic MPI jobs that do not need Horovod."""

import socket
import sys
import threading

import pytest

from kfp_distributed.trainers.runtime import horovodrun
from kfp_distributed.trainers.runtime.horovodrun import end_without_launcher, run_marked, slot_number
from kfp_distributed.trainers.runtime.ranks.cluster import Cluster, Rank
from kfp_distributed.trainers.runtime.ranks.replica import replica_name

pytestmark = pytest.mark.takes(4)


@pytest.mark.parametrize(
    ("host", "local_rank", "slots", "number"),
    [("worker-0", 0, 1, 0), ("worker-2", 1, 4, 9), ("train-0123-worker-11", 0, 1, 11)],
)
def test_slot_number(host, local_rank, slots, number):
    assert slot_number(host, local_rank, slots) == number


def test_an_elastic_rank_has_the_name_of_its_worker():
    environment = {"HOROVOD_ELASTIC": "1", "HOROVOD_RANK": "0", "KFP_DISTRIBUTED_REPLICA": "worker-7"}
    assert replica_name(environment, Cluster(), None, Rank(0, 2, 1)) == "worker-7"


def test_lines_are_marked_and_a_signal_becomes_an_exit_code(capfdbinary):
    program = "import os, sys; print('a\\n'); print('b', file=sys.stderr, flush=True); os.kill(os.getpid(), 9)"
    assert run_marked([sys.executable, "-u", "-c", program], {}, 5, []) == 137
    assert capfdbinary.readouterr().out == b"[5]<stdout>:a\n[5]<stdout>:\n[5]<stdout>:b\n"


def test_an_event_ends_the_command():
    event = threading.Event()
    threading.Timer(0.5, event.set).start()
    assert run_marked(["sleep", "60"], {"PATH": "/usr/bin:/bin"}, 0, [threading.Event(), event]) == 143


def test_a_rank_ends_when_its_launcher_is_lost(monkeypatch):
    """It ends before the next attempt of the launcher starts new ranks in its pod."""
    monkeypatch.setattr(horovodrun, "LOST_SECONDS", 400)
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1")
        monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_PORT", str(server.getsockname()[1]))
        end_without_launcher(ended.set)
        assert not ended.wait(4)
    assert ended.wait(120)
