"""The parameters of the evaluation of a language model (pure)."""

from __future__ import annotations  # The type of a field is its text, as in the signature of a user's function.

from dataclasses import dataclass, field
from typing import ClassVar, Literal


@dataclass(frozen=True)
class LanguageEvaluationParameters:
    """What each replica of the job of `evaluate_language_model` gets: its evaluation_parameters, and the model.

    Attributes:
        base_model: The complete model, as of the trainer `language_model`.
        sha256: `model_hash` that base_model must have. Default: "", any.
        adapter: Address of the adapter that is added to it. Default: "", none.
        adapter_sha256: `model_hash` that it must have. Default: "", any.
        batch_size: Rows that a rank computes at once. Default: 4.
        max_length: Tokens of a row, of which more are cut off. Default: 2048.
        loss_on: Tokens whose loss counts: "completion" of a prompt, those of the "assistant" in messages, or "all".
            "auto" is "completion" for rows with a prompt or with preferences, and else "all". Default: "auto".
        chat_template: Jinja template of conversations in place of the tokenizer's. Default: "", the tokenizer's.
        answers: Number of prompts, those of the first rows, that the model answers and `exact_match` compares. 0 is
            none. Default: 100.
        answer_tokens: Tokens of an answer, at most, and at most half of max_length. Default: 128.
        harness_tasks: Tasks of lm-evaluation-harness that are scored, too. Default: [], none.
        harness_folder: Address or path of the folder that defines them, with their data. Default: "", none.
        sharding: "fsdp" divides the weights among the ranks, "none" keeps all of them in each rank. "auto" is "fsdp"
            if, with worker_gpu_memory, a GPU does not hold the model, else "none". Default: "auto".
        may_be_zero: Parameters that may be 0. All other numbers must be more than 0.
        below: Parameters that must be less than a number.
    """

    may_be_zero: ClassVar = ("answers",)
    below: ClassVar = {"batch_size": 1 << 16, "answers": 1 << 32, "answer_tokens": 1 << 20}

    base_model: str
    sha256: str = ""
    adapter: str = ""
    adapter_sha256: str = ""
    batch_size: int = 4
    max_length: int = 2048
    loss_on: Literal["auto", "completion", "assistant", "all"] = "auto"
    chat_template: str = ""
    answers: int = 100
    answer_tokens: int = 128
    harness_tasks: list[str] = field(default_factory=list)
    harness_folder: str = ""
    sharding: Literal["auto", "none", "fsdp"] = "auto"
