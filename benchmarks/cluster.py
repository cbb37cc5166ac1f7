"""Measures what the step adds to a job on the cluster of KUBECONFIG, prints a table and writes benchmarks/cluster.md.

`make bench-cluster IMAGE=...`: the image has what the entry program needs (images/tensorflow). STEPS_IMAGE=... is the
image of the steps; the default is the one that `make images` builds. The object store is the one of AWS_ENDPOINT_URL
and its keys. The Secret mlpipeline-minio-artifact of namespace kubeflow leads to it as well, and
pods reach its address.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from measure import table
from namespace import benchmark_namespace
from sdk import VERSION, sdk_python
from step_start import step_start_table

from kfp_distributed.components.train.launch import Request, launch, plan_job
from kfp_distributed.components.train.log_format import LogEntry
from kfp_distributed.components.train.manifests import JOB_LABEL
from kfp_distributed.components.train.runners.choose import kubernetes_runner
from kfp_distributed.components.train.runners.kubernetes.cluster_api import ClusterApi, connect
from kfp_distributed.components.train.runners.kubernetes.runner import KubernetesRunner

_README = Path(__file__).parent / "cluster.md"
_POLLS = (15, 30)
_LONGER = 3
"""Seconds by which the job of each run takes longer than the last one's."""
_LINES = 10_000
_LATE = 15
"""Seconds by which a worker may start late. The operator ends the job, and all its workers, when the first one ends."""
_COLUMNS = ("from its end to the return", "from its last pod's end")
_SOURCE = """\
def fit(model_dir: str, seconds: int, lines: int):
    import sys
    import time
    from pathlib import Path

    for number in range(lines):
        print(f"line {number:06}")
    sys.stdout.flush()
    time.sleep(seconds)
    Path(model_dir, "weights").write_text("1")
"""
_TEXT = """\
# What the train step costs on a cluster

`make bench-cluster` measures this anew and writes it here. Latest: {day}, one node with 2 cores of a shared
machine: compare columns, not days. A TFJob of two workers that do nothing for {seconds} to {longest} s, by the step
and by `kubectl apply` + `kubectl wait` of the same manifest in turn; medians of {runs} runs, with the least and the
most. The goals: the step adds at most 0.3 s, and returns within 0.2 s once the operator has written the job's end.

Watches of the benchmark's own see when the job is there, when its last pod ends and when the operator has written the
end. What lies between is the cluster's, and differs by more than a second from run to run; what is added is what lies
before and after:

{whole}

The step's clock starts when its program has imported what it needs, about a second ([README.md](README.md)); kubectl's
has the start of `kubectl apply`.

Before the job is there the step checks permissions and asks the API server whether it would take all of it; after its
end it tells the last lines of the logs, looks whether the model is whole and deletes the job. Waiting in a loop
instead, from the end on:

{notice}

`wait_for_job_conditions` is that of kubeflow-training {version}; 15 s is its default. It begins to wait when `kubectl
apply` has returned.

Requests of the step to the API server for one job: {requests}.

{logs} [logs.md](logs.md) has the logs of 300 replicas, for which this node has no room.

## The start of the step

How a compiled `train` step starts in a pod, with each delivery of the library
([docs/compiled-yaml.md](../docs/compiled-yaml.md)). The last row is the delivery that these replaced: the YAML of an
earlier commit, which carries the library as a packed archive. Medians of {starts} runs, each delivery in turn, with the
least and the most. The clock starts with the container, and the images are on the node.

The benchmark adds the first own line: the step prints it when its code is imported. The job has the type Job and one
replica. pip's time depends on the package index and varies between runs. The rest of the time before the line is the
start of Python, the import of the step's code and, with the namespace delivery, the request for the ConfigMap.

{start}
"""


class _Counting(ClusterApi):
    """Counts requests by their kind."""

    requests: ClassVar[Counter[str]] = Counter()

    def _send(self, method: str, path: str, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        watches = "watch" in (arguments[1] or {}) if len(arguments) > 1 else False
        self.requests["watch" if watches else "log" if path.endswith("/log") else method] += 1
        return super()._send(method, path, *arguments, **options)


class _Times(NamedTuple):
    """Seconds of one run: until the job is there, from its end and from its last pod's to the return, and all."""

    before: float
    after: float
    last_pod: float
    whole: float


class _Life(threading.Thread):
    """Sees when a job is there, the end of its last pod and its own, as early as can be."""

    def __init__(self, namespace: str, name: str) -> None:
        super().__init__(daemon=True)
        self._api, self._namespace, self._name = connect(namespace), namespace, name
        self._pods = threading.Thread(target=self._watch_pods, daemon=True)
        self.begin = self.end = self.last_pod = 0.0

    def run(self) -> None:
        self._pods.start()
        query = {"fieldSelector": f"metadata.name={self._name}", "watch": "1"}
        for line in self._api.lines(f"/apis/kubeflow.org/v1/namespaces/{self._namespace}/tfjobs", query, 600):
            self.begin = self.begin or time.monotonic()
            if self._has_ended(json.loads(line)["object"]):
                self.end = time.monotonic()
                return

    def times(self, started: float, returned: float) -> _Times:
        """Those of a run."""
        self.join(10)
        return _Times(self.begin - started, returned - self.end, returned - self.last_pod, returned - started)

    def _watch_pods(self) -> None:
        query = {"labelSelector": f"{JOB_LABEL}={self._name}", "watch": "1"}
        ended: set[str] = set()
        for line in connect(self._namespace).lines(f"/api/v1/namespaces/{self._namespace}/pods", query, 600):
            pod = json.loads(line)["object"]
            name = pod["metadata"]["name"]
            if name not in ended and pod["status"].get("phase") in ("Succeeded", "Failed"):
                self.last_pod = time.monotonic()
                ended.add(name)

    @staticmethod
    def _has_ended(job: dict[str, Any]) -> bool:
        conditions = job.get("status", {}).get("conditions") or []
        return any(each["type"] in ("Succeeded", "Failed") and each["status"] == "True" for each in conditions)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", required=True)
    parser.add_argument("--steps-image", required=True)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--starts", type=int, default=3, help="number of starts with each delivery")
    parser.add_argument("--seconds", type=int, default=5, help="how long the workers do nothing")
    options = parser.parse_args()
    ours, theirs = [], []
    polled: dict[int, list[float]] = {each: [] for each in _POLLS}
    requests: list[Counter[str]] = []
    with benchmark_namespace() as namespace:
        start = step_start_table(namespace, options.steps_image, options.starts)
        for run in range(options.runs):
            # Of other lengths: how late a loop comes depends on when in its interval the job ends.
            seconds = options.seconds + _LONGER * run
            request = _request(namespace, options.image, seconds)
            times, counted = _step(namespace, request)
            ours.append(times)
            requests.append(counted)
            times, late = _kubectl(namespace, _request(namespace, options.image, seconds))
            theirs.append(times)
            for interval in _POLLS:
                polled[interval].append(late[interval])
            print(f"run {run + 1}: step {ours[-1]}, kubectl {theirs[-1]}", flush=True)
        logs = _logs(namespace, _request(namespace, options.image, _LATE, workers=3, lines=_LINES))
    added = [
        _Times(*(our - their for our, their in zip(*pair, strict=True))) for pair in zip(ours, theirs, strict=True)
    ]
    whole = [
        [name, *map(_spread, zip(*times, strict=True)), _spread([each.before + each.after for each in times])]
        for name, times in (("train step", ours), ("kubectl apply, kubectl wait", theirs), ("added", added))
    ]
    notice = [[f"`wait_for_job_conditions` every {each} s returns", _spread(polled[each])] for each in _POLLS]
    counted = ", ".join(f"{count} {kind}" for kind, count in sorted(requests[-1].items()))
    text = _TEXT.format(
        day=date.today().isoformat(),
        seconds=options.seconds,
        longest=options.seconds + _LONGER * (options.runs - 1),
        runs=options.runs,
        logs=logs,
        starts=options.starts,
        start=start,
        whole=table(["", "until the job is there", *_COLUMNS, "all", "before and after"], whole),
        notice=table(["", "later by"], notice),
        requests=counted,
        version=VERSION,
    )
    _README.write_text(text, encoding="utf-8")
    print(text)


def _spread(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"


def _request(bucket: str, image: str, seconds: int, workers: int = 2, lines: int = 0) -> Request:
    number = uuid.uuid4().hex[:8]
    return Request(
        train_uri=f"s3://{bucket}/train_dataset",
        model_uri=f"s3://{bucket}/models/{number}",
        checkpoint_uri=f"s3://{bucket}/checkpoints",
        train_specification={"function": "fit", "source": _SOURCE, "image": image},
        train_parameters={"seconds": seconds, "lines": lines},
        distribution_specification={
            "distribution_type": "TF",
            "number_of_workers": workers,
            "number_of_parameter_servers": 0,
        },
        identity=(number,),
    )


def _step(namespace: str, request: Request) -> tuple[_Times, Counter[str]]:
    """One run of the step, and its requests."""
    api = connect(namespace)
    counting = _Counting(api._client.configuration, namespace)
    _Counting.requests = Counter()
    life = _Life(namespace, plan_job(request).name)
    life.start()
    started = time.monotonic()
    launch(request, kubernetes_runner(counting, request.model_uri), lambda line: None)
    return life.times(started, time.monotonic()), Counter(_Counting.requests)


def _logs(namespace: str, request: Request) -> str:
    """What came of the lines of a job of some replicas, as a sentence."""
    told: Counter[str] = Counter()
    stamps: list[float] = []

    def show(entry: LogEntry) -> None:
        if entry.message.startswith("line "):
            told[f"{entry.replica} {entry.message}"] += 1
            stamps.append(time.monotonic())

    launch(request, kubernetes_runner(connect(namespace), request.model_uri), show)
    workers = int(request.distribution_specification["number_of_workers"])
    lost, doubled = workers * _LINES - len(told), sum(told.values()) - len(told)
    rate = len(told) / (stamps[-1] - stamps[0])
    return (
        f"Of a TFJob whose {workers} workers print {_LINES:,} lines each, {lost} were lost and {doubled} doubled, at "
        f"{rate:,.0f} lines a second."
    )


def _kubectl(namespace: str, request: Request) -> tuple[_Times, dict[int, float]]:
    """The same manifest by kubectl; seconds from the end to the return of the SDK by interval."""
    api = connect(namespace)
    runner = kubernetes_runner(api, request.model_uri)
    assert isinstance(runner, KubernetesRunner)
    runner.check(plan_job(request))
    name = runner.manifest["metadata"]["name"]
    life = _Life(namespace, name)
    life.start()
    with contextlib.ExitStack() as stack, tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        waiters = {each: _sdk_waiter(namespace, each) for each in _POLLS}
        for waiter in waiters.values():
            stack.callback(waiter.kill)
        json.dump({"apiVersion": "v1", "kind": "List", "items": [*runner._objects.parts, runner.manifest]}, file)
        file.flush()
        started = time.monotonic()
        kubectl = ["kubectl", "--namespace", namespace]
        subprocess.run([*kubectl, "apply", "--filename", file.name], check=True, stdout=subprocess.DEVNULL)
        for waiter in waiters.values():
            waiter.stdin.write(f"{name}\n")  # type: ignore[union-attr]  # PIPE makes one.
            waiter.stdin.flush()  # type: ignore[union-attr]
        wait = ["wait", "--for=condition=Succeeded", f"tfjob/{name}", "--timeout=300s"]
        subprocess.run([*kubectl, *wait], check=True, stdout=subprocess.DEVNULL)
        times = life.times(started, time.monotonic())
        late = {each: float(waiter.communicate()[0].split()[-1]) - life.end for each, waiter in waiters.items()}
        subprocess.run([*kubectl, "delete", "--filename", file.name], check=True, stdout=subprocess.DEVNULL)
    return times, late


def _sdk_waiter(namespace: str, interval: int) -> "subprocess.Popen[str]":
    """A process that has imported the SDK and awaits the name of a job to wait for."""
    argv = [sdk_python(), Path(__file__).parent / "sdk_wait.py", namespace, str(interval)]
    waiter = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    waiter.stdout.readline()  # type: ignore[union-attr]
    return waiter


if __name__ == "__main__":
    main()
