"""Conversations of rows for language models: which values are some, and their check (pure)."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.columns.python_values import python_values

CONVERSATION = "conversation"
"""Declared kind of a column of conversations, and the source_type of its texts in the manifest."""

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles of messages, which the chat templates of models know."""

_OTHER_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant", "function": "tool"}
"""Other names of roles: those of ShareGPT files, and of some models."""

_SHOWN = 40


def conversation_texts(name: str, values: pa.Array, add: Callable[[int, str, str], object]) -> pa.StringArray:
    """Return conversations as JSON texts of lists of messages: [{"role": "user", "content": "..."}, ...].

    Args:
        name: Name of the column. A "prompt" needs no answer, and a "completion" no question.
        values: Lists of objects, or their JSON texts.
        add: Is called with the number, the column and the problem of each row that is no conversation.
    """
    texts: list[str | None] = []
    for row, value in enumerate(python_values(values)):
        try:
            texts.append(_text_of(value, needs_answer=name != "prompt"))
        except ValueError as error:
            texts.append(None)
            add(row, name, str(error))
    return pa.array(texts, pa.string())


def rows_without_text(values: pa.StringArray) -> list[int]:
    """Return the numbers of the rows whose text is missing or has blanks alone."""
    are_empty = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(values), ""), True)
    return [int(row) for row in np.flatnonzero(are_empty.to_numpy(zero_copy_only=False))]


def spoken_text(text: str) -> str:
    """Return the JSON text of a conversation as a text for people: "user: ...", a line for each message."""
    messages = [(message["role"], message.get("content", "")) for message in json.loads(text)]
    return "\n".join(f"{role}: {what if isinstance(what, str) else json.dumps(what)}" for role, what in messages)


def word_counts(texts: pa.StringArray, *, are_conversations: bool) -> NDArray[np.float32]:
    """Return the number of words of each text, [rows]; NaN for a missing one. A word has blanks around it.

    Args:
        texts: The texts.
        are_conversations: Whether they are those of `conversation_texts`, of which the contents count.
    """
    if are_conversations:
        contents = [text and [message.get("content", "") for message in json.loads(text)] for text in texts.to_pylist()]
        texts = pa.array([each and " ".join(map(str, each)) for each in contents], pa.string())
    counts = pc.count_substring_regex(texts, r"\S+").cast(pa.float32())
    return np.asarray(counts.fill_null(np.nan), np.float32)


def _text_of(value: object, *, needs_answer: bool) -> str:
    """Return a conversation as a JSON text.

    Raises:
        ValueError: It is none. The message says what is wrong and how to mend it.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
            value = json.loads(value) if isinstance(value, str) else value
        except ValueError:
            raise ValueError(f"is {str(value)[:_SHOWN]!r}, and no list of messages: {_EXAMPLE}") from None
    if not isinstance(value, list) or not value:
        shown = "missing" if value is None else "an empty list" if value == [] else f"{value!r:.{_SHOWN}}"
        raise ValueError(f"is {shown}, and no list of messages: {_EXAMPLE}")
    messages = [_message(number, message) for number, message in enumerate(value, 1)]
    _check_order([message["role"] for message in messages], needs_answer=needs_answer)
    text = json.dumps(messages, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"has {text[error.start]!a}, which is half of a character: write the whole character"
        ) from None
    return text


_EXAMPLE = 'write [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]'


def _message(number: int, message: object) -> dict[str, Any]:
    """Return a message with a role and a content. Keys without a value are left out: Arrow adds them."""
    if not isinstance(message, dict):
        raise ValueError(f"has {message!r:.{_SHOWN}} as message {number}: {_EXAMPLE}")  # noqa: TRY004 - all of a row
    known = {key: value for key, value in message.items() if value is not None}
    if "role" not in known and "from" in known:
        known = {"role": known.pop("from"), "content": known.pop("value", None), **known}
    role = _OTHER_ROLES.get(known.get("role", ""), known.get("role"))
    if role not in ROLES:
        raise ValueError(
            f"has the role {role!r:.{_SHOWN}} in message {number}; allowed are {', '.join((*ROLES, *_OTHER_ROLES))}"
            if role is not None
            else f"has no role in message {number}, whose keys are {', '.join(message)[:_SHOWN]}: {_EXAMPLE}"
        )
    content = known.get("content")
    is_empty = content is None or (isinstance(content, str) and not content.strip()) or content == []
    if is_empty and not (role == "assistant" and known.get("tool_calls")):
        what = "answer" if role == "assistant" else "content"
        raise ValueError(f"has an empty {what} in message {number}, of the {role}: fill it in, or leave the row out")
    if content is not None and not isinstance(content, str | list):
        raise ValueError(f"has the content {content!r:.{_SHOWN}} in message {number}: write a text")
    return {"role": role, **({} if content is None else {"content": content}), **_others(known)}


def _others(known: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in known.items() if key not in ("role", "content")}


def _check_order(roles: Sequence[str], *, needs_answer: bool) -> None:
    for number, (before, role) in enumerate(zip(("", *roles), roles, strict=False), 1):
        if role in ("system", "developer") and number > 1:
            raise ValueError(f"has a message of the {role} after the first one (message {number}): write it first")
        if role == "tool" and before not in ("assistant", "tool"):
            raise ValueError(f"has a message of a tool that no assistant has called (message {number})")
    if needs_answer and roles[-1] != "assistant":
        raise ValueError(
            f"ends with a message of the {roles[-1]}, from which a model learns nothing: end it with an answer of the "
            "assistant, or leave the row out"
        )
