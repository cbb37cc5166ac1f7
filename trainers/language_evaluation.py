"""The program of the job of `evaluate_language_model`: the loss of rows, and answers to their prompts."""

import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist

from kfp_distributed.trainers.language_rows import language_rows
from kfp_distributed.trainers.language_scoring.evaluation_trainer import evaluation_trainer, row_losses
from kfp_distributed.trainers.language_scoring.harness import harness_scores, load_tasks
from kfp_distributed.trainers.language_training.greedy_answers import GreedyAnswers
from kfp_distributed.trainers.language_training.held_out_prompts import held_out_prompts
from kfp_distributed.trainers.language_training.rank_checks import check_gpus
from kfp_distributed.trainers.language_training.tokenizer_checks import usable_length
from kfp_distributed.trainers.language_training.tuning_trainer import describe_tokens
from kfp_distributed.trainers.programs.evaluation_parameters import LanguageEvaluationParameters
from kfp_distributed.trainers.runtime.outputs.language_scores import ScoredAnswer, write_scores

_LINES = 20
"""Lines of the log about the progress of one part, about."""

_T = TypeVar("_T")
_R = TypeVar("_R")


def language_evaluation(train_dir: str, model_dir: str, parameters: LanguageEvaluationParameters) -> None:
    """Compute the loss of a language model on rows, and compare its answers to their prompts with those of the rows.

    With RANK and WORLD_SIZE, several processes share the rows. The scores do not depend on their number.

    Args:
        train_dir: Folder of the dataset with all rows, in each rank.
        model_dir: Folder for the scores and the answers, in rank 0.
        parameters: Its parameters.
    """
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    check_gpus()
    tasks = load_tasks(parameters, ranks) if parameters.harness_tasks else None
    rows = language_rows(train_dir)
    trainer, model = evaluation_trainer(parameters, rows, "trainer", ranks)
    described = f"{describe_tokens(trainer, rows, [])}; {ranks} ranks"
    if trainer.is_world_process_zero():
        print(described, flush=True)
    losses = _share(
        range(len(trainer.train_dataset)), partial(row_losses, trainer, model), parameters.batch_size, "rows"
    )
    tokens = sum(count for _, count in losses)
    loss = math.fsum(total for total, _ in losses) / tokens
    if not math.isfinite(loss):
        raise ValueError(f"the loss of the rows is {loss}: the weights of the model are NaN or infinite, or too large")
    counted = sum(count > 0 for _, count in losses)
    scores = {"rows": counted, "tokens": tokens, "loss": loss, "perplexity": _exponential(loss)}
    prompts = held_out_prompts(rows)[: parameters.answers]
    tokenizer = trainer.processing_class
    greedy = GreedyAnswers(
        tokenizer, usable_length(trainer), parameters.answer_tokens, are_divided=bool(trainer.args.fsdp)
    )
    texts = _share(prompts, partial(greedy.answer, model), parameters.batch_size, "prompts")
    answers = [
        ScoredAnswer(prompt.text, prompt.reference, text, text == prompt.reference)
        for prompt, text in zip(prompts, texts, strict=True)
    ]
    if answers:
        exact = sum(answer.is_exact for answer in answers)
        references = [tokenizer(answer.reference, add_special_tokens=False)["input_ids"] for answer in answers]
        longer = sum(len(reference) > greedy.new_tokens for reference in references)
        scores |= {"prompts": len(answers), "longer_references": longer, "exact_match": exact / len(answers)}
    lower = list[str]()
    if tasks:
        of_harness, lower = harness_scores(parameters, tasks, trainer, model)
        scores |= of_harness
    if trainer.is_world_process_zero():
        print(", ".join(f"{name} {score:.6g}" for name, score in scores.items()), flush=True)
        write_scores(Path(model_dir), scores, answers, lower)


def _share(items: Sequence[_T], compute: Callable[[Sequence[_T]], list[_R]], size: int, what: str) -> list[_R]:
    """Return the results for items, in their order, in each rank. The ranks compute equally often.

    Args:
        items: The items.
        compute: Returns the results of up to `size` items.
        size: Items that are computed at once.
        what: What the items are, for the log.
    """
    ranks, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    results, batches = list[list[_R]](), math.ceil(len(items) / size)
    shown = math.ceil(batches / ranks / _LINES)
    for number in range(rank, math.ceil(batches / ranks) * ranks, ranks):
        batch = items[number * size : (number + 1) * size]
        results.append(compute(batch or items[:1])[: len(batch)])
        if rank == 0 and len(results) % shown == 0:
            print(f"computed {min(len(items), (number + ranks) * size):,} of {len(items):,} {what}", flush=True)
    parts = [results]
    if ranks > 1:
        parts *= ranks
        dist.all_gather_object(parts, results)
    return [result for of_ranks in zip(*parts, strict=True) for batch in of_ranks for result in batch]


def _exponential(loss: float) -> float:
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
