"""The step `evaluate` as Kubeflow Pipelines sees it."""

from typing import NamedTuple

from kfp import dsl


def evaluate(
    model: dsl.Input[dsl.Model],
    dataset: dsl.Input[dsl.Dataset],
    metrics: dsl.Output[dsl.Metrics],
    classification_metrics: dsl.Output[dsl.ClassificationMetrics],
    report: dsl.Output[dsl.HTML],
    allow_training_rows: bool = False,
) -> NamedTuple("Scores", [("accuracy", float), ("loss", float)]):  # type: ignore[valid-type]
    """Evaluates a classifier on a prepared dataset.

    Args:
        model: Model of `train`, as a SavedModel or an ONNX model that returns a probability for each class. The
            signature "serving_default" of a SavedModel is used.
        dataset: Dataset of `prepare_data` that the model was not trained with, usually test_dataset. The training
            dataset and other splits of the same source are refused.
        allow_training_rows: Whether to score a dataset with rows that trained the model. The scores then do not say how
            the model performs on new rows. Default: False.

    Returns:
        metrics: Accuracy, loss, number of examples, macro F1, ROC AUC, average precision, expected calibration error,
            and precision and recall of each class.
        classification_metrics: Confusion matrix of up to 100 classes, and a ROC curve: of two classes that of the
            second one, else the micro-average over the classes.
        report: HTML page with the scores, the confusion matrix, ROC and precision-recall curves, the calibration and
            the worst mistakes.
        accuracy: Fraction of the rows whose most probable class is the true one, from 0 to 1.
        loss: Mean cross-entropy over all rows, in nats.

    Raises:
        SystemExit: The model cannot be evaluated. The message is the last line of the step's log, because KFP shows an
            error nowhere else.
    """
    parameters = dict(locals())
    from kfp_distributed.components.evaluate.step import run_step

    return run_step(**parameters)
