"""The protocol of a runner, which runs the replicas of a job and yields facts about them."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.components.train.run.facts import Fact


class Runner(Protocol):
    """Runs the replicas of one job."""

    @property
    def shares_disk(self) -> bool:
        """Whether the replicas can access the disk of the process that starts them."""

    @property
    def namespace(self) -> str:
        """Namespace of the job; "" if there is no cluster."""

    @property
    def manifest(self) -> Mapping[str, Any]:
        """The job's object in the cluster, with references to secrets; {} if there is no cluster."""

    def check(self, job: TrainingJob) -> None:
        """Check that this runner can run a job. Nothing is started or written.

        Raises:
            ValueError: It cannot run the job.
        """

    def start(self, job: TrainingJob) -> None:
        """Start a checked job.

        Raises:
            ClusterError: The cluster refuses the job.
        """

    def adopt(self, job: TrainingJob) -> bool:
        """Adopt the job that an earlier attempt of this step has left, if it runs or has succeeded. Starts nothing.

        `stop` deletes what is left of the job in any case.

        Returns:
            Whether there is such a job, whose facts can be followed.

        Raises:
            ClusterError: The cluster refuses a request or does not answer.
            ValueError: The cluster does not serve the kind of the job.
        """

    def facts(self) -> Iterator[Fact]:
        """Yield facts as they happen, until the job has ended. A slow reader slows the replicas down."""

    def stop(self) -> None:
        """End all replicas and delete the objects and files of the job. It may be called at any time, and again."""
