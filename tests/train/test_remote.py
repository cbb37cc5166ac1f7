"""Connecting to another cluster by a Secret, with a local TLS server as that cluster."""

import base64
import json
import ssl
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from step_lines import brief_lines
from train.programs.jobs import make_job
from train.test_remote_token import BOUND, jwt

from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.components.train.run.runners import runner_choice
from kfp_distributed.components.train.run.runners.kubernetes.connect.remote import (
    RemoteCluster,
    open_remote_cluster,
    parse_remote_cluster,
)
from kfp_distributed.components.train.run.runners.kubernetes.connect.remote_token import (
    READ_INTERVAL_SECONDS,
    read_claims,
    renewal_command,
)
from kfp_distributed.components.train.run.runners.runner_choice import choose_runner, kubernetes_runner
from kfp_distributed.components.train.tell.log_format import log

pytestmark = pytest.mark.takes(3)

TOKEN, STORE_KEY = "hush-token", "hush-key"
STORE = {
    "object_store_endpoint": "http://store.example.com:9000",
    "object_store_access_key": "minio",
    "object_store_secret_key": STORE_KEY,
}


@pytest.fixture(scope="module")
def authorities(tmp_path_factory):
    """Two folders, each with a self-signed certificate for 127.0.0.1 and its key. The server uses the first."""
    folders = []
    for name in ("server", "other"):
        folder = tmp_path_factory.mktemp(name)
        request = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext subjectAltName=IP:127.0.0.1"
        request += " -addext keyUsage=critical,keyCertSign,digitalSignature"  # Python 3.13 wants it.
        output = ["-keyout", folder / "key.pem", "-out", folder / "cert.pem"]
        subprocess.run([*request.split(), *output], check=True, capture_output=True)
        folders.append(folder)
    return folders


@pytest.fixture(scope="module")
def pem(authorities):
    return (authorities[0] / "cert.pem").read_text()


@pytest.fixture
def server(authorities):
    """An API server without objects. It accepts one token, denies `refused` permissions and records dry runs.

    `received` has the path and the token of each request.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authorities[0] / "cert.pem", authorities[0] / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.sent, server.refused, server.token, server.received = [], [], TOKEN, []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if "/namespaces/" in self.path:
            self.respond({"message": "not found"}, 404)
        else:
            self.respond({"resources": [{"name": "jobs"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "dryRun=All" in self.path:
            self.server.sent.append((self.path.partition("?")[0], body))
        attributes = body.get("spec", {}).get("resourceAttributes", {})
        permission = f"{attributes.get('verb')} {attributes.get('resource')}"
        self.respond({"status": {"allowed": permission not in self.server.refused}})

    def respond(self, body, status=200):
        token = self.headers["Authorization"].removeprefix("Bearer ")
        self.server.received.append((self.path, token))
        is_authorized = token == self.server.token
        text = json.dumps(body if is_authorized else {"message": "Unauthorized"}).encode()
        self.send_response(status if is_authorized else 401)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args):
        pass


def encode(values):
    return {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}


def secret_values(pem, host="https://gpu.example.com:6443", **more):
    return {"host": host, "token": TOKEN, "namespace": "training", "ca.crt": pem, **more}


class OwnCluster:
    """The step's own cluster, whose only Secret is `gpu`."""

    namespace = "pipelines"

    def __init__(self, values):
        self.values, self.reads = values, 0

    def read(self, path, away_seconds=60.0):
        self.reads += 1
        return {"data": encode(self.values)} if path == "/api/v1/namespaces/pipelines/secrets/gpu" else None


def test_a_secret_with_all_keys_is_parsed(pem):
    # Values of `kubectl create secret --from-file` end with a line feed.
    values = {key: f"{value}\n" for key, value in secret_values(pem, **STORE).items()}
    assert parse_remote_cluster("a/b", encode(values)) == RemoteCluster(
        host="https://gpu.example.com:6443",
        namespace="training",
        token=TOKEN,
        authority=pem.strip(),
        endpoint="http://store.example.com:9000",
        access_key="minio",
        secret_key=STORE_KEY,
    )


def test_a_secret_with_the_required_keys_is_parsed():
    values = {"host": "https://rancher.example.com/k8s/clusters/c-1", "token": TOKEN, "namespace": "training"}
    assert parse_remote_cluster("a/b", encode(values)) == RemoteCluster(
        "https://rancher.example.com/k8s/clusters/c-1", TOKEN, "training", "", "", "", ""
    )


def test_repr_contains_no_secret(pem):
    text = repr(parse_remote_cluster("a/b", encode(secret_values(pem, **STORE))))
    assert "gpu.example.com" in text
    assert TOKEN not in text
    assert STORE_KEY not in text


@pytest.mark.parametrize("key", ["host", "token", "namespace", *STORE])
def test_a_missing_key_is_named(pem, key):
    values = secret_values(pem, **STORE)
    del values[key]
    with pytest.raises(ValueError, match=f"{key} of the Secret a/b is missing"):
        parse_remote_cluster("a/b", encode(values))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("host", "http://gpu.example.com"),
        ("host", "gpu.example.com:6443"),
        ("host", "https://me:hush@gpu.example.com"),
        ("host", "https://gpu.example.com?hush=1"),
        ("host", "https://gpu.example.com:hush"),
        ("token", ""),
        ("token", "hush hush"),
        ("token", "hush\nX-Header: 1"),
        ("token", "hüsh"),
        ("namespace", "../hush"),
        ("namespace", "h" * 64),
        ("ca.crt", ""),
        ("ca.crt", "hush"),
        ("ca.crt", "-----BEGIN CERTIFICATE-----\nhush\n-----END CERTIFICATE-----"),
        ("object_store_endpoint", "store.example.com:9000"),
        ("object_store_endpoint", "http://me:hush@store.example.com"),
        ("object_store_access_key", ""),
        ("object_store_secret_key", "hush hush"),
    ],
)
def test_a_malformed_key_is_named_without_its_value(pem, key, value):
    values = {**secret_values(pem, **STORE), key: value}
    with pytest.raises(ValueError, match=f"{key} of the Secret a/b is malformed") as caught:
        parse_remote_cluster("a/b", encode(values))
    assert "hush" not in str(caught.value)
    assert caught.value.__context__ is None


def test_a_value_that_is_not_text_is_malformed():
    with pytest.raises(ValueError, match=r"host of the Secret a/b is malformed"):
        parse_remote_cluster("a/b", {"host": base64.b64encode(b"\xff\xfe").decode()})


@pytest.mark.parametrize("key", ["insecure-skip-tls-verify", "object_store_endpont"])
def test_an_unknown_key_is_named_with_the_allowed_ones(pem, key):
    with pytest.raises(ValueError, match=rf"Secret a/b .*\['{key}'\].*: host, token, namespace, ca\.crt, "):
        parse_remote_cluster("a/b", encode(secret_values(pem, **{key: "true"})))


def test_a_job_of_another_cluster_has_its_own_secret_and_no_owner(pem, server, monkeypatch, tmp_path, capsys):
    # The step runs in a pod, but this pod does not exist in the other cluster.
    monkeypatch.setattr(runner_choice, "TOKEN_FILE", tmp_path)
    monkeypatch.setenv("KFP_POD_NAME", "step")
    monkeypatch.setenv("KFP_POD_UID", "1234")
    # The step's own settings of the object store do not apply to the other cluster.
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://elsewhere:9000")
    monkeypatch.setenv("KFP_DISTRIBUTED_OBJECT_STORE_SECRET", "pipelines/own")
    host = f"https://127.0.0.1:{server.server_port}"
    runner = kubernetes_runner(OwnCluster(secret_values(pem, host, **STORE)), "s3://models", log, "gpu")
    runner.check(make_job([]))
    (line,) = brief_lines(capsys.readouterr().out)
    assert line.endswith(f"namespace training of {host}")
    objects = {body["kind"] + " " + body["metadata"]["name"]: body for _, body in server.sent}
    assert list(objects) == [
        "Job a-job",
        "Secret a-job-object-store",
        "ConfigMap a-job-code",
    ]
    labels = {"app.kubernetes.io/managed-by": "kfp-distributed", "kfp-distributed/job": "a-job"}
    assert objects.pop("Secret a-job-object-store") == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "a-job-object-store", "namespace": "training", "labels": labels},
        "immutable": True,
        "stringData": {"AWS_ACCESS_KEY_ID": "minio", "AWS_SECRET_ACCESS_KEY": STORE_KEY},
    }
    secret = {"name": "a-job-object-store"}
    (container,) = runner.manifest["spec"]["template"]["spec"]["containers"]
    assert [variable for variable in container["env"] if variable["name"].startswith("AWS_")] == [
        {"name": "AWS_ENDPOINT_URL", "value": "http://store.example.com:9000"},
        {"name": "AWS_ACCESS_KEY_ID", "valueFrom": {"secretKeyRef": {**secret, "key": "AWS_ACCESS_KEY_ID"}}},
        {"name": "AWS_SECRET_ACCESS_KEY", "valueFrom": {"secretKeyRef": {**secret, "key": "AWS_SECRET_ACCESS_KEY"}}},
    ]
    assert {path.split("/")[-2] for path, _ in server.sent} == {"training"}
    text = json.dumps([runner.manifest, *objects.values()])
    assert "ownerReferences" not in text
    assert STORE_KEY not in text
    assert TOKEN not in text


def test_permissions_for_secrets_are_checked_if_a_secret_is_created(pem, server):
    host = f"https://127.0.0.1:{server.server_port}"
    server.refused = ["create secrets", "delete secrets"]
    runner = kubernetes_runner(OwnCluster(secret_values(pem, host, **STORE)), "s3://models", log, "gpu")
    missing = "namespace training: create secrets, delete secrets; "
    advice = "run kfp-distributed install --namespace training .*, and apply deploy/remote-object-store.yaml"
    with pytest.raises(ValueError, match=missing + advice) as caught:
        runner.check(make_job([]))
    assert TOKEN not in str(caught.value)
    assert server.sent == []


def test_a_refused_token_is_an_error(pem, server):
    values = secret_values(pem, f"https://127.0.0.1:{server.server_port}", **STORE) | {"token": "hush-wrong"}
    with pytest.raises(ValueError, match=r"Secret pipelines/gpu, check its token: Unauthorized$"):
        kubernetes_runner(OwnCluster(values), "s3://models", log, "gpu")


def test_an_expired_token_is_refused_before_a_request_is_sent(pem, server):
    expired = jwt({"exp": time.time() - 1, "kubernetes.io": BOUND})
    values = secret_values(pem, f"https://127.0.0.1:{server.server_port}") | {"token": expired}
    with pytest.raises(
        ValueError, match=r"^the token of the Secret pipelines/gpu expired at \S+Z; renew it: "
    ) as caught:
        kubernetes_runner(OwnCluster(values), "s3://models", log, "gpu")
    assert str(caught.value).endswith(renewal_command("pipelines/gpu", read_claims(expired)))
    assert server.received == []


@pytest.mark.parametrize(("total_timeout", "warned"), [(3600, True), (60, False), ("unlimited", True)])
def test_a_token_that_may_expire_during_the_training_is_warned_of(pem, server, capsys, total_timeout, warned):
    server.token = jwt({"exp": time.time() + 600, "kubernetes.io": BOUND})
    values = secret_values(pem, f"https://127.0.0.1:{server.server_port}", **STORE) | {"token": server.token}
    runner = kubernetes_runner(OwnCluster(values), "s3://models", log, "gpu")
    capsys.readouterr()
    runner.check(make_job([], {"total_timeout": total_timeout}))
    warnings = [line for line in brief_lines(capsys.readouterr().out) if line.startswith("the token of the Secret ")]
    assert len(warnings) == warned


def test_a_request_that_is_refused_is_repeated_with_the_new_token_of_the_secret(pem, server, capsys):
    own = OwnCluster(secret_values(pem, f"https://127.0.0.1:{server.server_port}"))
    _, api, _ = open_remote_cluster(own.read, own.namespace, "gpu", log)
    assert own.reads == 1
    server.token = "renewed"
    with pytest.raises(ClusterError) as caught:
        api.call("GET", "/apis/batch/v1")
    assert (caught.value.status, own.reads) == (401, 2)
    own.values = {**own.values, "token": "renewed"}
    time.sleep(READ_INTERVAL_SECONDS)  # The Secret is read at most once in this interval.
    assert api.call("GET", "/apis/batch/v1") == {"resources": [{"name": "jobs"}]}
    # A stream, such as a watch, is repeated in the same way, and later requests send the new token at once.
    assert list(api.lines("/apis/batch/v1", {}, 5)) == ['{"resources": [{"name": "jobs"}]}']
    assert own.reads == 3
    assert [token for _, token in server.received] == [TOKEN, TOKEN, TOKEN, "renewed", "renewed"]
    text = capsys.readouterr().out
    assert TOKEN not in text
    assert len(brief_lines(text)) == 2


@pytest.mark.parametrize("change", [{"host": "https://elsewhere.example.com"}, {"namespace": "../hush"}])
def test_the_new_token_of_another_server_or_a_malformed_secret_is_not_sent(pem, server, change, capsys):
    own = OwnCluster(secret_values(pem, f"https://127.0.0.1:{server.server_port}"))
    _, api, _ = open_remote_cluster(own.read, own.namespace, "gpu", log)
    server.token, own.values = "renewed", {**own.values, "token": "renewed", **change}
    with pytest.raises(ClusterError) as caught:
        api.call("GET", "/apis/batch/v1")
    assert caught.value.status == 401
    assert {token for _, token in server.received} == {TOKEN}
    assert "renewed" not in capsys.readouterr().out


def test_a_certificate_of_another_authority_is_refused_without_retries(authorities, server):
    other = (authorities[1] / "cert.pem").read_text()
    values = secret_values(other, f"https://127.0.0.1:{server.server_port}")
    start = time.monotonic()
    with pytest.raises(ValueError, match=r"check its host and ca\.crt: .*CERTIFICATE_VERIFY_FAILED") as caught:
        kubernetes_runner(OwnCluster(values), "s3://models", log, "gpu")
    # Requests to a server that does not answer are retried for a minute.
    assert time.monotonic() - start < 30
    assert TOKEN not in str(caught.value)


def test_a_host_that_is_not_in_the_certificate_is_refused(pem, server):
    values = secret_values(pem, f"https://localhost:{server.server_port}")
    with pytest.raises(ValueError, match=r"check its host and ca\.crt: .*CERTIFICATE_VERIFY_FAILED"):
        kubernetes_runner(OwnCluster(values), "s3://models", log, "gpu")


def test_without_ca_crt_only_public_authorities_are_trusted(pem, server):
    values = secret_values(pem, f"https://127.0.0.1:{server.server_port}")
    del values["ca.crt"]
    with pytest.raises(ValueError, match=r"check its host and ca\.crt: .*CERTIFICATE_VERIFY_FAILED"):
        kubernetes_runner(OwnCluster(values), "s3://models", log, "gpu")


@pytest.mark.parametrize("name", ["absent", "../../team-b/secrets/gpu"])
def test_a_missing_secret_is_an_error(name):
    with pytest.raises(ValueError, match=f"^cluster_configuration_secret = '{name}': .* Secret pipelines/{name}$"):
        kubernetes_runner(OwnCluster({}), "s3://models", log, name)


def test_the_local_runner_does_not_accept_another_cluster():
    with pytest.raises(ValueError, match=r"^runner = 'local' .*cluster_configuration_secret = 'gpu'"):
        choose_runner("local", log, secret="gpu")


def test_auto_requires_a_cluster_if_a_secret_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ValueError, match=r"^there is no configuration of a cluster: .*~/\.kube/config"):
        choose_runner("auto", log, "s3://models", log, "gpu")
