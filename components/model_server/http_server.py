"""An HTTP server of one model, and the answers to requests for its predictions.

For a machine, and for tests: TensorFlow Serving, KServe and Triton serve more requests per second, and on a GPU.
"""

import json
import re
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from kfp_distributed.components.model_formats.model_errors import ModelFailed
from kfp_distributed.components.model_formats.model_signature import Model
from kfp_distributed.components.model_server.predict_protocol import parse_predict_request, predict_answer
from kfp_distributed.storage.tensor_specs import Signature, TensorSpec

LARGEST_BODY = 2**26
"""Most bytes of a request, 64 MiB. They are in memory several times while it is parsed."""

_IDLE_SECONDS = 60.0
"""Seconds until a connection without a request is closed."""

CLOSING_SECONDS = 5.0
"""Seconds after the last answer until a connection is closed that the client has not closed."""


class ServedModel(NamedTuple):
    """A model under a name.

    Attributes:
        name: Name of the model in URLs.
        version: Number of its version.
        model: The model.
    """

    name: str
    version: int
    model: Model


class ModelServer(ThreadingHTTPServer):
    """A server of one model. It has its port when it is created, and answers in `serve_forever` after `listen`.

    Args:
        host: Address of the interface to listen on, of IPv4 or IPv6, or a name with an IPv4 address.
        port: Port; 0 for a free one.

    Raises:
        OSError: The port is in use, or the address is not of this machine.
    """

    daemon_threads = True  # A request in progress does not hold the end of the process.
    request_queue_size = 128  # The default, 5, resets connections when 100 clients ask at once.

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), RequestHandler, bind_and_activate=False)
        try:
            self.server_bind()
        except BaseException:
            self.server_close()
            raise

    def listen(self, handler: Callable[..., "RequestHandler"]) -> None:
        """Listen to requests. Until then, connections are refused.

        Args:
            handler: Answers the requests of a connection, as a `RequestHandler` does.
        """
        self.RequestHandlerClass = handler
        self.server_activate()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  (the interface of socketserver)
        """Print an error of a request, unless the client has closed the connection."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  (the interface of socketserver)
        """Answer the requests of a connection, and wait up to `CLOSING_SECONDS` until the client closes it.

        Closing it while the client sends a body resets the connection, and the client may lose the answer.
        """
        super().finish_request(request, client_address)
        end = time.monotonic() + CLOSING_SECONDS
        with suppress(OSError):
            request.shutdown(socket.SHUT_WR)
            while (left := end - time.monotonic()) > 0:
                request.settimeout(left)
                if not request.recv(2**16):
                    break

    @property
    def url(self) -> str:
        """Address of the server, without a path."""
        host, port = self.server_address[:2]
        shown = f"[{host!s}]" if self.address_family == socket.AF_INET6 else str(host)
        return f"http://{shown}:{port}"


class RequestHandler(BaseHTTPRequestHandler):
    """Reads the requests of a connection, and sends JSON."""

    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # A line that is no request is answered with a status and headers too.
    timeout = _IDLE_SECONDS

    def parse_request(self) -> bool:
        """Parse a request. The connection ends if its body is not read: the body would be the next request."""
        if not super().parse_request():
            return False
        has_length = self.command != "POST" and self.headers.get("Content-Length", "0") != "0"
        if has_length or "Transfer-Encoding" in self.headers:
            self.close_connection = True
        return True

    def read_body(self) -> bytes | None:
        """Return the body of a request; None if it is too large, after an answer that says so."""
        length = self.headers.get("Content-Length", "")
        is_number = re.fullmatch("[0-9]{1,18}", length)
        if is_number and int(length) <= LARGEST_BODY:
            return self.rfile.read(int(length))
        self.close_connection = True
        status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE if is_number else HTTPStatus.LENGTH_REQUIRED
        self.refuse(status, f"a request needs a Content-Length of at most {LARGEST_BODY} bytes")
        return None

    def log_message(self, format: str, *args: Any) -> None:  # noqa: ANN401  (the interface of http.server)
        """Log nothing: a line for each request would hide the lines that matter."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an error that the base class finds, and close the connection."""
        self.close_connection = True
        self.refuse(HTTPStatus(code), message or HTTPStatus(code).phrase)

    def refuse(self, status: HTTPStatus, text: str) -> None:
        """Send an error."""
        self.answer(status, {"error": text})

    def answer(self, status: HTTPStatus, content: object) -> None:
        """Send an object as JSON."""
        self.send(status, json.dumps(content).encode())

    def send(self, status: HTTPStatus, body: bytes) -> None:
        """Send JSON."""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class PredictHandler(RequestHandler):
    """Answers requests for the predictions of a model.

    Args:
        served: The model.
        connection: The arguments of a request handler of socketserver.
    """

    def __init__(self, served: ServedModel, *connection: Any) -> None:  # noqa: ANN401  (the interface of socketserver)
        self._served = served
        super().__init__(*connection)  # It handles the requests.

    def do_GET(self) -> None:
        """Send the state or the signature of the model."""
        served, path = self._served, self._path()
        if path == "":
            status = {"error_code": "OK", "error_message": ""}
            state = {"version": str(served.version), "state": "AVAILABLE", "status": status}
            self.answer(HTTPStatus.OK, {"model_version_status": [state]})
        elif path == "/metadata":
            spec = {"name": served.name, "signature_name": "", "version": str(served.version)}
            self.answer(HTTPStatus.OK, {"model_spec": spec, "metadata": _signature_json(served.model.signature)})
        else:
            self._refuse_path()

    def do_POST(self) -> None:
        """Send predictions."""
        body = self.read_body()
        if body is None:
            return
        if self._path() != ":predict":
            self._refuse_path()
            return
        model = self._served.model
        try:
            request = parse_predict_request(body, model.signature)
            answer = predict_answer(model.run(request.inputs), request.form)
        except ModelFailed as error:  # Its advice is for those who save models.
            self.refuse(HTTPStatus.BAD_REQUEST, f"the model cannot use these values: {error.reason}")
            return
        except ValueError as error:
            self.refuse(HTTPStatus.BAD_REQUEST, str(error))
            return
        self.send(HTTPStatus.OK, answer)

    def _path(self) -> str | None:
        """Return what follows the address of the model; None if the request is for another model."""
        served = self._served
        pattern = f"/v1/models/{re.escape(served.name)}(?:/versions/{served.version})?(|/metadata|:predict)"
        match = re.fullmatch(pattern, self.path)
        return match[1] if match else None

    def _refuse_path(self) -> None:
        served = self._served
        text = f"{self.command} {self.path:.200} is not served: this server has /v1/models/{served.name}"
        self.refuse(HTTPStatus.NOT_FOUND, f"{text}, version {served.version}")


def _signature_json(signature: Signature) -> dict[str, dict[str, dict[str, object]]]:
    def entry(spec: TensorSpec) -> dict[str, object]:
        return {"dtype": spec.dtype, "shape": spec.shape}

    ends = {"inputs": signature.inputs, "outputs": signature.outputs}
    return {end: {name: entry(spec) for name, spec in specs.items()} for end, specs in ends.items()}
