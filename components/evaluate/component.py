"""The step `evaluate` as Kubeflow Pipelines sees it."""

from typing import NamedTuple, Optional

from kfp import dsl


def evaluate(
    model: dsl.Input[dsl.Model],
    dataset: dsl.Input[dsl.Dataset],
    metrics: dsl.Output[dsl.Metrics],
    classification_metrics: dsl.Output[dsl.ClassificationMetrics],
    report: dsl.Output[dsl.HTML],
    metric: str = "",
    bound: Optional[float] = None,  # noqa: UP045  (kfp does not accept float | None)
    allow_training_rows: bool = False,
) -> NamedTuple("Verdict", [("score", float), ("is_good_enough", bool)]):  # type: ignore[valid-type]
    """Evaluates a model on a prepared dataset: a classifier, or a model that predicts a number (regression).

    Args:
        model: Folder of a model that returns a probability for each class, or one number for regression: a SavedModel
            with the signature "serving_default", model.onnx, model.keras, model.pt of TorchScript or model.pt2 of
            torch.export. It may be of `train`, of dsl.importer or of another step.
        dataset: Dataset of `prepare_data` that the model was not trained with, usually test_dataset. The training
            dataset and other splits of the same source are refused. It must have a label.
        metric: Name of the metric that `score` has and `bound` limits. Allowed for classification: "accuracy",
            "macro_f1", "roc_auc", "average_precision", "loss", "calibration_error", "precision_CLASS" and
            "recall_CLASS" of a class. Allowed for regression: "r2", "mae" and "rmse". Example: "macro_f1".
            Default: empty, which means "accuracy" for classification and "r2" for regression.
        bound: Value that `score` must reach for `is_good_enough`. It is the highest good value of "loss",
            "calibration_error", "mae" and "rmse", and the lowest good value of every other metric. Example: 0.9.
            Default: none, which means that every value is good enough.
        allow_training_rows: Whether to score a dataset with rows that trained the model. The scores then do not say how
            the model performs on new rows. Default: False.

    Returns:
        metrics: For classification accuracy, loss, number of examples, macro F1, ROC AUC, average precision, expected
            calibration error, and precision and recall of each class, of up to 100 classes. For regression MAE, RMSE,
            R² and number of examples.
        classification_metrics: Confusion matrix of up to 100 classes, and a ROC curve: of two classes that of the
            second one, else the micro-average over the classes. Empty for regression.
        report: HTML page with the scores. For classification also the confusion matrix, ROC and precision-recall
            curves, the calibration and the worst mistakes. For regression also the scores of predicting the training
            mean, the predictions, the residuals and the largest errors. For both the inputs and outputs of the model.
        score: Value of the metric `metric`.
        is_good_enough: Whether `score` reaches `bound`.

    Raises:
        SystemExit: The model cannot be evaluated. The message is the last line of the step's log, because KFP shows an
            error nowhere else.
    """
    parameters = dict(locals())
    from kfp_distributed.components.evaluate.step import run_step

    return run_step(**parameters)
