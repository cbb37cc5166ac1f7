"""Deploy a version on this machine: the local run that the step belongs to serves it."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kfp_distributed.components.deploy_model.deployment_request import DeploymentRequest

SERVERS_VARIABLE = "KFP_DISTRIBUTED_MODEL_SERVERS"
"""Variable with the path of the Unix socket on which `local_run` takes requests for model servers."""

_ADVICE = (
    "runner='local' needs a local_run, whose process serves the model until it ends: call the pipeline inside "
    "`with local_run(...)`, or run `kfp-distributed serve {uri}` by hand, or set KUBECONFIG and runner='kubernetes' "
    "to deploy with KServe"
)


_SOCKET_BYTES = 103
"""Most bytes of the path of a Unix socket on macOS. Linux allows 107."""


class NotServed(Exception):
    """The local run does not serve a version. The message has the reason."""


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """Yield an address of a Unix socket that may be used while the context lasts.

    On Linux, a path that is too long for a socket is replaced by one that begins at an open folder.

    Args:
        path: Path of the socket.

    Raises:
        OSError: The folder does not exist.
    """
    open_folders = Path("/proc/self/fd")
    if len(os.fsencode(path)) <= _SOCKET_BYTES or not open_folders.is_dir():
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"{open_folders}/{folder}/{path.name}"
    finally:
        os.close(folder)


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


def deploy_locally(request: DeploymentRequest, uri: str, python: str = "") -> str:
    """Let the local run serve a version, and return the address of the server when it answers.

    The local run ends a server that does not answer yet if this process ends.

    Args:
        request: What to deploy. Only the name and the timeout matter on this machine.
        uri: Address of the version.
        python: Path of the Python that serves it. Default: "", that of the local run.

    Raises:
        ValueError: This process belongs to no local run, or to one that has ended or takes no requests.
        NotServed: The server has ended, or does not answer within the timeout.
    """
    path = os.environ.get(SERVERS_VARIABLE, "")
    if not path:
        raise ValueError(_ADVICE.format(uri=uri))
    body = {"name": request.name, "uri": uri, "timeout_seconds": request.timeout_seconds, "python": python}
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            with socket_address(Path(path)) as address:
                connection.connect(address)
        except OSError as error:
            raise ValueError(
                f"the local_run does not answer at {path} ({error}): it has ended, or the path is too long for a "
                "socket. Start it again, with TMPDIR set to a folder with a shorter path"
            ) from None
        connection.sendall(json.dumps(body).encode() + b"\n")
        line = connection.makefile("rb").readline()
    answer = json.loads(line or '{"error": "the local_run has ended"}')
    if "error" in answer:
        raise NotServed(answer["error"])
    return str(answer["url"])
