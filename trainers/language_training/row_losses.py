"""The losses of the rows of a Trainer."""

from collections.abc import Sequence

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from kfp_distributed.trainers.language_training.objectives import Tuning


def row_losses(trainer: Tuning, model: PreTrainedModel, numbers: Sequence[int]) -> list[tuple[float, int]]:
    """Return the sum of the losses of the tokens of each row that count, and their number.

    Args:
        trainer: The Trainer that has prepared the rows.
        model: The model, in the mode of evaluation.
        numbers: Numbers of the rows in the prepared dataset, which are computed at once.
    """
    batch = trainer.data_collator([trainer.train_dataset[number] for number in numbers])
    labels = batch.pop("labels").to(model.device)[:, 1:]
    with torch.no_grad():
        logits = model(**{name: tensor.to(model.device) for name, tensor in batch.items()}).logits[:, :-1]
        # Row by row: with 32 bits, those of all rows may take more memory than the model.
        losses = [
            cross_entropy(row.float(), wanted, reduction="sum") for row, wanted in zip(logits, labels, strict=True)
        ]
    return list(zip(torch.stack(losses).tolist(), (labels >= 0).sum(dim=1).tolist(), strict=True))
