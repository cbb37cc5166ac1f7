"""Commands on a laptop reach a store that is a Service of the cluster, by the API server of a real cluster."""

import os
import uuid

import pytest
from click.testing import CliRunner
from kubernetes import client
from train.programs.jobs import wait_until

from kfp_distributed.cli.main import main
from kfp_distributed.cluster_api.configuration import connect
from kfp_distributed.cluster_api.port_forward import forwarded_port
from kfp_distributed.storage import Credentials, open_store

pytestmark = [pytest.mark.cluster, pytest.mark.takes(20), pytest.mark.timeout(300)]

# Forwards each connection to the store of Kubeflow Pipelines, whose pods are not those of this namespace.
RELAY = """
import socket, socketserver, threading

def copy(source, target):
    while data := source.recv(65536):
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)

class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        with socket.create_connection(("minio-service.kubeflow", 9000)) as store:
            threading.Thread(target=copy, args=(store, self.request), daemon=True).start()
            copy(self.request, store)

socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer(("", 8333), Handler).serve_forever()
"""


@pytest.fixture
def laptop(api, open_namespace, trainer_image, monkeypatch):
    """A namespace whose store is a Service with a pod, for a machine that knows the cluster alone."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    container = {
        "name": "store",
        "image": trainer_image,
        "command": ["python3", "-c", RELAY],
        "ports": [{"name": "http-s3", "containerPort": 8333}],
        "readinessProbe": {"tcpSocket": {"port": 8333}, "periodSeconds": 1},
    }
    metadata = {"name": "seaweedfs-0", "labels": {"app": "seaweedfs"}}
    api.create_namespaced_pod(open_namespace, {"metadata": metadata, "spec": {"containers": [container]}})
    ports = [{"name": "http", "port": 9000, "targetPort": "http-s3"}]
    service = {"metadata": {"name": "seaweedfs"}, "spec": {"selector": {"app": "seaweedfs"}, "ports": ports}}
    api.create_namespaced_service(open_namespace, service)
    assert wait_until(lambda: is_ready(api.read_namespaced_pod("seaweedfs-0", open_namespace)))
    return open_namespace


def is_ready(pod):
    return any(entry.type == "Ready" and entry.status == "True" for entry in pod.status.conditions or ())


def run(*words):
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    return done.exit_code, done.stdout, done.stderr


def test_commands_reach_the_store_through_the_api_server(laptop, bucket):
    says = f"Reaching seaweedfs.{laptop}:9000 by a port-forward through the API server.\n"
    options = ("--namespace", laptop)
    code, output, errors = run("models", "list", f"s3://{bucket}/exports", *options)
    assert (code, errors) == (0, says)
    assert output.startswith(f"no models in s3://{bucket}/exports: ")
    code, output, errors = run("jobs", "--ended", "--bucket", f"s3://{bucket}/v2/artifacts", *options)
    assert (code, errors) == (0, says)
    assert output == f"No ended trainings of namespace {laptop} in s3://{bucket}/v2/artifacts.\n"
    _, output, _ = run("doctor", "--bucket", f"s3://{bucket}", *options)
    way = "can be listed with the keys of the Secret, by a port-forward through the API server"
    assert f"ok       bucket: s3://{bucket} {way}\n" in output


def test_large_files_pass_unchanged(laptop, bucket, object_store_secret, tmp_path):
    """In both directions at once, by several connections."""
    (tmp_path / "files").mkdir()
    content = {f"{number}": os.urandom(12 << 20) for number in range(3)}
    for name, data in content.items():
        (tmp_path / "files" / name).write_bytes(data)
    with forwarded_port(connect(), laptop, "seaweedfs", 9000) as port:
        keys = object_store_secret["accesskey"], object_store_secret["secretkey"]
        store = open_store(f"s3://{bucket}/{uuid.uuid4()}", Credentials(f"127.0.0.1:{port}", *keys, secure=False))
        store.upload_folder(str(tmp_path / "files"))
        assert {entry.key: store.read(entry.key) for entry in store.list()} == content
        store.delete(list(content))


def test_an_account_that_may_not_forward_ports_is_told(api, laptop, bucket, configure_account):
    api.create_namespaced_service_account(laptop, {"metadata": {"name": "reader"}})
    rbac = client.RbacAuthorizationV1Api()
    resources = ["pods", "services", "secrets", "configmaps"]
    rules = [{"apiGroups": [""], "resources": resources, "verbs": ["get", "list"]}]
    rbac.create_namespaced_role(laptop, {"metadata": {"name": "reader"}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "reader", "namespace": laptop}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
    rbac.create_namespaced_role_binding(
        laptop, {"metadata": {"name": "reader"}, "roleRef": role, "subjects": [subject]}
    )
    configure_account(laptop, "reader")
    refusal = ": this account needs get and create of pods/portforward"

    def is_refused():  # The API server applies a new role with a short delay.
        code, _, errors = run("models", "list", f"s3://{bucket}/exports")
        return code == 1 and refusal in errors and "name an address that this machine reaches" in errors

    assert wait_until(is_refused)
