"""Logs of running pods that share a few connections."""

import json
import threading
import time
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

import pytest
from kubernetes import client

from kfp_distributed.cluster_api.client import ClusterApi
from kfp_distributed.components.train.run.runners.kubernetes.logs import log_connections
from kfp_distributed.components.train.run.runners.kubernetes.watch.watcher import Printed, RequestFailed, Watcher

pytestmark = pytest.mark.takes(6)

PODS = "/api/v1/namespaces/default/pods"


class Node:
    """The pods of a kubelet, each with one container.

    Attributes:
        files: Newest file of the log of each start, by (pod, restart count): second and text of each line.
        starts: Restart count of each pod.
        requests: Query of each request for a log, by pod.
        carriers: Queries of the requests that each line was sent for.
    """

    def __init__(self):
        self.files, self.starts, self.ended, self.requests = defaultdict(list), {}, set(), defaultdict(list)
        self.carriers = defaultdict(list)
        self.changed = threading.Condition()

    def pod(self, name):
        state = {"terminated": {"exitCode": 0}} if name in self.ended else {"running": {}}
        container = {"name": "tensorflow", "restartCount": self.starts[name], "state": state}
        return {
            "metadata": {
                "name": name,
                "uid": f"uid-{name}",
                "labels": {"training.kubeflow.org/replica-type": "worker"},
            },
            "spec": {"containers": [{"name": "tensorflow"}]},
            "status": {"containerStatuses": [container]},
        }

    def change(self, *changes):
        with self.changed:
            for change in changes:
                change()
            self.changed.notify_all()

    def chunks(self, name, query):
        """Yield the lines of a log; with `follow`, until the container ends."""
        start = self.starts[name] - ("previous" in query)
        since, sent = query.get("sinceTime", ""), 0
        while True:
            with self.changed:
                lines = self.files[name, start][sent:]
                if not lines and ("follow" not in query or name in self.ended or self.starts[name] > start):
                    return
                if not lines:
                    self.changed.wait(1)
                sent += len(lines)
                for _, text in lines:
                    self.carriers[text].append(query)
            stamped = [f"2026-01-01T00:01:{second:02d}.000000000Z {text}\n" for second, text in lines]
            if new := [line for line in stamped if line[:19] >= since[:19]]:
                yield "".join(new).encode()


@pytest.fixture
def node():
    running = Node()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_):
            pass

        def do_GET(self):
            url = urlsplit(self.path)
            name, _, log = url.path.removeprefix(f"{PODS}/").partition("/")
            query = dict(parse_qsl(url.query))
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            if log:
                running.requests[name].append(query)
            chunks = running.chunks(name, query) if log else [json.dumps(running.pod(name)).encode()]
            for chunk in chunks:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            self.wfile.write(b"0\r\n\r\n")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    configuration = client.Configuration()
    configuration.host = f"http://127.0.0.1:{server.server_port}"
    running.watcher = Watcher(ClusterApi(configuration, "default"), log_connections=2)
    yield running
    running.watcher.close()
    server.shutdown()
    server.server_close()


def start(node, *names):
    for name in names:
        node.starts.setdefault(name, 0)
        tell(node, name)


def tell(node, name):
    node.watcher.follow_logs(name, f"{PODS}/{name}", node.pod(name), deleted=False)


def news_until(node, is_enough, seconds=120):
    """Return the news of the watcher until a condition on the lines by replica holds."""
    shown, warnings, deadline = defaultdict(list), [], time.monotonic() + seconds
    while not is_enough(shown) and time.monotonic() < deadline:
        news = node.watcher.take(0.05)
        if isinstance(news, Printed):
            shown[news.replica] += [line.text for line in news.lines]
        elif isinstance(news, RequestFailed):
            warnings.append(news.text)
    return dict(shown), warnings


def is_shown(*lines):
    return lambda shown: {line for texts in shown.values() for line in texts} >= set(lines)


def test_silent_followed_logs_give_way_to_a_third_one(node):
    for name in "abc":
        node.files[name, 0].append((1, f"{name}1"))
    start(node, "a", "b")
    assert news_until(node, is_shown("a1", "b1")) == ({"a": ["a1"], "b": ["b1"]}, [])
    start(node, "c")
    assert news_until(node, is_shown("c1")) == ({"c": ["c1"]}, [])
    node.change(*(lambda name=name: node.files[name, 0].append((2, f"{name}2")) for name in "abc"))
    assert news_until(node, is_shown("a2", "b2", "c2")) == ({name: [f"{name}2"] for name in "abc"}, [])
    # Each container that has ended is read exactly once more.
    before = {name: len(queries) for name, queries in node.requests.items()}
    node.change(lambda: node.ended.update("abc"))
    start(node, "a", "b", "c")
    assert news_until(node, lambda _: not node.watcher.unread) == ({}, [])
    assert all(1 <= len(node.requests[name]) - before[name] <= 2 for name in "abc")


def test_two_logs_are_followed_again_when_the_third_one_is_read(node):
    start(node, "a", "b", "c")
    node.change(lambda: node.ended.add("c"))
    start(node, "c")
    assert news_until(node, lambda _: not node.watcher.unread) == ({}, [])
    # A request of the time when three shared may still bring the first line; the next request follows.
    for second, line in enumerate(("a1", "a2")):
        node.change(lambda second=second, line=line: node.files["a", 0].append((second, line)))
        assert news_until(node, is_shown(line)) == ({"a": [line]}, [])
    assert all("follow" in query for query in node.carriers["a2"])


def test_the_lines_of_a_restarted_container_are_not_those_of_its_earlier_start(node, monkeypatch):
    """The watch of the pods is late. The lines after the last read of the first start are in its previous log."""
    monkeypatch.setattr(log_connections, "RESTART_SECONDS", 0.2)
    node.files["a", 0].append((1, "first"))
    start(node, "a", "b", "c")
    news_until(node, is_shown("first"))
    node.change(
        lambda: node.files["a", 0].append((2, "last")),
        lambda: node.files["a", 1].append((9, "again")),
        lambda: node.starts.update(a=1),
    )
    assert news_until(node, is_shown("last")) == ({"a": ["last"]}, [])
    start(node, "a")
    assert news_until(node, is_shown("again")) == ({"a": ["again"]}, [])


def test_a_log_that_was_rotated_before_it_was_read_is_reported(node, monkeypatch):
    monkeypatch.setattr(log_connections, "RESTART_SECONDS", 0.2)
    node.files["a", 0].append((1, "first"))
    start(node, "a", "b", "c")
    news_until(node, is_shown("first"))
    node.change(lambda: node.files.update({("a", 0): [(9, "new file")]}))
    warning = "lines of a may be missing: its log was rotated before they were read"
    assert news_until(node, is_shown("new file")) == ({"a": ["new file"]}, [warning])
    node.change(lambda: node.files["a", 0].append((10, "next")))
    assert news_until(node, is_shown("next")) == ({"a": ["next"]}, [])


def test_a_long_log_gives_way_after_each_few_lines(node, monkeypatch):
    """The last lines are shown once and in order, although each response has only some of them."""
    monkeypatch.setattr(log_connections, "TURN_BYTES", 1)
    lines = [f"line {number}" for number in range(20)]
    node.files["a", 0] += [(1 + number, line) for number, line in enumerate(lines)]
    node.ended.add("a")
    start(node, "a", "b", "c")
    assert news_until(node, is_shown(*lines)) == ({"a": lines}, [])
