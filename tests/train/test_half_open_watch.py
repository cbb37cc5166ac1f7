"""Watches whose peer is gone without closing the connection."""

import os
import socket
import threading
import time
from contextlib import suppress

import psutil
import pytest
from kubernetes import client
from kubernetes_api import KubernetesApi

from kfp_distributed.cluster_api.client import ClusterApi
from kfp_distributed.components.train.run.runners.kubernetes.watch.watcher import Changed, Listed, Watcher

PODS = "/api/v1/namespaces/default/pods"


class SilencingProxy:
    """Forwards bytes in both directions, until `silence` makes the connections so far swallow them."""

    def __init__(self, port):
        self._upstream = port
        self._silent = set()
        self._connections = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def silence(self):
        self._silent |= {pair[0].fileno() for pair in self._connections}

    def close(self):
        self._server.close()
        for pair in self._connections:
            for end in pair:
                end.close()

    def _accept(self):
        with suppress(OSError):
            while True:
                pair = self._server.accept()[0], socket.create_connection(("127.0.0.1", self._upstream))
                self._connections.append(pair)
                for source, target in (pair, pair[::-1]):
                    threading.Thread(target=self._forward, args=(source, target, pair[0].fileno()), daemon=True).start()

    def _forward(self, source, target, key):
        with suppress(OSError):
            while data := source.recv(65536):
                if key not in self._silent:
                    target.sendall(data)
            if key not in self._silent:
                target.shutdown(socket.SHUT_WR)


@pytest.fixture
def server():
    with KubernetesApi() as running:
        yield running


def connect(port):
    configuration = client.Configuration()
    configuration.host = f"http://127.0.0.1:{port}"
    return ClusterApi(configuration, "default")


def test_a_watch_that_stays_silent_beyond_its_end_is_replaced(server):
    proxy = SilencingProxy(server.port)
    watcher = Watcher(connect(proxy.port), watch_seconds=1, late_seconds=0.5)
    watcher.watch("pods", PODS, {})
    assert watcher.take(120) == Listed("pods", [])
    deadline = time.monotonic() + 120
    while "WATCH pods" not in server.requests:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    proxy.silence()
    pod = server.put("pods/a", {"metadata": {"name": "a"}})
    assert watcher.take(120) == Changed("pods", "ADDED", pod)
    watcher.close()
    proxy.close()


def test_the_kernel_probes_the_peer_of_a_stream(server):
    server.put("pods/a", {"metadata": {"name": "a"}})
    lines = connect(server.port).lines(PODS, {"watch": "1", "resourceVersion": "0"}, 20)
    next(lines)
    probed = []
    for connection in psutil.Process().net_connections("tcp4"):
        if not connection.raddr or connection.raddr.port != server.port:
            continue
        with socket.socket(fileno=os.dup(connection.fd)) as end:
            if end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
                options = socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT
                probed.append([end.getsockopt(socket.IPPROTO_TCP, option) for option in options])
    assert probed == [[30, 10, 3]]
    lines.close()
