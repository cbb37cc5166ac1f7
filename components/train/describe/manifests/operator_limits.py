"""Refuse a `distribution_specification` with a key that the operator of its job cannot honor. Pure."""

from kfp_distributed.components.train.describe.manifests.cluster_settings import MpiVersion
from kfp_distributed.components.train.describe.specification import DistributionSpecification
from kfp_distributed.components.train.describe.topology import plan_topology


def check_trainer_limits(spec: DistributionSpecification) -> None:
    """Check that Kubeflow Trainer can run a job.

    Args:
        spec: Specification of a TF, PyTorch or MPI job.

    Raises:
        ValueError: It cannot. The message names the key.
    """
    if spec.distribution_type == "MPI" and spec.min_workers:
        # The launcher of an elastic job starts new ranks by `kubectl exec`, as only MPIJob v1 does.
        raise ValueError(
            f"min_workers = {spec.min_workers}: elastic training requires MPIJob v1 of the training operator, but a "
            "TrainJob of Kubeflow Trainer has a fixed number of workers; remove min_workers and max_workers"
        )
    if spec.max_workers and spec.max_workers > spec.number_of_workers:
        raise ValueError(
            f"max_workers = {spec.max_workers} is more than number_of_workers, {spec.number_of_workers}: a TrainJob of "
            "Kubeflow Trainer cannot get more workers while it runs; set number_of_workers to "
            f"{spec.max_workers}, or max_workers to {spec.number_of_workers}"
        )
    if spec.gang_scheduling:
        _check_trainer_gang(spec)


def _check_trainer_gang(spec: DistributionSpecification) -> None:
    if not spec.scheduler_name:
        raise ValueError(
            "gang_scheduling = true: Kubeflow Trainer does not name the gang scheduler; set scheduler_name to "
            '"volcano", or to the name of a scheduler with the coscheduling plugin'
        )
    if spec.distribution_type == "MPI":
        raise ValueError(
            "gang_scheduling = true: the launcher of an MPI job of Kubeflow Trainer is created when the workers run, "
            "but their gang includes it; remove gang_scheduling"
        )
    if spec.min_workers and spec.min_workers < spec.number_of_workers:
        raise ValueError(
            f"gang_scheduling = true: the gang of a TrainJob has all {len(plan_topology(spec).replicas)} replicas, but "
            f"min_workers = {spec.min_workers} allows fewer; remove gang_scheduling, or set min_workers to "
            f"{spec.number_of_workers}"
        )


def check_mpi_limits(spec: DistributionSpecification, version: MpiVersion | None) -> None:
    """Check that MPIJob can run a job.

    Args:
        spec: Specification of an MPI job.
        version: Version of MPIJob that the API server serves. None counts as v1.

    Raises:
        ValueError: The training is elastic and the version is v2beta1.
    """
    if version == "v2beta1" and spec.min_workers:
        raise ValueError(
            f"min_workers = {spec.min_workers}: elastic training requires MPIJob v1 of the training operator, but this "
            "cluster serves v2beta1; remove min_workers and max_workers"
        )
