"""The Kubernetes runner with the logs of many pods of a stub API server."""

import threading
import time
from collections import defaultdict
from functools import partial

import pytest
from kubernetes import client
from step_lines import brief
from stub_api import StubApi
from train.programs.jobs import make_job, workers

from kfp_distributed.cluster_api.client import ClusterApi
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.run.launch import follow_job
from kfp_distributed.components.train.run.runners.kubernetes import runner
from kfp_distributed.components.train.run.runners.kubernetes.logs import last_lines
from kfp_distributed.components.train.run.runners.kubernetes.runner import KubernetesRunner
from kfp_distributed.components.train.run.runners.kubernetes.watch.watcher import Watcher
from kfp_distributed.components.train.tell.log_format import log
from kfp_distributed.components.train.tell.step_log import StepLog

pytestmark = pytest.mark.takes(25)


def follow(lines, replicas, cut, show):
    """Run a job to its end; return its status and the number of requests by kind."""
    server = StubApi(lines, cut)
    configuration = client.Configuration()
    configuration.host = f"http://127.0.0.1:{server.port}"
    job = make_job(["unused"], workers(replicas))
    cluster = KubernetesRunner(ClusterApi(configuration, "default"), ClusterSettings("default"), log)
    try:
        cluster.check(job)
        cluster.start(job)
        status = follow_job(cluster, job, StepLog(show))
        cluster.stop()
    finally:
        requests, _ = server.end()
    return status, requests


@pytest.mark.parametrize("cut", [False, True])
def test_each_line_of_many_replicas_is_shown_once_and_in_order(cut):
    shown = defaultdict(list)

    def show(entry):
        replica, _, line = brief(entry).partition(" line ")
        shown[replica].append(line[:6])

    status, requests = follow(2000, 50, cut, show)
    assert status.ended.succeeded
    expected = [f"{number:06d}" for number in range(2000)]
    assert {replica: lines == expected for replica, lines in shown.items() if lines[0]} == {
        f"[worker-{index}]": True for index in range(50)
    }
    # One request, a second one after the end of the container, and a third one after a broken connection.
    assert requests["log"] == 50 * (3 if cut else 2)
    assert all(replica.tail[-1].startswith("line 001999 ") for replica in status.replicas.values())


def test_a_slow_reader_loses_no_line_at_the_end_of_a_job(monkeypatch):
    monkeypatch.setattr(last_lines, "LAST_LINES_SECONDS", 8.0)
    # Shorter than handling all lines takes, and longer than handling those that wait in the queue.
    monkeypatch.setattr(last_lines, "GONE_SECONDS", 8.0)
    monkeypatch.setattr(runner, "Watcher", partial(Watcher, queued_chunks=4))
    count = 0

    def show(entry):
        nonlocal count
        count += entry.message.startswith("line ")
        if count % 2000 == 0:
            time.sleep(0.25)  # 40 times, so that all lines take 10 s.

    status, _ = follow(20_000, 4, False, show)
    assert status.ended.succeeded
    assert count == 80_000


@pytest.mark.parametrize("cut", [False, True])
def test_a_few_connections_read_each_line_of_many_replicas(cut, monkeypatch):
    """Each response has all lines of a replica. The second one, after the end of its container, is its last."""
    monkeypatch.setattr(runner, "Watcher", partial(Watcher, log_connections=4))
    threads, shown = [], defaultdict(list)

    def show(entry):
        threads.append(threading.active_count())
        replica, _, line = brief(entry).partition(" line ")
        shown[replica].append(line[:6])

    before = threading.active_count()
    status, requests = follow(2000, 50, cut, show)
    assert status.ended.succeeded
    expected = [f"{number:06d}" for number in range(2000)]
    assert {replica: lines == expected for replica, lines in shown.items() if lines[0]} == {
        f"[worker-{index}]": True for index in range(50)
    }
    # On a slow machine, a log may be interrupted once for the turn of another one.
    assert 50 * (3 if cut else 2) <= requests["log"] <= 50 * (4 if cut else 3)
    # The others watch, or keep a connection open.
    assert max(threads) <= before + 4 + 6
