"""Answers of a base model and of the tuned model to held-out prompts."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from accelerate import Accelerator
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from kfp_distributed.trainers.language_training.answer_tokens import answer_ends, prompt_tokens
from kfp_distributed.trainers.language_training.held_out_prompts import held_out_prompts
from kfp_distributed.trainers.runtime.outputs.fine_tuning_file import MAX_PROMPTS, HeldOutAnswer

SECONDS = 120.0
"""Time for the answers of one model. The prompts of a batch that is not answered completely by then are left out."""

_NEW_TOKENS = 128


class HeldOutAnswers:
    """Asks models the prompts of held-out rows. If one fails, a line says so, and there are no answers.

    It calls no collectives if the model is not divided among the ranks, because the others have ended when rank 0 uses
    it.
    """

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        tokenizer: PreTrainedTokenizerBase,
        size: int,
        max_length: int,
        ranks: Accelerator | None = None,
    ) -> None:
        """Take the prompts of the first rows, at most `MAX_PROMPTS`.

        Args:
            rows: Rows as `language_rows` returns them.
            tokenizer: Tokenizer of both models. It is not changed, because it is saved with the tuned model.
            size: Prompts that are answered at once.
            max_length: Tokens of a prompt with its answer, at most. Of a longer prompt, the last tokens are taken.
            ranks: The ranks among which the models are divided, which all ask; None if they are not. Default: None.
        """
        self._prompts = held_out_prompts(rows[:MAX_PROMPTS])
        self._tokenizer, self._size, self._ranks = tokenizer, size, ranks
        self._new_tokens = min(_NEW_TOKENS, max_length // 2)
        self._prompt_tokens = max_length - self._new_tokens
        self._texts: dict[str, list[str]] = {"base": [], "tuned": []}
        self._failed = False

    def ask(self, name: Literal["base", "tuned"], load: Callable[[], PreTrainedModel]) -> None:
        """Let a model answer. Answers are greedy, and have up to 128 tokens, and up to half of max_length.

        Args:
            name: What the model is.
            load: Returns the model.
        """
        if self._failed or not self._prompts:
            return
        begin = time.monotonic()
        try:
            self._texts[name] = self._generate(load().eval())
        except Exception as error:  # noqa: BLE001  (the training has ended, and its model is worth more)
            self._failed = True
            reason = " ".join(str(error).split())[:500]
            print(f"the {name} model cannot answer held-out prompts: {type(error).__name__}: {reason}", flush=True)
            return
        seconds = time.monotonic() - begin
        print(f"{len(self._texts[name])} answers of the {name} model took {seconds:.1f} s", flush=True)

    @property
    def answers(self) -> tuple[HeldOutAnswer, ...]:
        """The prompts that both models have answered."""
        both = () if self._failed else zip(self._prompts, self._texts["base"], self._texts["tuned"], strict=False)
        return tuple(HeldOutAnswer(prompt.text, prompt.reference, base, tuned) for prompt, base, tuned in both)

    def _generate(self, model: PreTrainedModel) -> list[str]:
        until = time.monotonic() + SECONDS
        answers: list[str] = []
        for first in range(0, len(self._prompts), self._size):
            prompts = self._prompts[first : first + self._size]
            tokens = [prompt_tokens(self._tokenizer, prompt.prompt, prompt.tools) for prompt in prompts]
            batch = [prompt[-self._prompt_tokens :] for prompt in tokens]
            answered = self._answer(model, batch, until - time.monotonic())
            is_late = torch.tensor(time.monotonic() >= until, dtype=torch.int, device=model.device)
            if self._ranks:
                is_late = self._ranks.reduce(is_late, "sum")
            if is_late:  # Some of them may have been cut.
                break
            answers += answered
        return answers

    def _answer(self, model: PreTrainedModel, batch: Sequence[list[int]], seconds: float) -> list[str]:
        tokenizer, width = self._tokenizer, max(map(len, batch))
        padding = [width - len(tokens) for tokens in batch]
        inputs = {
            "input_ids": [
                [tokenizer.pad_token_id] * count + tokens for count, tokens in zip(padding, batch, strict=True)
            ],
            "attention_mask": [[0] * count + [1] * (width - count) for count in padding],
        }
        config = GenerationConfig(
            max_new_tokens=self._new_tokens,
            max_time=seconds,
            do_sample=False,
            use_cache=True,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=answer_ends(model, tokenizer, is_chat=not isinstance(self._prompts[0].prompt, str)),
        )
        tensors = {name: torch.tensor(rows, device=model.device) for name, rows in inputs.items()}
        output = model.generate(**tensors, generation_config=config, synced_gpus=bool(self._ranks))
        return [text.strip() for text in tokenizer.batch_decode(output[:, width:], skip_special_tokens=True)]
