"""The JSON of requests to a language model and of its answers."""

import json

import pytest

from kfp_distributed.components.model_server.openai_protocol import (
    Answer,
    AnswerFormat,
    AnswerRequest,
    AnswerText,
    RequestRefused,
    parse_request,
)

CHAT = [{"role": "user", "content": "2+3?"}]


def parse(content, is_chat=True):
    return parse_request(json.dumps({"model": "tiny"} | content).encode(), is_chat, "tiny")


def test_a_chat_with_all_parameters():
    call = {"id": "1", "function": {"name": "add", "arguments": '{"a": 2}'}}
    called = {"id": "1", "function": {"name": "add", "arguments": {"a": 2}}}
    parts = [{"type": "text", "text": "2+"}, {"type": "text", "text": "3?"}]
    messages = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]},
        {"role": "tool", "content": "5", "tool_call_id": "1"},
    ]
    options = {"max_completion_tokens": 7, "temperature": 1, "top_p": 0.5, "stop": "x", "seed": -1, "n": 1}
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    assert parse({"messages": messages, "tools": [{"type": "function"}], **options, **streamed}) == AnswerRequest(
        [*CHAT, {"role": "assistant", "content": "", "tool_calls": [called]}, messages[2]],
        [{"type": "function"}],
        7,
        1.0,
        0.5,
        ("x",),
        -1,
        True,
        True,
    )


def test_what_is_null_or_missing_has_its_default():
    assert parse({"messages": CHAT, "seed": None, "logit_bias": None, "tools": []}) == AnswerRequest(CHAT)
    same = {
        "n": 1,
        "user": "me",
        "metadata": {"a": "b"},
        "logprobs": False,
        "frequency_penalty": 0.0,
        "tool_choice": "auto",
    }
    assert parse({"messages": CHAT, "response_format": {"type": "text"}, **same}) == AnswerRequest(CHAT)
    empty = {"name": None, "tool_calls": [], "function_call": None}
    assert parse({"messages": [CHAT[0] | empty]}) == AnswerRequest(CHAT)
    assert parse({"messages": [CHAT[0] | {"tool_calls": None}]}) == AnswerRequest(CHAT)
    assert parse({"prompt": "one", "stop": ["a", "b"]}, is_chat=False) == AnswerRequest(
        "one", None, 16, stops=("a", "b")
    )


@pytest.mark.parametrize(
    ("content", "param", "message"),
    [
        ({"temperature": 2.5}, "temperature", "temperature is 2.5: it must be a number from 0 to 2"),
        ({"temperature": True}, "temperature", "temperature is true"),
        ({"top_p": float("nan")}, "top_p", "top_p is NaN: it must be a number from 0 to 1"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0: it must be an integer from 1 to "),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_completion_tokens", "mean the same: set one of them"),
        ({"n": 2}, "n", "n is 2: it must be 1"),
        ({"stop": [""]}, "stop", "a list of at most 4 texts"),
        ({"stop": list("abcde")}, "stop", "a list of at most 4 texts"),
        ({"seed": 1.5}, "seed", "seed is 1.5: it must be an integer"),
        ({"stream": "yes"}, "stream", 'stream is "yes": it must be true or false'),
        ({"stream_options": {"other": True}}, "stream_options", 'it must be {"include_usage": true} or'),
        ({"tools": [1]}, "tools", "tools is [1]: it must be a list of objects"),
        ({"logprobs": True}, "logprobs", "logprobs is true: it must be false"),
        ({"logprobs": 0}, "logprobs", "logprobs is 0: it must be false"),
        ({"response_format": {"type": "json_object"}}, "response_format", 'it must be {"type": "text"}'),
        ({"echo": False}, "echo", "'echo' is not supported: allowed are model, max_tokens"),
        ({"prompt": "one"}, "prompt", "'prompt' is not supported"),
        ({"model": None}, "model", "model is None: this server has the model 'tiny'"),
        ({"messages": []}, "messages", "a list of at least one object"),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages", "the role of messages[0] is 'robot': allowed"),
        ({"messages": [{"role": "user"}]}, "messages", "the content of messages[0] must be a text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "parts of the type text"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, "messages", "the tool_calls of mess"),
    ],
)
def test_wrong_requests_name_the_value_and_what_is_allowed(content, param, message):
    with pytest.raises(RequestRefused) as refused:
        parse({"messages": CHAT} | content)
    assert refused.value.status == 400
    assert message in str(refused.value)
    error = {"message": str(refused.value), "type": "invalid_request_error", "param": param, "code": None}
    assert refused.value.body == {"error": error}


@pytest.mark.parametrize("body", [b"", b"\xff", b"[1]"])
def test_a_body_that_is_no_object_is_refused(body):
    with pytest.raises(RequestRefused, match="the body is not"):
        parse_request(body, True, "tiny")


@pytest.mark.parametrize(
    "content",
    ['{"model": DEEP}', '{"model": "tiny", "stop": DEEP, "prompt": ""}', '{"model": "tiny", "prompt": DEEP}', "DEEP"],
)
def test_any_number_of_levels_is_refused(content):
    """Python has a limit, of which reading takes a part, and writing the value in the error another one."""
    for levels in (*range(800, 1000), 100_000):
        body = content.replace("DEEP", "[" * levels + "]" * levels).encode()
        with pytest.raises(RequestRefused):
            parse_request(body, False, "tiny")


def test_arguments_of_a_call_with_too_many_levels_are_refused():
    call = {"role": "assistant", "tool_calls": [{"function": {"arguments": "[" * 100_000}}]}
    with pytest.raises(RequestRefused, match="too many levels of lists and objects"):
        parse({"messages": [call]})


def test_the_objects_of_a_chat():
    form = AnswerFormat(AnswerRequest(CHAT, streams_usage=True), "tiny", "1f", 1_800_000_000)
    answer = Answer("5", "stop", 3, 4)
    known = {"id": "chatcmpl-1f", "object": "chat.completion", "created": 1_800_000_000, "model": "tiny"}
    choice = {"index": 0, "logprobs": None, "finish_reason": "stop"}
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    message = {"role": "assistant", "content": "5"}
    assert form.whole(answer) == {**known, "choices": [choice | {"message": message}], "usage": usage}
    chunk = known | {"object": "chat.completion.chunk", "usage": None}
    unfinished = choice | {"finish_reason": None}
    assert form.part("5") == {**chunk, "choices": [unfinished | {"delta": {"content": "5"}}]}
    assert form.part("", "stop") == {**chunk, "choices": [choice | {"delta": {}}]}
    assert form.usage(answer) == {**chunk, "choices": [], "usage": usage}


@pytest.mark.parametrize(
    ("stops", "texts", "parts"),
    [
        ((), ["h", "h\ufffd", "h\ufffd\ufffd", "h\u4f60", "h\u4f60!"], ["h", "", "", "\u4f60", "!", ""]),
        ((), ["a", "a\ufffd"], ["a", "", "\ufffd"]),
        ((), ["\ufffd", "\ufffdb"], ["", "\ufffdb", ""]),
        (("STOP",), ["a S", "a STO", "a STORM", "a STORM ST"], ["a ", "", "STORM", " ", "ST"]),
        (("STOP", "OK"), ["is O", "is OK STOP"], ["is ", "", ""]),
    ],
)
def test_a_text_grows_without_parts_of_characters_and_of_stops(stops, texts, parts):
    growing = AnswerText(stops)
    assert [*(growing.grow(text, False) for text in texts), growing.grow(texts[-1], True)] == parts
    assert growing.text == "".join(parts)
    assert growing.is_stopped == ("OK" in stops)
