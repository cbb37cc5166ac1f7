"""An API server that goes wrong on demand: a proxy in front of a real one, for a client that talks plain HTTP to it."""

import json
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from kubernetes import client

_NOT_FORWARDED = {"host", "connection", "transfer-encoding", "content-length", "accept-encoding", "keep-alive"}
_STREAMS = ("watch=1", "follow=true")
_GONE = {"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410, "message": "too old"}


class ApiProxy:
    """Forwards to the API server of a client's configuration, with its certificate or token.

    Attributes:
        fault: What goes wrong now: None; "unreachable" (connections are closed); "gone" (watches get an ERROR event
            410); a status such as 500 or 429 (every request is answered with it, 429 with Retry-After).
        requests: How many came while there was a fault.
        watch: Called with each request, as "POST /path?query", before it is looked at.
    """

    def __init__(self, configuration: client.Configuration) -> None:
        self.fault: str | int | None = None
        self.requests = 0
        self.watch: Callable[[str], None] = lambda request: None
        self._configuration = configuration
        self._upstream = urlsplit(configuration.host)
        self._connections: dict[socket.socket, bool] = {}
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self) -> "ApiProxy":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._cut(self._connections)

    def kubeconfig(self, folder: Path) -> str:
        """Writes a configuration that leads here; returns its path."""
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
    def going_wrong(self, fault: str | int):
        """Has the fault while the block runs; streams that are open end when it begins."""
        self.fault = fault
        if fault == "unreachable":
            self._cut(self._connections)
        else:
            self.cut_streams()
        try:
            yield
        finally:
            self.fault = None

    def cut_streams(self) -> int:
        """Breaks every open watch and log stream; returns how many."""
        return self._cut([each for each, streams in list(self._connections.items()) if streams])

    def _cut(self, connections) -> int:
        found = list(connections)
        for each in found:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        return len(found)

    def _connect(self) -> HTTPConnection:
        host, port = self._upstream.hostname, self._upstream.port
        if self._upstream.scheme == "http":
            return HTTPConnection(host, port)
        made = self._configuration
        context = ssl.create_default_context(cafile=made.ssl_ca_cert)
        if made.cert_file:
            context.load_cert_chain(made.cert_file, made.key_file)
        if not made.verify_ssl:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return HTTPSConnection(host, port, context=context)


class _Handler(BaseHTTPRequestHandler):
    """One connection of the client. Each request goes over a connection of its own to the real server."""

    proxy: ApiProxy
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.proxy._connections[self.connection] = False

    def finish(self) -> None:
        self.proxy._connections.pop(self.connection, None)
        with suppress(OSError):
            super().finish()

    def handle(self) -> None:
        with suppress(OSError):
            super().handle()

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.proxy.watch(f"{self.command} {self.path}")
        fault = self.proxy.fault
        self.proxy.requests += fault is not None
        if fault == "unreachable":
            self.close_connection = True
        elif isinstance(fault, int):
            message = json.dumps({"kind": "Status", "code": fault, "message": f"injected {fault}"}).encode()
            self._send(fault, {"Retry-After": "1"} if fault == 429 else {}, message)
        elif fault == "gone" and "watch=1" in self.path:
            self._send(200, {}, json.dumps({"type": "ERROR", "object": _GONE}).encode() + b"\n")
        else:
            self._forward(body)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _answer

    def _forward(self, body: bytes) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _NOT_FORWARDED}
        if token := self.proxy._configuration.get_api_key_with_prefix("authorization"):
            headers["Authorization"] = token
        upstream = self.proxy._connect()
        try:
            upstream.request(self.command, self.path, body or None, headers)
            answer = upstream.getresponse()
            if any(each in self.path for each in _STREAMS) and answer.status == 200:
                self._stream(answer)
            else:
                self._send(answer.status, {}, answer.read())
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

    def _stream(self, answer) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.proxy._connections[self.connection] = True
        while data := answer.read1(64 * 1024):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")
        self.proxy._connections[self.connection] = False
