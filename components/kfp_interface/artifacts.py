"""Protocols of the KFP artifacts that the steps use. With them, the code of the steps need not import kfp."""

from typing import Any, Protocol


class Artifact(Protocol):
    """An input or output artifact of a step, such as `kfp.dsl.Dataset`."""

    @property
    def path(self) -> str:
        """Local file or folder of the artifact."""

    @property
    def uri(self) -> str:
        """Address of the artifact in the pipeline root."""

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata that KFP shows with the artifact. A step may add values to the metadata of an output."""


class MetricsArtifact(Artifact, Protocol):
    """`kfp.dsl.Metrics`."""

    def log_metric(self, metric: str, value: float) -> None:
        """Add a metric."""


class ClassificationMetricsArtifact(Artifact, Protocol):
    """`kfp.dsl.ClassificationMetrics`."""

    def log_confusion_matrix(self, categories: list[str], matrix: list[list[int]]) -> None:
        """Set the confusion matrix: rows by true class and predicted class."""

    def log_roc_curve(self, fpr: list[float], tpr: list[float], threshold: list[float]) -> None:
        """Set the ROC curve: false positive rate, true positive rate and threshold of each point."""
