"""What this machine itself may lack for a request to the API server: it is tried again, as where the server is away."""

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


def lacking(server, errors):
    """A connection whose token cannot be read as often as there are errors."""
    api, left = server.connect(), list(errors)

    def refresh(configuration):
        if left:
            raise left.pop()

    api._client.configuration.api_key = {"authorization": "Bearer token"}
    api._client.configuration.refresh_api_key_hook = refresh
    return api


# A token file that is being replaced, and a process that has too many files open.
ERRORS = [FileNotFoundError(2, "No such file", "token"), OSError(24, "Too many open files"), config.ConfigException("")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_request_is_tried_again(server, error):
    assert lacking(server, [error]).call("GET", PODS)["items"] == []
    with pytest.raises(ClusterError, match=r"^cannot ask the API server http://127.0.0.1:\d+: ") as caught:
        lacking(server, [error]).call("GET", PODS, away_seconds=0)
    assert caught.value.status == 0


def test_a_watch_goes_on(server):
    watcher = Watcher(lacking(server, ERRORS))
    watcher.watch("pods", PODS, {})
    assert watcher.take(20) == Listed("pods", [])
    watcher.close()
