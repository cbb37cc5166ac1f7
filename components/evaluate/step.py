"""Between KFP's artifacts and the evaluation: what an `evaluate` step reads and writes."""

from typing import Any

from kfp_distributed.components.evaluate.evaluation import run_evaluation
from kfp_distributed.storage.model import ModelIncomplete


def run_step(
    *,
    model: Any,  # noqa: ANN401  (kfp's artifacts, which this module must not import)
    dataset: Any,  # noqa: ANN401
    metrics: Any,  # noqa: ANN401
    classification_metrics: Any,  # noqa: ANN401
    report: Any,  # noqa: ANN401
) -> tuple[float, float]:
    """Evaluate a model and return accuracy and loss; the parameters are those of the component.

    Raises:
        SystemExit: The model cannot be evaluated. The text ends the step's log, which is all that KFP shows of a
            failure.
    """
    try:
        scores = run_evaluation(model.path, dataset.path, metrics, classification_metrics, report.path)
    except (ValueError, OSError, ModelIncomplete) as error:
        raise SystemExit(f"\n{type(error).__name__}: {error}") from None
    return scores.accuracy, scores.loss
