"""Faults of the API server while a training runs: no line is lost or repeated, and no object is left behind."""

import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from cluster.api_proxy import ApiProxy
from cluster.jobs import left_behind
from cluster.test_failures import TF, failed
from cluster.test_launch import ALONE, function

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

ROWS = 150

# The leader waits at the end, because lines that other workers print after the end of the leader are not read.
COUNTS = f"""\
import os, time
for row in range({ROWS}):
    print("row", row, flush=True)
    time.sleep(0.2)
if os.environ["KFP_DISTRIBUTED_REPLICA"] == "worker-0":
    time.sleep(20)"""


def inject_for(proxy, fault, seconds: float) -> None:
    with proxy.inject(fault):
        time.sleep(seconds)


def cut_streams(proxy) -> None:
    for _ in range(8):
        time.sleep(2)  # The step opens its streams again.
        assert proxy.cut_streams()


FAULTS = {
    "unreachable for 20 s": lambda proxy: inject_for(proxy, "unreachable", 20),
    "answers 500 for 10 s": lambda proxy: inject_for(proxy, 500, 10),
    "answers 429 for 10 s": lambda proxy: inject_for(proxy, 429, 10),
    "cuts all streams every 2 s": cut_streams,
    "watches have expired": lambda proxy: inject_for(proxy, "gone", 10),
}


@pytest.fixture
def proxies(api, tmp_path):
    """A function that creates proxies of the API server. Request it before `start`, so that they outlive the steps."""
    with ExitStack() as stack:

        def make() -> tuple[ApiProxy, dict[str, str]]:
            proxy = stack.enter_context(ApiProxy(api.api_client.configuration))
            return proxy, {"KUBECONFIG": proxy.kubeconfig(tmp_path)}

        yield make


@pytest.mark.takes(75)
def test_a_training_survives_every_fault_of_the_api_server(proxies, start):
    """Each line of each replica is logged once and in order. All trainings run at the same time, with own proxies.

    That whose streams are cut has two replicas, the others have one.
    """
    steps = {}
    for name in FAULTS:
        proxy, environment = proxies()
        distribution = TF if name.startswith("cuts") else ALONE
        steps[name] = proxy, start(function(COUNTS), distribution, environment=environment)

    def check(name: str) -> None:
        proxy, step = steps[name]
        workers = range(step.request["distribution_specification"]["number_of_workers"])
        for worker in workers:
            step.wait_for(rf"\[worker-{worker}\] row 10$", 300)
        FAULTS[name](proxy)
        assert proxy.requests or name.startswith("cuts"), f"{name}: no request during the fault"
        verdict = step.verdict(400)
        assert verdict["succeeded"], f"{name}:\n{step.log}"
        for worker in workers:
            lines = [text for _, text in step.lines if text.startswith(f"[worker-{worker}] row ")]
            assert lines == [f"[worker-{worker}] row {row}" for row in range(ROWS)], f"{name}:\n{step.log}"
        assert left_behind(step) == [], name

    with ThreadPoolExecutor(len(steps)) as pool:
        for result in [pool.submit(check, name) for name in FAULTS]:
            result.result()


@pytest.mark.takes(110)
def test_a_training_survives_an_outage_of_the_api_server_longer_than_launcher_lost_timeout(proxies, start):
    proxy, environment = proxies()
    program = function("import time\nprint('begun', flush=True)\ntime.sleep(90)\nprint('done')")
    step = start(program, {"launcher_lost_timeout": 60}, environment=environment)
    step.wait_for(r"\[worker-0\] begun")
    inject_for(proxy, "unreachable", 75)
    verdict = step.verdict(400)
    assert verdict["succeeded"], step.log
    assert "restart" not in step.log
    assert "[worker-0] done" in step.log
    assert left_behind(step) == []


@pytest.mark.takes(60)
def test_a_step_is_refused_if_the_api_server_is_unreachable_for_a_minute(proxies, start):
    proxy, environment = proxies()
    with proxy.inject("unreachable"):
        start_time = time.monotonic()
        cause = failed(start(function(""), TF, environment=environment))
        assert 50 < time.monotonic() - start_time < 400
    assert re.match(r"refused: the API server http://127\.0\.0\.1:\d+ ", cause)


def test_a_step_that_is_cancelled_while_the_api_server_is_unreachable_deletes_its_job(proxies, start):
    """The DELETE is retried until the server responds, as long as the step is not killed."""
    proxy, environment = proxies()
    step = start(function("import time\nprint('begun', flush=True)\ntime.sleep(300)"), environment=environment)
    step.wait_for(r"\[worker-0\] begun")
    with proxy.inject("unreachable"):
        step.process.send_signal(signal.SIGTERM)
        time.sleep(10)  # The step retries the DELETE meanwhile.
        assert step.process.poll() is None
        assert left_behind(step, 0) != []
    step.process.wait(120)
    assert left_behind(step) == []


@pytest.mark.parametrize(
    ("operator", "moment"),
    [
        ("training-operator", r"POST .*/configmaps$"),
        ("training-operator", r"POST .*/tfjobs$"),
        pytest.param("trainer", r"POST .*/trainingruntimes$", marks=pytest.mark.trainer),
        pytest.param("trainer", r"POST .*/trainjobs$", marks=pytest.mark.trainer),
        pytest.param("trainer", r"PATCH .*/trainingruntimes/", marks=pytest.mark.trainer),
    ],
    indirect=["operator"],
    ids=["before the job", "creating", "trainer runtime", "trainer creating", "trainer owning"],
)
def test_a_step_that_is_cancelled_while_it_creates_its_job_leaves_nothing(proxies, start, moment):
    """SIGTERM arrives while the step waits for the response to one of its first requests."""
    proxy, environment = proxies()
    cancelled, steps = threading.Event(), []

    def cancel(request: str) -> None:
        if re.match(moment, request) and not cancelled.is_set():
            cancelled.set()
            steps[0].process.send_signal(signal.SIGTERM)
            time.sleep(0.3)  # The signal arrives before the response.

    proxy.watch = cancel
    steps.append(start(function("import time\ntime.sleep(300)"), ALONE, environment=environment))
    steps[0].process.wait(200)
    assert cancelled.is_set(), steps[0].log
    # The server may still execute a request. A pod whose program is just starting takes 30 s to end.
    time.sleep(2)
    assert left_behind(steps[0], 120) == []
