"""Requests to the API server: lists in pages, and requests that fail on this machine."""

from http import HTTPStatus

import pytest
from kubernetes import config
from kubernetes_api import KubernetesApi

from kfp_distributed.cluster_api import client
from kfp_distributed.cluster_api.client import PAGE_SIZE, ClusterApi, ClusterError
from kfp_distributed.cluster_api.reader import MayNotRead, reader
from kfp_distributed.components.train.run.runners.kubernetes.watch.watcher import Changed, Listed, Watcher

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def server():
    with KubernetesApi() as running:
        yield running


def connect_with(server, errors):
    """Connect with a token that cannot be read until all errors were raised."""
    configuration, remaining = server.configuration(), list(errors)

    def refresh(_):
        if remaining:
            raise remaining.pop()

    configuration.api_key = {"authorization": "Bearer token"}
    configuration.refresh_api_key_hook = refresh
    return ClusterApi(configuration, "default")


def put_pods(server, count):
    return [server.put(f"pods/{index:04}", {"metadata": {"name": f"{index:04}"}}) for index in range(count)]


@pytest.mark.parametrize(
    ("count", "pages"), [(0, [0]), (PAGE_SIZE, [PAGE_SIZE]), (2 * PAGE_SIZE + 1, [PAGE_SIZE, PAGE_SIZE, 1])]
)
def test_a_list_is_read_in_pages(server, count, pages):
    pods = put_pods(server, count)
    assert server.connect().list_objects(PODS) == (pods, str(count))
    assert server.pages == pages


def test_a_list_whose_continue_token_expires_starts_again(server, monkeypatch):
    monkeypatch.setattr(client, "PAGE_SIZE", 2)
    pods = put_pods(server, 5)

    def expire(request):
        if server.pages == [2, 2] and "pods/0000" in server.objects:
            server.expire("pods", lambda: server.delete("pods/0000"))

    server.before = expire
    assert server.connect().list_objects(PODS) == (pods[1:], "7")
    assert server.pages == [2, 2, 4]


def test_a_change_between_two_pages_is_reported_by_the_watch(server, monkeypatch):
    monkeypatch.setattr(client, "PAGE_SIZE", 2)
    pods = put_pods(server, 3)
    server.before = lambda request: (
        server.pages == [2]
        and "pods/new" not in server.objects
        and server.put("pods/new", {"metadata": {"name": "new"}})
    )
    watcher = Watcher(server.connect())
    watcher.watch("pods", PODS, {})
    assert watcher.take(20) == Listed("pods", pods)
    assert watcher.take(20) == Changed("pods", "ADDED", server.objects["pods/new"])
    watcher.close()


def test_a_request_apart_leaves_the_open_connection_to_a_cancel(server):
    """The connection of a request that gets no response in time is closed."""
    server.put("pods/a", {"metadata": {"name": "a"}})
    api = server.connect()
    api.call("GET", f"{PODS}/a")
    api.call("PATCH", f"{PODS}/a", {"metadata": {}}, apart=True)
    api.call("DELETE", f"{PODS}/a", {"propagationPolicy": "Background"})
    first, apart, last = server.connections
    assert (first == last, first == apart) == (True, False)


@pytest.mark.parametrize("page", ["html", "json"])
def test_a_page_of_a_proxy_is_no_list(server, page):
    server.lose["LIST pods"] = page
    with pytest.raises(ClusterError, match=r"^http://127.0.0.1:\d+ is not an API server") as caught:
        server.connect().list_objects(PODS)
    assert caught.value.status == 0


def test_a_reader_tells_what_is_not_there_from_what_may_not_be_read(server):
    pod = server.put("pods/a", {"metadata": {"name": "a"}})
    read = reader(server.connect(), lambda path, error: f"{path}: {error.status}", away_seconds=0)
    assert (read(f"{PODS}/a"), read(f"{PODS}/b")) == (pod, None)
    server.refuses = HTTPStatus.FORBIDDEN
    with pytest.raises(MayNotRead, match=f"^{PODS}/a: 403$"):
        read(f"{PODS}/a")
    server.refuses = HTTPStatus.UNAUTHORIZED
    with pytest.raises(ClusterError, match=f"^{PODS}/a: 401$"):
        read(f"{PODS}/a")


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
