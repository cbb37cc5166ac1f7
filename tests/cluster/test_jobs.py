"""`kfp-distributed jobs`, `watch`, `logs` and `cancel` on trainings of a real cluster."""

import os
import re
import signal
import subprocess
import sys
import uuid
from contextlib import contextmanager

import pytest
import yaml
from click.testing import CliRunner
from cluster.jobs import both_operators, left_behind
from cluster.test_launch import ALONE, function
from kubernetes import client
from process_hygiene import started
from train.programs.jobs import wait_until

from kfp_distributed.cli.main import main

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300), pytest.mark.takes(60)]

COMMAND = [sys.executable, "-m", "kfp_distributed.cli.main"]
TF = {"distribution_type": "TF", "number_of_workers": 2, "number_of_parameter_servers": 0, "restart_limit": 0}

# Trains until it is told how to end, by a file in the leader's pod.
TRAIN = """
import os, time
from pathlib import Path
name = os.environ["KFP_DISTRIBUTED_REPLICA"]
print(name, "begins")
end = Path("/tmp/end")
for epoch in range(1, 10_000):
    print(f"epoch {epoch}/10000 loss={1 / epoch:.4f}", flush=True)
    if end.exists() and end.read_text():
        if code := int(end.read_text()):
            raise SystemExit(code)
        break
    time.sleep(0.2)
"""


def run(*arguments):
    """Exit code and output of a command."""
    done = CliRunner().invoke(main, arguments)
    return done.exit_code, done.output.splitlines()


@contextmanager
def running(*arguments):
    with started(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        yield process


def wait_for(process, pattern):
    """Reads what a command prints up to a line; returns that line."""
    for line in process.stdout:
        if re.search(pattern, line):
            return line
    raise AssertionError(f"it ended with {process.wait()} before it printed {pattern!r}")


def end(step, code):
    """Has the replica that leads a step's job end with an exit code."""
    words = [
        "kubectl",
        "exec",
        "-n",
        step.namespace,
        step.pod_of("worker-0"),
        "--",
        "sh",
        "-c",
        f"echo {code} >/tmp/end",
    ]
    subprocess.run(words, check=True, capture_output=True)


@pytest.fixture
def training(start):
    step = start(function(TRAIN), TF)
    step.wait_for(r"\[worker-0\] epoch 3/")
    step.wait_for(r"\[worker-1\] epoch 3/")
    return step


PROGRESS = "custom-columns=NAME:.metadata.name,PROGRESS:.metadata.annotations.kfp-distributed/progress"
"""The columns of docs/how-to/kubectl.md."""


def progress_of(step):
    """Return the name and the progress of the job of a step, as kubectl shows them."""
    words = ["kubectl", "get", f"{step.kind.lower()}s", step.name, "-n", step.namespace, "--no-headers", "-o", PROGRESS]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.split(maxsplit=1)


@both_operators
def test_a_training_is_listed_watched_and_cancelled(training):
    step, namespace = training, ["--namespace", training.namespace]
    # A patch follows the one before it after ten seconds.
    shown = wait_until(lambda: re.match(r"epoch [2-9]\d+/10000 ", progress_of(step)[1]) and progress_of(step))
    line = r"epoch \d+/10000 \(0%\), ends about \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ, loss=0\.\d{4}\n"
    assert shown[0] == step.name
    assert re.fullmatch(line, shown[1]), shown
    code, lines = run("jobs", *namespace)
    row = next(line.split() for line in lines if line.startswith(step.name))
    assert (code, lines[0].split()) == (0, ["NAME", "TYPE", "STATE", "REPLICAS", "AGE", "TASK", "RUN"])
    assert (*row[:4], row[-1]) == (step.name, step.kind, "running", "2/2", step.request["identity"][0])

    code, lines = run("logs", step.name, *namespace, "--replica", "worker-1")
    assert code == 0
    assert lines[0].endswith("Z INFO worker-1 worker-1 begins")
    assert {line.split()[2] for line in lines} == {"worker-1"}
    assert {line.split()[2] for line in run("logs", step.name, *namespace)[1]} == {"worker-0", "worker-1"}
    assert run("logs", step.name, *namespace, "--replica", "ps-0") == (
        2,
        ["Error: --replica 'ps-0' is not one of the replicas: worker-0, worker-1"],
    )

    # Ctrl-C ends a command and not the training.
    for arguments, pattern in ((["logs", "--follow"], r" INFO worker-0 epoch "), (["watch"], r" INFO worker-1 epoch ")):
        with running(*arguments, step.name, *namespace) as process:
            wait_for(process, pattern)
            process.send_signal(signal.SIGINT)
            last = process.stdout.read().splitlines()[-1:]
            assert process.wait(120) == 130
    again = f"kfp-distributed watch {step.name} --namespace {step.namespace}"
    assert last == [f"Stopped watching. {step.name} continues; to watch it again: {again}"]
    step.wait_for(r"\[worker-0\] epoch ", after=len(step.lines))

    pods = {step.pod_of(f"worker-{index}") for index in range(2)}
    code, lines = run("cancel", step.name, *namespace)
    assert (code, lines[0]) == (0, f"deleted {step.kind} {step.namespace}/{step.name}")
    # A Job that is deleted a moment after its pods may have created others, which are awaited, too.
    assert {f"deleted Pod {step.namespace}/{pod}" for pod in pods} <= {*lines[1:]}
    assert all(line.startswith(f"deleted Pod {step.namespace}/{step.name}-worker-") for line in lines[1:])
    assert re.search(f"{step.kind} was deleted|deleted the {step.kind}", step.verdict()["cause"])
    assert left_behind(step) == []
    code, lines = run("watch", step.name, *namespace)
    assert code == 1
    assert lines[0].startswith(
        f"Error: there is no training {step.name!r} in namespace {step.namespace}; existing trainings: "
    )


_ROW = r"^worker-0 .* \d+/10000 +loss 0\.\d+ "


def _plain(text):
    """Return a terminal's text without its control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", text)


@pytest.mark.parametrize(("code", "outcome"), [(0, "succeeded"), (7, "failed")])
def test_watch_ends_with_the_training(training, code, outcome):
    """In a terminal, which `script` provides."""
    step = training
    words = " ".join([*COMMAND, "watch", step.name, "--namespace", step.namespace])
    with started(
        ["script", "--quiet", "--return", "--command", f"stty cols 130 rows 30; {words}", os.devnull],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        text = ""
        while not re.search(_ROW, text, re.MULTILINE):
            block = os.read(process.stdout.fileno(), 65536)
            assert block, text
            text += _plain(block.decode(errors="replace"))
        end(step, code)
        text += _plain(process.stdout.read())
        assert process.wait(120) == (1 if code else 0), text
    lines = [line for line in text.splitlines() if line.strip()]
    assert lines[-1] == f"{step.kind} {step.namespace}/{step.name} {outcome}."
    if code:
        assert f" ERROR job worker-0 failed with exit code {code}, " in text
    assert step.verdict()["succeeded"] == (code == 0)


@pytest.fixture
def limited(api, training_namespace, tmp_path, monkeypatch):
    """The account of the environment may list the jobs of the namespace, and nothing else."""
    name = f"kd-{uuid.uuid4().hex[:8]}"
    api.create_namespaced_service_account(training_namespace, {"metadata": {"name": name}})
    rule = {"apiGroups": ["kubeflow.org"], "resources": ["tfjobs"], "verbs": ["list", "get"]}
    rbac = client.RbacAuthorizationV1Api()
    rbac.create_namespaced_role(training_namespace, {"metadata": {"name": name}, "rules": [rule]})
    subject = {"kind": "ServiceAccount", "name": name}
    binding = {"metadata": {"name": name}, "roleRef": {"kind": "Role", "name": name}, "subjects": [subject]}
    rbac.create_namespaced_role_binding(training_namespace, binding)
    token = api.create_namespaced_service_account_token(name, training_namespace, {"spec": {}}).status.token
    with open(os.environ["KUBECONFIG"]) as file:  # noqa: PTH123
        config = yaml.safe_load(file)
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))


def test_permissions_that_the_account_lacks_are_named(start, request):
    training = start(function("import time\ntime.sleep(60)"), ALONE)
    training.wait_for("^created TFJob ")
    request.getfixturevalue("limited")
    namespace = ["--namespace", training.namespace]
    code, lines = run("jobs", *namespace)
    text = "\n".join(lines)
    assert code == 0
    assert re.search(r'Warning: jobs.batch is forbidden: .* cannot list resource "jobs" in API group "batch"', text)
    assert re.search(r"Warning: pods is forbidden", text)
    assert re.search(rf"^{training.name} +TFJob +\S+ +1 ", text, re.MULTILINE)
    error = f"Error: this account may not, in namespace {training.namespace}: "
    for command, missing in (
        (
            "watch",
            "watch tfjobs.kubeflow.org, get pods, list pods, watch pods, get pods/log, list events, watch events",
        ),
        ("cancel", "delete tfjobs.kubeflow.org, watch tfjobs.kubeflow.org, list pods, watch pods"),
    ):
        code, (line, *_) = run(command, training.name, *namespace)
        assert (code, line) == (
            1,
            f"{error}{missing}. Ask an administrator of the namespace for these permissions",
        )
