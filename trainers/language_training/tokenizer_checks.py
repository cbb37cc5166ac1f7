"""Checks that the tokenizer, the rows and the model fit."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from kfp_distributed.trainers.language_training.objectives import Tuning
from kfp_distributed.trainers.programs.language_parameters import LanguageModelParameters
from kfp_distributed.trainers.programs.model_size import check_row, has_table, positions


@contextmanager
def template_errors(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[Mapping[str, Any]], loss_on: str
) -> Iterator[None]:
    """Name the parameters if the preparation of rows fails because of the chat template.

    Args:
        tokenizer: The tokenizer.
        rows: Rows as `language_rows` returns them.
        loss_on: The parameter of this name.

    Raises:
        ValueError: The template is missing, or lacks what loss_on or the rows need.
    """
    if not tokenizer.chat_template and ("messages" in rows[0] or isinstance(rows[0].get("prompt"), list)):
        raise ValueError(
            "the tokenizer of base_model has no chat template, which conversations need: set chat_template"
        )
    row = next((row for row in rows if row.get("tools")), {})
    messages = row.get("messages") or row.get("prompt")
    write = partial(tokenizer.apply_chat_template, messages, tokenize=False)
    with suppress(TemplateError, TypeError):  # The preparation names a row that the template does not take.
        if isinstance(messages, list) and write(tools=row["tools"]) == write():
            raise ValueError("rows have tools, and the chat template leaves them out: set chat_template, or drop tools")
    try:
        yield
    except ValueError as error:
        if loss_on != "assistant" or "training-compatible" not in str(error):
            raise
        raise ValueError(
            'loss_on is "assistant", and the chat template marks no answers with {% generation %} and {% endgeneration '
            f"%}}: set chat_template to one that does, or another loss_on ({error})"
        ) from None


def usable_length(trainer: Tuning) -> int:
    """Return the tokens of a prompt with its answer, at most: max_length, or those that the model is made for.

    Another max_length than the default may be more, if the model has no table of positions.
    """
    length: int = trainer.args.max_length
    config = trainer.model.config.to_dict()
    is_chosen = length != LanguageModelParameters.max_length and not has_table(config)
    return length if is_chosen else min(length, positions(config) or length)


def check_tokens(trainer: Tuning) -> None:
    """Check that a model has each token of its rows, and that of the padding, and positions for its rows.

    Some models lack tokens of their tokenizer that no text has, such as those of images.

    Raises:
        ValueError: It has not.
    """
    size = trainer.model.get_input_embeddings().weight.shape[0]
    datasets = [dataset for dataset in (trainer.train_dataset, trainer.eval_dataset) if dataset]
    largest = longest = 0
    for sequences in chain.from_iterable(map(trainer.sequences, datasets)):
        for tokens in sequences:
            largest, longest = max(largest, *tokens, 0), max(longest, len(tokens))
    if getattr(trainer.args, "packing", False):  # The positions of each row that is packed begin anew.
        longest = max(max(lengths) for dataset in datasets for lengths in dataset["seq_lengths"])
    warning = check_row(trainer.model.config.to_dict(), longest, f"the longest row has {longest} tokens")
    if warning and trainer.is_world_process_zero():
        print(warning, flush=True)
    padding = trainer.processing_class.pad_token_id or 0
    if max(largest, padding) < size:
        return
    what = f"the rows have the token {largest}" if largest >= size else f"the padding is the token {padding}"
    raise ValueError(
        f"{what} of the tokenizer, and base_model has the tokens 0 to {size - 1}: save the model with the tokenizer "
        "that belongs to it"
    )
