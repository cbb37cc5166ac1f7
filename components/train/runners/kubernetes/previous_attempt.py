"""What the previous attempt of a train step has left in the cluster."""

import time

from kfp_distributed.components.train.log_format import log
from kfp_distributed.components.train.manifests import JOB_LABEL
from kfp_distributed.components.train.runners.kubernetes.cluster_api import ClusterApi
from kfp_distributed.components.train.runners.protocol import ClusterError

PODS_GONE_SECONDS = 120.0
"""How long the pods of a deleted job may take to end: their grace period of 30 s, and a kubelet that is busy."""


def await_pods_gone(api: ClusterApi, job_name: str) -> None:
    """Waits until the pods of a deleted job are gone.

    At SIGTERM they store what they have kept in their checkpoint folder. The next job starts from that checkpoint, and
    its pods have the same names.

    Args:
        api: The cluster, and the job's namespace in it.
        job_name: Name of the job.

    Raises:
        ClusterError: Pods stay, as on a node that is lost; the text has the command that removes them.
    """
    path, query = f"/api/v1/namespaces/{api.namespace}/pods", {"labelSelector": f"{JOB_LABEL}={job_name}"}
    started = time.monotonic()
    announced = False
    while pods := api.call("GET", path, query=query)["items"]:
        names = " ".join(sorted(pod["metadata"]["name"] for pod in pods))
        if not announced:
            log("INFO", f"waiting for the pods of the previous attempt to end: {names}")
            announced = True
        if time.monotonic() - started > PODS_GONE_SECONDS:
            raise ClusterError(
                409,
                f"the pods of the deleted job {job_name} have not ended within {PODS_GONE_SECONDS:g} s: {names}. "
                f"If their node is lost: kubectl delete pods {names} --force -n {api.namespace}",
            )
        time.sleep(0.5)
