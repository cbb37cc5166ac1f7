"""Forwards a port of this machine to a Service of a cluster, through its API server, as `kubectl port-forward` does."""

import re
import selectors
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import TYPE_CHECKING

from kfp_distributed.cluster_api.client import ClusterApi, ClusterError
from kfp_distributed.cluster_api.objects import Object

if TYPE_CHECKING:
    from kubernetes.stream.ws_client import PortForward

AWAY_SECONDS = 5.0
"""Seconds to wait for an API server that does not answer. Somebody is waiting for the command."""


@contextmanager
def forwarded_port(api: ClusterApi, namespace: str, service: str, port: int) -> Iterator[int]:
    """Listen on a free port of 127.0.0.1 in the block, and connect who connects there with a pod of a Service.

    Args:
        api: The cluster.
        namespace: Namespace of the Service.
        service: Name of the Service.
        port: Port of the Service.

    Yields:
        The port of this machine.

    Raises:
        ClusterError: The Service, its port or a ready pod is missing, the account may not forward ports, or the API
            server does not answer.
    """
    core = f"/api/v1/namespaces/{namespace}"
    found = api.read(f"{core}/services/{service}", AWAY_SECONDS)
    if found is None:
        raise ClusterError(404, f"there is no Service {namespace}/{service}")
    selector = ",".join(f"{key}={value}" for key, value in (found["spec"].get("selector") or {}).items())
    # Without a selector, the pods of the Service are not known, and may be outside of the cluster.
    pods = api.list_objects(f"{core}/pods", {"labelSelector": selector}, AWAY_SECONDS).items if selector else []
    pod, pod_port = choose_pod(found, pods, port)

    def connect() -> "PortForward":
        return _connect(api, namespace, pod, pod_port)

    # A refusal is an error here, not one of each connection.
    _try(connect)
    with _Server(connect, pod_port) as server, _quiet_threads():
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            server.close_connections()


def choose_pod(service: Object, pods: Sequence[Object], port: int) -> tuple[str, int]:
    """Return the name of a ready pod of a Service, and the port of the pod behind a port of the Service.

    Args:
        service: The Service.
        pods: The pods that its selector names.
        port: Port of the Service.

    Raises:
        ClusterError: The Service has no such port, or no pod is ready.
    """
    title = f"Service {service['metadata']['namespace']}/{service['metadata']['name']}"
    entry = next((entry for entry in service["spec"].get("ports") or () if entry["port"] == port), None)
    if entry is None:
        raise ClusterError(404, f"{title} has no port {port}")
    pod = next((pod for pod in pods if _is_ready(pod)), None)
    if pod is None:
        raise ClusterError(404, f"{title} has no ready pod")
    # Who connects to a Service without an address of its own connects to the pod, whose ports nobody maps.
    target = port if service["spec"].get("clusterIP") == "None" else entry.get("targetPort") or port
    names = {
        item.get("name"): item["containerPort"]
        for container in pod["spec"]["containers"]
        for item in container.get("ports") or ()
    }
    number = target if isinstance(target, int) else names.get(target)
    if number is None:
        raise ClusterError(404, f"pod {pod['metadata']['name']} of {title} has no port named {target!r}")
    return pod["metadata"]["name"], number


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    is_ready = any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)
    return is_ready and "deletionTimestamp" not in pod["metadata"]


def _try(connect: Callable[[], "PortForward"]) -> None:
    """Connect once, in a thread, because the client waits without a limit for an answer to its handshake.

    Raises:
        ClusterError: The API server refuses it or does not answer.
    """
    errors: list[ClusterError] = []
    is_done = threading.Event()

    def run() -> None:
        try:
            connect().close()
        except ClusterError as error:
            errors.append(error)
        is_done.set()

    threading.Thread(target=run, daemon=True).start()
    if not is_done.wait(AWAY_SECONDS):
        raise ClusterError(
            0, f"the API server has not answered the request for a port-forward within {AWAY_SECONDS:g} s"
        )
    for error in errors:
        raise error


@contextmanager
def _quiet_threads() -> Iterator[None]:
    """Print no traceback of the client's threads if the API server breaks their connection, which is opened again."""
    before = threading.excepthook

    def hook(error: threading.ExceptHookArgs) -> None:
        if not (error.thread and error.thread.name.startswith("Kubernetes port forward proxy")):
            before(error)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = before


def _connect(api: ClusterApi, namespace: str, pod: str, port: int) -> "PortForward":
    """Return a connection with a port of a pod.

    Raises:
        ClusterError: The API server refuses it or does not answer.
    """
    from kubernetes import client
    from kubernetes.stream import portforward

    # The call replaces a method of its client for a moment, so that each thread needs a client of its own.
    core = client.CoreV1Api(client.ApiClient(api.configuration))
    try:
        forward: PortForward = portforward(core.connect_get_namespaced_pod_portforward, pod, namespace, ports=str(port))
    except client.ApiException as error:
        if isinstance(error.__context__, KeyboardInterrupt | SystemExit):  # The client takes them for refusals.
            raise error.__context__ from None
        # The text has the status, the headers and the body of the response, each after this mark.
        cause, *_ = str(error.reason).split(" -+-+- ")
        status = re.search(r"Handshake status (\d{3})", cause)
        account = ": this account needs get and create of pods/portforward" if status and status[1] == "403" else ""
        text = f"cannot forward a port to pod {namespace}/{pod} ({cause}){account}"
        raise ClusterError(int(status[1]) if status else 0, text) from None
    return forward


class _Server(ThreadingTCPServer):
    """Accepts connections on a free port of 127.0.0.1, and connects each with the port of the pod."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, connect: Callable[[], "PortForward"], pod_port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.connect, self.pod_port = connect, pod_port
        self._open: set[socket.socket] = set()

    def process_request(self, request: socket.socket, client_address: tuple[str, int]) -> None:  # type: ignore[override]
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        self._open.discard(request)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        for request in [*self._open]:
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)


class _Connection(BaseRequestHandler):
    """A connection of a client: bytes go both ways until one side closes it."""

    server: _Server

    def handle(self) -> None:
        # If the pod or the API server has gone, the client sees that its connection was closed, and connects again.
        with suppress(OSError, ClusterError):
            forward = self.server.connect()
            with closing(forward.socket(self.server.pod_port)) as pod:
                self._exchange(pod, forward)

    def _exchange(self, pod: socket.socket, forward: "PortForward") -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self.request, selectors.EVENT_READ, pod)
            selector.register(pod, selectors.EVENT_READ, self.request)
            # A broken connection with the API server does not close the socket of the client's thread.
            while (ready := selector.select(1.0)) or forward.connected:
                for key, _ in ready:
                    data = key.fileobj.recv(64 * 1024)  # type: ignore[union-attr]
                    if not data:
                        return
                    key.data.sendall(data)
