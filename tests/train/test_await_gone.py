"""Waiting until objects are gone, by a watch that may break."""

import time
from http import HTTPStatus
from types import SimpleNamespace

import pytest
from kubernetes_api import KubernetesApi

from kfp_distributed.cluster_api.client import WATCH_SECONDS, ClusterError
from kfp_distributed.components.train.run.runners.kubernetes.create import gone_objects
from kfp_distributed.components.train.run.runners.kubernetes.create.gone_objects import await_gone, until_gone

pytestmark = pytest.mark.takes(2)

PODS = "/api/v1/namespaces/default/pods"
PATH = f"{PODS}/a"


@pytest.fixture
def server():
    with KubernetesApi() as running:
        yield running


def put(server, name):
    return server.put(f"pods/{name}", {"metadata": {"name": name}})["metadata"]["uid"]


def when_watched(server, change):
    """Make a change after the first watch has begun."""

    def before(request):
        if request == "WATCH pods" and request not in server.requests:
            server.requests.append(request)
            change()

    server.before = before


def test_an_object_that_does_not_exist_is_gone(server):
    put(server, "b")
    assert await_gone(server.connect(), PATH, "uid", 120)
    assert server.requests == ["LIST pods"]


def test_an_object_is_awaited_by_one_watch(server):
    uid = put(server, "a")
    put(server, "b")
    when_watched(server, lambda: server.delete("pods/a"))
    assert await_gone(server.connect(), PATH, uid, 120)
    assert server.requests == ["LIST pods", "WATCH pods", "WATCH pods"]
    assert server.sent["pods/b"] == 0


def test_an_object_of_the_same_name_is_another_one(server):
    uid = put(server, "a")

    def replace():
        server.delete("pods/a")
        put(server, "a")

    server.expire("pods", replace)
    assert await_gone(server.connect(), PATH, uid, 120)


@pytest.mark.parametrize("fault", ["cut", "expired"])
def test_an_object_that_disappears_while_the_watch_is_interrupted(server, fault):
    uid = put(server, "a")

    def interrupt():
        if fault == "expired":
            server.expire("pods", lambda: server.delete("pods/a"))
        else:
            server.breaks = 1
            server.delete("pods/a")

    when_watched(server, interrupt)
    assert await_gone(server.connect(), PATH, uid, 120)
    assert [request for request in server.requests if request == "LIST pods"] == ["LIST pods"] * 2


def test_a_watch_that_breaks_again_and_again_does_not_end_the_wait(server):
    uid, server.breaks = put(server, "a"), 3
    server.before = lambda request: server.delete("pods/a") if request == "WATCH pods" and not server.breaks else None
    assert await_gone(server.connect(), PATH, uid, 120)
    assert server.requests == ["LIST pods", "WATCH pods"] * 4


def test_watches_that_end_at_once_are_requested_less_and_less_often(server, monkeypatch):
    put(server, "a")
    pauses = []
    api = server.connect()
    monkeypatch.setattr(api, "watch", lambda *arguments: iter(()))
    monkeypatch.setattr(gone_objects, "time", SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append))
    list(until_gone(api, PODS, {}, 20))
    assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5])


def test_an_object_that_remains(server):
    uid, begun = put(server, "a"), time.monotonic()
    assert not await_gone(server.connect(), PATH, uid, 0.5)
    # A watch without a limit of its own ends after WATCH_SECONDS.
    assert 0.5 <= time.monotonic() - begun < WATCH_SECONDS - 5


def test_a_refused_watch_is_raised(server):
    uid = put(server, "a")
    when_watched(server, lambda: setattr(server, "refuses", HTTPStatus.FORBIDDEN))
    with pytest.raises(ClusterError, match="Forbidden") as caught:
        await_gone(server.connect(), PATH, uid, 120)
    assert caught.value.status == 403


def test_the_objects_that_remain_are_yielded_after_each_change(server):
    put(server, "a"), put(server, "b")
    names = []
    for objects in until_gone(server.connect(), PODS, {}, 20):
        names.append(sorted(item["metadata"]["name"] for item in objects.values()))
        if objects:
            server.delete(f"pods/{names[-1][0]}")
    assert names == [["a", "b"], ["b"], []]
