"""The job whose pods prepare data: what they are asked for, and its replicas (pure)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from kfp_distributed.components.step_packages import PREPARATION
from kfp_distributed.components.train.describe.distributions import parse_distribution
from kfp_distributed.components.train.describe.kinds import bytes_of
from kfp_distributed.components.train.describe.specification import DistributionSpecification
from kfp_distributed.components.train.describe.task_path import TaskPath
from kfp_distributed.components.train.describe.topology import Replica, plan_topology
from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.components.train.run.request import job_name, label_value
from kfp_distributed.storage.kfp_backend import RUNTIME_VARIABLE
from kfp_distributed.storage.uri import join_uri, uri_beside
from kfp_distributed.trainers.requirements import STOCK_IMAGE
from kfp_distributed.trainers.runtime.job_description import JobDescription

MODULE = "kfp_distributed.components.prepare_data.preparation_replica"
"""Module that each pod runs."""

# As in a step, whose image has kfp without its compiler.
_VARIABLES = {RUNTIME_VARIABLE: "true"}

LEAST_MEMORY = "512Mi"
"""Lowest worker_memory. Workers have needed up to 440 MB for sources of 10 GB, see benchmarks/large.md."""

_SET_BY_THE_STEP = {
    "distribution_type": "the workers of prepare_data are always pods of a Job",
    "number_of_workers": "the input workers sets their number",
    "worker_gpus": "prepare_data uses no GPUs",
    "tensorboard": "prepare_data writes no logs for TensorBoard",
}


@dataclass(frozen=True)
class PreparationRequest:
    """What the pods are asked for. All values are JSON.

    Attributes:
        source: Address of the data, or "digits".
        sources_of_splits: Addresses of the rows of "validation" or "test" alone.
        parameters: Parameters of the step as `parse_options` takes them, without those below.
        like: Address of the dataset whose columns are applied; "" for none.
        source_fingerprint: Fingerprint of the source; "" if it is unknown.
        uris: Address of the output artifact of each split.
        workers: Number of the workers, each of which is a pod beside that of the scheduler.
        folder: Address for the scratch and the results of the pods.
    """

    source: str
    sources_of_splits: Mapping[str, str]
    parameters: Mapping[str, Any]
    like: str
    source_fingerprint: str
    uris: Mapping[str, str]
    workers: int
    folder: str


def parse_worker_settings(entries: Mapping[str, object]) -> DistributionSpecification:
    """Return the settings of the pods.

    Args:
        entries: Keys of a `distribution_specification` of the type Job.

    Raises:
        ValueError: A key is unknown, has an invalid value, or is set by the step.
    """
    for key, reason in _SET_BY_THE_STEP.items():
        if key in entries:
            raise ValueError(f"distribution_specification: {key} = {entries[key]!r}: {reason}; remove it")
    settings = parse_distribution({"distribution_type": "Job", **entries})
    if settings.worker_memory and bytes_of(settings.worker_memory) < bytes_of(LEAST_MEMORY):
        raise ValueError(
            f"distribution_specification: worker_memory = {entries['worker_memory']!r} is too little for a worker of "
            f"prepare_data; set it to {LEAST_MEMORY} or more"
        )
    return settings


def preparation_folder(dataset_uri: str) -> str:
    """Return the address for what workers store until the datasets are complete, beside the outputs of the step.

    Args:
        dataset_uri: Address of the output `train_dataset`.
    """
    return uri_beside(dataset_uri, "preparation")


def plan_preparation(
    request: PreparationRequest,
    settings: DistributionSpecification,
    task_name: str,
    identity: tuple[str, ...],
    task_path: TaskPath = TaskPath(),  # noqa: B008 - immutable
    image: str = "",
) -> TrainingJob:
    """Return the job.

    Args:
        request: What its pods are asked for. The job gets a folder of its own below `folder`.
        settings: Their settings.
        task_name: Name of the task, which becomes part of the job's name.
        identity: ID of the pipeline run, followed by values that identify this step within the run.
        task_path: Position of the task in its pipeline. Default: the top level.
        image: Image of the step, which has all packages. Default: "", a stock image, where pip installs them.
    """
    name = job_name(task_name, identity, task_path)
    # Backends before KFP 2.4 have one folder for all iterations of a ParallelFor.
    request = replace(request, folder=join_uri(request.folder, name))
    one = plan_topology(settings)
    resources = one.replicas[0].resources
    scheduler = Replica("scheduler", 0, resources)
    workers = tuple(Replica("worker", index, resources) for index in range(request.workers))
    names = tuple(worker.name for worker in workers)
    topology = replace(
        one,
        replicas=(scheduler, *workers),
        leader=scheduler.name,
        data_replicas=names,
        restart_alone=frozenset({scheduler.name, *names}),
        optional=frozenset(names),
    )
    program = {"image": image} if image else {"image": STOCK_IMAGE, "packages": [*PREPARATION]}
    description = JobDescription(
        name=name,
        program=program,
        parameters=asdict(request),
        train_uri="",
        validation_uri="",
        model_uri="",
        checkpoint_uri="",
        metrics_uri=join_uri(request.folder, "notices"),
        leader=topology.leader,
        data_replicas=names,
        heartbeat_uri=join_uri(request.folder, "heartbeat"),
    )
    labels = {"run": label_value(identity[0]), "task": label_value(task_name)}
    labels |= {key: label_value(text) for key, text in task_path.labels.items()}
    return TrainingJob(name, topology, settings, description, module=MODULE, pod_variables=_VARIABLES, labels=labels)
