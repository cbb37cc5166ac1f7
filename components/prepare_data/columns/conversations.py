"""Conversations of rows for language models: which values are some, and their check (pure)."""

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.columns.json_texts import (
    SHOWN,
    decoded,
    json_value,
    text_of_json,
    texts_of_values,
)
from kfp_distributed.components.prepare_data.columns.python_values import python_values

CONVERSATION = "conversation"
"""Declared kind of a column of conversations, and the source_type of its texts in the manifest."""

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles of messages, which the chat templates of models know."""

_OTHER_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant", "function": "tool"}
"""Other names of roles: those of ShareGPT files, and of some models."""

_CALLS = ("tool_calls", "function_call")
"""Keys of what an assistant may write without a content."""

_NO_LANGUAGE_MODEL = (
    ". If the rows are for no language model, set label_column to the column of the labels, or to "
    '"" to keep all columns'
)


def texts_in(names: Collection[str]) -> str:
    """Return what to do if columns that are taken for conversations have texts, after an error."""
    them = "all of them" if len(names) > 2 else "both"
    kinds = ", ".join(f'"{name}": "text"' for name in names)
    return f". If the source has texts in {them}, such as JSON texts, set columns={{{kinds}}}"


_PAIR, _PREFERENCE = ("prompt", "completion"), ("prompt", "chosen", "rejected")
_ADVICE = {
    **dict.fromkeys(_PREFERENCE, f"{texts_in(_PREFERENCE)} (rename the column of the prompts to prompt)"),
    **dict.fromkeys(_PAIR, texts_in(_PAIR)),
    **dict.fromkeys(("messages", "conversations"), _NO_LANGUAGE_MODEL),
}
"""What may be meant by a column with such a name that has no lists of messages."""


class _NoMessages(ValueError):
    """A value is no list of messages, so that it may be meant as a text."""


def are_conversations(values: pa.Array) -> bool | None:
    """Return whether the first value that is not empty is a list of objects, or the JSON text of one.

    Returns:
        None if all values are empty: missing, blank texts, or empty lists.
    """
    for row in range(len(values)):
        value = decoded(python_values(values.slice(row, 1), maps_are_dicts=True)[0])
        if value and not (isinstance(value, str) and value.isspace()):
            return isinstance(value, list) and all(isinstance(message, dict) for message in value)
    return None


def conversation_texts(
    name: str, values: pa.Array, add: Callable[[int, str, str], object], *, can_declare: bool = False
) -> pa.StringArray:
    """Return conversations as JSON texts of lists of messages: [{"role": "user", "content": "..."}, ...].

    Args:
        name: Name of the column. A "prompt" needs no answer, and an answer, such as a "completion", no question.
        values: Lists of objects, or their JSON texts.
        add: Is called with the number, the column and the problem of each row that is no conversation.
        can_declare: Whether the user may declare the kind of the column. Default: false.
    """
    advice = _ADVICE.get(name, "") if can_declare else ""

    def text_of(value: object) -> str:
        try:
            return _text_of(value, needs_answer=name != "prompt")
        except _NoMessages as error:
            raise ValueError(f"{error}{advice}") from None

    return texts_of_values(name, values, add, text_of)


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
    if not isinstance(value, list) or not value:
        shown = repr(value[:SHOWN]) if isinstance(value, str) else f"{value!r:.{SHOWN}}"
        shown = "missing" if value is None else "an empty list" if value == [] else shown
        raise _NoMessages(f"is {shown}, and no list of messages: {_EXAMPLE}")
    messages = [_message(number, message) for number, message in enumerate(value, 1)]
    _check_order([message["role"] for message in messages], needs_answer=needs_answer)
    return text_of_json(messages)


_EXAMPLE = 'write [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]'


def _message(number: int, message: object) -> dict[str, Any]:
    """Return a message with a role and a content."""
    message = json_value(message, f"message {number}")
    if not isinstance(message, dict):
        raise _NoMessages(f"has {message!r:.{SHOWN}} as message {number}: {_EXAMPLE}")
    known = {**message}
    if "role" not in known and "from" in known:
        known = {"role": known.pop("from"), "content": known.pop("value", None), **known}
    role = known.pop("role", None)
    role = _OTHER_ROLES.get(role, role) if isinstance(role, str) else role
    if role is None:
        keys = ", ".join(message)[:SHOWN]
        raise _NoMessages(f"has no role in message {number}, whose keys are {keys}: {_EXAMPLE}")
    if role not in ROLES:
        allowed = ", ".join((*ROLES, *_OTHER_ROLES))
        raise ValueError(f"has the role {role!r:.{SHOWN}} in message {number}; allowed are {allowed}")
    content = known.pop("content", None)
    is_empty = content is None or (isinstance(content, str) and not content.strip()) or content == []
    is_call = role == "assistant" and any(known.get(key) for key in _CALLS)
    # A command may have no output.
    is_output = role == "tool" and content is not None
    if is_empty and not is_call and not is_output:
        what = "answer" if role == "assistant" else "content"
        raise ValueError(f"has an empty {what} in message {number}, of the {role}: fill it in, or leave the row out")
    if content is not None and not isinstance(content, str | list):
        raise ValueError(f"has the content {content!r:.{SHOWN}} in message {number}: write a text")
    return {"role": role, **({} if content is None else {"content": content}), **known}


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
