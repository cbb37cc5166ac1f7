"""Compare the jobs of the training operator with TrainJobs and the Kubeflow SDK, and write benchmarks/generations.md.

Run `make bench-generations` on a cluster with the training operator and Kubeflow Trainer v2, after `make images`.
AWS_ENDPOINT_URL and its keys select the object store, as in cluster.py.
"""

import argparse
import subprocess
import time
import uuid
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from job_life import JobLife, Times, spread
from measure import table
from namespace import benchmark_namespace
from sdk import TRAINER_VERSION, sdk_python

from kfp_distributed.cluster_api.configuration import connect
from kfp_distributed.components.train.run.launch import TrainingFailed, launch
from kfp_distributed.components.train.run.request import Request, plan_job
from kfp_distributed.components.train.run.runners.choose import kubernetes_runner
from kfp_distributed.components.train.tell.log_format import log

_PAGE = Path(__file__).parent / "generations.md"
_TRAINJOBS = "trainer.kubeflow.org/v1alpha1", "trainjobs"
_TYPES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "TF": ("tensorflow", {"number_of_parameter_servers": 0}),
    "PyTorch": ("pytorch", {}),
    "MPI": ("horovod", {}),
}
"""Image and keys of each type of job."""
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

`make bench-generations` runs these measurements and writes this page. Latest run: {day}, one node with 2 cores of a
shared machine. Compare the rows of one run, not different runs. Each cell is the median of {runs} runs, with minimum
and maximum.

## The same training by both operators

A program that sleeps {seconds} s and saves a model, in two workers (PyTorch: a master and a worker). The rows ran in
turn. *Its end* is the time at which its operator has recorded the end of the job. If the step returns earlier, the time
is negative.

{generations}

## The same TrainJob by the Kubeflow SDK

`TrainerClient.train` and `wait_for_job_status` of kubeflow {version}, with their defaults, run the same program on two
nodes of the runtime `torch-distributed`. They upload no model.

{sdk}

The program of the second table fails in both nodes, with `RuntimeError: {error}`.

{failures}
"""


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    for image, _ in _TYPES.values():
        parser.add_argument(f"--{image}", required=True, help="the image of these replicas")
    options = parser.parse_args()
    images = vars(options)
    times: dict[tuple[str, str], list[Times]] = {}
    sdk: dict[tuple[str, str], list[tuple[Times, str]]] = {}
    python = sdk_python(f"kubeflow=={TRAINER_VERSION}")
    with benchmark_namespace() as namespace:
        for run in range(options.runs):
            for distribution_type, (image, _) in _TYPES.items():
                for operator in ("training-operator", "trainer"):
                    request = _request(namespace, images[image], distribution_type, operator, "")
                    result, _ = _step(namespace, request)
                    times.setdefault((distribution_type, operator), []).append(result)
                    print(f"run {run + 1}: {distribution_type} {operator} {result}", flush=True)
            for error in ("", _ERROR):
                request = _request(namespace, images["pytorch"], "PyTorch", "trainer", error)
                sdk.setdefault(("train step", error), []).append(_step(namespace, request))
                by_sdk = _sdk(namespace, python, images["pytorch"], error)
                sdk.setdefault(("Kubeflow SDK", error), []).append(by_sdk)
                print(f"run {run + 1}: {error} {sdk['train step', error][-1]} {by_sdk}", flush=True)
    text = _TEXT.format(
        day=date.today().isoformat(),
        runs=options.runs,
        seconds=_SECONDS,
        version=TRAINER_VERSION,
        error=_ERROR,
        generations=_generations_table(times),
        sdk=_sdk_table(sdk, ""),
        failures=_sdk_table(sdk, _ERROR),
    )
    _PAGE.write_text(text, encoding="utf-8")
    print(text)


def _generations_table(times: Mapping[tuple[str, str], list[Times]]) -> str:
    rows = [
        [
            distribution_type,
            f"{distribution_type}Job" if operator == "training-operator" else "TrainJob",
            spread([run.before for run in runs]),
            spread([run.after for run in runs]),
            spread([run.total for run in runs]),
        ]
        for (distribution_type, operator), runs in times.items()
    ]
    return table(["type", "object", "until the job exists", "from its end to the return", "total"], rows)


def _sdk_table(runs: Mapping[tuple[str, str], list[tuple[Times, str]]], error: str) -> str:
    rows = []
    for (name, of_error), results in runs.items():
        if of_error == error:
            cells = [spread([times.after for times, _ in results]), spread([times.total for times, _ in results])]
            shown = {True: "yes", False: "no"}[all(error in text for _, text in results)]
            rows.append([name, *cells, *([shown] if error else [])])
    columns = ["", "from its end to the return", "total", *(["the error has the program's message"] if error else [])]
    return table(columns, rows)


def _request(bucket: str, image: str, distribution_type: str, operator: str, error: str) -> Request:
    number = uuid.uuid4().hex[:8]
    workers = 1 if distribution_type == "PyTorch" else 2
    keys = {"distribution_type": distribution_type, "number_of_workers": workers, "operator": operator}
    return Request(
        train_uri=f"s3://{bucket}/train_dataset",
        model_uri=f"s3://{bucket}/models/{number}",
        checkpoint_uri=f"s3://{bucket}/checkpoints",
        train_specification={"function": "fit", "source": _SOURCE, "image": image},
        train_parameters={"error": error},
        distribution_specification={**keys, **_TYPES[distribution_type][1]},
        identity=(number,),
    )


def _step(namespace: str, request: Request) -> tuple[Times, str]:
    """Run the step once. Return the times, and the cause of its failure; "" for none."""
    job, cause = plan_job(request), ""
    kind = f"{job.topology.distribution_type}Job"
    is_trainer = job.specification.operator == "trainer"
    life = JobLife(namespace, _TRAINJOBS if is_trainer else ("kubeflow.org/v1", f"{kind.lower()}s"), job.name)
    life.start()
    started = time.monotonic()
    try:
        launch(request, kubernetes_runner(connect(namespace), request.model_uri, log), lambda fact: None)
    except TrainingFailed as failure:
        cause = str(failure)
    return life.times(started, time.monotonic()), cause


def _sdk(namespace: str, python: Path, image: str, error: str) -> tuple[Times, str]:
    """Run the SDK once. Return the times, and the text of its exception; "" for none."""
    argv: list[str | Path] = [python, Path(__file__).parent / "sdk_trainer.py", namespace, image, str(_SECONDS), error]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        process.stdin.write("\n")
        process.stdin.flush()
        _, name, started = process.stdout.readline().split()
        life = JobLife(namespace, _TRAINJOBS, name, pods="jobset.sigs.k8s.io/jobset-name")
        life.start()
        _, ended, text = process.stdout.readline().rstrip("\n").split(" ", 2)
        return life.times(float(started), float(ended)), text


if __name__ == "__main__":
    main()
