"""A proxy in front of a real API server that injects faults, for a client that uses plain HTTP."""

import json
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kubernetes import client

_NOT_FORWARDED = {"host", "connection", "transfer-encoding", "content-length", "accept-encoding", "keep-alive"}
_STREAMS = ("watch=1", "follow=true")
_GONE = {"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410, "message": "too old"}

_NO_KUBELET = {
    "kind": "Status",
    "status": "Failure",
    "code": 500,
    "message": 'Get "https://10.0.0.1:10250/containerLogs/": dial tcp 10.0.0.1:10250: connect: connection refused',
}


class ApiProxy:
    """Forwards requests to the API server of a client's configuration, with its certificate or token.

    Attributes:
        fault: Current fault. None; "unreachable" (connections are closed); "gone" (watches get an ERROR event 410);
            "no kubelet" (requests for logs get the 500 of an API server that cannot connect to the kubelet); a status
            such as 500 or 429 (the response of every request, 429 with Retry-After).
        requests: Number of requests during faults.
        watch: Called with each request, such as "POST /path?query", before it is executed.
        admit: Called with each object that a POST creates. It may change the object, like a mutating webhook.
        configuration: Configuration of the client.
        connections: Open connections of clients, and whether each is used by a watch or a log stream now.
    """

    def __init__(self, configuration: client.Configuration) -> None:
        self.fault: str | int | None = None
        self.requests = 0
        self.watch: Callable[[str], None] = lambda request: None
        self.admit: Callable[[dict[str, Any]], object] | None = None
        self.configuration = configuration
        self._upstream = urlsplit(configuration.host)
        self.connections: dict[socket.socket, bool] = {}
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self) -> "ApiProxy":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._cut(self.connections)

    def kubeconfig(self, folder: Path) -> str:
        """Write a kubeconfig file with the address of the proxy; return its path."""
        cluster = {"server": f"http://127.0.0.1:{self._server.server_port}"}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "proxy",
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
            "clusters": [{"name": "proxy", "cluster": cluster}],
            "users": [{"name": "proxy", "user": {}}],
        }
        file = folder / f"kubeconfig-{self._server.server_port}"
        file.write_text(json.dumps(content))
        return str(file)

    @contextmanager
    def inject(self, fault: str | int):
        """Inject a fault while the block runs. Open streams end at its start."""
        self.fault = fault
        if fault == "unreachable":
            self._cut(self.connections)
        else:
            self.cut_streams()
        try:
            yield
        finally:
            self.fault = None

    def cut_streams(self) -> int:
        """Break every open watch and log stream; return their number."""
        return self._cut([connection for connection, streams in list(self.connections.items()) if streams])

    def _cut(self, connections) -> int:
        connections = list(connections)
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        return len(connections)

    def connect(self) -> HTTPConnection:
        """Return a new connection to the API server."""
        host, port = self._upstream.hostname, self._upstream.port
        if self._upstream.scheme == "http":
            return HTTPConnection(host, port)
        configuration = self.configuration
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, configuration.key_file)
        if not configuration.verify_ssl:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return HTTPSConnection(host, port, context=context)


class _Handler(BaseHTTPRequestHandler):
    """A connection of the client. Each request is forwarded over a new connection to the real server."""

    proxy: ApiProxy
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.proxy.connections[self.connection] = False

    def finish(self) -> None:
        self.proxy.connections.pop(self.connection, None)
        with suppress(OSError):
            super().finish()

    def handle(self) -> None:
        with suppress(OSError):
            super().handle()

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _respond(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.proxy.watch(f"{self.command} {self.path}")
        if self.command == "POST" and self.proxy.admit:
            created = json.loads(body)
            self.proxy.admit(created)
            body = json.dumps(created).encode()
        fault = self.proxy.fault
        self.proxy.requests += fault is not None
        if fault == "unreachable":
            self.close_connection = True
        elif isinstance(fault, int):
            message = json.dumps({"kind": "Status", "code": fault, "message": f"injected {fault}"}).encode()
            self._send(fault, {"Retry-After": "1"} if fault == 429 else {}, message)
        elif fault == "gone" and "watch=1" in self.path:
            self._send(200, {}, json.dumps({"type": "ERROR", "object": _GONE}).encode() + b"\n")
        elif fault == "no kubelet" and "/log?" in self.path:
            self._send(500, {}, json.dumps(_NO_KUBELET).encode())
        else:
            self._forward(body)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _respond

    def _forward(self, body: bytes) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _NOT_FORWARDED}
        if token := self.proxy.configuration.get_api_key_with_prefix("authorization"):
            headers["Authorization"] = token
        upstream = self.proxy.connect()
        try:
            upstream.request(self.command, self.path, body or None, headers)
            response = upstream.getresponse()
            if any(parameter in self.path for parameter in _STREAMS) and response.status == 200:
                self._stream(response)
            else:
                self._send(response.status, {}, response.read())
        except (OSError, HTTPException):
            self.close_connection = True
        finally:
            upstream.close()

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": len(body), **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, response) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.proxy.connections[self.connection] = True
        while data := response.read1(64 * 1024):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")
        self.proxy.connections[self.connection] = False
