"""Scores of tasks of lm-evaluation-harness, whose definitions and data are in one folder."""

from collections.abc import Iterator
from contextlib import chdir, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import huggingface_hub
from transformers import PreTrainedModel

from kfp_distributed.storage.opener import open_store
from kfp_distributed.trainers.language_training.objectives import Tuning
from kfp_distributed.trainers.language_training.tokenizer_checks import usable_length
from kfp_distributed.trainers.programs.base_model import is_in_store
from kfp_distributed.trainers.programs.evaluation_parameters import LanguageEvaluationParameters
from kfp_distributed.trainers.runtime.job_description import STORE_SECONDS


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Let the code of the block run in a folder, without the Hugging Face Hub."""
    kept = huggingface_hub.constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    huggingface_hub.constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        with chdir(folder):
            yield
    finally:
        huggingface_hub.constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = kept


class HarnessTasks(NamedTuple):
    """Tasks that can be scored.

    Attributes:
        folder: Folder with their definitions and data.
        loaded: Objects of lm_eval for each of harness_tasks: a task, a group, or the tasks of a tag.
    """

    folder: Path
    loaded: list[list[Any]]


def load_tasks(parameters: LanguageEvaluationParameters, ranks: int) -> HarnessTasks:
    """Fetch and load the tasks of an evaluation, before its model is fetched. Nothing but the folder is downloaded.

    Args:
        parameters: The parameters.
        ranks: Number of ranks.

    Raises:
        ValueError: The library or the folder is missing, or the folder has no such task, or one that cannot be loaded
            or that the ranks cannot share.
        StorageError: The folder cannot be fetched.
    """
    address = parameters.harness_folder
    if not is_in_store(address) and not Path(address).is_dir():
        raise ValueError(f"harness_folder is {address!r}, and the replica has no such folder: set the full path of one")
    if not find_spec("lm_eval"):
        raise ValueError(
            "harness_tasks is set, and the image has no lm_eval: install it in the image, by pip install --no-deps "
            "lm_eval==0.4.13 sacrebleu portalocker colorama tabulate lxml"
        )
    from lm_eval.tasks import TaskManager

    folder = Path(address)
    if is_in_store(address):
        folder = Path("harness").absolute()
        open_store(address, retry_seconds=STORE_SECONDS).download_folder(folder)
    with _alone_in(folder):
        manager = TaskManager(include_path=str(folder), include_defaults=False)
        # The ranks of a divided model compute equally often only if a task is alone: the harness groups the requests of
        # all tasks by their options, in each rank for itself.
        known = manager.all_subtasks if parameters.sharding == "fsdp" else manager.all_tasks
        if unknown := sorted({*parameters.harness_tasks} - {*known}):
            groups = "; name the tasks of a group one by one if the model is divided" * (known != manager.all_tasks)
            raise ValueError(
                f"harness_tasks has {', '.join(unknown)}; {address} has {', '.join(known) or 'no tasks'}{groups}"
            )
        loaded = list[list[Any]]()
        for name in parameters.harness_tasks:
            found = _load(manager, name, folder)
            loaded.append([found["groups"][name]] if name in found["groups"] else [*found["tasks"].values()])
            for task in found["tasks"].values():
                if len(task.eval_docs) < ranks:
                    raise ValueError(
                        f"the task {task.task_name} in harness_tasks has {len(task.eval_docs)} samples for {ranks} "
                        "ranks: use fewer workers, or a task with more samples"
                    )
    return HarnessTasks(folder, loaded)


def _load(manager: Any, name: str, folder: Path) -> dict[str, Any]:  # noqa: ANN401  (of an optional package)
    try:
        return manager.load(name)  # type: ignore[no-any-return]
    except Exception as error:
        files = (path for path in sorted(folder.rglob("*")) if path.suffix != ".py" and path.is_file())
        empty = ", ".join(str(path.relative_to(folder)) for path in files if not path.stat().st_size)
        raise ValueError(
            f"{name} in harness_tasks cannot be loaded: {error.__cause__ or error!r}"
            + f"; these files are empty: {empty}" * bool(empty)
        ) from error


def harness_scores(
    parameters: LanguageEvaluationParameters, tasks: HarnessTasks, trainer: Tuning, model: PreTrainedModel
) -> tuple[dict[str, float], list[str]]:
    """Return the scores of tasks as TASK/METRIC, and the names of those of which low ones are good.

    The ranks share the samples of the tasks. Other ranks than rank 0 return ({}, []). The prompts have no chat
    template, as by default in the harness. Standard errors are left out.

    Args:
        parameters: The parameters.
        tasks: Their tasks.
        trainer: The Trainer.
        model: Its model, in the mode of evaluation.
    """
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

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
    with _alone_in(tasks.folder):
        # The task manager is not used, and would search the tasks of the package.
        manager = TaskManager(include_defaults=False)
        results = [simple_evaluate(asked, tasks=one, task_manager=manager, log_samples=False) for one in tasks.loaded]
    scores, lower = dict[str, float](), list[str]()
    for found in filter(None, results):
        for task, values in found["results"].items():
            for key, value in values.items():
                metric, _, filtered = key.partition(",")
                if isinstance(value, int | float) and filtered and not metric.endswith("_stderr"):
                    name = f"{task}/{metric}" + f"/{filtered}" * (filtered != "none")
                    scores[name] = float(value)
                    if found["higher_is_better"].get(task, {}).get(metric) is False:
                        lower.append(name)
    return scores, lower
