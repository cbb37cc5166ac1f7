"""The job of the pods of a step: what they are asked for, and its replicas (pure)."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from kfp_distributed.components.train.describe.distributions import parse_distribution
from kfp_distributed.components.train.describe.specification import DistributionSpecification
from kfp_distributed.components.train.describe.task_path import TaskPath
from kfp_distributed.components.train.describe.topology import Replica, plan_topology
from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.components.train.describe.value_kinds import bytes_of
from kfp_distributed.components.train.run.training_request.request import job_name, label_value
from kfp_distributed.storage.kubeflow.kfp_backend import RUNTIME_VARIABLE
from kfp_distributed.storage.uri import join_uri
from kfp_distributed.trainers.programs.requirements import STOCK_IMAGE
from kfp_distributed.trainers.runtime.job_description import JobDescription

# As in a step, whose image has kfp without its compiler.
_VARIABLES = {RUNTIME_VARIABLE: "true"}

SET_BY_THE_STEP = {
    "distribution_type": "the workers are always pods of a Job",
    "worker_gpus": "the step uses no GPUs",
    "worker_gpu_memory": "the step uses no GPUs",
    "tensorboard": "the step writes no logs for TensorBoard",
}
"""Keys of a `distribution_specification` that the workers of a step do not have, with the reason."""


@dataclass(frozen=True)
class WorkerRequest:
    """What the pods are asked for. All values are JSON.

    Attributes:
        workers: Number of the workers, each of which is a pod beside that of the scheduler.
        folder: Address for the scratch and the results of the pods.
    """

    workers: int
    folder: str


@dataclass(frozen=True)
class WorkerProgram:
    """What each pod runs.

    Attributes:
        module: Name of the module, which is run with `python -m`.
        packages: Requirements that pip installs in a stock image, beside those of every replica.
        image: Image of the step, which has all packages; "" for a stock image.
    """

    module: str
    packages: Sequence[str]
    image: str = ""


def parse_worker_settings(entries: Mapping[str, object], least_memory: str = "") -> DistributionSpecification:
    """Return the settings of the pods.

    Args:
        entries: Keys of a `distribution_specification` of the type Job.
        least_memory: Lowest worker_memory, such as "512Mi". Default: "", any.

    Raises:
        ValueError: A key is unknown, has an invalid value, or is set by the step.
    """
    for key, reason in SET_BY_THE_STEP.items():
        if key in entries:
            raise ValueError(f"distribution_specification: {key} = {entries[key]!r}: {reason}; remove it")
    settings = parse_distribution({"distribution_type": "Job", **entries})
    if least_memory and settings.worker_memory and bytes_of(settings.worker_memory) < bytes_of(least_memory):
        raise ValueError(
            f"distribution_specification: worker_memory = {entries['worker_memory']!r} is too little for a worker of "
            f"this step; set it to {least_memory} or more"
        )
    return settings


def plan_worker_job(
    request: WorkerRequest,
    program: WorkerProgram,
    settings: DistributionSpecification,
    task_name: str,
    identity: tuple[str, ...],
    task_path: TaskPath = TaskPath(),  # noqa: B008 - immutable
) -> TrainingJob:
    """Return the job.

    Args:
        request: What its pods are asked for. The job gets a folder of its own below `folder`.
        program: What they run.
        settings: Their settings.
        task_name: Name of the task, which becomes part of the job's name.
        identity: ID of the pipeline run, followed by values that identify this step within the run.
        task_path: Position of the task in its pipeline. Default: the top level.
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
    image = {"image": program.image} if program.image else {"image": STOCK_IMAGE, "packages": [*program.packages]}
    description = JobDescription(
        name=name,
        program=image,
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
    return TrainingJob(
        name, topology, settings, description, module=program.module, pod_variables=_VARIABLES, labels=labels
    )
