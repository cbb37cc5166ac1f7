"""Ends the training of a built-in trainer that diverged: its loss or a weight became NaN or infinite."""

import math


def end_if_diverged(when: str, loss: float, are_finite: bool, learning_rate: float, values: str = "weights") -> None:
    """End a training whose loss or weights are NaN or infinite, before anything of the epoch or step is saved.

    Every rank calls it with the same values, so that all end at the same time and none waits for another.

    Args:
        when: When it was seen, such as "epoch 1", from 1.
        loss: Mean training loss then, over all ranks.
        are_finite: Whether every weight is a finite number.
        learning_rate: Learning rate of the optimizer.
        values: What are the numbers in the place of the weights. Default: "weights".

    Raises:
        SystemExit: The training diverged. The exit code is 1, which is not retried, because it would diverge again.
            Only torchrun restarts the ranks of an elastic training after it.
    """
    if math.isfinite(loss) and are_finite:
        return
    cause = f"the loss is {loss}" if not math.isfinite(loss) else f"the {values} are not finite"
    raise SystemExit(
        f"the training diverged in {when}: {cause}. No model is saved. Set a smaller learning_rate "
        f"(now {learning_rate:g}). If that does not help, look for missing, infinite or very large values in the "
        "training data, and fill or drop them before prepare_data."
    )
