"""Experiment tracking of a `train` step. Without MLFLOW_TRACKING_URI, no client is imported and no request is sent."""

from collections.abc import Mapping

from kfp_distributed.components.train.run.facts import Log
from kfp_distributed.components.train.tell.experiment_tracker import ExperimentTracker


def choose_tracker(variables: Mapping[str, str], log: Log, parent: str = "") -> ExperimentTracker:
    """Return the tracker that the environment configures.

    Args:
        variables: Environment variables of the step.
        log: Prints a line of the step's log. Its arguments are the level and the text. A thread calls it.
        parent: Name of the search whose trial is tracked, in a run below that of the search. Default: "", none.
    """
    if not variables.get("MLFLOW_TRACKING_URI"):
        return ExperimentTracker()
    from kfp_distributed.components.train.tell.mlflow_tracker import MlflowTracker

    return MlflowTracker(variables, log, parent)
