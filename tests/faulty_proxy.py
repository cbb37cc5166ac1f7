"""An HTTP proxy in front of a real server, which injects faults."""

import contextlib
import http.client
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@dataclass
class Fault:
    """A fault of the next `times` requests whose "METHOD path?query" contains `where`.

    Attributes:
        where: A part of the request line.
        times: Number of requests.
        status: Send this status without a request to the server.
        reset: Reset the connection without a request to the server.
        lose_answer: Forward the request, then reset the connection instead of sending the response.
        cut_after: Send this number of bytes of the response body, then reset the connection.
        change: Function that changes the response body.
        headers: Headers of the response to replace.
        before: Callback before everything else.
    """

    where: str
    times: int = 1
    status: int = 0
    reset: bool = False
    lose_answer: bool = False
    cut_after: int | None = None
    change: Callable[[bytes], bytes] | None = None
    headers: dict[str, str] = field(default_factory=dict)
    before: Callable[[], None] | None = None


@dataclass
class FaultyProxy:
    """A running proxy: its URL, the faults to inject, the requests that it has received, and the bytes of bodies.

    `connections` is the number of connections that it has accepted.
    """

    url: str
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    body_bytes: int = 0
    connections: int = 0

    def count(self, body: bytes) -> None:
        with self.lock:
            self.body_bytes += len(body)

    def next_fault(self, request: str) -> Fault:
        with self.lock:
            self.requests.append(request)
            for fault in self.faults:
                if fault.times > 0 and fault.where in request:
                    fault.times -= 1
                    return fault
        return Fault("")


def _handler(proxy, upstream):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle(self):
            with proxy.lock:
                proxy.connections += 1
            with contextlib.suppress(ConnectionError):  # The client has closed the connection.
                super().handle()

        def handle_request(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            proxy.count(body)
            fault = proxy.next_fault(f"{self.command} {self.path}")
            if fault.before:
                fault.before()
            if fault.reset:
                self.reset()
            elif fault.status:
                text = f"<Error><Code>Status{fault.status}</Code><Message>made by the test</Message></Error>"
                kind = "text/html" if fault.change else "application/xml"
                self.answer(fault.status, {"Content-Type": kind}, (fault.change or bytes)(text.encode()))
            else:
                self.forward(body, fault)

        def forward(self, body, fault):
            # Forward all headers unchanged, because the signature covers the Host header.
            connection = http.client.HTTPConnection(upstream, timeout=60)
            connection.request(self.command, self.path, body, dict(self.headers))
            response = connection.getresponse()
            data = response.read()
            proxy.count(data)
            headers = {name.title(): value for name, value in response.getheaders()}
            headers |= {name.title(): value for name, value in fault.headers.items()}
            connection.close()
            if fault.lose_answer:
                self.reset()
                return
            if fault.change:
                data = fault.change(data)
            self.answer(response.status, headers, data, fault.cut_after)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_request

        def answer(self, status, headers, data, cut_after=None):
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                    self.send_header(name, value)
            size = headers.get("Content-Length", len(data)) if self.command == "HEAD" else len(data)
            self.send_header("Content-Length", str(size))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data[:cut_after])
            if cut_after is not None:
                self.wfile.flush()
                self.reset()

        def reset(self):
            # With a linger time of 0, close() sends a reset.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True

        def log_message(self, *args):
            pass

    return Handler


@contextmanager
def faulty_proxy(endpoint, port=0, host="127.0.0.1"):
    """Run a proxy in front of the server at `endpoint` (http://host:port). The default port is a free one.

    `host` is the address at which it listens.
    """
    proxy = FaultyProxy("")
    server = ThreadingHTTPServer((host, port), _handler(proxy, urlsplit(endpoint).netloc))
    proxy.url = f"http://{host}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
