"""A language model that answers one request after another, by transformers."""

import json
import threading
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.utils import logging

from kfp_distributed.components.model_server.openai_protocol import (
    Answer,
    AnswerAbandoned,
    AnswerRequest,
    AnswerText,
    RequestRefused,
)
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.kubeflow.credentials import Credentials
from kfp_distributed.storage.model import ModelIncomplete
from kfp_distributed.trainers.language_training.base_folder import base_folder, content_hash
from kfp_distributed.trainers.language_training.base_loading import load_base
from kfp_distributed.trainers.language_training.greedy_answers import answer_ends, prompt_tokens
from kfp_distributed.trainers.programs.base_model import check_files, is_in_store
from kfp_distributed.trainers.programs.model_size import positions
from kfp_distributed.trainers.runtime.job_description import BASE_MODEL

_GREEDY = 1e-5
"""Temperatures below it are 0. The scores divided by them may be infinite."""

_WAIT_SECONDS = 0.5

_TOO_LONG = "context_length_exceeded"
"""Code of the error that OpenAI's clients know."""


def _texts(value: Any) -> Iterator[str]:  # noqa: ANN401
    """Yield the texts in messages and tools, which a template writes."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for part in chain(value, value.values()) if isinstance(value, dict) else value:
            yield from _texts(part)
    else:
        yield str(value)


class ChatModel:
    """A language model. One request generates at a time, and the others wait.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self._model, self._tokenizer = model.eval(), tokenizer
        self._ends = {
            is_chat: answer_ends(model, tokenizer, is_chat) for is_chat in {False, bool(tokenizer.chat_template)}
        }
        self._positions = positions(model.config.to_dict()) or 2**31
        self._longest_token = max(map(len, tokenizer.get_vocab()))
        stops = model.generation_config.stop_strings or ()
        self._stops = (stops,) if isinstance(stops, str) else tuple(stops)
        self._added: dict[str, int] = tokenizer.get_added_vocab()
        model.generation_config.stop_strings = None  # `generate` would keep the text that ends an answer.
        self._lock, self._is_closed = threading.Lock(), False

    def close(self) -> None:
        """End the generation in progress, because a thread within PyTorch disturbs the end of a process."""
        self._is_closed = True
        self._lock.acquire(timeout=10 * _WAIT_SECONDS)

    def tokens(self, request: AnswerRequest) -> list[int]:
        """Return the tokens of a prompt.

        Raises:
            RequestRefused: The chat template does not take it, or the model has no place for it.
        """
        param = "messages" if request.is_chat else "prompt"
        if request.is_chat and not self._tokenizer.chat_template:
            raise RequestRefused("the model has no chat template: complete a text at /v1/completions", param)
        prompt = request.prompt
        try:
            text = prompt if isinstance(prompt, str) else "".join(_texts([*prompt, *(request.tools or ())]))
        except RecursionError:
            raise RequestRefused(f"the {param} have too many levels", param) from None
        if not text.isascii() and text.encode(errors="ignore").decode() != text:
            raise RequestRefused(f"the {param} has half of a character: write the whole character", param)
        # A tokenizer would take a hundred times its memory for it.
        if len(text) > (most := self._positions * self._longest_token):
            raise RequestRefused(f"the {param} has {len(text)} characters, at most {most}", param, _TOO_LONG)
        try:
            tokens = prompt_tokens(self._tokenizer, prompt, request.tools)
            if request.tools and tokens == prompt_tokens(self._tokenizer, prompt, None):
                raise ValueError("its chat template leaves tools out")
        except Exception as error:  # noqa: BLE001  (a chat template is a program of the model)
            raise RequestRefused(f"the {param} cannot be written as a prompt of the model: {error}", param) from None
        if not 0 < len(tokens) < self._positions:
            text = f"the prompt has {len(tokens)} tokens: it must have at least 1 and fewer than {self._positions}"
            raise RequestRefused(text, param, _TOO_LONG if tokens else None)
        if (largest := max(tokens)) >= self._model.get_input_embeddings().weight.shape[0]:
            raise RequestRefused(f"the prompt has {self._tokenizer.decode(largest)!r}, which the model lacks", param)
        return tokens

    def answer(self, request: AnswerRequest, tokens: list[int], send: Callable[[str], None]) -> Answer:
        """Generate an answer.

        Args:
            request: The request.
            tokens: The tokens of its prompt.
            send: Takes the new text after each token, which may be "", and "" while other requests generate. An error
                that it raises ends the generation.

        Raises:
            AnswerAbandoned: The server ends.
        """
        while not self._lock.acquire(timeout=_WAIT_SECONDS):
            send("")
        try:
            return self._generate(request, tokens, send)
        finally:
            self._lock.release()

    def _generate(self, request: AnswerRequest, tokens: list[int], send: Callable[[str], None]) -> Answer:
        stops, begin = request.stops + self._stops, len(tokens)
        # Special tokens are left out of texts.
        ends = sorted({*self._ends[request.is_chat], *(self._added[stop] for stop in stops if stop in self._added)})
        text = AnswerText(stops)

        def decoded(output: torch.Tensor) -> str:
            new = output[0, begin:].tolist()
            shown = new[:-1] if new and new[-1] in ends else new
            return str(self._tokenizer.decode(shown, skip_special_tokens=True, clean_up_tokenization_spaces=False))

        def follow(output: torch.Tensor) -> bool:
            if self._is_closed:
                raise AnswerAbandoned
            send(text.grow(decoded(output), is_complete=False))
            return text.is_stopped

        room = self._positions - begin
        sampled = request.temperature is None or request.temperature >= _GREEDY
        # What is not set has the value of the model's generation_config.json. `generate` lacks contrastive search.
        config = GenerationConfig(
            max_new_tokens=min(request.max_tokens or room, room),
            do_sample=sampled,
            temperature=request.temperature if sampled else 1.0,
            top_p=request.top_p,
            top_k=self._model.generation_config.top_k or 0,
            num_beams=1,
            num_return_sequences=1,
            penalty_alpha=0.0,
            return_dict_in_generate=False,
            pad_token_id=self._tokenizer.pad_token_id,
            eos_token_id=ends or None,
        )
        torch.seed() if request.seed is None else torch.manual_seed(request.seed)
        inputs = torch.tensor([tokens], device=self._model.device)
        with torch.inference_mode():
            output = self._model.generate(
                input_ids=inputs,
                attention_mask=torch.ones_like(inputs),
                generation_config=config,
                stopping_criteria=StoppingCriteriaList([_Following(follow)]),
            )
        send(text.grow(decoded(output), is_complete=True))
        is_ended = text.is_stopped or output[0, -1].item() in ends
        return Answer(text.text, "stop" if is_ended else "length", begin, output.shape[1] - begin)


class _Following(StoppingCriteria):  # type: ignore[misc]  # Its types are those of an optional package.
    """Calls a function after each token, which returns whether the answer ends."""

    def __init__(self, follow: Callable[[torch.Tensor], bool]) -> None:
        self._follow = follow

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **options: Any) -> torch.Tensor:  # noqa: ANN401
        return torch.full((1,), self._follow(input_ids), device=input_ids.device)


def load_chat_model(folder: Path, scratch: Path, credentials: Callable[[str], Credentials | None]) -> ChatModel:
    """Load a language model, onto the GPU if there is one.

    Args:
        folder: Folder of a complete model, which may be in its subfolder merged, or of an adapter.
        scratch: Empty folder for the model to which an adapter belongs.
        credentials: Returns the credentials of the object store of an address.

    Raises:
        ValueError: Files are missing, are not those of the model, or the model of an adapter cannot be fetched.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    complete = next((place for place in (folder, folder / "merged") if (place / "config.json").exists()), None)
    if complete:
        check_files(str(complete), [path.name for path in complete.iterdir() if path.is_file()], "MODEL")
        model, tokenizer = load_base(complete, "", "lora")
    else:
        base = _base_of_adapter(folder, scratch, credentials)
        model, tokenizer = load_base(base, "", "lora", tokenizer_folder=folder)
        model = PeftModel.from_pretrained(model, folder).get_base_model()
    if torch.cuda.is_available() and model.device.type != "cuda":  # bitsandbytes does not move its weights.
        model = model.to("cuda")
    return ChatModel(model, tokenizer)


def _base_of_adapter(folder: Path, scratch: Path, credentials: Callable[[str], Credentials | None]) -> Path:
    """Return the folder of the model to which an adapter belongs, after a download."""
    advice = 'serve a model that was trained with export "merged" or "both"'
    try:
        described = json.loads((folder / BASE_MODEL).read_text())
        address, sha256 = str(described["base_model"]), described["sha256"]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{folder} has an adapter, and no {BASE_MODEL} that names its model ({error!r}): {advice}"
        ) from None
    try:
        base = base_folder(address, scratch, credentials(address) if is_in_store(address) else None)
    except (OSError, ValueError, StorageError, ModelIncomplete) as error:
        raise ValueError(f"the model {address} of the adapter cannot be fetched: {error}; or {advice}") from None
    if content_hash(base) != sha256:
        raise ValueError(f"{address} has not the files with which the adapter was trained: {advice}")
    return base
