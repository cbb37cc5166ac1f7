"""Wait for the pods that the previous attempt of a train step has left in the cluster."""

from kfp_distributed.cluster_api.client import ClusterApi, ClusterError
from kfp_distributed.components.train.describe.manifests import JOB_LABEL
from kfp_distributed.components.train.run.facts import Log
from kfp_distributed.components.train.run.runners.kubernetes.create.gone_objects import until_gone

BUSY_SECONDS = 90.0
"""Seconds that a busy kubelet may need to end a pod, in addition to the grace period of the pod."""


def pods_gone_seconds(grace_seconds: float) -> float:
    """Return the maximum seconds until the pods of a deleted job have ended.

    Args:
        grace_seconds: Grace period of the pods.
    """
    return grace_seconds + BUSY_SECONDS


def await_pods_gone(api: ClusterApi, job_name: str, grace_seconds: float, log: Log) -> None:
    """Wait until the pods of a deleted job have ended.

    At SIGTERM they upload the checkpoint folder. The next job resumes from that checkpoint, and its pods have the same
    names.

    Args:
        api: The cluster with the namespace of the job.
        job_name: Name of the job.
        grace_seconds: Grace period of its pods.
        log: Receives a line of the step's log.

    Raises:
        ClusterError: Pods do not end, for example because their node is lost. The message has the command that deletes
            them.
    """
    path, query = f"/api/v1/namespaces/{api.namespace}/pods", {"labelSelector": f"{JOB_LABEL}={job_name}"}
    limit, first_names, names = pods_gone_seconds(grace_seconds), "", ""
    for pods in until_gone(api, path, query, limit):
        names = " ".join(sorted(pod["metadata"]["name"] for pod in pods.values()))
        if not first_names and names:
            first_names = names
            log("INFO", f"waiting for pods of the previous attempt to end: {names}")
    if names:
        raise ClusterError(
            409,
            f"pods of the deleted job {job_name} have not ended within {limit:g} s: {names}; "
            f"if their node is lost: kubectl delete pods {names} --force -n {api.namespace}",
        )
