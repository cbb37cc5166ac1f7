"""Commands on a laptop reach the store of a cluster through the API server, and say why if they cannot."""

import socket
import threading

import pytest
from click.testing import CliRunner

from kfp_distributed.cli.main import main
from kfp_distributed.cluster_api import port_forward
from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.cluster_api.port_forward import choose_pod, forwarded_port

pytestmark = pytest.mark.takes(3)

SERVICE = {
    "metadata": {"name": "store", "namespace": "team"},
    "spec": {"ports": [{"port": 9000, "targetPort": "http"}, {"port": 80, "targetPort": 8080}, {"port": 81}]},
}


def pod(name, ready="True", **metadata):
    ports = [{"name": "http", "containerPort": 8333}, {"containerPort": 1}]
    return {
        "metadata": {"name": name, **metadata},
        "spec": {"containers": [{"name": "other"}, {"name": "store", "ports": ports}]},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


@pytest.mark.parametrize(("port", "expected"), [(9000, 8333), (80, 8080), (81, 81)])
def test_the_port_of_a_ready_pod_is_chosen(port, expected):
    pods = [pod("a", ready="False"), pod("b", deletionTimestamp="2026-01-01T00:00:00Z"), pod("c"), pod("d")]
    assert choose_pod(SERVICE, pods, port) == ("c", expected)


def test_the_ports_of_a_headless_service_are_those_of_its_pods():
    service = {**SERVICE, "spec": {**SERVICE["spec"], "clusterIP": "None"}}
    assert choose_pod(service, [pod("a")], 80) == ("a", 80)


@pytest.mark.parametrize(
    ("pods", "port", "error"),
    [
        ([pod("a")], 9001, "Service team/store has no port 9001"),
        ([pod("a", ready="False")], 9000, "Service team/store has no ready pod"),
        ([], 9000, "Service team/store has no ready pod"),
        (
            [{**pod("a"), "spec": {"containers": [{"name": "store"}]}}],
            9000,
            "pod a of Service team/store has no port named 'http'",
        ),
    ],
)
def test_what_is_missing_is_named(pods, port, error):
    with pytest.raises(ClusterError, match=f"^{error}$"):
        choose_pod(SERVICE, pods, port)


def run(*words):
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    return done.exit_code, done.stdout, done.stderr


def test_models_and_serve_read_the_store_of_the_pipelines(pipelines):
    pipelines.root.write("exports/digits/claims", b"")
    code, output, errors = run("models", "list", "s3://pipelines/root/exports")
    assert (code, output) == (
        0,
        "no models in s3://pipelines/root/exports: it has no folder of files such as digits/3\n",
    )
    assert errors == "Reaching minio-service.default:9000 by a port-forward through the API server.\n"
    pipelines.root.write("exports/digits/3/saved_model.pb", b"x")
    output = run("models", "list", "s3://pipelines/root/exports", "--namespace", "default")[1]
    assert [line.split()[0] for line in output.splitlines()] == ["MODEL", "digits"]
    code, _, errors = run("serve", "s3://pipelines/root/exports/absent/1", "--port", "0")
    assert code == 1
    assert "s3://pipelines/root/exports/absent/1" in errors.splitlines()[1]


def test_a_refused_port_forward_is_named_with_its_permission(pipelines):
    pipelines.api.forbidden.add("GET minio-0/portforward")
    code, _, errors = run("jobs", "--ended")
    assert code == 1
    assert (
        "pod default/minio-0 (Handshake status 403 Forbidden): this account needs get and create of pods/portf"
        in errors
    )
    assert "; name an address that this machine reaches: AWS_ENDPOINT_URL_S3=http://HOST:PORT kfp-dis" in errors


def test_keys_of_the_environment_are_used_without_asking_a_cluster(pipelines, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", pipelines.root.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", pipelines.credentials.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", pipelines.credentials.secret_key)
    pipelines.api.requests.clear()
    assert run("models", "list", "s3://pipelines/root/exports")[0] == 0
    assert pipelines.api.requests == []


def test_keys_of_aws_alone_do_not_serve_the_store_of_the_pipelines(pipelines, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-aws")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-aws")
    pipelines.root.write("exports/digits/3/saved_model.pb", b"x")
    assert run("models", "list", "minio://pipelines/root/exports")[0] == 0


def test_a_pod_that_refuses_the_connection_ends_it(pipelines):
    """The API server says so after it has accepted the port-forward."""
    pipelines.api.forwards["minio-0:9001"] = ("127.0.0.1", 1)
    code, _, errors = run("jobs", "--ended")
    assert code == 1
    assert "Traceback" not in errors


def forwarded_to(api, server):
    server.settimeout(30)
    api.forwards["minio-0:9001"] = server.getsockname()
    return forwarded_port(api.connect(), "default", "minio-service", 9000)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_broken_connection_with_the_api_server_ends_that_of_the_client(pipelines):
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        forwarded_to(pipelines.api, silent) as port,
        socket.create_connection(("127.0.0.1", port), 30) as connection,
    ):
        connection.sendall(b"GET / HTTP/1.1\r\n")
        accepted = [silent.accept()[0]]
        while not accepted[-1].recv(100):  # The first one was to see whether it is allowed.
            accepted.append(silent.accept()[0])
        # They stay open: the API server would close the connection itself after the end of the other one.
        pipelines.api.forwarding[-1].shutdown(socket.SHUT_RDWR)
        assert connection.recv(100) == b""
        for other in accepted:
            other.close()


def test_nothing_is_left_after_the_block(pipelines):
    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with forwarded_to(pipelines.api, silent) as port:
            connection = socket.create_connection(("127.0.0.1", port), 30)
            connection.sendall(b"GET / HTTP/1.1\r\n")
            while not silent.accept()[0].recv(100):
                pass
        assert connection.recv(100) == b""
        connection.close()
        for thread in set(threading.enumerate()) - before:
            thread.join(20)
            assert not thread.is_alive(), thread


def test_an_api_server_that_does_not_answer_the_handshake_is_named(pipelines, monkeypatch):
    monkeypatch.setattr(port_forward, "AWAY_SECONDS", 0.5)
    over = threading.Event()
    monkeypatch.setattr(pipelines.api, "before", lambda request: "portforward" in request and over.wait(60))
    with (
        pytest.raises(ClusterError, match="has not answered the request for a port-forward within"),
        forwarded_port(pipelines.api.connect(), "default", "minio-service", 9000),
    ):
        pass
    over.set()
