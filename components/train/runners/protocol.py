"""What a runner is: it runs the replicas of a job somewhere and yields what happens to them as a stream of facts."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from kfp_distributed.components.train.job import Fact, TrainingJob


class ClusterError(Exception):
    """The API server refused a request, or did not answer.

    Attributes:
        status: HTTP status; 0 where there was no answer.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Runner(Protocol):
    """Where and how the replicas of one job run.

    Attributes:
        shares_disk: Whether the replicas see the disk of the process that starts them.
        manifest: What the job looks like to a cluster, with secrets as references; {} where there is none.
    """

    @property
    def shares_disk(self) -> bool:
        """See above."""

    @property
    def manifest(self) -> Mapping[str, Any]:
        """See above."""

    def check(self, job: TrainingJob) -> None:
        """Looks whether it can run such a job; starts and writes nothing.

        Raises:
            ValueError: It cannot.
        """

    def start(self, job: TrainingJob) -> None:
        """Begins with the job.

        Raises:
            ClusterError: A cluster refuses it.
        """

    def facts(self) -> Iterator[Fact]:
        """Tells what happens, while it happens, until the job has ended. A slow reader slows the replicas down."""

    def stop(self) -> None:
        """Ends what still runs and removes what the job left. May be called at any time, and again."""
