"""What a fine-tuning optimizes, by trl: the answers of its rows, or the preference of one answer to another."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray
from transformers import TrainingArguments
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from kfp_distributed.trainers.language_training.tuning_updates import TuningUpdates
from kfp_distributed.trainers.programs.language_parameters import LanguageModelParameters


class Tuning(TuningUpdates):
    """The Trainer of an objective.

    Attributes:
        configuration: Class of its arguments.
        without_effect: Why a row has no effect, before the number of tokens.
        dropout_of_config: Values of the configuration that are 0 during the training.
    """

    configuration: ClassVar[type[TrainingArguments]]
    without_effect: ClassVar[str]
    dropout_of_config: Mapping[str, float]

    @staticmethod
    @abstractmethod
    def options(parameters: LanguageModelParameters) -> dict[str, Any]:
        """Return the arguments that other objectives do not have."""

    @abstractmethod
    def sequences(self, dataset: Dataset) -> Iterable[tuple[list[int], ...]]:
        """Yield the sequences of tokens that are computed for each row of a prepared dataset."""

    @abstractmethod
    def count_effective(self, dataset: Dataset) -> int:
        """Return how many rows of a prepared dataset have an effect."""


class SupervisedTuning(Tuning, SFTTrainer):  # type: ignore[misc]  # Its types are those of an optional package.
    """Supervised fine-tuning."""

    configuration = SFTConfig
    without_effect = "no token whose loss counts is"

    @staticmethod
    def options(parameters: LanguageModelParameters) -> dict[str, Any]:
        """Return the tokens whose loss counts, and how rows become sequences."""
        return {
            "packing": parameters.packing,
            "assistant_only_loss": parameters.loss_on == "assistant",
            "completion_only_loss": {"completion": True, "all": False}.get(parameters.loss_on),
        }

    def sequences(self, dataset: Dataset) -> Iterator[tuple[list[int]]]:
        """Yield a sequence for each row, or for packed ones."""
        return ((tokens,) for tokens in dataset["input_ids"])

    def count_effective(self, dataset: Dataset) -> int:
        """Return how many rows have a token that counts. The first one of a row does not."""
        rows: Iterable[NDArray[np.int64]] = map(np.array, dataset["labels"])
        if "seq_lengths" in dataset.column_names:
            packed = zip(rows, dataset["seq_lengths"], strict=True)
            rows = (row for labels, lengths in packed for row in np.split(labels, np.cumsum(lengths)[:-1]))
        return sum(bool((row[1:] >= 0).any()) for row in rows)


class PreferenceTuning(Tuning, DPOTrainer):  # type: ignore[misc]  # Its types are those of an optional package.
    """Direct preference optimization. The reference is the model without its adapter, else another base model."""

    configuration = DPOConfig
    without_effect = "no token in which chosen and rejected differ is"

    @staticmethod
    def options(parameters: LanguageModelParameters) -> dict[str, Any]:
        """Return the weight of the reference."""
        return {"beta": parameters.beta}

    def sequences(self, dataset: Dataset) -> Iterator[tuple[list[int], list[int]]]:
        """Yield the prompt with each answer. Rows whose prompt fills them are not in the dataset."""
        answers = zip(dataset["prompt_ids"], dataset["chosen_ids"], dataset["rejected_ids"], strict=True)
        longest = self.args.max_length
        return (((prompt + chosen)[:longest], (prompt + rejected)[:longest]) for prompt, chosen, rejected in answers)

    def count_effective(self, dataset: Dataset) -> int:
        """Return how many rows have answers that differ."""
        return sum(chosen != rejected for chosen, rejected in self.sequences(dataset))


OBJECTIVES: Mapping[str, type[Tuning]] = {"sft": SupervisedTuning, "dpo": PreferenceTuning}
"""The Trainer of each objective."""
