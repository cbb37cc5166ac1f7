"""Deploy a version on this machine: the local run that the step belongs to serves it."""

import json
import os
import socket

from kfp_distributed.components.deploy_model.deployment_request import DeploymentRequest

SERVERS_VARIABLE = "KFP_DISTRIBUTED_MODEL_SERVERS"
"""Variable with the path of the Unix socket on which `local_run` takes requests for model servers."""

_ADVICE = (
    "runner='local' needs a local_run, whose process serves the model until it ends: call the pipeline inside "
    "`with local_run(...)`, or run `kfp-distributed serve {uri}` by hand, or set KUBECONFIG and runner='kubernetes' "
    "to deploy with KServe"
)


class NotServed(Exception):
    """The local run does not serve a version. The message has the reason."""


def check_local(request: DeploymentRequest) -> None:
    """Check the parameters that a model server on this machine does not have.

    Raises:
        ValueError: A canary is requested.
    """
    if request.canary_percent != 100:
        raise ValueError(
            f"canary_percent={request.canary_percent} is not allowed with runner='local': a model server on this "
            "machine gets all requests, give 100"
        )


def deploy_locally(request: DeploymentRequest, uri: str) -> str:
    """Let the local run serve a version, and return the address of the server when it answers.

    The local run ends a server that does not answer yet if this process ends.

    Args:
        request: What to deploy. Only the name and the timeout matter on this machine.
        uri: Address of the version.

    Raises:
        ValueError: This process belongs to no local run.
        NotServed: The server has ended, or does not answer within the timeout.
    """
    path = os.environ.get(SERVERS_VARIABLE, "")
    body = {"name": request.name, "uri": uri, "timeout_seconds": request.timeout_seconds}
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
        except OSError:
            raise ValueError(_ADVICE.format(uri=uri)) from None
        connection.sendall(json.dumps(body).encode() + b"\n")
        line = connection.makefile("rb").readline()
    answer = json.loads(line or '{"error": "the local_run has ended"}')
    if "error" in answer:
        raise NotServed(answer["error"])
    return str(answer["url"])
