"""The prompts of held-out rows, and their reference answers (pure)."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class HeldOutPrompt(NamedTuple):
    """A prompt of a held-out row.

    Attributes:
        prompt: A text, or messages.
        tools: Tools of the messages; None for no tools.
        reference: The answer of the row, of two the chosen one.
    """

    prompt: str | Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    reference: str

    @property
    def text(self) -> str:
        """The prompt as a text for people. Messages have their roles."""
        return self.prompt if isinstance(self.prompt, str) else _written(self.prompt)


def held_out_prompts(rows: Iterable[Mapping[str, Any]]) -> list[HeldOutPrompt]:
    """Return the prompts of rows. Of messages, the prompt ends before the last answer of the assistant.

    Args:
        rows: Rows as `language_rows` returns them. Those without a prompt, such as plain texts, have none.
    """
    prompts = []
    for row in rows:
        match row:
            case {"messages": [*messages]}:
                last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=0)
                prompt, answer = messages[:last], messages[last : last + 1]
            case {"prompt": prompt, "completion": answer} | {"prompt": prompt, "chosen": answer}:
                pass
            case _:
                continue
        if prompt:
            prompts.append(HeldOutPrompt(prompt, row.get("tools"), _answer(answer)))
    return prompts


def _answer(answer: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(answer, str):
        return answer.strip()
    return (_content(answer[0]) if len(answer) == 1 else _written(answer)).strip()


def _written(messages: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(f"{message['role']}: {_content(message)}" for message in messages)


def _content(message: Mapping[str, Any]) -> str:
    """Return the content of a message. What is no text, such as a call of a tool, is JSON."""
    parts = [message.get("content"), message.get("tool_calls")]
    texts = [part if isinstance(part, str) else json.dumps(part, ensure_ascii=False) for part in parts if part]
    return "\n".join(texts)
