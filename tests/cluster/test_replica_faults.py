"""Loss of replicas or of the object store during a real training, which resumes from its checkpoint."""

import re
import time
import uuid
from itertools import pairwise

import pytest
from cluster.jobs import SECONDS, both_operators, left_behind
from cluster.test_launch import function
from kubernetes import client
from kubernetes.stream import stream

from kfp_distributed.storage import credentials_from_environment, open_store
from kfp_distributed.trainers.runtime.job_description import STORE_AWAY

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

EPOCHS = 20
WITH_SERVERS = {"distribution_type": "TF", "number_of_workers": 1, "number_of_parameter_servers": 1}
WORKERS = {"distribution_type": "TF", "number_of_workers": 2, "number_of_parameter_servers": 0}


def end(api, namespace: str, pod: str) -> None:
    """End the main process of a pod by SIGTERM, so that its exit code is 128 or more."""
    command = ["sh", "-c", "kill 1"]
    # The connection ends with the container.
    stream(api.connect_get_namespaced_pod_exec, pod, namespace, command=command, stdout=True, _request_timeout=60)


def delete(api, namespace: str, pod: str) -> None:
    api.delete_namespaced_pod(pod, namespace, grace_period_seconds=0)


@pytest.mark.takes(120)
def test_a_training_resumes_after_the_loss_of_a_replica(start, api):
    """A parameter server and the chief are lost one after the other.

    The pod is deleted first: if the operator fails the job within a minute of another failure, that one may be reported
    as the cause.
    """
    step = start({"trainer": "keras_classifier"}, WITH_SERVERS, {"epochs": EPOCHS, "batch_size": 130}, pause=0.15)
    for epoch, replica, lose, reason in (
        (3, "chief-0", delete, "pod deleted"),
        (10, "ps-0", end, "exit code 143"),
    ):
        step.wait_for(rf"\[chief-0\] epoch {epoch}/{EPOCHS} ", 300)
        before, lost_at = len(step.lines), time.time()
        lose(api, step.namespace, step.pod_of(replica))
        # Only new lines, because the replica may have failed with the other one before.
        step.assert_logged_within(SECONDS, lost_at, rf"^{replica}: failed \(.*{reason}", after=before)
    verdict = step.verdict(480)
    assert verdict["succeeded"], step.log
    printed = [int(match[1]) for _, text in step.lines if (match := re.match(r"\[chief-0\] epoch (\d+)/", text))]
    # Each epoch is printed once. The last line before a restart may be missing, or its epoch repeated.
    assert printed[0] == 1
    assert printed[-1] == EPOCHS
    assert all(0 <= after - before <= 2 for before, after in pairwise(printed)), printed
    assert [epoch["epoch"] for epoch in verdict["metrics"]["chief-0"]] == list(range(1, EPOCHS + 1))
    assert left_behind(step) == []


NO_RESTARTS = {"restart_limit": 0, "preemption_limit": 0}

# The first two starts end as after an outage of the object store. One replica stores the number of the start. The
# others run for as long as that takes, because all end with the first one.
ENDS_IN_AN_OUTAGE = f"""\
import os, time
from pathlib import Path
from kfp_distributed.trainers.sync import flush
starts = Path(os.environ["KFP_DISTRIBUTED_CHECKPOINT_DIR"], "starts")
number = int(starts.read_text()) + 1 if starts.exists() else 1
print("start", number, flush=True)
if number < 3:
    starts.write_text(str(number))
    flush()
    time.sleep(8)
    os._exit({STORE_AWAY})"""


@both_operators
@pytest.mark.takes(60)
def test_an_outage_of_the_object_store_counts_for_no_limit(start, operator):
    """The Job controller replaces the pod of a Job. The whole TFJob is created again, because of restart_limit 0.

    JobSet starts all pods of a TrainJob again.
    """
    steps = {"the whole job": start(function(ENDS_IN_AN_OUTAGE), {**WORKERS, **NO_RESTARTS})}
    if operator == "training-operator":
        steps["worker-0"] = start(function(ENDS_IN_AN_OUTAGE), NO_RESTARTS)
    for restarted, step in steps.items():
        assert_survived(step, restarted)


@pytest.mark.mpi("v1")
@pytest.mark.takes(60)
def test_an_outage_counts_for_no_limit_of_an_mpijob(start, open_namespace, image_name):
    program = {**function(ENDS_IN_AN_OUTAGE), "image": image_name("horovod")}
    keys = {"distribution_type": "MPI", "number_of_workers": 2, **NO_RESTARTS}
    assert_survived(start(program, keys, namespace=open_namespace), "the whole job")


def assert_survived(step, restarted: str) -> None:
    """Assert that the training ended well after two restarts, which count for no limit."""
    assert step.verdict()["succeeded"], step.log
    restarts = re.findall(r"^(?:restart|preemption).*: .*$", step.log, re.MULTILINE)
    assert len(restarts) == 2, step.log
    assert {re.sub(r"\w+-\d: the", "replica: the", text) for text in restarts} == {
        f"restart: {restarted} (replica: the object store did not answer)"
    }
    assert re.search(r"^\[worker-0\] start 3$", step.log, re.MULTILINE), step.log
    assert left_behind(step) == []


class StoreService:
    """A Service in a namespace whose endpoint is the object store. The endpoint can be removed."""

    def __init__(self, api, namespace: str) -> None:
        self._slices, self._namespace = client.DiscoveryV1Api(), namespace
        service = {"metadata": {"name": "store"}, "spec": {"ports": [{"port": 9000, "name": "s3"}]}}
        api.create_namespaced_service(namespace, service)
        selector = "kubernetes.io/service-name=minio-service"
        self._real = self._slices.list_namespaced_endpoint_slice("kubeflow", label_selector=selector).items[0]
        self.connect()

    def connect(self) -> None:
        ports = [{"name": "s3", "port": self._real.ports[0].port, "protocol": "TCP"}]
        addresses = [address for endpoint in self._real.endpoints for address in endpoint.addresses]
        body = {
            "metadata": {"name": "store", "labels": {"kubernetes.io/service-name": "store"}},
            "addressType": self._real.address_type,
            "ports": ports,
            "endpoints": [{"addresses": addresses, "conditions": {"ready": True}}],
        }
        self._slices.create_namespaced_endpoint_slice(self._namespace, body)

    def disconnect(self) -> None:
        self._slices.delete_namespaced_endpoint_slice("store", self._namespace)


PROVIDERS = """\
minio:
  default:
    endpoint: store.{namespace}:9000
    disableSSL: true
    region: us-east-1
    credentials:
      secretRef: {{secretName: mlpipeline-minio-artifact, accessKeyKey: accesskey, secretKeyKey: secretkey}}
"""


@pytest.mark.takes(48)
def test_a_model_is_saved_after_an_outage_of_the_object_store_at_the_end(
    start, open_namespace, api, bucket, store_environment
):
    store = StoreService(api, open_namespace)
    launcher = {"metadata": {"name": "kfp-launcher"}, "data": {"providers": PROVIDERS.format(namespace=open_namespace)}}
    api.create_namespaced_config_map(open_namespace, launcher)
    uri = f"s3://{bucket}/models/{uuid.uuid4().hex}"
    program = function("import time\nprint('begun', flush=True)\ntime.sleep(20)\nprint('trained', flush=True)")
    step = start(program, namespace=open_namespace, model_uri=uri)
    step.wait_for(r"\[worker-0\] begun")
    store.disconnect()
    trained = step.wait_for(r"\[worker-0\] trained")
    time.sleep(20)  # The outage lasts longer than the upload of the model.
    store.connect()
    verdict = step.verdict(300)
    assert verdict["succeeded"], step.log
    assert step.wait_for("model saved") - trained > 15, step.log
    model = open_store(uri, credentials_from_environment(store_environment))
    assert {entry.key for entry in model.list()} == {"weights", "model.json"}
    assert left_behind(step) == []
