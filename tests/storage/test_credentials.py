"""Credentials from the environment, and from a Secret of a small server that speaks as Kubernetes does."""

import base64
import json
import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kfp_distributed.storage import Credentials, credentials_from_environment, credentials_from_secret

KEYS = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "hush"}
AWS = Credentials("s3.amazonaws.com", "me", "hush")


@pytest.mark.parametrize(
    ("env", "credentials"),
    [
        (KEYS, AWS),
        (KEYS | {"AWS_REGION": "eu-west-1"}, replace(AWS, region="eu-west-1")),
        (
            KEYS | {"AWS_ENDPOINT_URL": "http://minio:9000/", "AWS_DEFAULT_REGION": "here", "AWS_SESSION_TOKEN": "t"},
            Credentials("minio:9000", "me", "hush", "t", "here", secure=False),
        ),
        (
            KEYS | {"AWS_ENDPOINT_URL": "http://other", "AWS_ENDPOINT_URL_S3": "https://[::1]:9000"},
            Credentials("[::1]:9000", "me", "hush"),
        ),
        (
            KEYS | {"AWS_ENDPOINT_URL": "store:9000", "AWS_CA_BUNDLE": __file__},
            replace(AWS, endpoint="store:9000", ca_bundle=__file__),
        ),
    ],
)
def test_environment(env, credentials):
    assert credentials_from_environment(env) == credentials


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({}, "no credentials for the object store: set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL"),
        ({"AWS_ACCESS_KEY_ID": "me"}, "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL"),
        ({"AWS_SECRET_ACCESS_KEY": "hush"}, "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL"),
        (KEYS | {"AWS_ENDPOINT_URL": "ftp://a"}, "endpoint 'ftp://a' must be http://host:port or https://host:port"),
        (KEYS | {"AWS_ENDPOINT_URL": "http://a/path"}, "endpoint 'http://a/path' must be"),
        (KEYS | {"AWS_ENDPOINT_URL": "http://u:hush@a/path"}, "endpoint 'a/path' must be"),
        (KEYS | {"AWS_CA_BUNDLE": "/no/such.pem"}, "AWS_CA_BUNDLE names '/no/such.pem'"),
    ],
)
def test_environment_refuses(env, message):
    with pytest.raises(ValueError, match=message) as caught:
        credentials_from_environment(env)
    assert "hush" not in str(caught.value)


def test_the_text_form_shows_no_secret():
    text = f"{Credentials('store', 'me', 'hush', 'token-hush')!r}"
    assert "hush" not in text
    assert "'me'" in text


SECRETS = {
    ("kubeflow", "mlpipeline-minio-artifact"): {"accesskey": "minio", "secretkey": "hush"},
    ("mine", "store"): {"accesskey": "my", "secretkey": "hush2"},
    ("mine", "other"): {"user": "me", "password": "hush3"},
}


class KubernetesHandler(BaseHTTPRequestHandler):
    def do_GET(self):
        _, _, _, _, namespace, _, name = self.path.split("/")
        data = SECRETS.get((namespace, name))
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in (data or {}).items()}
        body = {"kind": "Secret", "data": encoded} if data else {"kind": "Status", "code": 404}
        self.send_response(200 if data else 404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *args):
        pass


@contextmanager
def serving(handler):
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def kubernetes(tmp_path, monkeypatch):
    with serving(KubernetesHandler) as port:
        write_kubeconfig(tmp_path, monkeypatch, port)
        yield


def write_kubeconfig(folder, monkeypatch, port):
    config = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (folder / "kubeconfig").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(folder / "kubeconfig"))


@pytest.mark.parametrize(
    ("env", "credentials"),
    [
        (
            {"KFP_DISTRIBUTED_OBJECT_STORE_SECRET": "mine/store"},
            Credentials("minio-service.mine:9000", "my", "hush2", secure=False),
        ),
        (
            {"KFP_DISTRIBUTED_OBJECT_STORE_SECRET": "mine/store", "AWS_ENDPOINT_URL": "https://s:1", "AWS_REGION": "r"},
            Credentials("s:1", "my", "hush2", region="r"),
        ),
        (
            {"KFP_DISTRIBUTED_OBJECT_STORE_SECRET": "mlpipeline-minio-artifact"},
            Credentials("minio-service.kubeflow:9000", "minio", "hush", secure=False),
        ),
        pytest.param(
            {"KUBERNETES_SERVICE_HOST": "x"},
            Credentials("minio-service.kubeflow:9000", "minio", "hush", secure=False),
            id="in a pod of Kubeflow Pipelines that was told nothing",
        ),
    ],
)
def test_secret_that_the_environment_names(kubernetes, env, credentials):
    assert credentials_from_environment(env) == credentials


def test_secret_with_other_fields(kubernetes):
    assert credentials_from_secret("other", "mine", "user", "password", endpoint="http://s:1") == Credentials(
        "s:1", "me", "hush3", secure=False
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing", "mine"), "cannot read the Secret mine/nothing with the object store's keys: Not Found"),
        (("other", "mine"), "has no field 'accesskey'; it has: password, user"),
    ],
)
def test_secret_that_does_not_serve(kubernetes, arguments, message):
    with pytest.raises(ValueError, match=message) as caught:
        credentials_from_secret(*arguments)
    assert "hush" not in str(caught.value)


def test_a_cluster_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    with pytest.raises(
        ValueError, match=r"cannot read the Secret mine/store .*: Invalid kube-config file. No configuration found."
    ):
        credentials_from_secret("store", "mine")
    write_kubeconfig(tmp_path, monkeypatch, 1)
    with pytest.raises(ValueError, match=r"cannot read the Secret mine/store .*: .*Connection refused"):
        credentials_from_secret("store", "mine")
