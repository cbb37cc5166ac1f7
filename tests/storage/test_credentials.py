"""Credentials from the environment, and from Secrets of a fake Kubernetes API server."""

import base64
import json
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kfp_distributed.storage import Credentials, credentials_from_environment
from kfp_distributed.storage.kubeflow import credentials as module

KEYS = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "hush"}
_SET_KEYS = "set AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
_NO_KEYS = f"{_SET_KEYS}, or KFP_DISTRIBUTED_"
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
        ({}, f"because the environment lacks AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: {_NO_KEYS}"),
        # A key takes precedence over a Secret.
        ({"AWS_ACCESS_KEY_ID": "me"}, f"because the environment lacks AWS_SECRET_ACCESS_KEY: {_SET_KEYS}$"),
        ({"AWS_SECRET_ACCESS_KEY": "hush"}, f"because the environment lacks AWS_ACCESS_KEY_ID: {_SET_KEYS}$"),
        (KEYS | {"AWS_ENDPOINT_URL": "ftp://a"}, r"endpoint 'ftp://a' must be http\(s\)://HOST:PORT"),
        (KEYS | {"AWS_ENDPOINT_URL": "http://a/path"}, "endpoint 'http://a/path' must be"),
        (KEYS | {"AWS_ENDPOINT_URL": "http://u:hush@a/path"}, "endpoint 'a/path' must be"),
        (KEYS | {"AWS_ENDPOINT_URL": "http://u:hush\u2100@a"}, "endpoint 'a' must be"),
        (KEYS | {"AWS_CA_BUNDLE": "/no/such.pem"}, "AWS_CA_BUNDLE = '/no/such.pem'"),
    ],
)
def test_invalid_environment(env, message):
    with pytest.raises(ValueError, match=message) as error:
        credentials_from_environment(env)
    assert "hush" not in str(error.value)


@pytest.mark.parametrize("uri", ["minio://m/k", "MINIO://m/k?signature=hush"])
def test_keys_of_aws_do_not_serve_another_store(kubernetes, uri):
    with pytest.raises(ValueError, match=f"keys without AWS_ENDPOINT_URL are those of AWS, .*: {_NO_KEYS}") as error:
        credentials_from_environment(KEYS, uri)
    assert "hush" not in str(error.value)
    # The Secret of the pipelines serves it beside keys of AWS for sources.
    assert credentials_from_environment(KEYS | IN_A_POD, uri) == credentials_from_environment(IN_A_POD, uri)


def test_repr_contains_no_secret():
    text = f"{Credentials('store', 'me', 'hush', 'token-hush')!r}"
    assert "hush" not in text
    assert "'me'" in text


OBJECTS = {
    "/api/v1/namespaces/kubeflow/services/minio-service": {"kind": "Service"},
    "/api/v1/namespaces/mine/services/seaweedfs": {"kind": "Service"},
    "/api/v1/namespaces/kubeflow/secrets/mlpipeline-minio-artifact": {"accesskey": "minio", "secretkey": "hush"},
    "/api/v1/namespaces/mine/secrets/store": {"accesskey": "my", "secretkey": "hush2"},
    "/api/v1/namespaces/mine/secrets/other": {"user": "me", "password": "hush3"},
    "/api/v1/namespaces/kubeflow/secrets/aws": {"id": "me", "key": "hush4"},
    "/api/v1/namespaces/forbidden/secrets/store": 403,
    "/api/v1/namespaces/broken/secrets/store": 500,
}
_AWS = """
s3:
  default:
    region: eu-west-1
    credentials: {secretRef: {secretName: aws, accessKeyKey: id, secretKeyKey: key}}
"""
IN_A_POD = {"KUBERNETES_SERVICE_HOST": "x"}


class KubernetesHandler(BaseHTTPRequestHandler):
    def do_GET(self):
        response = self.server.objects.get(self.path, 404)
        status = response if isinstance(response, int) else 200
        body = {"kind": "Status", "code": status} if status != 200 else dict(response)
        if "/secrets/" in self.path and status == 200:
            body = {"data": {key: base64.b64encode(value.encode()).decode() for key, value in response.items()}}
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *args):
        pass


@pytest.fixture
def kubernetes(tmp_path, monkeypatch):
    """A fake Kubernetes API server. Yields its objects by path."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), KubernetesHandler)
    server.objects = dict(OBJECTS)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        write_kubeconfig(tmp_path, monkeypatch, server.server_port)
        yield server.objects
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def write_kubeconfig(folder, monkeypatch, port):
    # A server that answers with an error, or that is not there, need not be asked again.
    monkeypatch.setattr(module, "AWAY_SECONDS", 0.0)
    config = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (folder / "kubeconfig").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(folder / "kubeconfig"))


def secret_env(secret):
    return {"KFP_DISTRIBUTED_OBJECT_STORE_SECRET": secret}


@pytest.mark.parametrize(
    ("env", "credentials"),
    [
        (secret_env("mine/store"), Credentials("seaweedfs.mine:9000", "my", "hush2", secure=False)),
        (
            secret_env("mine/store") | {"AWS_ENDPOINT_URL": "https://s:1", "AWS_REGION": "r", "AWS_SESSION_TOKEN": "t"},
            Credentials("s:1", "my", "hush2", region="r"),
        ),
        (
            secret_env("mlpipeline-minio-artifact"),
            Credentials("minio-service.kubeflow:9000", "minio", "hush", secure=False),
        ),
        pytest.param(
            IN_A_POD,
            Credentials("minio-service.kubeflow:9000", "minio", "hush", secure=False),
            id="pod without variables",
        ),
        pytest.param(
            IN_A_POD | {"AWS_ENDPOINT_URL": "http://s:1", "AWS_REGION": "r", "AWS_CA_BUNDLE": __file__},
            Credentials("s:1", "minio", "hush", region="r", secure=False, ca_bundle=__file__),
            id="pod with an endpoint and without keys",
        ),
        (IN_A_POD | KEYS, AWS),
    ],
)
def test_secret_in_the_cluster(kubernetes, env, credentials):
    assert credentials_from_environment(env) == credentials


def test_store_depends_on_the_address(kubernetes):
    kubernetes["/api/v1/namespaces/kubeflow/configmaps/kfp-launcher"] = {"data": {"providers": _AWS}}
    assert credentials_from_environment(IN_A_POD, "minio://b/k").endpoint == "minio-service.kubeflow:9000"
    aws = credentials_from_environment(IN_A_POD, "s3://b/k")
    assert aws == Credentials("s3.amazonaws.com", "me", "hush4", region="eu-west-1")
    assert credentials_from_environment(IN_A_POD | {"AWS_REGION": "moon"}, "s3://b/k") == replace(aws, region="moon")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (secret_env("mine/nothing"), "^Secret mine/nothing .* does not exist.* set AWS_ENDPOINT_URL"),
        (
            secret_env("mine/other"),
            r"must have the fields .*, it has \['password', 'user'\].* set AWS_ENDPOINT_URL",
        ),
        (
            secret_env("forbidden/store"),
            f"/api/v1/namespaces/forbidden/secrets/store .* 403 Forbidden. Allow .*, or {_NO_KEYS}",
        ),
        (
            secret_env("broken/store"),
            f"/api/v1/namespaces/broken/secrets/store .* 500 Internal Server Error. .*, or {_SET_KEYS}$",
        ),
    ],
)
def test_secret_without_keys(kubernetes, env, message):
    with pytest.raises(ValueError, match=message) as error:
        credentials_from_environment(env)
    assert "hush" not in str(error.value)


def test_no_cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    with pytest.raises(ValueError, match=rf"nothing. names no existing file, .*; set KUBECONFIG .*; or {_SET_KEYS}$"):
        credentials_from_environment(secret_env("mine/store"))
    write_kubeconfig(tmp_path, monkeypatch, 1)
    with pytest.raises(
        ValueError, match=rf"cannot read .*: .*Connection refused.* Check the API server, or {_SET_KEYS}$"
    ):
        credentials_from_environment(secret_env("mine/store"))


def test_the_packages_of_a_cluster_are_not_loaded_by_an_import():
    # Replicas lack them, and they take half a second.
    program = "import sys, kfp_distributed.storage; print({'kubernetes', 'yaml'} & {*sys.modules})"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert process.stdout == "set()\n"


def test_an_error_that_passes_is_no_error(kubernetes, monkeypatch):
    monkeypatch.setattr(module, "AWAY_SECONDS", 60.0)
    path = "/api/v1/namespaces/mine/secrets/store"
    secret, kubernetes[path] = kubernetes[path], 503
    timer = threading.Timer(0.3, kubernetes.update, [{path: secret}])
    timer.start()
    assert credentials_from_environment(secret_env("mine/store")).access_key == "my"
    timer.join()


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (IN_A_POD | dict.fromkeys(KEYS, ""), f"because the environment has no keys: {_SET_KEYS}$"),
        (
            secret_env("team/store"),
            "because the Secret team/store, which KFP_DISTRIBUTED_OBJECT_STORE_SECRET names, cannot be read without "
            f"the Python package kubernetes: install it, or {_SET_KEYS}$",
        ),
    ],
    ids=["replica whose Secret has empty keys", "named Secret"],
)
def test_without_the_client_of_kubernetes(monkeypatch, env, message):
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(ValueError, match=f"^no credentials for the object store, {message}"):
        credentials_from_environment(env)


def test_another_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ModuleNotFoundError, match="yaml"):
        credentials_from_environment(IN_A_POD)
