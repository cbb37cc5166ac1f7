"""Spec of an MPIJob: v1 of the training operator or v2beta1 of the MPI operator. Pure.

The launcher starts processes in the workers by `kubectl exec` (v1) or SSH (v2beta1).
"""

from collections.abc import Sequence

from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.describe.manifests.code import after_copy
from kfp_distributed.components.train.describe.manifests.operator_limits import check_mpi_limits
from kfp_distributed.components.train.describe.manifests.pod import CONTAINERS, ENTRY, WORK, environment, pod_template
from kfp_distributed.components.train.describe.manifests.run_policy import run_policy, training_policy
from kfp_distributed.components.train.describe.mpirun import UNLESS_TRAINED, elastic_horovodrun, mpirun
from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.trainers.runtime.job_description import LOST_SECONDS_VARIABLE

_CONTAINER = CONTAINERS["MPIJob"]
# Each rank ends by itself when the train step is lost. There are no ranks before all workers run, and after the ranks
# have ended the operator would restart the launcher. Therefore this program watches the heartbeat in all pods, too.
WATCHED = ("python3", "-m", "kfp_distributed.trainers.runtime.launcher")
_SLEEP = ("sleep", "infinity")
_IDLE = (*WATCHED, "--idle")
# The launcher of v1 may start long before the workers, for example while they pull the image. It waits until it can
# reach all of them. After ten minutes it starts mpirun anyway, which then reports the error.
_WAIT_FOR_WORKERS = """\
trap 'exit 143' TERM
while read -r host _
do until /opt/kube/kubectl exec $host -c mpi -- true || [ $((n+=1)) -gt 600 ]; do sleep 1; done >/dev/null 2>&1 &
done </etc/mpi/hostfile
wait
exec "$@"
"""
# The operator mounts the keys with file modes that sshd refuses in strict mode.
_SSHD = ("/usr/sbin/sshd", "-De", "-o", "StrictModes=no")
# The host keys of the workers are new in each job. Passed on the command line, because the operator overwrites the
# environment variable of this setting.
SSH_ARGUMENTS = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectionAttempts=10"


def job_spec(job: TrainingJob, settings: ClusterSettings) -> Object:
    """Return the spec of an MPIJob of the version that the API server serves.

    Raises:
        ValueError: The training is elastic and the version is v2beta1.
    """
    spec, uses_ssh = job.specification, settings.mpi_version == "v2beta1"
    check_mpi_limits(spec, settings.mpi_version)
    mpi_spec: Object = {"slotsPerWorker": spec.slots_per_worker, "mpiReplicaSpecs": _replica_specs(job, settings)}
    if uses_ssh:
        return mpi_spec | {
            # The launcher is created after the workers run, so the pod group must not wait for it.
            "runPolicy": run_policy(job, spec.restart_limit, late=1),
            "launcherCreationPolicy": "WaitForWorkersReady",
            "mpiImplementation": "OpenMPI",
            "sshAuthMountPath": "/root/.ssh",
        }
    # A worker that is killed costs two restarts, its own and that of the launcher. This operator fails the job as soon
    # as it has counted backoffLimit restarts, without waiting for the last one.
    return mpi_spec | {"runPolicy": training_policy(job), "mainContainer": _CONTAINER}


def _replica_specs(job: TrainingJob, settings: ClusterSettings) -> Object:
    spec, uses_ssh = job.specification, settings.mpi_version == "v2beta1"
    launcher, worker = job.topology.replicas[:2]
    restart_policy = "OnFailure" if spec.restart_limit else "Never"
    return {
        "Launcher": {
            "replicas": 1,
            # The launcher of v2beta1 is a Job, which creates a new pod. So the log of the failed pod is kept.
            "restartPolicy": "Never" if uses_ssh else restart_policy,
            "template": pod_template(
                job,
                settings,
                _CONTAINER,
                launcher.resources,
                command=elastic_horovodrun(spec, after_copy(ENTRY)) if spec.min_workers else _mpirun(job, settings),
                trains=False,
                as_root=uses_ssh,
                calls_api=not uses_ssh,
            ),
        },
        "Worker": {
            "replicas": spec.number_of_workers,
            "restartPolicy": restart_policy,
            # sshd changes the user and the root folder of a session, which requires root and its capabilities.
            "template": pod_template(
                job,
                settings,
                _CONTAINER,
                worker.resources,
                command=_IDLE + (_SSHD if uses_ssh else _SLEEP),
                as_root=uses_ssh,
            ),
        },
    }


def _mpirun(job: TrainingJob, settings: ClusterSettings) -> list[str]:
    """Return the launcher's command: the entry program in each slot."""
    if settings.mpi_version == "v2beta1":
        return mpirun_by_ssh(job, settings, SSH_ARGUMENTS)
    command = _slots_command(job, settings, after_copy(ENTRY))
    return [*WATCHED, "python3", *UNLESS_TRAINED, "sh", "-c", _WAIT_FOR_WORKERS, "sh", *command]


def mpirun_by_ssh(job: TrainingJob, settings: ClusterSettings, ssh_arguments: str) -> list[str]:
    """Return the command of a launcher that reaches the workers by SSH. Their sshd starts after the check."""
    command = _slots_command(job, settings, ENTRY, "--mca", "plm_rsh_args", ssh_arguments)
    return [*WATCHED, "python3", *UNLESS_TRAINED, *command]


def _slots_command(job: TrainingJob, settings: ClusterSettings, program: Sequence[str], *options: str) -> list[str]:
    """Return the command that starts a program in each slot.

    Each rank gets the launcher's environment. The command only contains the names of the variables, not their values.
    Ranks do not read the heartbeat of the step. If they ended before the launcher has read it, it would fail, and be
    started again.
    """
    variables = [entry["name"] for entry in environment(job, settings) if entry["name"] != LOST_SECONDS_VARIABLE]
    names = ["PATH", "LD_LIBRARY_PATH", *variables]
    return mpirun(
        job.specification.ranks,
        program,
        *("--map-by", "slot"),
        # A pod cannot read the memory of another one. Without this option each attempt logs a warning.
        *("--mca", "btl_vader_single_copy_mechanism", "none"),
        # A rank that waits for others asks for messages all the time. This lets other processes of its node go first.
        *("--mca", "mpi_yield_when_idle", "1"),
        *options,
        *("--wdir", WORK),
        *(word for name in names for word in ("-x", name)),
    )
