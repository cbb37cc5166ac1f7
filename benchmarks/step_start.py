"""Measure the start of a compiled `train` step in a pod: until its program begins, and until its job is created."""

import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from compiled import Run, executors, step_command
from kubernetes import client
from measure import spread, table, take_turns
from minio import Minio

from kfp_distributed.components import Delivery
from kfp_distributed.pipelines.specs import write_specs
from kfp_distributed.storage import credentials_from_environment

_REPOSITORY = Path(__file__).parents[1]
_ACCOUNT = "pipeline-runner"
_CREATION = "from the first line to the creation of the job"
_TIMEOUT_SECONDS = 600.0
"""A busy package index may take minutes."""

# Lines that the benchmark makes the container print, in addition to those of the library.
_CONTAINER_STARTED, _INSTALLED, _IMPORTED = "container started", "first pip ended", "step imported"
# The program of a step may start kfp's executor, which then imports the program as a module.
_FIRST_LINE = f"""
if __name__ != '__main__':
  from kfp_distributed.components.train.step import run_step
  print('{_IMPORTED}', flush=True)
"""
_MOMENTS = {
    "container": f"{_CONTAINER_STARTED}$",
    "installed": f"{_INSTALLED}$",
    "packages": "pip installs ",
    "packages installed": "pip installed ",
    "imported": f"{_IMPORTED}$",
    "created": r".*\bcreated Job \S+$",
}


class StepStart(NamedTuple):
    """Seconds of the start of one step.

    Attributes:
        pip: Runtime of pip.
        first_line: From the start of the container to the first line of the step.
        creation: From that line to the creation of the job.
    """

    pip: float
    first_line: float
    creation: float


def step_start_table(namespace: str, image: str, runs: int = 3) -> str:
    """Start a step with each delivery in turn.

    Args:
        namespace: A namespace with the object store's Secret. The bucket of the same name has the digits dataset.
        image: Image of the steps.
        runs: Number of starts with each delivery.

    Returns:
        A Markdown table of the medians.
    """
    core = client.CoreV1Api()
    core.create_namespaced_service_account(namespace, {"metadata": {"name": _ACCOUNT}})
    install = ["install", "--namespace", namespace, "--service-account", _ACCOUNT]
    subprocess.run([sys.executable, "-m", "kfp_distributed.cli.main", *install], check=True)

    def start(folder: Path, run: int) -> StepStart:
        return _start(core, namespace, _pod(folder, namespace, image))

    with tempfile.TemporaryDirectory() as scratch:
        folders = _compile(Path(scratch), namespace, image)
        starts = take_turns({delivery: partial(start, folder) for delivery, folder in folders.items()}, runs)
    rows = [[delivery, *_cells(measured)] for delivery, measured in starts.items()]
    return table(["delivery", "until the first line", "of which pip", "of which other time", _CREATION], rows)


def _compile(scratch: Path, namespace: str, image: str) -> dict[str, Path]:
    """Write the compiled files of each delivery; return their folders."""
    deliveries = {
        "image": Delivery.image(image),
        "package": Delivery.package(_upload(_wheel(scratch), namespace)),
        "namespace": Delivery.namespace(),
    }
    folders = {delivery: scratch / delivery for delivery in deliveries}
    for delivery, folder in folders.items():
        write_specs(folder, deliveries[delivery])
    return folders


def _wheel(scratch: Path) -> Path:
    """Build the wheel from a copy of this checkout, because setuptools would also pack the files of earlier builds."""
    source, folder = scratch / "source", scratch / "wheel"
    files = subprocess.run(["git", "ls-files", "-z"], cwd=_REPOSITORY, capture_output=True, text=True, check=True)
    for path in filter(None, files.stdout.split("\0")):
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(_REPOSITORY / path, source / path)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source)]
    subprocess.run(pip, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _upload(wheel: Path, bucket: str) -> str:
    """Upload a wheel and return its URL. The wheel is publicly readable, because the URL contains no credentials."""
    account = credentials_from_environment()
    store = Minio(account.endpoint, access_key=account.access_key, secret_key=account.secret_key, secure=account.secure)
    store.fput_object(bucket, wheel.name, str(wheel))
    resource = f"arn:aws:s3:::{bucket}/{wheel.name}"
    statement = {"Effect": "Allow", "Principal": {"AWS": ["*"]}, "Action": ["s3:GetObject"], "Resource": [resource]}
    store.set_bucket_policy(bucket, json.dumps({"Version": "2012-10-17", "Statement": [statement]}))
    return f"{'https' if account.secure else 'http'}://{account.endpoint}/{bucket}/{wheel.name}"


def _pod(specs: Path, namespace: str, image: str) -> dict[str, Any]:
    """Return a pod that runs the compiled `train` step like KFP's launcher. The replica of its job exits at once."""
    run = Run("/steps", str(uuid.uuid4()))
    parameters = {
        "train_specification": {"command": ["true"], "image": image},
        "distribution_specification": {"distribution_type": "Job"},
        "checkpoint_uri": f"s3://{namespace}/{run.run_id}/checkpoints",
    }
    command = step_command("train", run, parameters, {"train_dataset": f"s3://{namespace}/train_dataset"}, specs=specs)
    fields = {"KFP_POD_NAME": "metadata.name", "KFP_POD_UID": "metadata.uid"}
    container = {
        "name": "train",
        "image": executors(specs / "train.yaml")["train"]["image"],
        "command": _with_marks(command),
        "workingDir": "/steps",
        "env": [
            {"name": "HOME", "value": "/steps"},
            *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
        ],
        "volumeMounts": [{"name": "work", "mountPath": "/steps"}],
    }
    spec = {
        "serviceAccountName": _ACCOUNT,
        "restartPolicy": "Never",
        "securityContext": {"runAsUser": 1000, "fsGroup": 1000},
        "containers": [container],
        "volumes": [{"name": "work", "emptyDir": {}}],
    }
    return {"metadata": {"name": f"train-{run.run_id[:8]}"}, "spec": spec}


def _with_marks(command: Sequence[str]) -> list[str]:
    """Return the command of a step with an `echo` or `print` at each measured moment without a log line."""
    words = [*command]
    # With a package, pip installs the library before this command.
    words[2] = words[2].replace('"$0" "$@"', f'echo {_INSTALLED} && "$0" "$@"')
    words[2] = words[2].replace("\nprogram_path=", f"\necho {_INSTALLED}\nprogram_path=")
    program = words.index("--executor_input") - 1
    words[program] += _FIRST_LINE
    return ["sh", "-c", f'echo {_CONTAINER_STARTED}; exec "$@"', "sh", *words]


def _start(core: client.CoreV1Api, namespace: str, pod: Mapping[str, Any]) -> StepStart:
    """Start a pod, delete it after its job has been created, and wait until the job's pods are deleted.

    Raises:
        RuntimeError: The step did not create a job. The message has the end of its log.
    """
    name, deadline, log = pod["metadata"]["name"], time.monotonic() + _TIMEOUT_SECONDS, ""
    core.create_namespaced_pod(namespace, pod)
    while not re.search(f"^\\S+ {_MOMENTS['created']}", log, re.MULTILINE):
        status = core.read_namespaced_pod_status(name, namespace).status
        if status.phase == "Failed" or time.monotonic() > deadline:
            raise RuntimeError(f"pod {name} created no job. Last lines of its log:\n{log[-4000:]}")
        time.sleep(0.5)
        if status.phase != "Pending":
            log = core.read_namespaced_pod_log(name, namespace, timestamps=True)
    # The pod owns the job, so Kubernetes deletes the job too.
    core.delete_namespaced_pod(name, namespace, grace_period_seconds=0)
    while core.list_namespaced_pod(namespace).items:
        time.sleep(0.5)
    return read_start(log)


def read_start(log: str) -> StepStart:
    """Read the times of a start from a log with time stamps. If a line is repeated, the last one counts."""
    moments: dict[str, float] = {}
    for line in log.splitlines():
        stamp, _, text = line.partition(" ")
        for moment, pattern in _MOMENTS.items():
            if re.match(pattern, text):
                moments[moment] = _seconds(stamp)
    pip = moments.get("installed", moments["container"]) - moments["container"]
    pip += moments.get("packages installed", 0) - moments.get("packages", 0)
    return StepStart(pip, moments["imported"] - moments["container"], moments["created"] - moments["imported"])


def _seconds(stamp: str) -> float:
    """Convert a time stamp with up to nine decimals to seconds. All time stamps of a log have the same time zone."""
    moment = re.match(r"(.{19})(\.\d+)?", stamp)
    if not moment:
        raise ValueError(f"invalid time stamp of a log: {stamp!r}")
    return datetime.fromisoformat(moment[1]).timestamp() + float(moment[2] or 0)


def _cells(starts: Sequence[StepStart]) -> list[str]:
    pip, first_line, creation = (list(column) for column in zip(*starts, strict=True))
    rest = [start.first_line - start.pip for start in starts]
    share = statistics.median(start.pip / start.first_line for start in starts)
    of_pip = f"{spread(pip)}, {share:.0%}" if any(pip) else "none"
    return [spread(first_line), of_pip, spread(rest), spread(creation)]
