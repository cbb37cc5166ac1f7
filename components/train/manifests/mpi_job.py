"""MPIJob: v1 of the training operator, v2beta1 of the MPI operator. Pure.

Of v1 the launcher reaches the workers by `kubectl exec`, of v2beta1 by SSH.
"""

from kfp_distributed.components.train.job import TrainingJob
from kfp_distributed.components.train.manifests.cluster_settings import ClusterSettings, Object
from kfp_distributed.components.train.manifests.pod import ENTRY, WORK, environment, pod_template
from kfp_distributed.components.train.manifests.run_policy import run_policy
from kfp_distributed.components.train.mpirun import elastic_horovodrun, mpirun

_CONTAINER = "mpi"
# Ranks end when the train step is lost. But there are none before all workers run, and after them a launcher would be
# started again.
_WATCHED = ("python3", "-m", "kfp_distributed.trainers.runtime.launcher")
_SLEEP = ("sleep", "infinity")
_IDLE = (*_WATCHED, "--idle")
# Of v1 the launcher may run long before the workers do, as where an image is pulled. After ten minutes mpirun says what
# there is to say.
_REACH = """\
trap 'exit 143' TERM
while read -r host _
do until /opt/kube/kubectl exec $host -c mpi -- true || [ $((n+=1)) -gt 600 ]; do sleep 1; done >/dev/null 2>&1 &
done </etc/mpi/hostfile
wait
exec "$@"
"""
# The operator mounts the keys with modes that sshd would refuse.
_SSHD = ("/usr/sbin/sshd", "-De", "-o", "StrictModes=no")
# The workers' keys are new with each job. On the command line, for the operator sets the variable of this name.
_SSH_ARGUMENTS = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectionAttempts=10"


def job_spec(job: TrainingJob, settings: ClusterSettings) -> Object:
    """The spec of an MPIJob of the version that the API server has.

    Raises:
        ValueError: The training is elastic, and the version is v2beta1.
    """
    spec, by_ssh = job.specification, settings.mpi_version == "v2beta1"
    if by_ssh and spec.min_workers:
        raise ValueError(
            f"min_workers = {spec.min_workers}: elastic training takes MPIJob v1, of the training operator, and this "
            "cluster has v2beta1; remove min_workers and max_workers"
        )
    mpi_spec: Object = {"slotsPerWorker": spec.slots_per_worker, "mpiReplicaSpecs": _roles(job, settings)}
    if by_ssh:
        return mpi_spec | {
            # A group that the launcher counts in would wait for it, and the launcher for the workers.
            "runPolicy": run_policy(job, spec.restart_limit, late=1),
            "launcherCreationPolicy": "WaitForWorkersReady",
            "mpiImplementation": "OpenMPI",
            "sshAuthMountPath": "/root/.ssh",
        }
    # This operator ends the job when it counts as many, before the last start has come to anything.
    return mpi_spec | {"runPolicy": run_policy(job, spec.restart_limit + 1), "mainContainer": _CONTAINER}


def _roles(job: TrainingJob, settings: ClusterSettings) -> Object:
    spec, by_ssh = job.specification, settings.mpi_version == "v2beta1"
    launcher, worker = job.topology.replicas[:2]
    restart_policy = "OnFailure" if spec.restart_limit else "Never"
    return {
        "Launcher": {
            "replicas": 1,
            # Under v2beta1 it is the pod of a Job, which makes another one, and so keeps the log of the first.
            "restartPolicy": "Never" if by_ssh else restart_policy,
            "template": pod_template(
                job,
                settings,
                _CONTAINER,
                launcher.resources,
                command=elastic_horovodrun(spec, ENTRY) if spec.min_workers else _mpirun(job, settings),
                trains=False,
                as_root=by_ssh,
                calls_api=not by_ssh,
            ),
        },
        "Worker": {
            "replicas": spec.number_of_workers,
            "restartPolicy": restart_policy,
            # sshd opens a session as another user and in a root of its own: that takes root and its capabilities.
            "template": pod_template(
                job,
                settings,
                _CONTAINER,
                worker.resources,
                command=_IDLE + (_SSHD if by_ssh else _SLEEP),
                as_root=by_ssh,
            ),
        },
    }


def _mpirun(job: TrainingJob, settings: ClusterSettings) -> list[str]:
    """The launcher's command: the entry program in each slot, with the launcher's environment, named and not shown."""
    names = ["PATH", "LD_LIBRARY_PATH", *(each["name"] for each in environment(job, settings))]
    spec, by_ssh = job.specification, settings.mpi_version == "v2beta1"
    command = mpirun(
        spec.ranks,
        ENTRY,
        *("--map-by", "slot"),
        # A pod may not read its neighbour's memory: each try is a line in the log.
        *("--mca", "btl_vader_single_copy_mechanism", "none"),
        *(("--mca", "plm_rsh_args", _SSH_ARGUMENTS) if by_ssh else ()),
        *("--wdir", WORK),
        *(word for name in names for word in ("-x", name)),
    )
    return [*_WATCHED, *command] if by_ssh else [*_WATCHED, "sh", "-c", _REACH, "sh", *command]
