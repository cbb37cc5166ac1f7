"""The JSON of requests to a language model and of its answers, as OpenAI's HTTP interface defines it (pure).

https://platform.openai.com/docs/api-reference/chat and .../completions.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

_MOST_STOPS = 4
_LARGEST_SEED = 2**63 - 1
_COMMON = ("model", "max_tokens", "temperature", "top_p", "stop", "seed", "stream", "stream_options")
_CHAT = ("messages", "tools", "max_completion_tokens")
_IGNORED = ("user", "safety_identifier", "prompt_cache_key", "metadata")
"""Keys that say who asks, and change no answer."""

_DEFAULTS = {"n": 1, "logprobs": False, "presence_penalty": 0, "frequency_penalty": 0, "logit_bias": {}}
"""Keys that clients send with the value that means the same as none, the only one that is allowed."""

_CHAT_DEFAULTS = {"response_format": {"type": "text"}, "tool_choice": "auto"}
_COMPLETION_DEFAULTS = {"echo": False, "best_of": 1}
_ROLES = ("system", "developer", "user", "assistant", "tool")
_COMPLETION_TOKENS = 16
"""Tokens of a completion by default. An answer of a chat has as many as the model has positions for."""


class RequestRefused(ValueError):
    """A request that is not answered.

    Attributes:
        status: HTTP status.
        body: OpenAI's error object.
    """

    def __init__(self, message: str, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        kind = "server_error" if status == 500 else "invalid_request_error"  # 501 is for an unknown method.
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


class AnswerAbandoned(Exception):
    """Nobody waits for an answer any more: the client has closed the connection, or the server ends."""


@dataclass(frozen=True)
class AnswerRequest:
    """A parsed request.

    Attributes:
        prompt: The messages of a chat, or the text to complete.
        tools: Tools for the chat template; None for none.
        max_tokens: Most tokens of the answer; None for as many as the model has positions for.
        temperature: Temperature of the sampling, 0 for the most probable tokens; None for that of the model.
        top_p: Probability of the tokens from which one is drawn; None for that of the model.
        stops: Texts that end the answer, which does not have them.
        seed: Seed of the sampling; None for any.
        streams: Whether the answer is sent while it is generated.
        streams_usage: Whether the number of tokens is sent after a streamed answer.
    """

    prompt: str | list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stops: tuple[str, ...] = ()
    seed: int | None = None
    streams: bool = False
    streams_usage: bool = False

    @property
    def is_chat(self) -> bool:
        """Whether the prompt is a chat."""
        return not isinstance(self.prompt, str)


def parse_request(body: bytes, is_chat: bool, model: str) -> AnswerRequest:
    """Parse the body of a request.

    Args:
        body: JSON. Keys whose value is null count as missing, also those of messages.
        is_chat: Whether it is for /chat/completions and not for /completions.
        model: Name of the model that is served.

    Raises:
        RequestRefused: The body is not JSON, names another model, or has a key or value that is not allowed.
    """
    try:
        return _parse(body, is_chat, model)
    except RecursionError:
        raise RequestRefused("the JSON has too many levels of lists and objects") from None


def _parse(body: bytes, is_chat: bool, model: str) -> AnswerRequest:
    try:
        content = json.loads(body)
    except ValueError as error:
        raise RequestRefused(f"the body is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise RequestRefused("the body is not a JSON object")
    content = {key: value for key, value in content.items() if value is not None}
    defaults = {**_DEFAULTS, **(_CHAT_DEFAULTS if is_chat else _COMPLETION_DEFAULTS)}
    allowed = (*_COMMON, *(_CHAT if is_chat else ("prompt",)), *defaults, *_IGNORED)
    for key in content:
        if key not in allowed:
            raise RequestRefused(f"{key!r:.80} is not supported: allowed are {', '.join(allowed)}", key)
    if content.get("model") != model:
        raise unknown_model(content.get("model"), model)
    for key, default in defaults.items():
        value = content.get(key, default)  # logprobs 0 equals false, and asks for the probability of each token.
        is_default = value == default and isinstance(value, bool) == isinstance(default, bool)
        _check(content, key, is_default, json.dumps(default))
    prompt = _messages(content) if is_chat else content.get("prompt", 0)
    _check(content, "prompt", is_chat or isinstance(prompt, str), "a text")
    _check(content, "stream", isinstance(content.get("stream", False), bool), "true or false")
    options = content.get("stream_options", {})
    is_valid = options in ({}, {"include_usage": True}, {"include_usage": False})
    _check(content, "stream_options", is_valid, '{"include_usage": true} or {"include_usage": false}')
    return AnswerRequest(
        prompt,
        _tools(content),
        _max_tokens(content, is_chat),
        _number(content, "temperature", 2),
        _number(content, "top_p", 1),
        _stops(content),
        _integer(content, "seed", -_LARGEST_SEED, _LARGEST_SEED),
        content.get("stream", False),
        options.get("include_usage", False),
    )


def unknown_model(name: object, model: str) -> RequestRefused:
    """Return the refusal of a request for another model.

    Args:
        name: What is asked for; None for nothing.
        model: Name of the model that is served.
    """
    code, status = (None, 400) if name is None else ("model_not_found", 404)
    return RequestRefused(f"model is {name!r:.80}: this server has the model {model!r}", "model", code, status)


def _check(content: Mapping[str, Any], key: str, is_valid: bool, allowed: str) -> None:
    if not is_valid:
        raise RequestRefused(f"{key} is {json.dumps(content.get(key)):.80}: it must be {allowed}", key)


def _integer(content: Mapping[str, Any], key: str, least: int, most: int) -> int | None:
    value = content.get(key)
    is_valid = value is None or (type(value) is int and least <= value <= most)
    _check(content, key, is_valid, f"an integer from {least} to {most}")
    return value


def _number(content: Mapping[str, Any], key: str, most: int) -> float | None:
    value = content.get(key)
    is_valid = value is None or (type(value) in (int, float) and 0 <= value <= most)
    _check(content, key, is_valid, f"a number from 0 to {most}")
    return None if value is None else float(value)


def _max_tokens(content: Mapping[str, Any], is_chat: bool) -> int | None:
    keys = [key for key in ("max_tokens", "max_completion_tokens") if key in content]
    if len(keys) > 1:
        raise RequestRefused("max_tokens and max_completion_tokens mean the same: set one of them", keys[1])
    if not keys:
        return None if is_chat else _COMPLETION_TOKENS
    return _integer(content, keys[0], 1, _LARGEST_SEED)


def _stops(content: Mapping[str, Any]) -> tuple[str, ...]:
    stops = content.get("stop", [])
    stops = [stops] if isinstance(stops, str) else stops
    is_valid = isinstance(stops, list) and len(stops) <= _MOST_STOPS and all(isinstance(stop, str) for stop in stops)
    _check(content, "stop", is_valid and "" not in stops, f"a text, or a list of at most {_MOST_STOPS} texts")
    return tuple(stops)


def _tools(content: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    tools = content.get("tools")
    is_valid = tools is None or (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools))
    _check(content, "tools", is_valid, "a list of objects")
    return tools or None


def _messages(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages = content.get("messages")
    is_list = isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages)
    if not isinstance(messages, list) or not is_list:
        raise RequestRefused('messages must be a list of at least one object with "role" and "content"', "messages")
    return [_message(message, f"messages[{number}]") for number, message in enumerate(messages)]


def _message(message: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a message as chat templates take it: with one text, and with arguments of calls as objects."""
    # Some templates test only whether a key is there.
    message = {key: value for key, value in message.items() if value is not None and (value or key != "tool_calls")}
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise RequestRefused(f"the role of {name} is {role!r:.80}: allowed are {', '.join(_ROLES)}", "messages")
    if isinstance(content, list):
        parts = [part if isinstance(part, dict) and part.get("type") == "text" else {} for part in content]
        texts = [part.get("text") for part in parts]
        content = None if None in texts else "".join(map(str, texts))
    calls = message.get("tool_calls")
    if not isinstance(content, str) and not (content is None and calls):
        raise RequestRefused(f"the content of {name} must be a text, or a list of parts of the type text", "messages")
    if calls is None:
        return {**message, "content": content}
    try:
        calls = [{**call, "function": _with_object(call["function"])} for call in calls]
    except (KeyError, TypeError, ValueError):
        text = f'the tool_calls of {name} must be a list of objects with "function", whose "arguments" are JSON'
        raise RequestRefused(text, "messages") from None
    return {**message, "content": content or "", "tool_calls": calls}


def _with_object(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function["arguments"]
    return {**function, "arguments": json.loads(arguments) if isinstance(arguments, str) else arguments}


class Answer(NamedTuple):
    """A complete answer.

    Attributes:
        text: All of its text.
        finish_reason: "stop", or "length" if it has the most tokens that it may have.
        prompt_tokens: Number of tokens of the prompt.
        completion_tokens: Number of tokens of the answer, with the one that ends it.
    """

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int

    @property
    def usage(self) -> dict[str, int]:
        """The object `usage`."""
        counts = {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens}
        return {**counts, "total_tokens": sum(counts.values())}


class AnswerFormat(NamedTuple):
    """Makes the JSON objects of one answer.

    Attributes:
        request: The request.
        model: Name of the model.
        id: Unique ID of the answer.
        created: Unix time in seconds.
    """

    request: AnswerRequest
    model: str
    id: str
    created: int

    def whole(self, answer: Answer) -> dict[str, Any]:
        """Return an answer that is not streamed."""
        message = {"role": "assistant", "content": answer.text}
        choice = _choice({"message": message} if self.request.is_chat else {"text": answer.text}, answer.finish_reason)
        return {**self._object("chat.completion", [choice]), "usage": answer.usage}

    def part(self, text: str, finish_reason: str | None = None, is_first: bool = False) -> dict[str, Any]:
        """Return a chunk of a streamed answer. The first chunk of a chat has the role."""
        delta = {**({"role": "assistant"} if is_first else {}), **({"content": text} if text or is_first else {})}
        choice = _choice({"delta": delta} if self.request.is_chat else {"text": text}, finish_reason)
        usage = {"usage": None} if self.request.streams_usage else {}
        return {**self._object("chat.completion.chunk", [choice]), **usage}

    def usage(self, answer: Answer) -> dict[str, Any]:
        """Return the last chunk of an answer that is streamed with its usage."""
        return {**self._object("chat.completion.chunk", []), "usage": answer.usage}

    def _object(self, kind: str, choices: Sequence[object]) -> dict[str, Any]:
        name, prefix = (kind, "chatcmpl") if self.request.is_chat else ("text_completion", "cmpl")
        known = {"id": f"{prefix}-{self.id}", "object": name, "created": self.created, "model": self.model}
        return {**known, "choices": choices}


def _choice(content: Mapping[str, Any], finish_reason: str | None) -> dict[str, Any]:
    return {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}


class AnswerText:
    """The text of an answer while it is generated: what of it will not change, up to the text that ends it.

    Attributes:
        text: All that `grow` has returned.
        is_stopped: Whether a text of `stops` has ended it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.text, self.is_stopped, self._stops = "", False, stops

    def grow(self, decoded: str, is_complete: bool) -> str:
        """Return what is new and will not change.

        Args:
            decoded: Text of all tokens. Its end may be a part of a character, as U+FFFD, or of a text of `stops`.
            is_complete: Whether no other token follows.
        """
        places = [place for stop in self._stops if (place := decoded.find(stop)) >= 0]
        if places:
            self.is_stopped, decoded = True, decoded[: min(places)]
        elif not is_complete:
            decoded = decoded.rstrip("\ufffd")
            parts = (stop[:size] for stop in self._stops for size in range(1, len(stop)))
            decoded = decoded[: len(decoded) - max((len(part) for part in parts if decoded.endswith(part)), default=0)]
        new = decoded[len(self.text) :]
        self.text += new
        return new
