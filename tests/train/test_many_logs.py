"""The Kubernetes runner and the logs of many pods, which a stand-in for the API server has."""

import time
from collections import defaultdict

import pytest
from kubernetes import client
from step_lines import brief
from stub_api import StubApi
from train.programs.jobs import make_job, workers

from kfp_distributed.components.train.launch import _follow
from kfp_distributed.components.train.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.runners.kubernetes import last_lines, watching
from kfp_distributed.components.train.runners.kubernetes.cluster_api import ClusterApi
from kfp_distributed.components.train.runners.kubernetes.runner import KubernetesRunner


def follow(lines, replicas, cut, show):
    """Runs a job to its end; returns its status and the requests by kind."""
    server = StubApi(lines, cut)
    configuration = client.Configuration()
    configuration.host = f"http://127.0.0.1:{server.port}"
    job = make_job(["unused"], workers(replicas))
    runner = KubernetesRunner(ClusterApi(configuration, "default"), ClusterSettings("default"))
    try:
        runner.check(job)
        runner.start(job)
        status = _follow(runner, job, show)
        runner.stop()
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
    # Once, once more when it is known to have ended, and after a break.
    assert requests["log"] == 50 * (3 if cut else 2)
    assert all(each.tail[-1].startswith("line 001999 ") for each in status.replicas.values())


def test_a_job_that_ends_while_its_reader_is_behind_loses_no_line(monkeypatch):
    monkeypatch.setattr(last_lines, "LAST_LINES_SECONDS", 3.0)
    # Less than it takes to tell all, and more than what has been read at last.
    monkeypatch.setattr(last_lines, "GONE_SECONDS", 3.0)
    monkeypatch.setattr(watching, "_READS", 4)
    count = 0

    def show(entry):
        nonlocal count
        count += entry.message.startswith("line ")
        if count % 2000 == 0:
            time.sleep(0.1)

    status, _ = follow(20_000, 4, False, show)
    assert status.ended.succeeded
    assert count == 80_000
