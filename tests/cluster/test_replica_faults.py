"""Replicas and the object store that go away in the middle of a real training: it goes on from its checkpoint."""

import re
import time
import uuid
from itertools import pairwise

import pytest
from cluster.jobs import SECONDS, left_behind
from cluster.test_launch import function
from kubernetes import client
from kubernetes.stream import stream

from kfp_distributed.storage import credentials_from_environment, open_store

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

EPOCHS = 20
SERVED = {"distribution_type": "TF", "number_of_workers": 2, "number_of_parameter_servers": 2}


def end(api, namespace: str, pod: str) -> None:
    """The replica's process ends by itself, as one that was killed: with an exit code from 128 on."""
    command = ["sh", "-c", "kill 1"]
    # The connection ends with the container, in whichever way.
    stream(api.connect_get_namespaced_pod_exec, pod, namespace, command=command, stdout=True, _request_timeout=60)


def take_away(api, namespace: str, pod: str) -> None:
    api.delete_namespaced_pod(pod, namespace, grace_period_seconds=0)


HARM = {"exit code 143": end, "pod deleted": take_away}


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param(
            {"chief-0": "pod deleted", "ps-0": "exit code 143"},
            id="chief deleted, ps ends",
            marks=pytest.mark.takes(120),
        ),
        pytest.param(
            {"ps-0": "pod deleted", "chief-0": "exit code 143"},
            id="ps deleted, chief ends",
            marks=pytest.mark.takes(50),
        ),
    ],
)
def test_a_training_goes_on_when_a_replica_is_lost(start, api, lost):
    """A parameter server and the chief, one after the other, of the same job.

    The pod is deleted first: of a job that is given up within a minute of another failure that one may be told first.
    """
    step = start({"trainer": "keras_classifier"}, SERVED, {"epochs": EPOCHS})
    for epoch, (replica, said) in zip((3, 10), lost.items(), strict=True):
        step.wait_for(rf"\[chief-0\] epoch {epoch}/{EPOCHS} ", 300)
        before, harmed = len(step.lines), time.time()
        HARM[said](api, step.namespace, f"{step.name}-{replica}")
        # Others that went with an earlier one have been told of before.
        step.told_within(SECONDS, harmed, rf"^{replica}: failed \(.*{said}", after=before)
    verdict = step.verdict(480)
    assert verdict["succeeded"], step.log
    shown = [int(found[1]) for _, text in step.lines if (found := re.match(r"\[chief-0\] epoch (\d+)/", text))]
    # Each epoch once; the one whose line was on its way may be missing, or come again.
    assert shown[0] == 1
    assert shown[-1] == EPOCHS
    assert all(0 <= after - before <= 2 for before, after in pairwise(shown)), shown
    assert [each["epoch"] for each in verdict["metrics"]["chief-0"]] == list(range(1, EPOCHS + 1))
    assert left_behind(step) == []


@pytest.mark.takes(80)
def test_mirrored_workers_go_on_from_their_checkpoint_when_one_is_lost(start, api):
    """None can do without the others: all start again, after the last epoch that the store has."""
    workers = {"distribution_type": "TF", "number_of_workers": 2, "number_of_parameter_servers": 0}
    step = start({"trainer": "keras_classifier"}, workers, {"epochs": 12})
    step.wait_for(r"\[worker-1\] epoch 3/12 ", 240)
    ended = time.time()
    end(api, step.namespace, f"{step.name}-worker-1")
    step.told_within(SECONDS, ended, r"^worker-1: failed \(.*exit code 143")
    verdict = step.verdict(480)
    assert verdict["succeeded"], step.log
    before, after = (
        [int(epoch) for epoch in re.findall(r"^\[worker-1\] epoch (\d+)/", part, re.MULTILINE)]
        for part in re.split(r"^worker-1: failed .*$", step.log, maxsplit=1, flags=re.MULTILINE)
    )
    assert before[0] == 1
    # A last line of the first start may come after the word of its end.
    after = after[after.index(min(after)) :]
    # What was being stored just then is lost.
    assert 1 < after[0] <= before[-1] + 1, (before, after)
    assert after == list(range(after[0], 13))
    assert [each["epoch"] for each in verdict["metrics"]["worker-0"]] == list(range(1, 13))
    assert left_behind(step) == []


class StoreService:
    """A Service in a namespace that leads to the object store, or to nothing."""

    def __init__(self, api, namespace: str) -> None:
        self._slices, self._namespace = client.DiscoveryV1Api(), namespace
        service = {"metadata": {"name": "store"}, "spec": {"ports": [{"port": 9000, "name": "s3"}]}}
        api.create_namespaced_service(namespace, service)
        of_store = "kubernetes.io/service-name=minio-service"
        self._real = self._slices.list_namespaced_endpoint_slice("kubeflow", label_selector=of_store).items[0]
        self.come_back()

    def come_back(self) -> None:
        ports = [{"name": "s3", "port": self._real.ports[0].port, "protocol": "TCP"}]
        addresses = [address for each in self._real.endpoints for address in each.addresses]
        body = {
            "metadata": {"name": "store", "labels": {"kubernetes.io/service-name": "store"}},
            "addressType": self._real.address_type,
            "ports": ports,
            "endpoints": [{"addresses": addresses, "conditions": {"ready": True}}],
        }
        self._slices.create_namespaced_endpoint_slice(self._namespace, body)

    def go_away(self) -> None:
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
def test_a_model_is_not_lost_when_the_object_store_is_away_at_the_end(
    start, open_namespace, api, bucket, store_environment
):
    store = StoreService(api, open_namespace)
    launcher = {"metadata": {"name": "kfp-launcher"}, "data": {"providers": PROVIDERS.format(namespace=open_namespace)}}
    api.create_namespaced_config_map(open_namespace, launcher)
    uri = f"s3://{bucket}/models/{uuid.uuid4().hex}"
    program = function("import time\nprint('begun', flush=True)\ntime.sleep(20)\nprint('trained', flush=True)")
    step = start(program, namespace=open_namespace, model_uri=uri)
    step.wait_for(r"\[worker-0\] begun")
    store.go_away()
    trained = step.wait_for(r"\[worker-0\] trained")
    time.sleep(20)
    store.come_back()
    verdict = step.verdict(120)
    assert verdict["succeeded"], step.log
    assert step.wait_for("model saved") - trained > 15, step.log
    kept = open_store(uri, credentials_from_environment(store_environment))
    assert {entry.key for entry in kept.list()} == {"weights", "model.json"}
    assert left_behind(step) == []
