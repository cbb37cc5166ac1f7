"""A small Kubernetes API server for tests: it keeps the objects of a namespace, and can lose its answers."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from kubernetes import client

from kfp_distributed.components.train.runners.kubernetes.cluster_api import ClusterApi

Object = dict[str, Any]

_PAGES = {"html": b"<html>Log in</html>", "json": b'{"error": "log in"}'}

_KINDS = {"tfjobs", "configmaps", "secrets", "persistentvolumeclaims", "pods", "events"}


class KubernetesApi:
    """Serves over HTTP, by threads of this process. It knows TFJobs, and no operator runs them.

    Objects and requests have short names: "tfjobs/a-job", "POST tfjobs/a-job", "LIST pods", "WATCH pods"; the dry run
    of a request is "TRY tfjobs/a-job", and the question for a permission "MAY create tfjobs".

    Attributes:
        objects: What is there.
        requests: What was done, in its order, the lost answers' too.
        lose: The requests whose next answer is lost when the work is done: "500" is answered, or a page of "html", or
            "json" that is no API server's, or the connection is "cut".
        broken: The requests that are always answered with 500.
        refuses: With what nobody is let in any more, 401 or 403.
        full: The kind of which a quota takes no more, whether or not the object is there.
        denied: The permissions that there are not, such as "create tfjobs".
        lingers: How often an object that was deleted in the foreground is still found.
        collects_after: How often an object whose owner is gone is still found.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.requests: list[str] = []
        self.lose: dict[str, str] = {}
        self.broken: set[str] = set()
        self.denied: set[str] = set()
        self.refuses: HTTPStatus | None = None
        self.full: str | None = None
        self.lingers = 0
        self.collects_after = 0
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

    def connect(self) -> ClusterApi:
        configuration = client.Configuration()
        configuration.host = f"http://127.0.0.1:{self._server.server_port}"
        return ClusterApi(configuration, "default")

    def before(self, request: str) -> None:
        """Called with each request before it is looked at; for tests to replace."""

    def put(self, place: str, found: Object) -> Object:
        """Creates or changes an object, as somebody else would."""
        with self._changed:
            about = {"uid": f"uid-{self._version + 1}", "creationTimestamp": "2026-01-01T00:00:00Z"}
            change = "MODIFIED" if place in self.objects else "ADDED"
            self.objects[place] = {**found, "metadata": {**about, **found["metadata"]}}
            self._tell(change, place)
            return self.objects[place]

    def delete(self, place: str) -> Object:
        """Deletes an object, as somebody else would, and what it owns."""
        with self._changed:
            self._tell("DELETED", place)
            gone = self.objects.pop(place)
            self._orphans.pop(place, None)
            self._orphans |= {name: self.collects_after for name in self.objects if self._is_owned(name, gone)}
            self._collect("")
            return gone

    def _is_owned(self, place: str, owner: Object) -> bool:
        owners = self.objects[place]["metadata"].get("ownerReferences", ())
        return owner["metadata"]["uid"] in [each["uid"] for each in owners]

    def _collect(self, seen: str) -> None:
        """Collects garbage as Kubernetes does, some time after its owner is gone; `seen` is what somebody looks at."""
        for place in [place for place, left in self._orphans.items() if not left]:
            if self._orphans.pop(place, None) is not None:  # Else its own owner's end has collected it.
                self.delete(place)
        if seen in self._orphans:
            self._orphans[seen] -= 1

    def expire(self, kind: str, change: Callable[[], object] = lambda: None) -> None:
        """Ends the watches of a kind: of a change they are never told, only who lists anew sees it."""
        with self._changed:
            change()
            self._version += 1
            self._oldest[kind] = self._version
            self._changed.notify_all()

    def _tell(self, change: str, place: str) -> None:
        self._version += 1
        found = self.objects[place]
        found["metadata"]["resourceVersion"] = str(self._version)
        self._changes.append((self._version, place, {"type": change, "object": json.loads(json.dumps(found))}))
        self._changed.notify_all()

    def _answer(self, request: str, body: Object) -> tuple[int, Object]:
        verb, _, place = request.partition(" ")
        with self._changed:
            self.requests.append(request)
            self._collect(place if verb == "GET" else "")
            if verb == "MAY":
                return 201, {"status": {"allowed": place not in self.denied}}
            if verb == "LIST":
                items = [each for name, each in self.objects.items() if name.startswith(f"{place}/")]
                return 200, {"metadata": {"resourceVersion": str(self._version)}, "items": items}
            if verb in ("POST", "TRY"):
                if self.full and place.startswith(self.full):
                    return 403, {"message": f"exceeded quota: {self.full}"}
                if place in self.objects:
                    return 409, {"message": f"{place} already exists"}
                return 201, self.put(place, body) if verb == "POST" else body
            if place not in self.objects:
                return 404, {"message": f"{place} is not there"}
            found = self.objects[place]
            if verb == "PATCH":
                return 200, self.put(place, _merged(found, body))
            if verb == "DELETE" and body["propagationPolicy"] == "Foreground" and self.lingers:
                found["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:00Z")
            elif verb == "DELETE":
                self.delete(place)
            elif "deletionTimestamp" in found["metadata"]:
                self.lingers -= 1
                if not self.lingers:
                    self.delete(place)
            return 200, found

    def _next(self, kind: str, version: int) -> Object | None:
        """What a watch is told after a version; None at the end."""
        with self._changed:
            while not self._closed:
                if version < self._oldest[kind]:
                    return {"type": "ERROR", "object": {"code": 410}}
                for number, place, event in self._changes:
                    if number > version and place.startswith(f"{kind}/"):
                        return event
                self._changed.wait()
        return None


class _Handler(BaseHTTPRequestHandler):
    api: KubernetesApi
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle(self) -> None:
        with suppress(OSError):
            super().handle()

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def _serve(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        request = _short(self.command, url.path, query, body)
        self.api.before(request)
        if self.api.refuses:
            self.api.requests.append(request)
            self._send(self.api.refuses, json.dumps({"message": self.api.refuses.phrase}).encode())
            return
        if request.startswith("WATCH"):
            self._watch(request, int(query["resourceVersion"]))
            return
        if url.path == "/apis/kubeflow.org/v1":
            status, answer = 200, {"resources": [{"name": "tfjobs"}]}
        else:
            status, answer = self.api._answer(request, body)
        fault = "500" if request in self.api.broken else self.api.lose.pop(request, "")
        if fault == "cut":
            self.close_connection = True
            return
        if fault in _PAGES:
            self._send(200, _PAGES[fault])
            return
        self._send(500 if fault else status, json.dumps({"message": "injected"} if fault else answer).encode())

    do_GET = do_POST = do_PATCH = do_DELETE = _serve

    def _send(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _watch(self, request: str, version: int) -> None:
        self.api.requests.append(request)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while event := self.api._next(request.partition(" ")[2], version):
            text = json.dumps(event).encode() + b"\n"
            self.wfile.write(b"%x\r\n%b\r\n" % (len(text), text))
            if event["type"] == "ERROR":
                break
            version = int(event["object"]["metadata"]["resourceVersion"])
        self.wfile.write(b"0\r\n\r\n")


def _short(method: str, path: str, query: dict[str, str], body: Object) -> str:
    if path.endswith("/selfsubjectaccessreviews"):
        asked = body["spec"]["resourceAttributes"]
        return f"MAY {asked['verb']} {asked['resource']}"
    *_, kind, name = path.split("/")
    if method == "POST":
        return f"{'TRY' if 'dryRun' in query else 'POST'} {name}/{body['metadata']['name']}"
    if name in _KINDS:
        return f"{'WATCH' if 'watch' in query else 'LIST'} {name}"
    return f"{method} {kind}/{name}"


def _merged(found: Object, change: Object) -> Object:
    """A JSON merge patch, of what is never removed."""
    return found | {
        key: _merged(found.get(key, {}), each) if isinstance(each, dict) else each for key, each in change.items()
    }
