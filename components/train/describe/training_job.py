"""A training job that is ready to run."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kfp_distributed.components.train.describe.specification import DistributionSpecification
from kfp_distributed.components.train.describe.topology import Topology
from kfp_distributed.trainers.runtime.job_description import JobDescription


@dataclass(frozen=True)
class TrainingJob:
    """A job that is ready to run.

    Attributes:
        name: Name of the job, a DNS-1035 label of at most 43 characters.
        topology: Replicas of the job.
        specification: Restart limit, time budgets and settings of the cluster.
        description: Description of the job for its replicas.
        argv: Command of each replica of a local job; () for the entry program.
        module: Module that the pods of a Job run with `python -m`. Default: "", the entry program.
        environment: Environment variables that are added to those of each local replica.
        pod_variables: Environment variables of the pods. Default: none.
        labels: Values of the labels "run" and "task", which identify the job for users, and those of `TaskPath.labels`.
            Valid as Kubernetes labels.
        warnings: Remarks about the request, for the log.
        notes: Lines about the job for the log that are no warnings.
    """

    name: str
    topology: Topology
    specification: DistributionSpecification
    description: JobDescription
    argv: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    module: str = ""
    pod_variables: Mapping[str, str] = field(default_factory=dict)
