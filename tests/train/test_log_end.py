"""The end of a log: the connections of a container that has ended."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from kubernetes import client

from kfp_distributed.cluster_api.client import ClusterApi
from kfp_distributed.components.train.run.runners.kubernetes.watch.watcher import Printed, Watcher

pytestmark = pytest.mark.takes(2)

POD = {
    "metadata": {"name": "a-job-worker-0", "uid": "uid-1", "labels": {"training.kubeflow.org/replica-type": "worker"}},
    "spec": {"containers": [{"name": "tensorflow"}]},
    "status": {
        "containerStatuses": [{"name": "tensorflow", "restartCount": 0, "state": {"terminated": {"exitCode": 0}}}]
    },
}
FIRST = "2026-01-01T00:00:01.000000000Z one\n"
SECOND = "2026-01-01T00:00:01.000000001Z two"
DELETED = (404, '{"message": "pods not found"}')


def next_response(responses):
    return responses.pop(0) if len(responses) > 1 else responses[0]


@pytest.fixture
def serve():
    """A function that starts an API server with these responses to requests for the log. The last one is repeated."""
    servers = []

    def start(responses):
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                is_log = self.path.partition("?")[0].endswith("/log")
                status, text = next_response(responses) if is_log else (200, json.dumps(POD))
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.02,), daemon=True).start()
        configuration = client.Configuration()
        configuration.host = f"http://127.0.0.1:{servers[-1].server_port}"
        return ClusterApi(configuration, "default")

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("responses", "lines"),
    [
        ([(200, FIRST)], ["one"]),
        # The API server has lost the kubelet twice, and ended its responses as usual. The end of the container may be
        # known only after the first one.
        ([(200, FIRST + SECOND[:-2]), (200, FIRST + SECOND[:-1]), (200, f"{FIRST}{SECOND}\n")], ["one", "two"]),
        ([(200, FIRST + SECOND[:9]), (200, FIRST + SECOND[:8]), (200, f"{FIRST}{SECOND}\n")], ["one", "two"]),
        # The container has ended within a line.
        ([(200, FIRST + SECOND)], ["one", "two"]),
        # The pod is deleted before it can be read again.
        ([(200, FIRST + SECOND), DELETED], ["one", "two"]),
        ([(200, FIRST + SECOND[:9]), DELETED], ["one"]),
    ],
)
def test_a_log_that_ends_within_a_line_is_read_until_it_ends_there_again(serve, responses, lines):
    watcher, shown = Watcher(serve(responses)), []
    watcher.follow_logs("worker-0", "/api/v1/namespaces/default/pods/a-job-worker-0", POD, deleted=False)
    while watcher.unread or not watcher.news.empty():
        news = watcher.take(0.05)
        shown += [line.text for line in news.lines] if isinstance(news, Printed) else []
    assert shown == lines


# What mpirun prints if it reads the second line of rank 0 in two parts. The third one never ends.
RANKS = """\
2026-01-01T00:00:01.000000000Z [1,0]<stdout>:row 1
2026-01-01T00:00:01.000000001Z [1,0]<stdout>:ro[1,1]<stdout>:row 1
2026-01-01T00:00:01.000000002Z [1,0]<stdout>:w 2
2026-01-01T00:00:01.000000003Z [1,0]<stdout>:ro[1,1]<stdout>:row 2
"""
WHOLE = ["[1,0]<stdout>:row 1", "[1,1]<stdout>:row 1", "[1,0]<stdout>:row 2", "[1,1]<stdout>:row 2", "[1,0]<stdout>:ro"]


@pytest.mark.parametrize(
    ("replica", "responses", "lines"),
    [
        ("launcher-0", [(200, RANKS)], WHOLE),
        # The connection breaks between the parts of a line.
        ("launcher-0", [(200, RANKS[: RANKS.index("w 2")]), (200, RANKS)], WHOLE),
        # No rank prints through a worker.
        ("worker-0", [(200, RANKS)], [line.partition(" ")[2] for line in RANKS.splitlines()]),
    ],
)
def test_the_log_of_a_launcher_has_whole_lines_of_its_ranks(serve, replica, responses, lines):
    watcher, shown = Watcher(serve(responses)), []
    watcher.follow_logs(replica, "/api/v1/namespaces/default/pods/a-job-worker-0", POD, deleted=False)
    while watcher.unread or not watcher.news.empty():
        news = watcher.take(0.05)
        shown += [line.text for line in news.lines] if isinstance(news, Printed) else []
    assert shown == lines
