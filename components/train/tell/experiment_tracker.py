"""The interface of experiment tracking."""

from typing import Literal

from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.components.train.run.stored_metrics import Metrics

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]


class ExperimentTracker:
    """Receives the start and the results of a training. This class ignores them; a subclass sends them to a server.

    No method raises an exception, and only `finish` waits for a server.

    Attributes:
        run_id: ID of the server's run that the training is logged to; "" if there is none.
    """

    run_id: str = ""

    def start(self, job: TrainingJob) -> None:
        """Begin to track a job that has started."""

    def finish(self, status: RunStatus, metrics: Metrics, report: str = "", report_uri: str = "") -> None:
        """Complete the run. Only the first call counts.

        Args:
            status: How the training ended.
            metrics: Epochs of each replica that recorded any.
            report: HTML page of the report. Default: none.
            report_uri: Address of the report. Default: none.
        """
