"""The parameters of the built-in trainers: their types, defaults and meanings."""

from __future__ import annotations  # The type of a field is its text, as in the signature of a user's function.

from dataclasses import dataclass, field
from typing import ClassVar, Literal


@dataclass(frozen=True)
class TrainingParameters:
    """Parameters of every built-in trainer, the values of train_parameters.

    Attributes:
        epochs: Number of passes over all rows, including those of a checkpoint. None means 10, or as many as 400
            updates of batch_size rows need, up to 100. Default: None.
        batch_size: Rows in one update of the weights, over all ranks. With Keras every rank has the same number of
            rows, so an update may have fewer. With parameter servers, one worker computes an update. Default: 32.
        learning_rate: Learning rate of the Adam optimizer. Default: 0.001.
        hidden_units: Sizes of the hidden layers. Default: [128].
        seed: Seed of the initial weights and of the order of the rows. Default: 0.
        scale_learning_rate: Whether to multiply learning_rate by the number of ranks of one update. Default: false.
        class_weights: Weight of a row in the loss: "none" for 1, or "balanced" for rows / (classes * rows of its
            class), so that all classes count alike. Default: "none".
        keep: Epoch whose weights become the model: "last", or "best" for the best by metric. Default: "last".
        metric: Metric of an epoch by which it is the best, the highest accuracy or the lowest loss or rmse. "" is
            "val_loss". Default: "".
        patience: Number of consecutive epochs without a better metric after which the training ends. 0 trains all
            epochs. Default: 0.
        may_be_zero: Parameters that may be 0. All other numbers must be more than 0.
        below: Parameters that must be less than a number.
    """

    may_be_zero: ClassVar = ("seed", "patience")
    below: ClassVar[dict[str, int]] = {}

    epochs: int | None = None
    batch_size: int = 32
    learning_rate: float = 1e-3
    hidden_units: list[int] = field(default_factory=lambda: [128])
    seed: int = 0
    scale_learning_rate: bool = False
    class_weights: Literal["none", "balanced"] = "none"
    keep: Literal["last", "best"] = "last"
    metric: Literal["", "val_loss", "val_accuracy", "val_rmse", "loss", "accuracy", "rmse"] = ""
    patience: int = 0

    def rate(self, ranks: int) -> float:
        """Return the learning rate that is applied to an update of so many ranks."""
        return self.learning_rate * (ranks if self.scale_learning_rate else 1)
