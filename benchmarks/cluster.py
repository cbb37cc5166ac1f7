"""Measure the time that the step adds to a job on the cluster of KUBECONFIG, and write benchmarks/cluster.md.

Run `make bench-cluster IMAGE=...` with an image that has the packages of the entry program, such as images/tensorflow.
STEPS_IMAGE=... is the image of the steps. Default: the one that `make images` builds. AWS_ENDPOINT_URL and its keys
select the object store. The Secret mlpipeline-minio-artifact of namespace kubeflow must be for the same store, and pods
must be able to connect to its address.
"""

import argparse
import contextlib
import json
import subprocess
import tempfile
import time
import uuid
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any, ClassVar

from job_life import JobLife, Times, spread
from measure import table
from namespace import benchmark_namespace
from sdk import VERSION, sdk_python
from step_start import step_start_table

from kfp_distributed.cluster_api.client import ClusterApi
from kfp_distributed.cluster_api.configuration import connect
from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.log_entry import LogEntry
from kfp_distributed.components.train.run.request import Request, plan_job
from kfp_distributed.components.train.run.runners.choose import kubernetes_runner
from kfp_distributed.components.train.run.runners.kubernetes.runner import KubernetesRunner
from kfp_distributed.components.train.tell.log_format import log
from kfp_distributed.components.train.tell.step_log import StepLog

_README = Path(__file__).parent / "cluster.md"
_TFJOBS = "kubeflow.org/v1", "tfjobs"
_POLLS = (15, 30)
_LONGER = 3
"""Seconds that the job of each run takes longer than that of the previous run."""
_LINES = 10_000
_LATE = 15
"""Maximum delay in seconds with which a worker may start. The operator ends the job when the first worker has ended."""
_COLUMNS = ("from its end to the return", "from the end of its last pod to the return")
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
# The train step on a cluster

`make bench-cluster` runs these measurements and writes this page. Latest run: {day}, one node with 2 cores of a
shared machine. Compare the columns of one run, not different runs. A TFJob with two idle workers takes {seconds} to
{longest} s. The step, and `kubectl apply` + `kubectl wait` with the same manifest, run it in turn. The cells are
medians of {runs} runs, with minimum and maximum. Goals: the step adds at most 0.3 s, and returns within 0.2 s after the
operator has recorded the end of the job.

Separate watches record when the job exists, when its last pod ends and when the operator has recorded the end. The time
between depends on the cluster, and varies by more than a second from run to run. So compare the time before and after:

{totals}

The time of the step starts after its imports, which take about a second ([README.md](README.md)). The time of kubectl
includes the start of `kubectl apply`.

Before it creates the job, the step checks permissions and validates all objects by a dry run of the API server. After
the end of the job, it prints the last lines of the logs, verifies the model and deletes the job. A polling loop returns
later after the end of the job:

{delays}

`wait_for_job_conditions` is that of kubeflow-training {version}, whose default interval is 15 s. It starts to wait when
`kubectl apply` has returned.

Requests of the step to the API server for one job: {requests}.

{logs} [logs.md](logs.md) has the logs of 300 replicas, which this node cannot run.

## The start of the step

How a compiled `train` step starts in a pod, with each delivery of the library
([Deliveries](../docs/explanation/deliveries.md)). The last row is the delivery that these replaced: the YAML of an
earlier commit, which carries the library as a packed archive. Medians of {starts} runs, each delivery in turn, with the
least and the most. The clock starts with the container, and the images are on the node.

The benchmark makes the step print a line after the import of its code, *the first line* in the table. The job has the
type Job and one replica. The time of pip depends on the package index and varies between runs. The other time before
the line is the start of Python, the import of the step's code and, with the namespace delivery, the request for the
ConfigMap.

{start}
"""


class _Counting(ClusterApi):
    """Counts requests by kind."""

    requests: ClassVar[Counter[str]] = Counter()

    def _send(self, method: str, path: str, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        watches = "watch" in (arguments[1] or {}) if len(arguments) > 1 else False
        self.requests["watch" if watches else "log" if path.endswith("/log") else method] += 1
        return super()._send(method, path, *arguments, **options)


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", required=True)
    parser.add_argument("--steps-image", required=True)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--starts", type=int, default=3, help="number of starts with each delivery")
    parser.add_argument("--seconds", type=int, default=5, help="duration of the workers")
    options = parser.parse_args()
    ours, theirs = [], []
    polled: dict[int, list[float]] = {interval: [] for interval in _POLLS}
    requests: list[Counter[str]] = []
    with benchmark_namespace() as namespace:
        start = step_start_table(namespace, options.steps_image, options.starts)
        for run in range(options.runs):
            # Vary the duration, because the delay of a polling loop depends on when in its interval the job ends.
            seconds = options.seconds + _LONGER * run
            request = _request(namespace, options.image, seconds)
            times, counted = _step(namespace, request)
            ours.append(times)
            requests.append(counted)
            times, delays_of_run = _kubectl(namespace, _request(namespace, options.image, seconds))
            theirs.append(times)
            for interval in _POLLS:
                polled[interval].append(delays_of_run[interval])
            print(f"run {run + 1}: step {ours[-1]}, kubectl {theirs[-1]}", flush=True)
        logs = _logs(namespace, _request(namespace, options.image, _LATE, workers=3, lines=_LINES))
    added = [Times(*(our - their for our, their in zip(*pair, strict=True))) for pair in zip(ours, theirs, strict=True)]
    totals = [
        [name, *map(spread, zip(*times, strict=True)), spread([run.before + run.after for run in times])]
        for name, times in (("train step", ours), ("kubectl apply, kubectl wait", theirs), ("added", added))
    ]
    delays = [[f"`wait_for_job_conditions`, interval {interval} s", spread(polled[interval])] for interval in _POLLS]
    counted = ", ".join(f"{count} {kind}" for kind, count in sorted(requests[-1].items()))
    text = _TEXT.format(
        day=date.today().isoformat(),
        seconds=options.seconds,
        longest=options.seconds + _LONGER * (options.runs - 1),
        runs=options.runs,
        logs=logs,
        starts=options.starts,
        start=start,
        totals=table(["", "until the job exists", *_COLUMNS, "total", "before and after"], totals),
        delays=table(["", "delay"], delays),
        requests=counted,
        version=VERSION,
    )
    _README.write_text(text, encoding="utf-8")
    print(text)


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


def _step(namespace: str, request: Request) -> tuple[Times, Counter[str]]:
    """Run the step once. Return the times and the requests."""
    api = connect(namespace)
    counting = _Counting(api._client.configuration, namespace)
    _Counting.requests = Counter()
    life = JobLife(namespace, _TFJOBS, plan_job(request).name)
    life.start()
    started = time.monotonic()
    launch(request, kubernetes_runner(counting, request.model_uri, log), lambda fact: None)
    return life.times(started, time.monotonic()), Counter(_Counting.requests)


def _logs(namespace: str, request: Request) -> str:
    """Run a job with many lines. Return the numbers of lost and duplicated lines as a sentence."""
    lines: Counter[str] = Counter()
    stamps: list[float] = []

    def show(entry: LogEntry) -> None:
        if entry.message.startswith("line "):
            lines[f"{entry.replica} {entry.message}"] += 1
            stamps.append(time.monotonic())

    launch(request, kubernetes_runner(connect(namespace), request.model_uri, log), StepLog(show))
    workers = int(request.distribution_specification["number_of_workers"])
    lost, duplicated = workers * _LINES - len(lines), sum(lines.values()) - len(lines)
    rate = len(lines) / (stamps[-1] - stamps[0])
    return (
        f"The {workers} workers of a TFJob print {_LINES:,} lines each: {lost} were lost and {duplicated} duplicated, "
        f"at {rate:,.0f} lines/s."
    )


def _kubectl(namespace: str, request: Request) -> tuple[Times, dict[int, float]]:
    """Run the same manifest by kubectl. Return the times, and the delay of the SDK in seconds by polling interval."""
    api = connect(namespace)
    runner = kubernetes_runner(api, request.model_uri, log)
    assert isinstance(runner, KubernetesRunner)
    runner.check(plan_job(request))
    name = runner.manifest["metadata"]["name"]
    life = JobLife(namespace, _TFJOBS, name)
    life.start()
    with contextlib.ExitStack() as stack, tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        waiters = {interval: _sdk_waiter(namespace, interval) for interval in _POLLS}
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
        delays = {
            interval: float(waiter.communicate()[0].split()[-1]) - life.end for interval, waiter in waiters.items()
        }
        subprocess.run([*kubectl, "delete", "--filename", file.name], check=True, stdout=subprocess.DEVNULL)
    return times, delays


def _sdk_waiter(namespace: str, interval: int) -> "subprocess.Popen[str]":
    """Start a process that has imported the SDK and reads the name of a job from its input."""
    argv = [sdk_python(), Path(__file__).parent / "sdk_wait.py", namespace, str(interval)]
    waiter = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    waiter.stdout.readline()  # type: ignore[union-attr]
    return waiter


if __name__ == "__main__":
    main()
