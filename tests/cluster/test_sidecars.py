"""Containers that a cluster adds to the pods, as a service mesh or Vault does.

A proxy of the API server adds them to the templates of the job, with which it works on any cluster.
"""

import pytest
from cluster.api_proxy import ApiProxy
from cluster.jobs import both_operators, left_behind
from cluster.test_failures import failed
from cluster.test_launch import ALONE, function
from cluster.test_mpi import MPI

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SLEEPS, FAILS = "trap exit TERM; sleep infinity & wait", "exit 1"


@pytest.fixture
def start_with_sidecar(api, tmp_path, request):
    """A function that starts a train step in whose pods a sidecar runs a shell command."""
    with ApiProxy(api.api_client.configuration) as proxy:
        start = request.getfixturevalue("start")  # Its steps end before the proxy.
        environment = {"KUBECONFIG": proxy.kubeconfig(tmp_path)}

        def start_one(sidecar, program, distribution, **request):
            proxy.admit = lambda created: inject(created, sidecar)
            step = start(program, distribution, environment=environment, **request)
            step.wait_for("created .*Job ")
            return step

        yield start_one


def inject(created, shell_command) -> None:
    """Add a sidecar as the first container of each pod template in an object."""
    for value in created.values():
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, dict):
                inject(part, shell_command)
    if "containers" in created:
        copied = ("image", "securityContext", "resources")
        common = {key: value for key, value in created["containers"][0].items() if key in copied}
        created["containers"].insert(0, {"name": "mesh", "command": ["sh", "-c", shell_command], **common})


def kinds_with(operator: str, distribution: dict) -> list[dict]:
    """Return the distribution, and that of a Job unless it is tested with another operator."""
    return [distribution] if operator == "trainer" else [{}, distribution]


def assert_succeeded(step, seconds: float = 60) -> None:
    verdict = step.verdict(seconds)
    assert verdict["succeeded"], step.log
    assert left_behind(step) == []


@both_operators
def test_a_sidecar_that_fails_does_not_fail_the_training(start_with_sidecar, operator):
    """With restart_limit 0. The operators fail the jobs for their sidecars."""
    program = function("import time\ntime.sleep(5)\nprint('trained', flush=True)")
    steps = [start_with_sidecar(FAILS, program, {**kind, "restart_limit": 0}) for kind in kinds_with(operator, ALONE)]
    for step in steps:
        step.wait_for("worker-0: sidecar mesh failed with exit code 1")
        step.wait_for(r"\[worker-0\] trained")
        assert_succeeded(step)


@pytest.mark.mpi("v1")  # The operator of v2beta1 mounts the keys of sshd in the first container of its template.
@pytest.mark.takes(60)
def test_sidecars_neither_fail_nor_hold_an_mpijob(start_with_sidecar, open_namespace, image_name):
    program, distribution = {**function(""), "image": image_name("horovod")}, {**MPI, "restart_limit": 0}
    for sidecar in (FAILS, SLEEPS):
        step = start_with_sidecar(sidecar, program, distribution, namespace=open_namespace)
        step.wait_for("launcher-0: succeeded")
        assert_succeeded(step)


DIES_ONCE = """\
import os
from pathlib import Path
from kfp_distributed.trainers.sync import flush
begun = Path(os.environ["KFP_DISTRIBUTED_CHECKPOINT_DIR"], "begun")
if not begun.exists():
    begun.write_text("")
    flush()
    os._exit(137)
print("starts again", flush=True)"""


@both_operators
@pytest.mark.takes(25)
def test_a_training_beside_a_sidecar_that_runs_for_ever_ends_or_restarts(start_with_sidecar, operator):
    program = function("import os; os._exit(3)")
    permanent = [start_with_sidecar(SLEEPS, program, kind) for kind in kinds_with(operator, ALONE)]
    killed = [
        start_with_sidecar(SLEEPS, function(DIES_ONCE), {**kind, "restart_limit": 1})
        for kind in kinds_with(operator, ALONE)
    ]
    for step in permanent:
        failed(step, "failed with exit code 3", since="failed .exit code 3", within=100)
    for step in killed:
        step.wait_for("^restart 1 of 1: .*worker-0")
        assert_succeeded(step, 120)
        assert "[worker-0] starts again" in step.log
