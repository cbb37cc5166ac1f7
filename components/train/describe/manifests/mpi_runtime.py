"""TrainingRuntime of an MPI job for Kubeflow Trainer 2.3: the policy mpi with OpenMPI. Pure.

The launcher does not train: runLauncherAsNode is false, and the ranks are in the replicatedJob "node", one pod for each
worker. Trainer makes the SSH keys and the hostfile. All pods run as an ordinary user: sshd listens on a port above
1024, and takes the job's key as its host key. So the pods comply with the Pod Security Standard "restricted".
"""

from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.describe.manifests.code import CHECKED, JOB_KEY
from kfp_distributed.components.train.describe.manifests.mpi_job import SSH_ARGUMENTS, WATCHED, mpirun_by_ssh
from kfp_distributed.components.train.describe.manifests.replicated_job import (
    jobset_spec,
    replica_variable,
    replicated_job,
)
from kfp_distributed.components.train.describe.manifests.train_job_names import NODE
from kfp_distributed.components.train.describe.training_job import TrainingJob

_LAUNCHER = "launcher"
_KEYS = "/kfp-distributed/ssh"
"""Mount path of the SSH keys: id_rsa, id_rsa.pub and authorized_keys."""

_PORT = 2222

_CHECK_SECONDS = 300
"""Seconds until the kubelet ends a node that has not checked its code. The check takes less than a second."""

_SSHD = (
    # Without the configuration of the image, whose host keys and port may require root.
    *("/usr/sbin/sshd", "-De", "-f", "/dev/null", "-p", str(_PORT), "-h", f"{_KEYS}/id_rsa"),
    # The files belong to root and to the group of the pod, which sshd refuses in strict mode.
    *("-o", f"AuthorizedKeysFile={_KEYS}/authorized_keys", "-o", "StrictModes=no", "-o", "PidFile=none"),
)
_SSH = f"-p {_PORT} -i {_KEYS}/id_rsa -o IdentitiesOnly=yes {SSH_ARGUMENTS}"


def runtime_spec(job: TrainingJob, settings: ClusterSettings) -> Object:
    """Return the spec of the TrainingRuntime, without the metadata of its JobSet."""
    launcher, *workers = job.topology.replicas
    sshd = (*WATCHED, "--idle", *_SSHD)
    nodes = replicated_job(job, settings, NODE, workers, replica_variable("worker"), command=sshd)
    # The launcher is created when the nodes are ready: when all have checked their code, and start sshd. A probe of its
    # port would add lines to the log.
    container = nodes["template"]["spec"]["template"]["spec"]["containers"][0]
    is_checked = {"command": ["test", "-e", f"{CHECKED}/{JOB_KEY}"]}
    container["startupProbe"] = {"exec": is_checked, "periodSeconds": 1, "failureThreshold": _CHECK_SECONDS}
    command = mpirun_by_ssh(job, settings, _SSH)
    launchers = replicated_job(
        job, settings, _LAUNCHER, [launcher], replica_variable(_LAUNCHER), command=command, trains=False
    )
    launchers["dependsOn"] = [{"name": NODE, "status": "Ready"}]
    policy = {
        "numProcPerNode": job.specification.slots_per_worker,
        "mpiImplementation": "OpenMPI",
        "sshAuthMountPath": _KEYS,
        "runLauncherAsNode": False,
    }
    return {
        # The launcher is the replicatedJob with the label of the trainer, so this is the number of launchers.
        "mlPolicy": {"numNodes": 1, "mpi": policy},
        "template": {"spec": jobset_spec(job, [nodes, launchers], _LAUNCHER)},
    }


def trainer(job: TrainingJob) -> Object:
    """Return spec.trainer of the TrainJob: the number of workers, and the ranks in each."""
    spec = job.specification
    return {"numNodes": spec.number_of_workers, "numProcPerNode": spec.slots_per_worker}
