"""Experiment tracking of a `train` step. Without MLFLOW_TRACKING_URI, no client is imported and no request is sent."""

from collections.abc import Mapping

from kfp_distributed.components.train.tracker import Log, Tracker


def open_tracker(variables: Mapping[str, str], log: Log) -> Tracker:
    """Return the tracker that the environment configures.

    Args:
        variables: Environment variables of the step.
        log: Prints a line of the step's log. Its arguments are the level and the text. A thread calls it.
    """
    if not variables.get("MLFLOW_TRACKING_URI"):
        return Tracker()
    from kfp_distributed.components.train.mlflow_tracker import MlflowTracker

    return MlflowTracker(variables, log)
