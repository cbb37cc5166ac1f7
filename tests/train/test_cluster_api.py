"""Requests that fail on this machine are retried, like those that the API server does not answer."""

import pytest
from kubernetes import config
from train.kubernetes_api import KubernetesApi

from kfp_distributed.components.train.runners.kubernetes.watching import Listed, Watcher
from kfp_distributed.components.train.runners.protocol import ClusterError

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def server():
    with KubernetesApi() as running:
        yield running


def connect_with(server, errors):
    """Connect with a token that cannot be read until all errors were raised."""
    api, remaining = server.connect(), list(errors)

    def refresh(configuration):
        if remaining:
            raise remaining.pop()

    api._client.configuration.api_key = {"authorization": "Bearer token"}
    api._client.configuration.refresh_api_key_hook = refresh
    return api


# A token file that is being replaced, and a process that has too many files open.
ERRORS = [FileNotFoundError(2, "No such file", "token"), OSError(24, "Too many open files"), config.ConfigException("")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_request_that_fails_on_this_machine_is_retried(server, error):
    assert connect_with(server, [error]).call("GET", PODS)["items"] == []
    with pytest.raises(ClusterError, match=r"the API server http://127.0.0.1:\d+: ") as caught:
        connect_with(server, [error]).call("GET", PODS, away_seconds=0)
    assert caught.value.status == 0


def test_a_watch_that_fails_on_this_machine_is_retried(server):
    watcher = Watcher(connect_with(server, ERRORS))
    watcher.watch("pods", PODS, {})
    assert watcher.take(20) == Listed("pods", [])
    watcher.close()
