"""Runs the step `evaluate` on the artifacts of KFP."""

from kfp_distributed.components.evaluate.evaluation import run_evaluation
from kfp_distributed.components.kfp_interface.artifacts import Artifact, ClassificationMetricsArtifact, MetricsArtifact
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.model import ModelIncomplete


def run_step(
    *,
    model: Artifact,
    dataset: Artifact,
    metrics: MetricsArtifact,
    classification_metrics: ClassificationMetricsArtifact,
    report: Artifact,
    metric: str,
    bound: float | None,
    allow_training_rows: bool,
) -> tuple[float, bool]:
    """Evaluate a model and return score and is_good_enough; the parameters are those of the component.

    Raises:
        SystemExit: The model cannot be evaluated. The message is the last line of the step's log, because KFP shows an
            error nowhere else.
    """
    try:
        return run_evaluation(
            model.path, dataset.path, metrics, classification_metrics, report.path, metric, bound, allow_training_rows
        )
    except (ValueError, OSError, StorageError, ModelIncomplete) as error:
        raise SystemExit(f"\n{type(error).__name__}: {error}") from None
