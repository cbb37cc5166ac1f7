"""A small Kubernetes API server for tests: it stores the objects of one namespace, and can lose responses."""

import json
import math
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from kubernetes import client
from port_forwarding import forward

from kfp_distributed.cluster_api.client import ClusterApi
from kfp_distributed.cluster_api.objects import Object

_PAGES = {"html": b"<html>Log in</html>", "json": b'{"error": "log in"}'}

_EVENT_FIELDS = {"type", "reason", "involvedObject.kind", "involvedObject.name", "involvedObject.uid"}

_VERSIONS = {"kubeflow.org/v1", "kubeflow.org/v2beta1", "trainer.kubeflow.org/v1alpha1"}
_SCHEMAS = "/openapi/v3/apis/trainer.kubeflow.org/v1alpha1"
_WITHOUT_RUNTIME = (
    403,
    {
        "message": "admission webhook denied the request: TrainingRuntime not found: specified trainingRuntime must be "
        "created before the TrainJob is created"
    },
)
"""Response of the webhook of Kubeflow Trainer to the creation and to changes of a TrainJob."""

_KINDS = {
    *("tfjobs", "trainjobs", "trainingruntimes", "jobsets", "jobs", "inferenceservices"),
    *("configmaps", "secrets", "services", "persistentvolumeclaims", "pods", "events"),
}


class KubernetesApi:
    """Serves HTTP in threads of this process. It serves TFJobs unless told otherwise, but there is no operator.

    Objects have keys such as "tfjobs/a-job". Requests have names such as "POST tfjobs/a-job", "LIST pods" and "WATCH
    pods". A dry run is "TRY tfjobs/a-job", and the review of a permission is "MAY create tfjobs".

    Attributes:
        objects: Existing objects by key.
        requests: Names of all requests in order, including those whose response was lost.
        lose: Requests whose next response is lost after the request was executed, and what is sent instead: "500", an
            "html" page, "json" that is not from an API server, or nothing ("cut" connection).
        broken: Requests that always get the status 500.
        refuses: Status that all requests get, 401 or 403; None to disable.
        full: Kind whose quota is used up, for new and existing objects; None to disable.
        denied: Missing permissions, such as "create tfjobs", of which access reviews tell.
        forbidden: Requests that get 403, such as "LIST tfjobs".
        lingers: Seconds that an object exists after its foreground deletion.
        breaks: Number of watches whose connection is cut when they begin. The next ones work.
        collects_after: Number of reads that still find an object after the deletion of its owner.
        learns_after: Number of TrainJobs that the webhook denies because it does not know their TrainingRuntime yet.
        policies: Propagation policy of the last DELETE of each object, by key.
        served: The plurals of each "group/version" that it serves. Default: TFJobs.
        train_job_fields: Fields of the spec of a TrainJob in the published schema; None if there is no schema.
        pages: Sizes of the served pages of lists, in order.
        sent: Keys of the objects in lists and watches, each with the number of times that it was sent.
        logs: Text of the log of each pod, by the name of the pod. Each line begins with its timestamp.
        forwards: Address of the server behind each port that can be forwarded to, such as "pod-0:9000".
        forwarding: Connections of the clients that forward a port.
        connections: Port of the client in each request, in the order of `requests` if they do not overlap.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.requests: list[str] = []
        self.lose: dict[str, str] = {}
        self.broken: set[str] = set()
        self.denied: set[str] = set()
        self.forbidden: set[str] = set()
        self.refuses: HTTPStatus | None = None
        self.full: str | None = None
        self.lingers = 0.0
        self.breaks = 0
        self.collects_after = 0
        self.learns_after = 0
        self.policies: dict[str, str] = {}
        self.served: dict[str, list[str]] = {"kubeflow.org/v1": ["tfjobs"]}
        self.train_job_fields: list[str] | None = None
        self.pages: list[int] = []
        self.sent = Counter[str]()
        self.logs: dict[str, str] = {}
        self.forwards: dict[str, tuple[str, int]] = {}
        self.forwarding: list[socket.socket] = []
        self.connections: list[int] = []
        self._unread: dict[str, tuple[str, list[Object]]] = {}
        self._changed = threading.Condition()
        self._changes: list[tuple[int, str, Object]] = []
        self._version = 0
        self._oldest = Counter[str]()
        self._orphans: dict[str, int] = {}
        self._closed = False
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self) -> "KubernetesApi":
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    @property
    def port(self) -> int:
        """Port of the server on 127.0.0.1."""
        return self._server.server_port

    def configuration(self) -> client.Configuration:
        """Return a new configuration of a client, with the address alone."""
        configuration = client.Configuration()
        configuration.host = f"http://127.0.0.1:{self.port}"
        return configuration

    def connect(self) -> ClusterApi:
        return ClusterApi(self.configuration(), "default")

    def before(self, request: str) -> None:
        """Called with each request before it is executed. Tests replace it."""

    def put(self, key: str, content: Object) -> Object:
        """Create or change an object, like another client."""
        with self._changed:
            defaults = {"uid": f"uid-{self._version + 1}", "creationTimestamp": "2026-01-01T00:00:00Z"}
            change = "MODIFIED" if key in self.objects else "ADDED"
            self.objects[key] = {**content, "metadata": {**defaults, **content["metadata"]}}
            self._record(change, key)
            return self.objects[key]

    def delete(self, key: str) -> Object:
        """Delete an object and the objects that it owns, like another client."""
        with self._changed:
            self._record("DELETED", key)
            deleted = self.objects.pop(key)
            self._orphans.pop(key, None)
            self._orphans |= {name: self.collects_after for name in self.objects if self._is_owned(name, deleted)}
            self._collect("")
            return deleted

    def _is_owned(self, key: str, owner: Object) -> bool:
        references = self.objects[key]["metadata"].get("ownerReferences", ())
        return owner["metadata"]["uid"] in [reference["uid"] for reference in references]

    def _collect(self, read_key: str) -> None:
        """Delete objects some time after their owner, like the garbage collector of Kubernetes.

        Args:
            read_key: Key of the object that a request reads, which counts for `collects_after`; "" for none.
        """
        for key in [key for key, remaining in self._orphans.items() if not remaining]:
            if self._orphans.pop(key, None) is not None:  # Otherwise it was deleted with its own owner.
                self.delete(key)
        if read_key in self._orphans:
            self._orphans[read_key] -= 1

    def expire(self, kind: str, change: Callable[[], object] = lambda: None) -> None:
        """End the watches of a kind, expire continue tokens, and make a change that only a new list contains."""
        with self._changed:
            change()
            self._version += 1
            self._oldest[kind] = self._version
            self._unread.clear()
            self._changed.notify_all()

    def _record(self, change: str, key: str) -> None:
        """Record a change for watches."""
        self._version += 1
        stored = self.objects[key]
        stored["metadata"]["resourceVersion"] = str(self._version)
        self._changes.append((self._version, key, {"type": change, "object": json.loads(json.dumps(stored))}))
        self._changed.notify_all()

    def _list(self, kind: str, query: dict[str, str]) -> tuple[int, Object]:
        """Return a page of a list. All pages of a list show the objects as they were at the first."""
        if token := query.get("continue"):
            if token not in self._unread:
                return 410, {"reason": "Expired", "message": "The provided continue parameter is too old"}
            version, items = self._unread[token]
        else:
            version = str(self._version)
            items = [
                json.loads(json.dumps(item))
                for name, item in sorted(self.objects.items())
                if name.startswith(f"{kind}/") and _is_selected(item, query)
            ]
        page_size = int(query.get("limit", 0)) or len(items)
        metadata = {"resourceVersion": version}
        if rest := items[page_size:]:
            metadata["continue"] = f"token-{len(self.pages)}"
            self._unread[metadata["continue"]] = version, rest
        self.pages.append(len(items[:page_size]))
        self.sent.update(f"{kind}/{item['metadata']['name']}" for item in items[:page_size])
        return 200, {"metadata": metadata, "items": items[:page_size]}

    def discover(self, path: str) -> tuple[int, Object] | None:
        """Return the response to a request about what is served; None for other requests."""
        if path == _SCHEMAS and self.train_job_fields is not None:
            spec = {"properties": {key: {} for key in self.train_job_fields}}
            schemas = {"org.kubeflow.trainer.v1alpha1.TrainJob": {"properties": {"spec": spec}}}
            return 200, {"components": {"schemas": schemas}}
        if path == "/api/v1/namespaces/default":
            return 200, {"metadata": {"name": "default"}}
        version = path.removeprefix("/apis/")
        if version in self.served:
            return 200, {"resources": [{"name": name} for name in self.served[version]]}
        return (404, {"message": "not found"}) if path == _SCHEMAS or version in _VERSIONS else None

    def execute(self, request: str, query: dict[str, str], body: Object) -> tuple[int, Object]:
        """Execute a request; return status and body of the response."""
        verb, _, key = request.partition(" ")
        with self._changed:
            self.requests.append(request)
            self._collect(key if verb == "GET" else "")
            if verb == "MAY":
                return 201, {"status": {"allowed": key not in self.denied}}
            if verb == "LIST":
                return self._list(key, query)
            if verb in ("POST", "TRY"):
                if self.full and key.startswith(self.full):
                    return 403, {"message": f"exceeded quota: {self.full}"}
                if key in self.objects:
                    return 409, {"message": f"{key} already exists"}
                if key.startswith("trainjobs/") and not self._knows_runtime(key):
                    return _WITHOUT_RUNTIME
                return 201, self.put(key, body) if verb == "POST" else body
            if key not in self.objects:
                return 404, {"message": f"{key} not found"}
            stored = self.objects[key]
            if verb in ("PUT", "TRY-PUT"):
                if body["metadata"]["resourceVersion"] != stored["metadata"]["resourceVersion"]:
                    return 409, {"message": f"{key}: the object has been modified"}
                return 200, self.put(key, body) if verb == "PUT" else body
            if verb == "PATCH":
                if key.startswith("trainjobs/") and f"trainingruntimes/{key.partition('/')[2]}" not in self.objects:
                    return _WITHOUT_RUNTIME
                if body["metadata"].get("uid", stored["metadata"]["uid"]) != stored["metadata"]["uid"]:
                    return 422, {"message": f"{key} is invalid: metadata.uid: Invalid value: field is immutable"}
                return 200, self.put(key, _merge(stored, body))
            for field, expected in body.get("preconditions", {}).items():
                if stored["metadata"][field] != expected:
                    return 409, {"message": f"{key} has another {field} than {expected}"}
            if verb == "DELETE":
                self.policies[key] = body["propagationPolicy"]
            if verb == "DELETE" and body["propagationPolicy"] == "Foreground" and self.lingers:
                if "deletionTimestamp" not in stored["metadata"]:
                    stored["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
                    self._record("MODIFIED", key)
                    threading.Timer(self.lingers, self._end_deletion, (key, stored["metadata"]["uid"])).start()
            elif verb == "DELETE":
                self.delete(key)
            return 200, stored

    def _knows_runtime(self, key: str) -> bool:
        if f"trainingruntimes/{key.partition('/')[2]}" not in self.objects:
            return False
        self.learns_after -= 1
        return self.learns_after < 0

    def _end_deletion(self, key: str, uid: str) -> None:
        with self._changed:
            if key in self.objects and self.objects[key]["metadata"]["uid"] == uid:
                self.delete(key)

    def next_event(self, kind: str, query: dict[str, str], version: int) -> Object | None:
        """Wait for the next event of a watch after a resource version; None if the watch or the server ends."""
        deadline = time.monotonic() + float(query.get("timeoutSeconds", math.inf))
        with self._changed:
            while not self._closed and time.monotonic() < deadline:
                if version < self._oldest[kind]:
                    return {"type": "ERROR", "object": {"code": 410}}
                for number, key, event in self._changes:
                    if number > version and key.startswith(f"{kind}/") and _is_selected(event["object"], query):
                        self.sent[key] += 1
                        return event
                self._changed.wait(min(deadline - time.monotonic(), threading.TIMEOUT_MAX))
        return None


class _Handler(BaseHTTPRequestHandler):
    api: KubernetesApi
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle(self) -> None:
        with suppress(OSError):
            super().handle()

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _serve(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        request = _name_request(self.command, url.path, query, body)
        self.api.connections.append(self.client_address[1])
        self.api.before(request)
        if self.api.refuses:
            self.api.requests.append(request)
            self._send(self.api.refuses, json.dumps({"message": self.api.refuses.phrase}).encode())
            return
        if request in self.api.forbidden:
            self._send(403, json.dumps({"message": f"{request} is forbidden"}).encode())
            return
        if field := _unsupported_field(request, query):
            self._send(400, json.dumps({"message": f"field label not supported: {field}"}).encode())
            return
        if (pod := request.removeprefix("GET ").removesuffix("/log")) in self.api.logs:
            self._send(200, self.api.logs[pod].encode())
            return
        if request.endswith("/portforward"):
            self.close_connection = True
            self.api.forwarding.append(self.connection)
            pod = request.removeprefix("GET ").removesuffix("/portforward")
            forward(self.connection, self.headers, int(query["ports"]), self.api.forwards[f"{pod}:{query['ports']}"])
            return
        if request.startswith("WATCH"):
            self._watch(request, query, int(query["resourceVersion"]))
            return
        if discovered := self.api.discover(url.path):
            status, response = discovered
        else:
            status, response = self.api.execute(request, query, body)
        fault = "500" if request in self.api.broken else self.api.lose.pop(request, "")
        if fault == "cut":
            self.close_connection = True
            return
        if fault in _PAGES:
            self._send(200, _PAGES[fault])
            return
        self._send(500 if fault else status, json.dumps({"message": "injected"} if fault else response).encode())

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def _send(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _watch(self, request: str, query: dict[str, str], version: int) -> None:
        self.api.requests.append(request)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if self.api.breaks:
            self.api.breaks -= 1
            self.close_connection = True
            return
        while event := self.api.next_event(request.partition(" ")[2], query, version):
            text = json.dumps(event).encode() + b"\n"
            self.wfile.write(b"%x\r\n%b\r\n" % (len(text), text))
            if event["type"] == "ERROR":
                break
            version = int(event["object"]["metadata"]["resourceVersion"])
        self.wfile.write(b"0\r\n\r\n")


def _name_request(method: str, path: str, query: dict[str, str], body: Object) -> str:
    if path.endswith("/selfsubjectaccessreviews"):
        permission = body["spec"]["resourceAttributes"]
        return f"MAY {permission['verb']} {permission['resource']}"
    *_, kind, name = path.split("/")
    if method == "POST":
        return f"{'TRY' if 'dryRun' in query else 'POST'} {name}/{body['metadata']['name']}"
    if name in _KINDS:
        return f"{'WATCH' if 'watch' in query else 'LIST'} {name}"
    return f"{'TRY-' if method == 'PUT' and 'dryRun' in query else ''}{method} {kind}/{name}"


def _fields(query: Mapping[str, str]) -> dict[str, str]:
    """Return the field selectors of a query, which all must match."""
    return dict(term.split("=") for term in filter(None, query.get("fieldSelector", "").split(",")))


def _unsupported_field(request: str, query: Mapping[str, str]) -> str:
    """Return a field by which the API server cannot select objects of this kind; "" if there is none."""
    supported = {"metadata.name", *(_EVENT_FIELDS if request.endswith(" events") else ())}
    return next((field for field in _fields(query) if field not in supported), "")


def _is_selected(item: Object, query: Mapping[str, str]) -> bool:
    for field, expected in _fields(query).items():
        outer, _, inner = field.partition(".")
        value = item.get(outer, {}).get(inner, "") if inner else item.get(outer, "")
        if value != expected:
            return False
    return True


def _merge(stored: Object, patch: Object) -> Object:
    """Apply a JSON merge patch. The value null removes a key."""
    merged = stored | {
        key: _merge(stored.get(key, {}), value) if isinstance(value, dict) else value for key, value in patch.items()
    }
    return {key: value for key, value in merged.items() if value is not None}
