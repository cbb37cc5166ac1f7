"""The connection to an API server that is away, behind a proxy, or refuses the step's requests."""

import re
from http import HTTPStatus
from types import SimpleNamespace

import pytest
from kubernetes_api import KubernetesApi

from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.components.train.run.runners.kubernetes.connect import connection as module
from kfp_distributed.components.train.run.runners.kubernetes.connect.connection import JobConnection

JOB = "tfjobs/a-job"
JOB_PATH = f"/apis/kubeflow.org/v1/namespaces/default/{JOB}"


@pytest.fixture
def api():
    with KubernetesApi() as server:
        server.put(JOB, {"metadata": {"name": "a-job"}})
        yield server


@pytest.fixture
def advance(monkeypatch):
    """A function that advances the clock of the connection by some seconds."""
    passed = []
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 1000.0 + sum(passed)))
    return passed.append


def test_one_refusal_after_an_outage_does_not_end_the_job(api, advance):
    """An API server that is starting may refuse a request."""
    connection = JobConnection(api.connect(), JOB_PATH, 0.3)
    api.broken = {f"GET {JOB}"}
    assert not connection.probe()
    advance(0.4)
    api.broken, api.refuses = set(), HTTPStatus.UNAUTHORIZED
    assert not connection.probe()
    assert connection.refusal == ""
    advance(0.4)
    assert not connection.probe()
    assert re.fullmatch(r"The API server refuses .*: Unauthorized\.", connection.refusal)


def test_a_response_resets_the_time_of_refusals(api, advance):
    connection = JobConnection(api.connect(), JOB_PATH, 0.3)
    for answer, is_answered in ((HTTPStatus.FORBIDDEN, False), (None, True), (HTTPStatus.FORBIDDEN, False)):
        api.refuses = answer
        assert connection.probe() == is_answered
        advance(0.4)
    assert connection.refusal == ""


def test_the_connection_stays_open_while_the_job_is_recreated(api):
    api.delete(JOB)
    assert JobConnection(api.connect(), JOB_PATH, 1).probe()


def test_the_page_of_a_proxy_is_not_a_response_of_the_api_server(api):
    connection = JobConnection(api.connect(), JOB_PATH, 1)
    api.lose[f"GET {JOB}"] = "html"
    assert [connection.probe() for _ in range(2)] == [False, True]
    api.lose[f"GET {JOB}"] = "html"
    with pytest.raises(ClusterError, match=r"^http://127.0.0.1:\d+ .*API server.*JSON$"):
        api.connect().read(JOB_PATH)
