"""Read trainings from Kubernetes objects, for the commands `jobs`, `watch`, `logs` and `cancel`. Pure."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.train.describe.distributions import parse_distribution
from kfp_distributed.components.train.describe.durations import format_seconds
from kfp_distributed.components.train.describe.manifests import JOB_LABEL, JobKind
from kfp_distributed.components.train.describe.manifests.job_objects import JobObjects
from kfp_distributed.components.train.describe.manifests.train_job import DISTRIBUTION_ANNOTATION, TRAIN_JOB
from kfp_distributed.components.train.describe.task_path import format_task
from kfp_distributed.components.train.describe.topology import plan_topology
from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.components.train.run.runners.kubernetes.cluster_records.pods import (
    is_suspended,
    job_end,
    pod_state,
)
from kfp_distributed.trainers.runtime.job_description import JobDescription

_MOST_ADVANCED = {
    "running": "running",
    "succeeded": "running",
    "starting": "starting",
    "installing": "installing",
    "pulling": "pulling",
    "failed": "starting",
}
"""State of the most advanced pod of a job -> state of the job, most advanced first."""

_ELASTIC_LAUNCHER = "kfp_distributed.trainers.runtime.horovodrun"
"""Module that the launcher of an elastic MPI job runs. Its arguments are WORKERS MIN MAX SLOTS COMMAND."""


@dataclass(frozen=True)
class ClusterJob:
    """A training in a cluster.

    Attributes:
        kind: Kind of its object.
        manifest: Its object.
    """

    kind: JobKind
    manifest: Object

    @property
    def name(self) -> str:
        """Name of the job."""
        return str(self.manifest["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Namespace of the job."""
        return str(self.manifest["metadata"]["namespace"])

    @property
    def title(self) -> str:
        """Kind, namespace and name, such as "TFJob team-a/train-1"."""
        return f"{self.kind.kind} {self.namespace}/{self.name}"


class JobRow(NamedTuple):
    """A row of the table of jobs. The fields are its columns."""

    name: str
    type: str
    state: str
    replicas: str
    age: str
    task: str
    run: str


def job_rows(jobs: Iterable[ClusterJob], pods: Iterable[Object] | None, now: datetime) -> list[JobRow]:
    """Return the rows of jobs.

    Args:
        jobs: The jobs.
        pods: Pods of all jobs of the namespace; None if they could not be listed.
        now: Current time.
    """
    # The states are counted first, because a search for the pods of each job would take jobs times pods.
    states: dict[str, Counter[str]] = defaultdict(Counter)
    for pod in pods or ():
        states[pod["metadata"].get("labels", {}).get(JOB_LABEL, "")][pod_state(pod).state] += 1
    return [_job_row(job, None if pods is None else states[job.name], now) for job in jobs]


def _job_row(job: ClusterJob, known_states: Counter[str] | None, now: datetime) -> JobRow:
    """Return the row of a job with the number of its pods in each state; None if they could not be listed."""
    states = known_states or Counter[str]()
    total = _number_of_replicas(job)
    metadata = job.manifest["metadata"]
    created = datetime.strptime(metadata["creationTimestamp"], "%Y-%m-%dT%H:%M:%S%z")
    return JobRow(
        job.name,
        job.kind.kind,
        _state(job, states),
        str(total) if known_states is None else f"{states['running'] + states['succeeded']}/{total}",
        format_seconds(max(0, round((now.astimezone(UTC) - created).total_seconds()))),
        format_task(labels := _labels(job)),
        labels.get("run", ""),
    )


def _labels(job: ClusterJob) -> dict[str, str]:
    """Return the labels of `TrainingJob.labels` that a job has."""
    labels = job.manifest["metadata"].get("labels", {})
    names = ("run", "task", "sub-pipeline", "iteration")
    return {name: labels[f"kfp-distributed/{name}"] for name in names if f"kfp-distributed/{name}" in labels}


def _state(job: ClusterJob, states: Counter[str]) -> str:
    """Return the state of a job: that of its most advanced replica, unless it has ended or is not admitted."""
    if "deletionTimestamp" in job.manifest["metadata"]:
        return "deleting"
    if end := job_end(job.manifest):
        return "succeeded" if end[0] else "failed"
    if is_suspended(job.manifest):
        return "queued"
    return next((shown for state, shown in _MOST_ADVANCED.items() if states[state]), "waiting")


def read_distribution(job: ClusterJob) -> dict[str, Any]:
    """Return the distribution_specification of a job, as far as its object has it: replicas and restarts."""
    spec = job.manifest["spec"]
    if job.kind == TRAIN_JOB:
        return _annotated_distribution(job)
    backoff_limit = spec.get("runPolicy", spec).get("backoffLimit") or 0
    if job.kind.kind == "TFJob":
        counts = _counts(spec["tfReplicaSpecs"])
        return {
            "distribution_type": "TF",
            "number_of_workers": counts["Worker"],
            "number_of_parameter_servers": counts["PS"],
            "evaluator": bool(counts["Evaluator"]),
            # See training_policy in manifests/run_policy.py.
            "restart_limit": max(0, backoff_limit // counts.total() - 1),
        }
    if job.kind.kind == "PyTorchJob":
        counts, elastic = _counts(spec["pytorchReplicaSpecs"]), spec.get("elasticPolicy")
        replicas = counts.total()
        limits = [elastic.get(f"{key}Replicas", replicas) - 1 for key in ("min", "max")] if elastic else []
        return {
            "distribution_type": "PyTorch",
            **_workers(counts["Worker"], limits),
            "slots_per_worker": int(spec.get("nprocPerNode") or 1),
            "restart_limit": max(0, backoff_limit // counts.total() - 1),
        }
    if job.kind.kind == "MPIJob":
        counts, is_v1 = _counts(spec["mpiReplicaSpecs"]), job.kind.version == "v1"
        return {
            "distribution_type": "MPI",
            **_workers(
                counts["Worker"],
                _limits(spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]),
            ),
            "slots_per_worker": spec.get("slotsPerWorker") or 1,
            # See job_spec in manifests/mpi_job.py.
            "restart_limit": max(0, backoff_limit // counts.total() - 1) if is_v1 else backoff_limit,
        }
    return {"restart_limit": backoff_limit}


def objects_of(job: ClusterJob) -> JobObjects:
    """Return a job for `Follower`. Only the fields that it reads are set."""
    specification = parse_distribution(read_distribution(job))
    topology = plan_topology(specification)
    description = JobDescription(job.name, {}, {}, "", "", "", "", "", topology.leader, topology.data_replicas)
    labels = _labels(job)
    is_labelled = {"run", "task"} <= labels.keys()
    training = TrainingJob(job.name, topology, specification, description, labels=labels if is_labelled else {})
    return JobObjects(training, job.kind, job.namespace, dict(job.manifest), (), ())


def grace_seconds(job: ClusterJob) -> float:
    """Return the grace period of the pods of a job in seconds."""
    spec = job.manifest["spec"]
    if job.kind == TRAIN_JOB:
        return float(parse_distribution(_annotated_distribution(job)).termination_grace_seconds)
    roles = next((value.values() for key, value in spec.items() if key.endswith("ReplicaSpecs")), [spec])
    # The default of Kubernetes is 30.
    return max(float(role["template"]["spec"].get("terminationGracePeriodSeconds") or 30) for role in roles)


def _annotated_distribution(job: ClusterJob) -> dict[str, Any]:
    """Return the distribution_specification in the annotation of a TrainJob.

    Returns:
        That of one worker, if somebody has removed the annotation or written another text.
    """
    text = job.manifest["metadata"].get("annotations", {}).get(DISTRIBUTION_ANNOTATION, "")
    try:
        distribution: dict[str, Any] | None = json.loads(text)
        parse_distribution(distribution)
    except ValueError:
        distribution = None
    return distribution or {"distribution_type": "TF", "number_of_workers": 1, "number_of_parameter_servers": 0}


def _number_of_replicas(job: ClusterJob) -> int:
    if job.kind == TRAIN_JOB:
        return len(plan_topology(parse_distribution(_annotated_distribution(job))).replicas)
    return _counts(_replica_specs(job)).total() or 1


def _replica_specs(job: ClusterJob) -> Mapping[str, Object]:
    """Return the replicas of a job by role; none for a batch Job, which has one."""
    name = {"TFJob": "tfReplicaSpecs", "PyTorchJob": "pytorchReplicaSpecs", "MPIJob": "mpiReplicaSpecs"}
    specs: Mapping[str, Object] = job.manifest["spec"].get(name.get(job.kind.kind, ""), {})
    return specs


def _counts(replica_specs: Mapping[str, Object]) -> Counter[str]:
    return Counter({role: spec.get("replicas", 1) for role, spec in replica_specs.items()})


def _workers(workers: int, limits: Sequence[int]) -> dict[str, int]:
    """Return the number of workers and its limits, if the job is elastic.

    Anyone who may change the job can set a number outside of the limits. The operator creates as many, so the limits
    are widened.
    """
    if not limits:
        return {"number_of_workers": workers}
    workers = max(1, workers)
    fewest, most = limits
    return {
        "number_of_workers": workers,
        "min_workers": max(1, min(fewest, workers)),
        "max_workers": max(most, workers),
    }


def _limits(launcher: Object) -> list[int]:
    """Return the fewest and the most workers of an elastic MPI job; an empty list for another job."""
    words = list(launcher.get("command") or ())
    if _ELASTIC_LAUNCHER not in words:
        return []
    return [int(word) for word in words[words.index(_ELASTIC_LAUNCHER) + 1 :][1:3]]
