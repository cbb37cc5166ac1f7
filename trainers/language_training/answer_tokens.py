"""The tokens of a prompt, and those that end its answer."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase


def prompt_tokens(
    tokenizer: PreTrainedTokenizerBase,
    prompt: str | Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> list[int]:
    """Return the tokens of a prompt as the training has them.

    Args:
        tokenizer: The tokenizer.
        prompt: A text, or messages, which the chat template writes.
        tools: Tools of the messages. Default: none.
    """
    if isinstance(prompt, str):
        encoded = tokenizer(prompt)
    else:
        encoded = tokenizer.apply_chat_template(prompt, tools=tools, add_generation_prompt=True, return_dict=True)
    return list(encoded["input_ids"])


def answer_ends(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, is_chat: bool) -> list[int]:
    """Return the tokens that end an answer. A base model does not know that which ends a turn in its template.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        is_chat: Whether the prompts are messages.
    """
    known = model.generation_config.eos_token_id
    ends = {*(known if isinstance(known, list) else [known]), tokenizer.eos_token_id}
    if is_chat:
        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!!"}]
        text = tokenizer.apply_chat_template(turns, tokenize=False).rpartition("!!")[2]
        first = tokenizer(text, add_special_tokens=False)["input_ids"][:1]
        ends |= {*first} & {*tokenizer.added_tokens_decoder}
    return sorted(ends - {None})
