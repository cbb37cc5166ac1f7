"""The connection to an API server that is away, that a proxy speaks for, or that refuses the step."""

import re
import time
from http import HTTPStatus

import pytest
from train.kubernetes_api import KubernetesApi

from kfp_distributed.components.train.runners.kubernetes.connection import Connection
from kfp_distributed.components.train.runners.protocol import ClusterError

JOB = "tfjobs/a-job"
JOB_PATH = f"/apis/kubeflow.org/v1/namespaces/default/{JOB}"


@pytest.fixture
def api():
    with KubernetesApi() as server:
        server.put(JOB, {"metadata": {"name": "a-job"}})
        yield server


def test_an_api_server_that_was_away_and_refuses_once_does_not_end_the_job(api):
    """One that is just starting may refuse a request."""
    connection = Connection(api.connect(), JOB_PATH, 0.3)
    api.broken = {f"GET {JOB}"}
    assert not connection.probe()
    time.sleep(0.4)
    api.broken, api.refuses = set(), HTTPStatus.UNAUTHORIZED
    assert not connection.probe()
    assert connection.refusal == ""
    time.sleep(0.4)
    assert not connection.probe()
    assert connection.refusal == "The API server refuses this step: Unauthorized."


def test_an_answer_ends_a_refusal(api):
    connection = Connection(api.connect(), JOB_PATH, 0.3)
    for answer, is_answered in ((HTTPStatus.FORBIDDEN, False), (None, True), (HTTPStatus.FORBIDDEN, False)):
        api.refuses = answer
        assert connection.probe() == is_answered
        time.sleep(0.4)
    assert connection.refusal == ""


def test_a_job_that_is_created_again_just_now_keeps_the_connection_open(api):
    api.delete(JOB)
    assert Connection(api.connect(), JOB_PATH, 1).probe()


def test_a_page_of_a_proxy_is_no_answer_of_an_api_server(api):
    connection = Connection(api.connect(), JOB_PATH, 1)
    api.lose[f"GET {JOB}"] = "html"
    assert [connection.probe() for _ in range(2)] == [False, True]
    api.lose[f"GET {JOB}"] = "html"
    text = r"^http://127.0.0.1:\d+ does not answer as an API server does, in JSON$"
    with pytest.raises(ClusterError, match=re.compile(text)):
        api.connect().read(JOB_PATH)
