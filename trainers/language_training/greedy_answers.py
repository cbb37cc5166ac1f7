"""Answers of language models to prompts: their tokens, what ends them, and those without chance."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from kfp_distributed.trainers.language_training.held_out_prompts import HeldOutPrompt


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


@contextmanager
def _configured(model: PreTrainedModel, config: GenerationConfig) -> Iterator[None]:
    """Replace the generation_config of a model, from which `generate` takes what its argument does not set."""
    # Adapters and parts of a model may have their own.
    configs = {part: part.generation_config for part in model.modules() if "generation_config" in vars(part)}
    try:
        for part in configs:
            part.generation_config = config
        yield
    finally:
        for part, own in configs.items():
            part.generation_config = own


class GreedyAnswers:
    """Asks models prompts. It calls no collectives if the models are not divided among ranks.

    Attributes:
        new_tokens: Tokens of an answer, at most.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, max_length: int, new_tokens: int, *, are_divided: bool = False
    ) -> None:
        """Set the lengths.

        Args:
            tokenizer: Tokenizer of the models. It is not changed, because it may be saved with one.
            max_length: Tokens of a prompt with its answer, at most. Of a longer prompt, the last tokens are taken.
            new_tokens: Tokens of an answer, at most, and at most half of max_length.
            are_divided: Whether the models are divided among ranks, which then all ask equally often. Default: false.
        """
        self._tokenizer, self._are_divided = tokenizer, are_divided
        self.new_tokens = min(new_tokens, max_length // 2)
        self._prompt_tokens = max_length - self.new_tokens

    def answer(
        self, model: PreTrainedModel, prompts: Sequence[HeldOutPrompt], seconds: float | None = None
    ) -> list[str]:
        """Return the answers of a model to prompts, which are answered at once.

        Args:
            model: The model, in the mode of evaluation.
            prompts: The prompts, at least one: all of them texts, or all of them messages.
            seconds: Time after which no more tokens are added. Default: None, no limit.
        """
        tokenizer, batch = self._tokenizer, [self._tokens(prompt) for prompt in prompts]
        width = max(map(len, batch))
        padding = [width - len(tokens) for tokens in batch]
        inputs = {
            "input_ids": [
                [tokenizer.pad_token_id] * count + tokens for count, tokens in zip(padding, batch, strict=True)
            ],
            "attention_mask": [[0] * count + [1] * (width - count) for count in padding],
        }
        config = GenerationConfig(
            max_new_tokens=self.new_tokens,
            max_time=seconds,
            do_sample=False,
            use_cache=True,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=answer_ends(model, tokenizer, not isinstance(prompts[0].prompt, str)),
        )
        tensors = {name: torch.tensor(rows, device=model.device) for name, rows in inputs.items()}
        with _configured(model, config):
            output = model.generate(**tensors, generation_config=config, synced_gpus=self._are_divided)
        return [text.strip() for text in tokenizer.batch_decode(output[:, width:], skip_special_tokens=True)]

    def _tokens(self, prompt: HeldOutPrompt) -> list[int]:
        return prompt_tokens(self._tokenizer, prompt.prompt, prompt.tools)[-self._prompt_tokens :]
