"""Scores of tasks of lm-evaluation-harness, whose definitions and data are in one folder."""

from contextlib import chdir
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
from transformers import PreTrainedModel

from kfp_distributed.storage.opener import open_store
from kfp_distributed.trainers.language_training.objectives import Tuning
from kfp_distributed.trainers.language_training.tokenizer_checks import usable_length
from kfp_distributed.trainers.programs.base_model import is_in_store
from kfp_distributed.trainers.programs.evaluation_parameters import LanguageEvaluationParameters
from kfp_distributed.trainers.runtime.job_description import STORE_SECONDS


def check_harness(folder: str) -> None:
    """Check that the library and the folder of tasks are there, before a model is fetched.

    Args:
        folder: The parameter harness_folder.

    Raises:
        ValueError: One of them is not.
    """
    if not is_in_store(folder) and not Path(folder).is_dir():
        raise ValueError(f"harness_folder is {folder!r}, and the replica has no such folder: set the full path of one")
    if not find_spec("lm_eval"):
        raise ValueError(
            "harness_tasks is set, and the image has no lm_eval: install it in the image, by pip install --no-deps "
            "lm_eval==0.4.13 sacrebleu portalocker colorama tabulate lxml"
        )


def harness_scores(
    parameters: LanguageEvaluationParameters, trainer: Tuning, model: PreTrainedModel
) -> tuple[dict[str, float], list[str]]:
    """Return the scores of tasks as TASK/METRIC, and the names of those of which low ones are good.

    The ranks share the samples of the tasks. Other ranks than rank 0 return ({}, []). Nothing is downloaded but the
    folder, and the prompts have no chat template, as by default in the harness.

    Args:
        parameters: The parameters.
        trainer: The Trainer.
        model: Its model, in the mode of evaluation.

    Raises:
        ValueError: The folder has no such task.
        StorageError: The folder cannot be fetched.
    """
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    folder = Path(parameters.harness_folder)
    if is_in_store(parameters.harness_folder):
        folder = Path("harness").absolute()
        open_store(parameters.harness_folder, retry_seconds=STORE_SECONDS).download_folder(folder)
    huggingface_hub.constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True

    class Model(HFLM):  # type: ignore[misc]  # Its types are those of an optional package.
        def _model_generate(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
            # Ranks of a divided model generate until all of them have ended.
            return super()._model_generate(*arguments, synced_gpus=bool(trainer.args.fsdp), **options)

    asked = Model(
        model,
        tokenizer=trainer.processing_class,
        batch_size=parameters.batch_size,
        max_length=usable_length(trainer),
        # It would join requests with the same prompt, so that ranks of a divided model compute differently often.
        logits_cache=not trainer.args.fsdp,
        softmax_dtype="float32",
    )
    if trainer.args.world_size > 1:  # It leaves the ranks to who passes a model that is loaded.
        asked._rank, asked._world_size = trainer.args.process_index, trainer.args.world_size
        asked.accelerator = trainer.accelerator
    with chdir(folder):
        tasks = TaskManager(include_path=str(folder), include_defaults=False)
        if unknown := sorted({*parameters.harness_tasks} - {*tasks.all_tasks}):
            raise ValueError(
                f"harness_tasks has {', '.join(unknown)}; {parameters.harness_folder} has "
                f"{', '.join(tasks.all_tasks) or 'no tasks'}"
            )
        # One after another: it would group the requests of all tasks by their options, in each rank for itself.
        results = [
            simple_evaluate(asked, tasks=[one], task_manager=tasks, log_samples=False)
            for one in parameters.harness_tasks
        ]
    scores, lower = dict[str, float](), list[str]()
    for found in filter(None, results):
        for task, values in found["results"].items():
            for key, value in values.items():
                metric, _, filtered = key.partition(",")
                if isinstance(value, int | float) and filtered:
                    name = f"{task}/{metric}" + f"/{filtered}" * (filtered != "none")
                    scores[name] = float(value)
                    if found["higher_is_better"].get(task, {}).get(metric) is False:
                        lower.append(name)
    return scores, lower
