"""An HTTP server that answers requests for the predictions of one model.

For a machine, and for tests: TensorFlow Serving, KServe and Triton serve more requests per second, and on a GPU.
"""

import json
import re
import socket
import sys
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

    served: ServedModel

    daemon_threads = True  # A request in progress does not hold the end of the process.
    request_queue_size = 128  # The default, 5, resets connections when 100 clients ask at once.

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler, bind_and_activate=False)
        try:
            self.server_bind()
        except BaseException:
            self.server_close()
            raise

    def listen(self, served: ServedModel) -> None:
        """Listen to requests for a model. Until then, connections are refused."""
        self.served = served
        self.server_activate()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  (the interface of socketserver)
        """Print an error of a request, unless the client has closed the connection."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """Address of the model: requests for predictions go to it with ":predict" appended."""
        host, port = self.server_address[:2]
        shown = f"[{host!s}]" if self.address_family == socket.AF_INET6 else str(host)
        return f"http://{shown}:{port}/v1/models/{self.served.name}"


class _Handler(BaseHTTPRequestHandler):
    """Answers the requests of a connection."""

    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS
    server: ModelServer

    def do_GET(self) -> None:
        served, path = self.server.served, self._path()
        if path == "":
            status = {"error_code": "OK", "error_message": ""}
            state = {"version": str(served.version), "state": "AVAILABLE", "status": status}
            self._answer(HTTPStatus.OK, {"model_version_status": [state]})
        elif path == "/metadata":
            spec = {"name": served.name, "signature_name": "", "version": str(served.version)}
            self._answer(HTTPStatus.OK, {"model_spec": spec, "metadata": _signature_json(served.model.signature)})
        else:
            self._refuse_path()

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        is_number = re.fullmatch("[0-9]{1,18}", length)
        if not is_number or int(length) > LARGEST_BODY:
            self.close_connection = True
            status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE if is_number else HTTPStatus.LENGTH_REQUIRED
            self._answer(status, {"error": f"a request needs a Content-Length of at most {LARGEST_BODY} bytes"})
            if is_number:
                self._discard(int(length))
            return
        body = self.rfile.read(int(length))
        if self._path() != ":predict":
            self._refuse_path()
            return
        model = self.server.served.model
        try:
            request = parse_predict_request(body, model.signature)
            answer = predict_answer(model.run(request.inputs), request.form)
        except ModelFailed as error:  # Its advice is for those who save models.
            self._answer(HTTPStatus.BAD_REQUEST, {"error": f"the model cannot use these values: {error.reason}"})
            return
        except ValueError as error:
            self._answer(HTTPStatus.BAD_REQUEST, {"error": str(error)})
            return
        self._send(HTTPStatus.OK, answer)

    def _discard(self, length: int) -> None:
        """Read a body: a client that is still sending it would get a reset connection instead of the answer."""
        while length > 0 and (part := self.rfile.read(min(length, 2**16))):
            length -= len(part)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: ANN401  (the interface of http.server)
        """Log nothing: a line for each request would hide the lines that matter."""

    def _path(self) -> str | None:
        """Return what follows the address of the model; None if the request is for another model."""
        served = self.server.served
        pattern = f"/v1/models/{re.escape(served.name)}(?:/versions/{served.version})?(|/metadata|:predict)"
        match = re.fullmatch(pattern, self.path)
        return match[1] if match else None

    def _refuse_path(self) -> None:
        served = self.server.served
        text = f"{self.command} {self.path:.200} is not served: this server has /v1/models/{served.name}"
        self._answer(HTTPStatus.NOT_FOUND, {"error": f"{text}, version {served.version}"})

    def _answer(self, status: HTTPStatus, content: object) -> None:
        self._send(status, json.dumps(content).encode())

    def _send(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def _signature_json(signature: Signature) -> dict[str, dict[str, dict[str, object]]]:
    def entry(spec: TensorSpec) -> dict[str, object]:
        return {"dtype": spec.dtype, "shape": spec.shape}

    ends = {"inputs": signature.inputs, "outputs": signature.outputs}
    return {end: {name: entry(spec) for name, spec in specs.items()} for end, specs in ends.items()}
