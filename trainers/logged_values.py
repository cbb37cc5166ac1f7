"""What the Trainer of transformers logs -> metrics of steps, and how much of its GPUs a training uses. Pure."""

import math
import re
from collections.abc import Mapping, Sequence

PEAK_TFLOPS = (
    ("B200", 2250.0),
    ("H200", 989.0),
    ("H100 PCIe", 756.0),
    ("H100 NVL", 835.0),
    ("H100", 989.0),
    ("A100", 312.0),
    ("L40S", 362.0),
    ("L4", 121.0),
    ("A10G", 70.0),
    ("A10", 125.0),
    ("V100", 125.0),
    ("T4", 65.0),
)
"""Peak of the matrix units of a GPU for dense 16-bit numbers, in 10^12 operations per second, by words of its name. The
numbers are from the data sheets of NVIDIA. The first words that fit count."""

_LEFT_OUT = re.compile(
    "epoch|step|total_flos|train_loss|num_input_tokens_seen|(eval_)?num_tokens"
    "|(train|eval.*)_(runtime|(samples|steps|tokens)_per_second|model_preparation_time)"
)
"""Names that are no metrics: numbers of the step, counters, the loss of the whole training, and durations and speeds,
also those of an evaluation of one of several datasets."""


def step_values(logs: Mapping[str, object]) -> dict[str, float]:
    """Return the metrics of a log of the Trainer, without what is no number or what `StoredMetrics` leaves out.

    Metrics of an evaluation have "val_" in place of "eval_".
    """
    return {
        re.sub("^eval_", "val_", name): float(value)
        for name, value in logs.items()
        if isinstance(value, int | float) and not _LEFT_OUT.fullmatch(name)
    }


def counted_tokens(history: Sequence[Mapping[str, object]]) -> int:
    """Return the tokens that were trained on before a restart, by the logs so far, in which `StoredMetrics` notes them.

    Trainers of trl count them as "num_tokens", and begin anew after each restart.
    """
    counts = [tokens for logs in history if isinstance(tokens := logs.get("tokens"), int | float)]
    return int(counts[-1]) if counts else 0


def utilization(flos: float, trained: float, seconds: float, gpus: int, gpu: str) -> float | None:
    """Return which fraction of the peak of its GPUs a training has used; None if the peak is not known.

    Args:
        flos: Operations that the Trainer has counted: 6 for each parameter and token, as if all were trained.
        trained: Fraction of the parameters that are trained, from 0 to 1. A parameter that is not needs 4 operations:
            its gradient is not computed.
        seconds: Seconds in which they were computed.
        gpus: Number of GPUs.
        gpu: Name of the GPUs, such as "NVIDIA H100 80GB HBM3".
    """
    words = f" {gpu.replace('-', ' ')} "
    peak = next((peak for name, peak in PEAK_TFLOPS if f" {name} " in words), math.nan)
    if math.isnan(peak) or seconds <= 0 or not flos:
        return None
    return flos * (4 + 2 * min(1.0, trained)) / 6 / (seconds * gpus * peak * 1e12)
