"""Checks of the datasets of a training, by their manifests (pure)."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from kfp_distributed.storage.alignment import align
from kfp_distributed.storage.dataset import DatasetManifest, width
from kfp_distributed.storage.provenance import find_contamination, training_data
from kfp_distributed.trainers.epochs.best_epoch import choose_epoch
from kfp_distributed.trainers.language_rows import are_preferences, check_language_rows
from kfp_distributed.trainers.programs.program import LANGUAGE_MODEL, OF_TEXTS, parameters_name
from kfp_distributed.trainers.programs.training_parameters import TrainingParameters
from kfp_distributed.trainers.runtime.data_loading.target import weights_of_classes


def check_datasets(train: DatasetManifest, validation: DatasetManifest | None, ranks: int) -> list[str]:
    """Check that the datasets of a training fit together and have a row for each rank.

    Args:
        train: Manifest of the training data.
        validation: Manifest of the validation data, whose columns may be in another order; None without such data.
        ranks: Number of ranks that read training rows.

    Returns:
        Warnings, a line each.

    Raises:
        ValueError: There are too few rows, or the tasks, the columns, their types or vocabularies, or the classes
            differ.
    """
    if train.rows < ranks:
        raise ValueError(
            f"train_dataset: {train.rows} rows are too few for {ranks} ranks that read it; use fewer workers"
        )
    if validation:
        try:
            align(validation, [asdict(column) for column in train.columns], asdict(train.label))
        except ValueError as error:
            raise ValueError(
                f"validation_dataset does not fit train_dataset: {error}. Pass splits of one run of prepare_data"
            ) from None
    warnings = []
    if validation and (reason := find_contamination(validation, [training_data(train)])):
        warnings.append(
            f"validation_dataset: {reason}. The validation metrics then do not say how the model performs on new rows: "
            "pass splits of one run of prepare_data"
        )
    if not train.shuffled:
        warnings.append(
            "train_dataset was written by an earlier version of prepare_data: its shards keep parts of the source's "
            "order. If the source was sorted, by class or time, the training may be much worse: run prepare_data again"
        )
    return warnings


def check_choice(
    parameters: Mapping[str, Any], trainer: str, train: DatasetManifest, validation: DatasetManifest | None
) -> None:
    """Check that the datasets have what the choice of an epoch needs.

    Args:
        parameters: Checked parameters of a built-in trainer.
        trainer: Its name.
        train: Manifest of the training data.
        validation: Manifest of the validation data; None without such data.

    Raises:
        ValueError: The task has no such metric, no epochs are compared by it, or it needs validation rows and there are
            none.
    """
    try:
        choose_epoch(TrainingParameters(**parameters), train.label.task, validation is not None and validation.rows > 0)
    except ValueError as error:
        raise ValueError(f"train_parameters of {trainer}: {error}") from None


def check_trainable(
    train: DatasetManifest, trainer: str, parameters: Mapping[str, Any], validation: DatasetManifest | None = None
) -> None:
    """Check that a built-in trainer can learn from a dataset.

    Args:
        train: Manifest of the training data.
        trainer: Name of the trainer.
        parameters: Its checked parameters.
        validation: Manifest of the validation data, of which only rows for language models are checked. Default: None,
            without such data.

    Raises:
        ValueError: The dataset has no label, or a column without a form as numbers, or no classes to be weighted. For
            `language_model`, it has no rows for language models, not those of the objective, or not the tokens whose
            loss is to count.
    """
    if trainer in OF_TEXTS:
        own = "train_dataset" if trainer == LANGUAGE_MODEL else "dataset"
        for name, manifest in ((own, train), ("validation_dataset", validation)):
            try:
                if manifest:
                    check_language_rows(manifest)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        if trainer == LANGUAGE_MODEL:
            _check_objective(train, parameters.get("objective", "sft"))
        _check_loss_on(train, trainer, parameters.get("loss_on", "auto"))
        return
    if train.label.task == "none":
        raise ValueError(
            f'train_dataset: the dataset has no label, because it was prepared with the task "none", and {trainer} '
            "needs one: train with a function of your own, which reads the Parquet shards, or run prepare_data with a "
            "label_column"
        )
    try:
        width(train)
    except ValueError as error:
        raise ValueError(f"train_dataset: {trainer} takes numbers, categories and tensors; {error}") from None
    try:
        weights_of_classes(train, parameters.get("class_weights", "none"))
    except ValueError as error:
        raise ValueError(f"train_parameters of {trainer}: {error}") from None


def _check_objective(train: DatasetManifest, objective: str) -> None:
    if (objective == "dpo") == are_preferences(train):
        return
    names = ", ".join(sorted(column.name for column in train.columns))
    text = (
        f'train_parameters of {LANGUAGE_MODEL}: objective is "{objective}", and train_dataset has the columns {names}'
    )
    if objective == "dpo":
        raise ValueError(
            f'{text}, which are no preferences: set objective to "sft", or run prepare_data with a source that has '
            "chosen and rejected answers, and with the columns of other forms, such as messages, in drop_columns"
        )
    raise ValueError(
        f'{text}, which are preferences: set objective to "dpo", or run prepare_data with a source that has prompt and '
        "completion, or messages"
    )


def _check_loss_on(rows: DatasetManifest, program: str, loss_on: str) -> None:
    names = {column.name for column in rows.columns}
    has_messages = bool({"messages", "conversations"} & names)
    has_completions = are_preferences(rows) or (
        not has_messages and ({"prompt", "completion"} <= names or {"instruction", "output"} <= names)
    )
    allowed = ["auto", *["completion"] * has_completions, *["assistant"] * has_messages, "all"]
    if loss_on not in allowed:
        raise ValueError(
            f"{parameters_name(program)}: loss_on is {loss_on!r}, and the dataset has the columns "
            f"{', '.join(sorted(names))}; allowed for them: {', '.join(allowed)}"
        )
