"""Wait for the pods that the previous attempt of a train step has left in the cluster."""

import time

from kfp_distributed.components.train.log_format import log
from kfp_distributed.components.train.manifests import JOB_LABEL
from kfp_distributed.components.train.runners.kubernetes.cluster_api import ClusterApi
from kfp_distributed.components.train.runners.protocol import ClusterError

PODS_GONE_SECONDS = 120.0
"""Maximum seconds until the pods of a deleted job have ended: a grace period of 30 s, and time for a busy kubelet."""


def await_pods_gone(api: ClusterApi, job_name: str) -> None:
    """Wait until the pods of a deleted job have ended.

    At SIGTERM they upload the checkpoint folder. The next job resumes from that checkpoint, and its pods have the same
    names.

    Args:
        api: The cluster with the namespace of the job.
        job_name: Name of the job.

    Raises:
        ClusterError: Pods do not end, for example because their node is lost. The message has the command that deletes
            them.
    """
    path, query = f"/api/v1/namespaces/{api.namespace}/pods", {"labelSelector": f"{JOB_LABEL}={job_name}"}
    started = time.monotonic()
    is_logged = False
    while pods := api.call("GET", path, query=query)["items"]:
        names = " ".join(sorted(pod["metadata"]["name"] for pod in pods))
        if not is_logged:
            log("INFO", f"waiting for pods of the previous attempt to end: {names}")
            is_logged = True
        if time.monotonic() - started > PODS_GONE_SECONDS:
            raise ClusterError(
                409,
                f"pods of the deleted job {job_name} have not ended within {PODS_GONE_SECONDS:g} s: {names}; "
                f"if their node is lost: kubectl delete pods {names} --force -n {api.namespace}",
            )
        time.sleep(0.5)
