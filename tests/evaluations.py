"""The scores of a model, without the artifacts of KFP."""

from kfp_distributed.components.evaluate.evaluation import read_dataset, score_model


def evaluate_model(model, dataset, allow_training_rows=False):
    """Return the evaluation of a model on every row of a dataset, and the HTML report."""
    return score_model(model, dataset, read_dataset(dataset), allow_training_rows)
