"""Measure the time that the step adds to a job on the cluster of KUBECONFIG.

Run `make bench-cluster IMAGE=...` with an image that has the packages of the entry program, such as images/tensorflow.
STEPS_IMAGE=... is the image of the steps. Default: the one that `make images` builds. AWS_ENDPOINT_URL and its keys
select the object store. The Secret mlpipeline-minio-artifact of namespace kubeflow must be for the same store, and pods
must be able to connect to its address.
"""

import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from operator import sub
from pathlib import Path
from typing import NamedTuple

from cluster_jobs import WHERE, JobLife, Times, benchmark_namespace, function_request
from comparators import SDK, python_of, version_of
from measure import header, parser, spread, table, take_turns, write_page
from step_start import step_start_table

from kfp_distributed.cluster_api.configuration import connect
from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.runners.kubernetes.runner import KubernetesRunner
from kfp_distributed.components.train.run.runners.runner_choice import kubernetes_runner
from kfp_distributed.components.train.run.training_request.request import Request, plan_job
from kfp_distributed.components.train.tell.log_format import log

_TFJOBS = "kubeflow.org/v1", "tfjobs"
_POLLS = (15, 30)
_LONGER = 3
"""Seconds that the job of each run takes longer than that of the previous run."""
_SOURCE = """\
def fit(model_dir: str, seconds: int):
    import time
    from pathlib import Path

    time.sleep(seconds)
    Path(model_dir, "weights").write_text("1")
"""
_TEXT = """\
# The train step on a cluster

{header}

A TFJob with two idle workers takes {seconds} to {longest} s. The step, and `kubectl apply` + `kubectl wait` with the
same manifest, run it in turn. The cells are medians of {runs} runs, with minimum and maximum. Goals: the step adds at
most 0.3 s, and returns within 0.2 s after the operator has recorded the end of the job.

A separate watch records when the job exists and when the operator has recorded its end. The time between depends on the
cluster, and varies by more than a second from run to run. So compare the time before and after:

{totals}

The time of the step starts after its imports, which [the start of the step](#the-start-of-the-step) has. The time of
kubectl includes the start of `kubectl apply`.

Before it creates the job, the step checks permissions and validates all objects by a dry run of the API server. After
the end of the job, it prints the last lines of the logs, verifies the model and deletes the job. A polling loop returns
later after the end of the job:

{delays}

`wait_for_job_conditions` is that of kubeflow-training, whose default interval is 15 s. It starts to wait when
`kubectl apply` has returned.

## The start of the step

How a compiled `train` step starts in a pod, with each delivery of the library
([Deliveries](../docs/explanation/deliveries.md)). Medians of {starts} runs, each delivery in turn, with the least and
the most. The clock starts with the container, and the images are on the node.

The benchmark makes the step print a line after the import of its code, *the first line* in the table. The job has the
type Job and one replica. The time of pip depends on the package index and varies between runs. The other time before
the line is the start of Python, the import of the step's code and, with the namespace delivery, the request for the
ConfigMap.

{start}
"""


class _Result(NamedTuple):
    """The times of one run, and the delay of the SDK in seconds by polling interval."""

    times: Times
    delays: dict[int, float]


def _request(bucket: str, image: str, seconds: int) -> Request:
    distribution = {"distribution_type": "TF", "number_of_workers": 2, "number_of_parameter_servers": 0}
    return function_request(bucket, _SOURCE, image, {"seconds": seconds}, distribution)


def _step(namespace: str, request: Request) -> _Result:
    """Run the step once."""
    life = JobLife(namespace, _TFJOBS, plan_job(request).name)
    started = time.monotonic()
    launch(request, kubernetes_runner(connect(namespace), request.model_uri, log), lambda fact: None)
    return _Result(life.times(started, time.monotonic()), {})


def _kubectl(namespace: str, request: Request) -> _Result:
    """Run the same manifest by kubectl once, while the SDK waits for the job."""
    runner = kubernetes_runner(connect(namespace), request.model_uri, log)
    assert isinstance(runner, KubernetesRunner)
    runner.check(plan_job(request))
    name = runner.manifest["metadata"]["name"]
    life = JobLife(namespace, _TFJOBS, name)
    with contextlib.ExitStack() as stack, tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        waiters = {interval: stack.enter_context(_sdk_waiter(namespace, interval)) for interval in _POLLS}
        json.dump({"apiVersion": "v1", "kind": "List", "items": [*runner._objects.parts, runner.manifest]}, file)
        file.flush()
        started = time.monotonic()
        _call_kubectl(namespace, "apply", "--filename", file.name)
        for waiter in waiters.values():
            waiter.stdin.write(f"{name}\n")  # type: ignore[union-attr]  # PIPE makes one.
            waiter.stdin.flush()  # type: ignore[union-attr]
        _call_kubectl(namespace, "wait", "--for=condition=Succeeded", f"tfjob/{name}", "--timeout=300s")
        times = life.times(started, time.monotonic())
        seen = {interval: float(waiter.communicate()[0].split()[-1]) for interval, waiter in waiters.items()}
        _call_kubectl(namespace, "delete", "--filename", file.name)
    return _Result(times, {interval: moment - life.end for interval, moment in seen.items()})


def _call_kubectl(namespace: str, *arguments: str) -> None:
    subprocess.run(["kubectl", "--namespace", namespace, *arguments], check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def _sdk_waiter(namespace: str, interval: int) -> Iterator["subprocess.Popen[str]"]:
    """Start a process that has imported the SDK and reads the name of a job from its input."""
    argv = [str(python_of(SDK)), str(Path(__file__).parent / "sdk_programs.py"), "wait", namespace, str(interval)]
    waiter = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    waiter.stdout.readline()  # type: ignore[union-attr]
    try:
        yield waiter
    finally:
        waiter.kill()


def _totals(step: list[_Result], kubectl: list[_Result]) -> str:
    ours, theirs = ([run.times for run in runs] for runs in (step, kubectl))
    added = [Times(*map(sub, *pair)) for pair in zip(ours, theirs, strict=True)]
    rows = [
        [name, *map(spread, zip(*times, strict=True)), spread([run.before + run.after for run in times])]
        for name, times in (("train step", ours), ("kubectl apply, kubectl wait", theirs), ("added", added))
    ]
    return table(["", "until the job exists", "from its end to the return", "total", "before and after"], rows)


def main() -> None:
    """Measure, print the tables and write the page."""
    arguments = parser(__doc__, "cluster.md", runs=5)
    arguments.add_argument("--image", required=True)
    arguments.add_argument("--steps-image", required=True)
    arguments.add_argument("--starts", type=int, default=3, help="number of starts with each delivery")
    arguments.add_argument("--seconds", type=int, default=5, help="duration of the workers")
    options = arguments.parse_args()
    with benchmark_namespace() as namespace:
        start = step_start_table(namespace, options.steps_image, options.starts)

        def request(run: int) -> Request:
            # Vary the duration, because the delay of a polling loop depends on when in its interval the job ends.
            return _request(namespace, options.image, options.seconds + _LONGER * run)

        ways = {
            "step": lambda run: _step(namespace, request(run)),
            "kubectl": lambda run: _kubectl(namespace, request(run)),
        }
        results = take_turns(ways, options.runs)
    delays = [
        [f"`wait_for_job_conditions`, interval {poll} s", spread([run.delays[poll] for run in results["kubectl"]])]
        for poll in _POLLS
    ]
    text = _TEXT.format(
        header=header("bench-cluster", {SDK: version_of(SDK)}, "columns", WHERE),
        seconds=options.seconds,
        longest=options.seconds + _LONGER * (options.runs - 1),
        runs=options.runs,
        starts=options.starts,
        start=start,
        totals=_totals(results["step"], results["kubectl"]),
        delays=table(["", "delay"], delays),
    )
    write_page(options.page, text)


if __name__ == "__main__":
    main()
