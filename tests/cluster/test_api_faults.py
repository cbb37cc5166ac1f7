"""An API server that goes wrong while a training runs: nothing is lost, doubled or left behind."""

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
from cluster.test_launch import function

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

ROWS = 150

# Worker 0, whose end is the job's end, waits: what a worker that is still at work then prints is lost by intention.
COUNTS = f"""\
import json, os, time
for row in range({ROWS}):
    print("row", row, flush=True)
    time.sleep(0.2)
if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0:
    time.sleep(20)"""


def goes_wrong_for(proxy, fault, seconds: float) -> None:
    with proxy.going_wrong(fault):
        time.sleep(seconds)


def streams_are_cut(proxy) -> None:
    for _ in range(8):
        time.sleep(2)
        assert proxy.cut_streams()


FAULTS = {
    "unreachable for 20 s": lambda proxy: goes_wrong_for(proxy, "unreachable", 20),
    "answers 500 for 10 s": lambda proxy: goes_wrong_for(proxy, 500, 10),
    "answers 429 for 10 s": lambda proxy: goes_wrong_for(proxy, 429, 10),
    "cuts all streams every 2 s": streams_are_cut,
    "watches have expired": lambda proxy: goes_wrong_for(proxy, "gone", 10),
}


@pytest.fixture
def proxies(api, tmp_path):
    """Makes proxies in front of the cluster's API server; named before `start`, for they have to outlive the steps."""
    with ExitStack() as stack:

        def make() -> tuple[ApiProxy, dict[str, str]]:
            proxy = stack.enter_context(ApiProxy(api.api_client.configuration))
            return proxy, {"KUBECONFIG": proxy.kubeconfig(tmp_path)}

        yield make


@pytest.mark.takes(75)
def test_a_training_outlasts_every_fault_of_the_api_server(proxies, start):
    """Side by side, each through a proxy of its own: each line of each replica is told once and in order."""
    steps = {}
    for name in FAULTS:
        proxy, environment = proxies()
        steps[name] = proxy, start(function(COUNTS), TF, environment=environment)

    def look(name: str) -> None:
        proxy, step = steps[name]
        for worker in (0, 1):
            step.wait_for(rf"\[worker-{worker}\] row 10$", 200)
        FAULTS[name](proxy)
        assert proxy.requests or name.startswith("cuts"), f"{name}: nobody has felt it"
        verdict = step.verdict(200)
        assert verdict["succeeded"], f"{name}:\n{step.log}"
        for worker in (0, 1):
            told = [text for _, text in step.lines if text.startswith(f"[worker-{worker}] row ")]
            assert told == [f"[worker-{worker}] row {row}" for row in range(ROWS)], f"{name}:\n{step.log}"
        assert left_behind(step) == [], name

    with ThreadPoolExecutor(len(steps)) as pool:
        for found in [pool.submit(look, name) for name in FAULTS]:
            found.result()


@pytest.mark.takes(110)
def test_a_training_outlasts_an_outage_of_the_api_server_longer_than_launcher_lost_timeout(proxies, start):
    proxy, environment = proxies()
    program = function("import time\nprint('begun', flush=True)\ntime.sleep(100)\nprint('done')")
    step = start(program, {**TF, "launcher_lost_timeout": 60}, environment=environment)
    step.wait_for(r"\[worker-0\] begun")
    goes_wrong_for(proxy, "unreachable", 85)
    verdict = step.verdict(200)
    assert verdict["succeeded"], step.log
    assert "restart" not in step.log
    assert "[worker-0] done" in step.log
    assert left_behind(step) == []


@pytest.mark.takes(60)
def test_no_api_server_at_the_start(proxies, start):
    proxy, environment = proxies()
    with proxy.going_wrong("unreachable"):
        begun = time.monotonic()
        cause = failed(start(function(""), TF, environment=environment), "does not answer")
        assert 50 < time.monotonic() - begun < 120
    assert re.match(r"refused: the API server http://127\.0\.0\.1:\d+ does not answer", cause)


def test_a_step_that_is_cancelled_while_the_api_server_is_away(proxies, start):
    """The DELETE is sent again until the server is back, as far as the step is left alive."""
    proxy, environment = proxies()
    step = start(function("import time\nprint('begun', flush=True)\ntime.sleep(300)"), TF, environment=environment)
    step.wait_for(r"\[worker-0\] begun")
    with proxy.going_wrong("unreachable"):
        step.process.send_signal(signal.SIGTERM)
        time.sleep(10)
        assert step.process.poll() is None
        assert left_behind(step, 0) != []
    step.process.wait(30)
    assert left_behind(step) == []


@pytest.mark.parametrize(
    "moment",
    [r"GET /apis/", r"POST .*/configmaps$", r"POST .*/tfjobs$", r"GET .*/tfjobs\?"],
    ids=["first look", "before the job", "creating", "created"],
)
def test_a_step_that_is_cancelled_around_the_creation_of_its_job(proxies, start, moment):
    """SIGTERM comes while the step waits for the answer to one of its first requests."""
    proxy, environment = proxies()
    seen, steps = threading.Event(), []

    def cancel(request: str) -> None:
        if re.match(moment, request) and not seen.is_set():
            seen.set()
            steps[0].process.send_signal(signal.SIGTERM)
            time.sleep(0.3)

    proxy.watch = cancel
    steps.append(start(function("import time\ntime.sleep(300)"), TF, environment=environment))
    steps[0].process.wait(60)
    assert seen.is_set(), steps[0].log
    # What the server still had in hand is there a moment later. A pod whose program is just starting takes 30 s to go.
    time.sleep(2)
    assert left_behind(steps[0], 45) == []
