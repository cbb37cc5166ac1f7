"""A Secret that describes another cluster, and a server over TLS that stands for it."""

import base64
import json
import ssl
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from train.programs.jobs import make_job

from kfp_distributed.components.train.runners import choose
from kfp_distributed.components.train.runners.choose import choose_runner, kubernetes_runner
from kfp_distributed.components.train.runners.kubernetes.remote import RemoteCluster, parse_remote_cluster

TOKEN, STORE_KEY = "hush-token", "hush-key"
STORE = {
    "object_store_endpoint": "http://store.example.com:9000",
    "object_store_access_key": "minio",
    "object_store_secret_key": STORE_KEY,
}


@pytest.fixture(scope="module")
def authorities(tmp_path_factory):
    """Folders with a self-signed certificate for 127.0.0.1 and its key: the server's and another."""
    found = []
    for name in ("server", "other"):
        folder = tmp_path_factory.mktemp(name)
        request = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext subjectAltName=IP:127.0.0.1"
        output = ["-keyout", folder / "key.pem", "-out", folder / "cert.pem"]
        subprocess.run([*request.split(), *output], check=True, capture_output=True)
        found.append(folder)
    return found


@pytest.fixture(scope="module")
def pem(authorities):
    return (authorities[0] / "cert.pem").read_text()


@pytest.fixture
def server(authorities):
    """An API server that has no Job, takes one token, allows all but what it is told, and keeps what it is sent."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authorities[0] / "cert.pem", authorities[0] / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.sent, server.refused = [], []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        found = "/namespaces/" not in self.path
        self.answer({"resources": [{"name": "jobs"}]} if found else {"message": "not there"}, 200 if found else 404)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "dryRun=All" in self.path:
            self.server.sent.append((self.path.partition("?")[0], body))
        asked = body.get("spec", {}).get("resourceAttributes", {})
        self.answer({"status": {"allowed": f"{asked.get('verb')} {asked.get('resource')}" not in self.server.refused}})

    def answer(self, body, status=200):
        known = self.headers["Authorization"] == f"Bearer {TOKEN}"
        text = json.dumps(body if known else {"message": "Unauthorized"}).encode()
        self.send_response(status if known else 401)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args):
        pass


def encoded(values):
    return {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}


def described(pem, host="https://gpu.example.com:6443", **more):
    return {"host": host, "token": TOKEN, "namespace": "training", "ca.crt": pem, **more}


class Home:
    """The step's own cluster, which has the Secrets `gpu` and no others."""

    namespace = "pipelines"

    def __init__(self, values):
        self.values = values

    def read(self, path):
        return {"data": encoded(self.values)} if path == "/api/v1/namespaces/pipelines/secrets/gpu" else None


def test_all_that_a_secret_may_say(pem):
    # Files that `kubectl create secret --from-file` reads end with a line break.
    values = {key: f"{value}\n" for key, value in described(pem, **STORE).items()}
    assert parse_remote_cluster("a/b", encoded(values)) == RemoteCluster(
        host="https://gpu.example.com:6443",
        namespace="training",
        token=TOKEN,
        authority=pem.strip(),
        endpoint="http://store.example.com:9000",
        access_key="minio",
        secret_key=STORE_KEY,
    )


def test_the_least_that_a_secret_must_say():
    values = {"host": "https://rancher.example.com/k8s/clusters/c-1", "token": TOKEN, "namespace": "training"}
    assert parse_remote_cluster("a/b", encoded(values)) == RemoteCluster(
        "https://rancher.example.com/k8s/clusters/c-1", TOKEN, "training", "", "", "", ""
    )


def test_the_text_form_shows_no_secret(pem):
    text = repr(parse_remote_cluster("a/b", encoded(described(pem, **STORE))))
    assert "gpu.example.com" in text
    assert TOKEN not in text
    assert STORE_KEY not in text


@pytest.mark.parametrize("key", ["host", "token", "namespace", *STORE])
def test_a_key_that_is_missing(pem, key):
    values = described(pem, **STORE)
    del values[key]
    with pytest.raises(ValueError, match=f"^the key {key} of the Secret a/b is missing: it must be "):
        parse_remote_cluster("a/b", encoded(values))


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
def test_a_key_that_is_malformed(pem, key, value):
    values = {**described(pem, **STORE), key: value}
    with pytest.raises(ValueError, match=f"^the key {key} of the Secret a/b is malformed: it must be ") as caught:
        parse_remote_cluster("a/b", encoded(values))
    assert "hush" not in str(caught.value)
    assert caught.value.__context__ is None


def test_a_value_that_is_not_text():
    with pytest.raises(ValueError, match=r"^the key host of the Secret a/b is malformed"):
        parse_remote_cluster("a/b", {"host": base64.b64encode(b"\xff\xfe").decode()})


@pytest.mark.parametrize("key", ["insecure-skip-tls-verify", "object_store_endpont"])
def test_a_key_that_is_unknown(pem, key):
    with pytest.raises(ValueError, match=rf"^the Secret a/b has unknown keys \['{key}'\]: allowed are host, token, "):
        parse_remote_cluster("a/b", encoded(described(pem, **{key: "true"})))


def test_a_job_of_its_own_secret_and_without_an_owner(pem, server, monkeypatch, tmp_path, capsys):
    # As in a step's pod, which nobody knows in the other cluster.
    monkeypatch.setattr(choose, "_SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("KFP_POD_NAME", "step")
    monkeypatch.setenv("KFP_POD_UID", "1234")
    # What leads the step itself to the store holds for the step alone.
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://elsewhere:9000")
    monkeypatch.setenv("KFP_DISTRIBUTED_OBJECT_STORE_SECRET", "pipelines/own")
    host = f"https://127.0.0.1:{server.server_port}"
    runner = kubernetes_runner(Home(described(pem, host, **STORE)), "s3://models", "gpu")
    runner.check(make_job([]))
    assert capsys.readouterr().out == f"the job runs in namespace training of {host}\n"
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
        "stringData": {"AWS_ACCESS_KEY_ID": "minio", "AWS_SECRET_ACCESS_KEY": STORE_KEY},
    }
    secret = {"name": "a-job-object-store"}
    (container,) = runner.manifest["spec"]["template"]["spec"]["containers"]
    assert [each for each in container["env"] if each["name"].startswith("AWS_")] == [
        {"name": "AWS_ENDPOINT_URL", "value": "http://store.example.com:9000"},
        {"name": "AWS_ACCESS_KEY_ID", "valueFrom": {"secretKeyRef": {**secret, "key": "AWS_ACCESS_KEY_ID"}}},
        {"name": "AWS_SECRET_ACCESS_KEY", "valueFrom": {"secretKeyRef": {**secret, "key": "AWS_SECRET_ACCESS_KEY"}}},
    ]
    assert {path.split("/")[-2] for path, _ in server.sent} == {"training"}
    text = json.dumps([runner.manifest, *objects.values()])
    assert "ownerReferences" not in text
    assert STORE_KEY not in text
    assert TOKEN not in text


def test_leave_to_make_secrets_is_asked_for_where_one_is_made(pem, server):
    host = f"https://127.0.0.1:{server.server_port}"
    server.refused = ["create secrets", "delete secrets"]
    runner = kubernetes_runner(Home(described(pem, host, **STORE)), "s3://models", "gpu")
    missing = "^the account of this step may not, in namespace training: create secrets, delete secrets; "
    advice = "run kfp-distributed install --namespace training .*, and apply deploy/remote-object-store.yaml "
    with pytest.raises(ValueError, match=missing + advice) as caught:
        runner.check(make_job([]))
    assert TOKEN not in str(caught.value)
    assert server.sent == []


def test_a_token_that_the_cluster_does_not_take(pem, server):
    values = described(pem, f"https://127.0.0.1:{server.server_port}", **STORE) | {"token": "hush-wrong"}
    expected = "^the cluster of the Secret pipelines/gpu is not to be used, see its token: Unauthorized$"
    with pytest.raises(ValueError, match=expected):
        kubernetes_runner(Home(values), "s3://models", "gpu")


def test_a_certificate_that_the_authority_did_not_sign(authorities, server):
    other = (authorities[1] / "cert.pem").read_text()
    values = described(other, f"https://127.0.0.1:{server.server_port}")
    begun = time.monotonic()
    with pytest.raises(ValueError, match=r"see its host and ca\.crt: .*CERTIFICATE_VERIFY_FAILED") as caught:
        kubernetes_runner(Home(values), "s3://models", "gpu")
    # Nobody waits for a certificate to become another, as for a server that is away.
    assert time.monotonic() - begun < 30
    assert TOKEN not in str(caught.value)


def test_a_host_that_the_certificate_does_not_name(pem, server):
    values = described(pem, f"https://localhost:{server.server_port}")
    with pytest.raises(ValueError, match=r"see its host and ca\.crt: .*CERTIFICATE_VERIFY_FAILED"):
        kubernetes_runner(Home(values), "s3://models", "gpu")


def test_a_certificate_of_no_public_authority_needs_one_in_the_secret(pem, server):
    values = described(pem, f"https://127.0.0.1:{server.server_port}")
    del values["ca.crt"]
    with pytest.raises(ValueError, match=r"see its host and ca\.crt: .*CERTIFICATE_VERIFY_FAILED"):
        kubernetes_runner(Home(values), "s3://models", "gpu")


@pytest.mark.parametrize("name", ["absent", "../../team-b/secrets/gpu"])
def test_a_secret_that_is_not_there(name):
    expected = f"^cluster_configuration_secret = '{name}': there is no Secret pipelines/{name}$"
    with pytest.raises(ValueError, match=expected):
        kubernetes_runner(Home({}), "s3://models", name)


def test_replicas_of_this_machine_have_no_other_cluster():
    with pytest.raises(ValueError, match=r"^runner = 'local' does not go with cluster_configuration_secret = 'gpu'$"):
        choose_runner("local", secret="gpu")


def test_auto_looks_for_a_cluster_where_a_secret_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ValueError, match=r"^~/\.kube/config is no configuration of a cluster"):
        choose_runner("auto", "s3://models", "gpu")
