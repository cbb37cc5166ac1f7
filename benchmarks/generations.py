"""Compare the jobs of the training operator with TrainJobs and the Kubeflow SDK.

Run `make bench-generations` on a cluster with the training operator and Kubeflow Trainer v2, after `make images`.
AWS_ENDPOINT_URL and its keys select the object store, as in cluster.py.
"""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cluster_jobs import WHERE, JobLife, Times, benchmark_namespace, function_request
from comparators import TRAINER_SDK, python_of, version_of
from measure import header, parser, spread, table, take_turns, write_page

from kfp_distributed.cluster_api.configuration import connect
from kfp_distributed.components.train.run.launch import TrainingFailed, launch
from kfp_distributed.components.train.run.runners.runner_choice import kubernetes_runner
from kfp_distributed.components.train.run.training_request.request import Request, plan_job
from kfp_distributed.components.train.tell.log_format import log

_TRAINJOBS = "trainer.kubeflow.org/v1alpha1", "trainjobs"
_TYPES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "TF": ("tensorflow", {"number_of_parameter_servers": 0, "number_of_workers": 2}),
    "PyTorch": ("pytorch", {"number_of_workers": 1}),
    "MPI": ("horovod", {"number_of_workers": 2}),
}
"""Image and keys of each type of job."""
_OPERATORS = {"training-operator": "{}Job", "trainer": "TrainJob"}
"""The object of each operator."""
_SECONDS = 5
_ERROR = "no such column: price"
_SOURCE = f"""\
def fit(model_dir: str, error: str):
    import time
    from pathlib import Path

    time.sleep({_SECONDS})
    if error:
        raise RuntimeError(error)
    Path(model_dir, "weights").write_text("1")
"""
_TEXT = """\
# Training operator and Kubeflow Trainer

{header} Each cell is the median of {runs} runs, with minimum and maximum.

## The same training by both operators

A program that sleeps {seconds} s and saves a model, in two workers (PyTorch: a master and a worker). The rows ran in
turn. *Its end* is the time at which its operator has recorded the end of the job. If the step returns earlier, the time
is negative.

{generations}

## The same TrainJob by the Kubeflow SDK

`TrainerClient.train` and `wait_for_job_status` of kubeflow, with their defaults, run the same program on two nodes of
the runtime `torch-distributed`. They upload no model.

{sdk}

The program of the second table fails in both nodes, with `RuntimeError: {error}`.

{failures}
"""
_AFTER = "from its end to the return"


class _Result(NamedTuple):
    """The times of one run, and the text of its failure; "" for none."""

    times: Times
    failure: str


def _request(bucket: str, images: Mapping[str, str], distribution_type: str, operator: str, error: str = "") -> Request:
    image, keys = _TYPES[distribution_type]
    distribution = {"distribution_type": distribution_type, "operator": operator, **keys}
    return function_request(bucket, _SOURCE, images[image], {"error": error}, distribution)


def _step(namespace: str, make: Callable[[], Request], run: int) -> _Result:
    """Run the step once, with a new request."""
    request, failure = make(), ""
    job = plan_job(request)
    jobs = "kubeflow.org/v1", f"{job.topology.distribution_type}jobs".lower()
    life = JobLife(namespace, _TRAINJOBS if job.specification.operator == "trainer" else jobs, job.name)
    started = time.monotonic()
    try:
        launch(request, kubernetes_runner(connect(namespace), request.model_uri, log), lambda fact: None)
    except TrainingFailed as failed:
        failure = str(failed)
    return _Result(life.times(started, time.monotonic()), failure)


def _sdk(namespace: str, image: str, error: str, run: int) -> _Result:
    """Run the SDK once."""
    program = [str(python_of(TRAINER_SDK)), str(Path(__file__).parent / "sdk_programs.py"), "train"]
    argv = [*program, namespace, image, str(_SECONDS), error]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        process.stdin.write("\n")
        process.stdin.flush()
        _, name, started = process.stdout.readline().split()
        life = JobLife(namespace, _TRAINJOBS, name)
        _, ended, text = process.stdout.readline().rstrip("\n").split(" ", 2)
        return _Result(life.times(float(started), float(ended)), text)


def _generations(namespace: str, images: Mapping[str, str], runs: int) -> str:
    """Return the table of the jobs of both operators."""
    ways = {
        (distribution_type, kind.format(distribution_type)): partial(
            _step, namespace, partial(_request, namespace, images, distribution_type, operator)
        )
        for distribution_type in _TYPES
        for operator, kind in _OPERATORS.items()
    }
    rows = []
    for names, results in take_turns(ways, runs).items():
        before, after, total = zip(*(result.times for result in results), strict=True)
        rows.append([*names, spread(before), spread(after), spread(total)])
    return table(["type", "object", "until the job exists", _AFTER, "total"], rows)


def _beside_sdk(namespace: str, images: Mapping[str, str], runs: int, error: str) -> str:
    """Return the table of the step and the SDK with a program that ends with an error; "" for none."""
    make = partial(_request, namespace, images, "PyTorch", "trainer", error)
    ways = {
        "train step": partial(_step, namespace, make),
        "Kubeflow SDK": partial(_sdk, namespace, images["pytorch"], error),
    }
    rows = [[name, *_cells(results, error)] for name, results in take_turns(ways, runs).items()]
    return table(["", _AFTER, "total", *(["the error has the program's message"] if error else [])], rows)


def _cells(results: Sequence[_Result], error: str) -> list[str]:
    _, after, total = zip(*(result.times for result in results), strict=True)
    shown = "yes" if all(error in result.failure for result in results) else "no"
    return [spread(after), spread(total), *([shown] if error else [])]


def main() -> None:
    """Measure, print the tables and write the page."""
    arguments = parser(__doc__, "generations.md", runs=3)
    for image, _ in _TYPES.values():
        arguments.add_argument(f"--{image}", required=True, help="the image of these replicas")
    options = arguments.parse_args()
    images, runs = vars(options), options.runs
    with benchmark_namespace() as namespace:
        text = _TEXT.format(
            header=header("bench-generations", {TRAINER_SDK: version_of(TRAINER_SDK)}, where=WHERE),
            runs=runs,
            seconds=_SECONDS,
            error=_ERROR,
            generations=_generations(namespace, images, runs),
            sdk=_beside_sdk(namespace, images, runs, ""),
            failures=_beside_sdk(namespace, images, runs, _ERROR),
        )
    write_page(options.page, text)


if __name__ == "__main__":
    main()
