"""Measures what the step adds to a job on the cluster of KUBECONFIG, prints a table and writes benchmarks/cluster.md.

`make bench-cluster IMAGE=...`: the image has what the entry program needs (images/tensorflow). The object store is the
one of AWS_ENDPOINT_URL and its keys, which the Secret mlpipeline-minio-artifact of namespace kubeflow leads to as well.
"""

import argparse
import contextlib
import io
import json
import statistics
import subprocess
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import date
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from kubernetes import client, config
from measure import table

from kfp_distributed.components import prepare_data
from kfp_distributed.components.train.launch import Request, launch, plan_job
from kfp_distributed.components.train.runners.choose import kubernetes_runner
from kfp_distributed.components.train.runners.cluster_api import ClusterApi, connect
from kfp_distributed.components.train.runners.kubernetes import KubernetesRunner
from kfp_distributed.storage import open_store

_README = Path(__file__).parent / "cluster.md"
_SECRET = "mlpipeline-minio-artifact"
_POLLS = (15, 30)
_SOURCE = """\
def fit(model_dir: str, seconds: int):
    import time
    from pathlib import Path

    time.sleep(seconds)
    Path(model_dir, "weights").write_text("1")
"""
_TEXT = """\
# What the train step costs on a cluster

`make bench-cluster` measures this anew and writes it here. Latest: {day}, one node with 2 cores of a shared
machine: compare columns, not days. A TFJob of two workers that do nothing for {seconds} s; medians of {runs} runs, the
step and `kubectl apply` + `kubectl wait` of the same manifest in turn.

{whole}

The step also checks permissions, asks the API server whether it would take the job, streams the logs, looks whether the
model is whole and deletes the job.

From the moment when a watch of the benchmark's own sees that the operator has written the end into the job's status:

{notice}

Requests of the step to the API server for one job: {requests}.
"""


class _Counting(ClusterApi):
    """Counts requests by their kind."""

    requests: ClassVar[Counter[str]] = Counter()

    def _send(self, method: str, path: str, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        watches = "watch" in (arguments[1] or {}) if len(arguments) > 1 else False
        self.requests["watch" if watches else "log" if path.endswith("/log") else method] += 1
        return super()._send(method, path, *arguments, **options)


class _End(threading.Thread):
    """Sees a job's end as early as can be."""

    def __init__(self, api: ClusterApi, path: str, name: str, polls: bool) -> None:
        super().__init__(daemon=True)
        self._api, self._path, self._name = api, path, name
        self.at = 0.0
        self.polled: dict[int, float] = {}
        self._polls = [threading.Thread(target=self._poll, args=(each,), daemon=True) for each in _POLLS if polls]

    def run(self) -> None:
        for each in self._polls:
            each.start()
        query = {"fieldSelector": f"metadata.name={self._name}", "watch": "1"}
        for line in self._api.lines(self._path, query, 600):
            if self._has_ended(json.loads(line)["object"]):
                self.at = time.monotonic()
                return

    def _poll(self, seconds: int) -> None:
        """The waiting loop of other launchers, their requests left aside."""
        while not self.at:
            time.sleep(seconds)
        self.polled[seconds] = time.monotonic() - self.at

    @staticmethod
    def _has_ended(job: dict[str, Any]) -> bool:
        conditions = job.get("status", {}).get("conditions") or []
        return any(each["type"] in ("Succeeded", "Failed") and each["status"] == "True" for each in conditions)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", required=True)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=5, help="how long the workers do nothing")
    options = parser.parse_args()
    ours, theirs, noticed, waited = [], [], [], []
    polled: dict[int, list[float]] = {each: [] for each in _POLLS}
    requests: list[Counter[str]] = []
    with _namespace() as (namespace, bucket):
        for run in range(options.runs):
            request = _request(bucket, options.image, options.seconds)
            seconds, end, latency, counted = _step(namespace, request)
            ours.append(seconds)
            noticed.append(latency)
            requests.append(counted)
            for each in end._polls:
                each.join()
            for interval, late in end.polled.items():
                polled[interval].append(late)
            seconds, latency = _kubectl(namespace, _request(bucket, options.image, options.seconds))
            theirs.append(seconds)
            waited.append(latency)
            print(f"run {run + 1}: step {ours[-1]:.2f} s, kubectl {theirs[-1]:.2f} s", flush=True)
    median = statistics.median
    whole = [["train step", f"{median(ours):.2f} s"], ["kubectl apply, kubectl wait", f"{median(theirs):.2f} s"]]
    whole.append(["added", f"{median(ours) - median(theirs):+.2f} s"])
    notice = [["train step returns", f"{median(noticed):.2f} s"], ["kubectl wait returns", f"{median(waited):.2f} s"]]
    notice += [
        [f"a loop that looks every {each} s", f"{statistics.mean(polled[each]):.1f} s (mean)"] for each in _POLLS
    ]
    counted = ", ".join(f"{count} {kind}" for kind, count in sorted(requests[-1].items()))
    text = _TEXT.format(
        day=date.today().isoformat(),
        seconds=options.seconds,
        runs=options.runs,
        whole=table(["", "from start to end"], whole),
        notice=table(["", "later by"], notice),
        requests=counted,
    )
    _README.write_text(text, encoding="utf-8")
    print(text)


def _request(bucket: str, image: str, seconds: int) -> Request:
    number = uuid.uuid4().hex[:8]
    return Request(
        train_uri=f"s3://{bucket}/train_dataset",
        model_uri=f"s3://{bucket}/models/{number}",
        checkpoint_uri=f"s3://{bucket}/checkpoints",
        train_specification={"function": "fit", "source": _SOURCE, "image": image},
        train_parameters={"seconds": seconds},
        distribution_specification={
            "distribution_type": "TF",
            "number_of_workers": 2,
            "number_of_parameter_servers": 0,
        },
        identity=(number,),
    )


def _step(namespace: str, request: Request) -> tuple[float, _End, float, Counter[str]]:
    """One run of the step: seconds, who watched its end, seconds from the end to the return, requests."""
    api = connect(namespace)
    counting = _Counting(api._client.configuration, namespace)
    _Counting.requests = Counter()
    end = _End(api, f"/apis/kubeflow.org/v1/namespaces/{namespace}/tfjobs", plan_job(request).name, polls=True)
    end.start()
    started = time.monotonic()
    launch(request, kubernetes_runner(counting, request.model_uri), lambda line: None)
    returned = time.monotonic()
    end.join(10)
    return returned - started, end, returned - end.at, Counter(_Counting.requests)


def _kubectl(namespace: str, request: Request) -> tuple[float, float]:
    """The same manifest by kubectl: seconds, and seconds from the end to the return."""
    api = connect(namespace)
    runner = kubernetes_runner(api, request.model_uri)
    assert isinstance(runner, KubernetesRunner)
    runner.check(plan_job(request))
    name = runner.manifest["metadata"]["name"]
    end = _End(api, f"/apis/kubeflow.org/v1/namespaces/{namespace}/tfjobs", name, polls=False)
    end.start()
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"apiVersion": "v1", "kind": "List", "items": [*runner._parts, runner.manifest]}, file)
        file.flush()
        started = time.monotonic()
        kubectl = ["kubectl", "--namespace", namespace]
        subprocess.run([*kubectl, "apply", "--filename", file.name], check=True, stdout=subprocess.DEVNULL)
        wait = ["wait", "--for=condition=Succeeded", f"tfjob/{name}", "--timeout=300s"]
        subprocess.run([*kubectl, *wait], check=True, stdout=subprocess.DEVNULL)
        returned = time.monotonic()
        end.join(10)
        subprocess.run([*kubectl, "delete", "--filename", file.name], check=True, stdout=subprocess.DEVNULL)
    return returned - started, returned - end.at


@contextlib.contextmanager
def _namespace() -> Iterator[tuple[str, str]]:
    """A namespace with the object store's Secret, and a bucket with the digits; both are emptied in the end."""
    config.load_config()
    core, name = client.CoreV1Api(), f"kfp-distributed-{uuid.uuid4().hex[:8]}"
    secret = core.read_namespaced_secret(_SECRET, "kubeflow").data
    core.create_namespace({"metadata": {"name": name}})
    store = open_store(f"s3://{name}")
    try:
        core.create_namespaced_secret(name, {"metadata": {"name": _SECRET}, "data": secret})
        store.make_bucket()
        with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):
            outputs = list(signature(prepare_data.python_func).parameters)[:4]
            prepare_data.python_func(
                **{each: SimpleNamespace(path=f"{scratch}/{each}", metadata={}) for each in outputs}
            )
            store.upload_folder(f"{scratch}/train_dataset", "train_dataset")
        yield name, name
    finally:
        store.delete([each.key for each in store.list()])
        core.delete_namespace(name)


if __name__ == "__main__":
    main()
