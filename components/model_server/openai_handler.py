"""Answers requests to a language model over OpenAI's HTTP interface."""

import json
import re
import select
import socket
import time
import traceback
import uuid
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from kfp_distributed.components.model_server.chat_model import ChatModel
from kfp_distributed.components.model_server.http_server import RequestHandler
from kfp_distributed.components.model_server.openai_protocol import (
    Answer,
    AnswerAbandoned,
    AnswerFormat,
    RequestRefused,
    parse_request,
    unknown_model,
)

_PATH = re.compile(r"(?:/openai)?/v1/(models(?:/[^?]+)?|completions|chat/completions)(?:\?.*)?")
"""The path of OpenAI, and that of KServe."""


class OpenAIHandler(RequestHandler):
    """Answers requests to a language model.

    Args:
        name: Name of the model.
        model: The model.
        connection: The arguments of a request handler of socketserver.
    """

    def __init__(self, name: str, model: ChatModel, *connection: Any) -> None:  # noqa: ANN401  (as of socketserver)
        self._name, self._model = name, model
        super().__init__(*connection)  # It handles the requests.

    def do_GET(self) -> None:
        """Send the model, or the list with it."""
        folder, _, name = self._path().partition("/")
        model = {"id": self._name, "object": "model", "created": 0, "owned_by": "kfp-distributed"}
        if folder != "models":
            self._refuse_path()
        elif unquote(name) in ("", self._name):
            self.answer(HTTPStatus.OK, model if name else {"object": "list", "data": [model]})
        else:
            error = unknown_model(unquote(name), self._name)
            self.answer(HTTPStatus(error.status), error.body)

    def do_POST(self) -> None:
        """Send an answer."""
        body = self.read_body()
        if body is None:
            return
        path = self._path()
        if path not in ("completions", "chat/completions"):
            self._refuse_path()
            return
        try:
            request = parse_request(body, path == "chat/completions", self._name)
            tokens = self._model.tokens(request)
        except RequestRefused as error:
            self.answer(HTTPStatus(error.status), error.body)
            return
        form = AnswerFormat(request, self._name, uuid.uuid4().hex, int(time.time()))
        if request.streams:
            self._begin_stream(form)
        try:
            answer = self._model.answer(request, tokens, lambda text: self._send_text(text, form))
        except AnswerAbandoned:
            self.close_connection = True
        except Exception as error:  # noqa: BLE001  (such as that of a full GPU, or of the code of a model)
            traceback.print_exc()
            refusal = RequestRefused(f"the model failed: {error}", status=500)
            if request.streams:
                self._send_event(refusal.body)
            else:
                self.answer(HTTPStatus.INTERNAL_SERVER_ERROR, refusal.body)
        else:
            if request.streams:
                self._end_stream(form, answer)
            else:
                self.answer(HTTPStatus.OK, form.whole(answer))

    def refuse(self, status: HTTPStatus, text: str) -> None:
        """Send an error."""
        self.answer(status, RequestRefused(text, status=status).body)

    def _begin_stream(self, form: AnswerFormat) -> None:
        self.close_connection = True  # Its end is that of the connection.
        self.send_response(HTTPStatus.OK)
        for name, value in (("Content-Type", "text/event-stream"), ("Connection", "close")):
            self.send_header(name, value)
        self.end_headers()
        if form.request.is_chat:
            self._send_event(form.part("", is_first=True))

    def _send_text(self, text: str, form: AnswerFormat) -> None:
        """Send a part of a streamed answer. Of others, only check that the client has not closed the connection.

        Raises:
            AnswerAbandoned: It has.
        """
        poll = select.poll()  # Unlike select.select, it takes descriptors of 1024 and more.
        poll.register(self.connection, select.POLLIN)
        try:
            if poll.poll(0) and not self.connection.recv(1, socket.MSG_PEEK):
                raise AnswerAbandoned
            if text and form.request.streams:
                self._send_event(form.part(text))
        except OSError as error:
            raise AnswerAbandoned from error

    def _end_stream(self, form: AnswerFormat, answer: Answer) -> None:
        self._send_event(form.part("", answer.finish_reason))
        if form.request.streams_usage:
            self._send_event(form.usage(answer))
        self.wfile.write(b"data: [DONE]\n\n")

    def _send_event(self, content: object) -> None:
        self.wfile.write(f"data: {json.dumps(content)}\n\n".encode())

    def _path(self) -> str:
        match = _PATH.fullmatch(self.path)
        return match[1] if match else ""

    def _refuse_path(self) -> None:
        served = "GET /v1/models[/NAME], POST /v1/chat/completions and /v1/completions, also below /openai"
        self.refuse(HTTPStatus.NOT_FOUND, f"{self.command} {self.path:.200} is not served: this server has {served}")
