"""The step `evaluate` as Kubeflow Pipelines sees it."""

from typing import NamedTuple

from kfp import dsl


def evaluate(
    model: dsl.Input[dsl.Model],
    dataset: dsl.Input[dsl.Dataset],
    metrics: dsl.Output[dsl.Metrics],
    classification_metrics: dsl.Output[dsl.ClassificationMetrics],
    report: dsl.Output[dsl.HTML],
) -> NamedTuple("Scores", [("accuracy", float), ("loss", float)]):  # type: ignore[valid-type]
    """Evaluates a classifier on a prepared dataset.

    Args:
        model: SavedModel whose signature "serving_default" turns "features" into "probabilities", or an ONNX model that
            does.
        dataset: A split that prepare_data made; best one that the training has not seen.
        metrics: Accuracy, loss, and precision and recall of each class.
        classification_metrics: Confusion matrix.
        report: The same as a page, with the first mistakes.

    Returns:
        accuracy: Share of rows whose most probable class is the true one.
        loss: Mean cross-entropy.

    Raises:
        SystemExit: With the cause as its text, which so ends the step's log; KFP shows it nowhere else.
    """
    parameters = dict(locals())
    from kfp_distributed.components.evaluate.step import run_step

    return run_step(**parameters)
